//! How a transaction enters its key and leaves it: which statement, with which values, and what its answer means. Owns the
//! transaction while it does; one that may not execute is rolled back before anybody is told so.

use std::ops::Deref;

use semel_store::postgres::once::{
    ENTER, ENTER_NEW, EnterArguments, Entry, LEAVE, LEAVE_NEW, LeaveArguments, NewKey, print,
};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::transaction::{NotCommitted, TopLevel, Typed};
use crate::step::Step;

/// A transaction that has entered its key, and holds it until it ends.
#[derive(Debug)]
pub struct Entered<T> {
    pub(super) tx: T,
    /// The key, where nobody knew it: it is left as it was entered.
    new: Option<NewKey>,
}

impl<T> Deref for Entered<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.tx
    }
}

/// Whether a transaction holds its key now. Where it does not, it is rolled back.
pub(super) enum Turn<T> {
    Entered(Entered<T>),
    /// Another transaction holds it.
    Busy,
    /// It was asked for as new, and is not.
    NotNew,
    /// Its record says what there is.
    Known,
}

/// What a transaction enters with.
pub(super) enum Entrance {
    /// The key of a moment ago nobody knew.
    New { key: NewKey, rotation: Option<Vec<u8>> },
    /// Any key: the function that knows every case.
    Any(EnterArguments),
}

impl Entrance {
    pub(super) fn new(key: NewKey) -> Self {
        let rotation = key.request.rotation.map(Vec::from);
        Self::New { key, rotation }
    }

    pub(super) fn sql(&self) -> &'static str {
        match self {
            Self::New { .. } => ENTER_NEW,
            Self::Any(_) => ENTER,
        }
    }

    pub(super) fn values(&self) -> Vec<Typed<'_>> {
        match self {
            Self::New { key, rotation } => {
                vec![(&key.id, Type::BYTEA), (rotation, Type::BYTEA), (&key.hold, Type::TEXT)]
            }
            Self::Any(EnterArguments { id, scope, key, fingerprints, about, options }) => vec![
                (id, Type::BYTEA),
                (scope, Type::BYTEA),
                (key, Type::TEXT),
                (fingerprints, Type::BYTEA_ARRAY),
                (about, Type::TEXT),
                (options, Type::TEXT),
            ],
        }
    }

    /// Reads what the server told a transaction.
    pub(super) async fn turn<T: TopLevel>(self, tx: T, told: &[Row]) -> Turn<T> {
        let told = told.first();
        let (new, entry) = match self {
            Self::New { key, .. } if told.is_some_and(|row| row.get(0)) => (Some(key), Entry::Execute),
            Self::New { .. } => {
                tx.rollback().await;
                return Turn::NotNew;
            }
            Self::Any(_) => (None, told.map_or(Entry::Known, |row| Entry::read(row.get(0)))),
        };
        match entry {
            Entry::Execute => {
                Step::Entered.reached();
                Turn::Entered(Entered { tx, new })
            }
            Entry::InFlight => {
                tx.rollback().await;
                Turn::Busy
            }
            Entry::Known => {
                tx.rollback().await;
                Turn::Known
            }
        }
    }
}

/// Writes the answer's record into the transaction, by the function that belongs to how it entered, and commits.
pub(super) async fn leave<T: TopLevel>(
    Entered { tx, new }: Entered<T>,
    answer: LeaveArguments,
) -> Result<(), NotCommitted> {
    let LeaveArguments { id, status, headers, body } = answer;
    let Some(new) = new else {
        let values: [Typed<'_>; 4] =
            [(&id, Type::BYTEA), (&status, Type::INT4), (&headers, Type::BYTEA), (&body, Type::BYTEA)];
        return tx.leave(LEAVE, &values).await;
    };
    let (request, about) = (&new.request, &new.request.about);
    let (scope, key) = (request.id.scope.as_bytes().as_slice(), request.id.key.as_str());
    let fingerprint = request.fingerprint.as_ref().map(print);
    let generated_at = about.client_generated_at.map(|at| at.millis());
    let payload_hash = request.payload_hash.as_ref().map(<[u8; 32]>::as_slice);
    let rotation = request.rotation.as_ref().map(<[u8; 16]>::as_slice);
    let nonce = request.nonce.cast_signed();
    let values: [Typed<'_>; 19] = [
        (&id, Type::BYTEA),
        (&scope, Type::BYTEA),
        (&key, Type::TEXT),
        (&fingerprint, Type::BYTEA),
        (&about.endpoint, Type::TEXT),
        (&about.tenant, Type::TEXT),
        (&about.principal, Type::TEXT),
        (&about.request_id, Type::TEXT),
        (&generated_at, Type::INT8),
        (&payload_hash, Type::BYTEA),
        (&new.request_headers, Type::BYTEA),
        (&rotation, Type::BYTEA),
        (&nonce, Type::INT8),
        (&new.lifetime, Type::INT8),
        (&new.is_from_creation, Type::BOOL),
        (&new.max_response_bytes, Type::INT4),
        (&status, Type::INT4),
        (&headers, Type::BYTEA),
        (&body, Type::BYTEA),
    ];
    tx.leave(LEAVE_NEW, &values).await
}

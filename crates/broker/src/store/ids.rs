//! What is known of an id: one row, by its primary key. The same table holds committed and sealed ids, so that of a publish
//! and a seal exactly one wins.

use semel_contract::fingerprint::{Fingerprint, Version};
use semel_contract::hex::hex;
use semel_delivery::relay::store::sql::{Row, StoreError};

use super::{Store, time};
use crate::event_id::EventId;
use crate::identity::Caller;
use crate::published::{Published, Receipt};

/// What is known of an id.
#[derive(Clone, Debug)]
pub(crate) struct KnownId {
    pub(crate) kind: IdKind,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) sender: String,
    pub(crate) line: i64,
    pub(crate) number: i64,
    pub(crate) receipt: Receipt,
}

/// What an id was used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdKind {
    /// For a message.
    Committed,
    /// It was cancelled before it was used.
    Sealed,
}

/// What a seal found.
#[derive(Clone, Debug)]
pub(crate) enum Seal {
    /// The id is cancelled, now or before.
    Sealed,
    /// A message has it.
    Committed(Box<KnownId>),
}

pub(crate) const LOOK_UP: &str = "SELECT kind, request_fingerprint, fingerprint_version, sender, client_message_id, \
    broker_message_id, epoch, number, first_seen_at, history_available, line \
    FROM client_message_dedupe WHERE mesh_id = $1 AND client_message_id = $2";

pub(crate) fn known_of(row: &Row) -> Result<KnownId, StoreError> {
    let bad = |what: &str| StoreError::Failed(format!("a row of an id has a bad {what}"));
    let bytes: [u8; 32] = row.bytes(1)?.try_into().map_err(|_| bad("fingerprint"))?;
    let version = u8::try_from(row.int(2)?).ok().and_then(Version::from_byte);
    let kind = match row.text(0)?.as_str() {
        "committed" => IdKind::Committed,
        "sealed" => IdKind::Sealed,
        _ => return Err(bad("kind")),
    };
    let broker_message_id = row.text(5)?;
    let history_id = EventId::of(row.int(6)?, row.int(7)?, &broker_message_id);
    Ok(KnownId {
        kind,
        fingerprint: Fingerprint { version: version.ok_or_else(|| bad("version"))?, bytes },
        sender: row.text(3)?,
        line: row.int(10)?,
        number: history_id.number,
        receipt: Receipt {
            client_message_id: row.text(4)?,
            broker_message_id,
            history_id,
            first_seen_at: row.int(8)?,
            history_available: row.int(9)? != 0,
        },
    })
}

impl KnownId {
    /// What a sender is told who publishes under this id.
    pub(crate) fn judge(&self, sender: &str, fingerprint: &Fingerprint) -> Published {
        if self.kind == IdKind::Sealed {
            return Published::Sealed;
        }
        // The sender is part of the fingerprint; asked again, so that no receipt reaches anybody else.
        if self.sender == sender && self.fingerprint.same(fingerprint) {
            return Published::Duplicate(self.receipt.clone());
        }
        let is_own = self.sender == sender;
        Published::Reused {
            fingerprint: hex(&self.fingerprint.bytes[..8]),
            broker_message_id: is_own.then(|| self.receipt.broker_message_id.clone()),
        }
    }
}

impl Store {
    /// What is known of an id, by one look-up.
    ///
    /// Before, after, crash: nothing is changed.
    pub(crate) async fn look_up(&self, mesh: &str, id: &str) -> Result<Option<KnownId>, StoreError> {
        let rows = self.read(LOOK_UP, vec![mesh.into(), id.into()]).await?;
        rows.first().map(known_of).transpose()
    }

    /// Cancels an id, or finds what has it.
    ///
    /// Before: nothing is assumed. After `Sealed`: no message ever gets this id, as long as it is remembered. Crash: it is
    /// sealed or not; asked again, it says so.
    pub(crate) async fn seal(&self, caller: &Caller, id: &str, retention: i64) -> Result<Seal, StoreError> {
        let mut tx = self.db.begin().await?;
        let now = time(&mut tx).await?;
        let sql = "INSERT INTO client_message_dedupe (mesh_id, client_message_id, kind, broker_message_id, \
            request_fingerprint, fingerprint_version, sender, destination_kind, destination_ref, line, number, epoch, \
            first_seen_at, expires_at) VALUES ($1, $2, 'sealed', '', $3, 1, $4, '', '', 0, 0, 0, $5, $6) \
            ON CONFLICT (mesh_id, client_message_id) DO NOTHING RETURNING line";
        let args = vec![
            (&caller.mesh).into(),
            id.into(),
            vec![0; 32].into(),
            (&caller.member).into(),
            now.into(),
            now.saturating_add(retention).into(),
        ];
        if !tx.run(sql, args).await?.is_empty() {
            tx.commit().await?;
            return Ok(Seal::Sealed);
        }
        let rows = tx.run(LOOK_UP, vec![(&caller.mesh).into(), id.into()]).await?;
        let known = rows.first().map(known_of).transpose()?;
        match known {
            Some(known) if known.kind == IdKind::Sealed => Ok(Seal::Sealed),
            Some(known) => Ok(Seal::Committed(Box::new(known))),
            None => Err(StoreError::Failed("the id was swept just now".to_owned())),
        }
    }
}

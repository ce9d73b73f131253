//! A handler's own transaction, in Rust: the statements by which it enters and leaves its key, their arguments, and what
//! became of it when its commit was not acknowledged. The functions themselves are SQL (`docs/reference/sql.md`), the same
//! for every language. Never opens or ends a transaction of a handler.

use std::sync::Arc;
use std::time::Duration;

use semel_contract::decide::Claim;
use semel_contract::fingerprint::Fingerprint;
use semel_contract::hex::hex;
use semel_contract::profile::Anchor;
use semel_contract::record::{Fence, State};
use semel_contract::scope::Scope;
use serde_json::{Value as Json, json};

use super::link::PgFailure;
use super::replace::TRY_LOCK;
use super::rows::{lock_number, pack, span};
use super::{Core, PostgresStore};
use crate::claims::{About, Answer, ClaimRequest, Id, StoreError, is_reserved, is_same_attempt};

/// Enters a key: the first write of the transaction.
pub const ENTER: &str = "SELECT verdict FROM semel.enter(
    $1::bytea, $2::bytea, $3::text, $4::bytea[], $5::text::jsonb, $6::text::jsonb)";
/// Leaves it, with the answer.
pub const LEAVE: &str = "SELECT verdict FROM semel.leave($1::bytea, $2::integer, $3::bytea, $4::bytea)";
/// Enters a key that nobody knows: the same at half the cost.
pub const ENTER_NEW: &str = "SELECT semel.enter_new($1::bytea, $2::bytea, $3::text)";
/// Leaves a key that was entered so, with what is kept of the request and with the answer.
pub const LEAVE_NEW: &str = "SELECT semel.leave_new(
    $1::bytea, $2::bytea, $3::text, $4::bytea, $5::text, $6::text, $7::text, $8::text, $9::bigint, $10::bytea, $11::bytea,
    $12::bytea, $13::bigint, $14::bigint, $15::boolean, $16::integer, $17::integer, $18::bytea, $19::bytea)";
/// Whether the transaction that a connection is in has entered a key.
pub const IS_ENTERED: &str = "SELECT coalesce(current_setting('semel.entered', true), '') <> ''";
/// Looks at a key without a transaction.
const LOOK: &str = "SELECT verdict FROM semel.look($1::bytea, $2::bytea, $3::text, NULL, '{}')";

/// How long a holder may do nothing inside its transaction.
const HOLD: Duration = Duration::from_secs(30);
/// The first pause between two looks at a key that another transaction holds; it doubles.
pub const PAUSE_FIRST: Duration = Duration::from_millis(10);
/// The longest such pause.
pub const PAUSE_LONGEST: Duration = Duration::from_millis(250);
/// How long an orphaned transaction is waited for: longer than the server lets it do nothing.
const ORPHANED_MAX: Duration = Duration::from_secs(35);

/// Whether an error of leaving says that the connection was not in the transaction that entered the key: what was written last
/// may stand. A savepoint that is still open is in it.
pub fn says_outside(code: &str, message: &str) -> bool {
    code == "SM003" && !message.contains("inside a savepoint")
}

/// What became of a handler's commit whose reply was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was committed.
    Committed,
    /// It was not, and will not be.
    NotCommitted,
}

/// A name under which the key may be known beside its present one.
#[derive(Clone, Debug)]
pub struct Former {
    /// The scope under that name, where it is another.
    pub scope: Option<Scope>,
    /// The fingerprints under that name.
    pub fingerprints: Vec<Fingerprint>,
    /// The mark of rotation under that name.
    pub rotation: Option<[u8; 16]>,
}

/// What [`ENTER`] is called with, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnterArguments {
    /// The id.
    pub id: Vec<u8>,
    /// The scope.
    pub scope: Vec<u8>,
    /// The key.
    pub key: String,
    /// The fingerprints.
    pub fingerprints: Vec<Vec<u8>>,
    /// What is written down about the request, as JSON.
    pub about: String,
    /// Everything else, as JSON.
    pub options: String,
}

/// A new key: what [`ENTER_NEW`] and [`LEAVE_NEW`] are called with, but for the answer.
#[derive(Clone, Debug)]
pub struct NewKey {
    /// The id.
    pub id: Vec<u8>,
    /// How long its transaction may do nothing, in milliseconds.
    pub hold: String,
    /// How long the record lives, in milliseconds.
    pub lifetime: i64,
    /// Whether it lives from its creation on, not from its settlement.
    pub is_from_creation: bool,
    /// How large an answer may be.
    pub max_response_bytes: i32,
    /// What is kept of the request's headers, packed.
    pub request_headers: Vec<u8>,
    /// The request.
    pub request: Arc<ClaimRequest>,
}

/// How long a record lives and how much is kept where the route says nothing: as the functions have it.
const LIFETIME_MS: i64 = 90_600_000;
const RESPONSE_BYTES_MAX: i32 = 1 << 20;

impl NewKey {
    fn new(request: Arc<ClaimRequest>) -> Self {
        let terms = request.terms.as_ref();
        Self {
            id: request.id.hash().to_vec(),
            request_headers: pack(&request.about.headers),
            hold: HOLD.as_millis().to_string(),
            lifetime: terms.map_or(LIFETIME_MS, |terms| span(terms.lifetime.record()).max(1)),
            is_from_creation: terms.is_some_and(|terms| terms.lifetime.anchor == Anchor::Created),
            max_response_bytes: terms.map_or(RESPONSE_BYTES_MAX, |terms| {
                i32::try_from(terms.max_response_bytes).unwrap_or(i32::MAX)
            }),
            request,
        }
    }
}

/// What [`LEAVE`] is called with, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaveArguments {
    /// The id.
    pub id: Vec<u8>,
    /// The status.
    pub status: i32,
    /// The headers, packed.
    pub headers: Vec<u8>,
    /// The body.
    pub body: Vec<u8>,
}

impl LeaveArguments {
    /// Those of an answer.
    pub fn new(id: &Id, answer: &Answer) -> Self {
        Self {
            id: id.hash().to_vec(),
            status: answer.status.into(),
            headers: pack(&answer.headers),
            body: answer.body.to_vec(),
        }
    }
}

/// What a transaction is told that enters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The key is held until the transaction ends: run, and leave.
    Execute,
    /// Another transaction holds it: roll back, wait and enter again.
    InFlight,
    /// It is known: roll back, and decide by its record.
    Known,
}

impl Entry {
    /// Reads a verdict of `semel.enter`.
    pub fn read(verdict: &str) -> Self {
        match verdict {
            "execute" => Entry::Execute,
            "in-flight" => Entry::InFlight,
            _ => Entry::Known,
        }
    }
}

/// A fingerprint as the functions take it.
pub fn print(of: &Fingerprint) -> Vec<u8> {
    [&[of.version as u8][..], &of.bytes].concat()
}

fn about(of: &About, payload_hash: Option<&[u8; 32]>) -> String {
    let mut about = json!({
        "endpoint": of.endpoint,
        "principal": of.principal,
        "request_id": of.request_id,
    });
    let mut add = |name: &str, value: Option<Json>| {
        if let (Some(value), Json::Object(members)) = (value, &mut about) {
            members.insert(name.to_owned(), value);
        }
    };
    add("tenant", of.tenant.clone().map(Json::from));
    add("client_generated_at", of.client_generated_at.map(|at| at.millis().into()));
    add("headers", (!of.headers.is_empty()).then(|| hex(&pack(&of.headers)).into()));
    add("payload_hash", payload_hash.map(|hash| hex(hash).into()));
    about.to_string()
}

fn options(request: &ClaimRequest, formers: &[Former]) -> String {
    let hold = u64::try_from(HOLD.as_millis()).unwrap_or(u64::MAX);
    let mut options = json!({
        "hold_ms": hold,
        "nonce": request.nonce.cast_signed(),
        "releases": [],
    });
    let Json::Object(members) = &mut options else { unreachable!("an object was made") };
    if let Some(terms) = &request.terms {
        let lifetime = span(terms.lifetime.record()).max(1);
        members.insert("lifetime_ms".to_owned(), lifetime.into());
        members.insert("max_response_bytes".to_owned(), terms.max_response_bytes.into());
        if terms.lifetime.anchor == Anchor::Created {
            members.insert("anchor".to_owned(), "created".into());
        }
    }
    if let Some(rotation) = request.rotation {
        members.insert("rotation".to_owned(), hex(&rotation).into());
    }
    if !formers.is_empty() {
        let scope = |former: &Former| former.scope.unwrap_or(request.id.scope);
        let prints =
            |former: &Former| former.fingerprints.iter().map(|of| hex(&print(of))).collect::<Vec<_>>();
        let formers = formers.iter().map(|former| {
            let mut told = json!({"scope": hex(scope(former).as_bytes()), "fingerprints": prints(former)});
            if let (Some(mark), Json::Object(told)) = (former.rotation, &mut told) {
                told.insert("rotation".to_owned(), hex(&mark).into());
            }
            told
        });
        members.insert("formers".to_owned(), formers.collect());
    }
    options.to_string()
}

impl PostgresStore {
    /// What a handler's transaction enters with; `None` where it no longer holds its key. A claim that is on record is
    /// entered by its fence, and leaving it settles it.
    pub fn enter_arguments(&self, id: &Id, fence: Fence, formers: &[Former]) -> Option<EnterArguments> {
        let of = |fingerprints, about, options| EnterArguments {
            id: id.hash().to_vec(),
            scope: id.scope.as_bytes().to_vec(),
            key: id.key.as_str().to_owned(),
            fingerprints,
            about,
            options,
        };
        if !is_reserved(fence) {
            let options = json!({"fence": fence.to_string(), "releases": []});
            return Some(of(Vec::new(), about(&About::default(), None), options.to_string()));
        }
        let request = self.core.reservations.claim_request(id, fence)?;
        let prints = request.fingerprint.iter().map(print).collect();
        Some(of(prints, about(&request.about, request.payload_hash.as_ref()), options(&request, formers)))
    }

    /// What a transaction enters and leaves with that runs a key which nobody knew a moment ago; `None` where something
    /// about it is out of the ordinary.
    pub fn new_key(&self, id: &Id, fence: Fence) -> Option<NewKey> {
        let request =
            is_reserved(fence).then(|| self.core.reservations.claim_request(id, fence)).flatten()?;
        (request.how == Claim::New).then(|| NewKey::new(request))
    }

    /// Whether another transaction holds this key now.
    ///
    /// # Errors
    /// The store cannot be reached.
    pub async fn is_entered(&self, id: &Id) -> Result<bool, StoreError> {
        let (hash, scope, key) = (id.hash(), id.scope, id.key.as_str());
        let values: [super::link::Value<'_>; 3] = [&hash.as_slice(), &scope.as_bytes().as_slice(), &key];
        let rows = self.core.link.query(LOOK, &values).await.map_err(PgFailure::of_read)?;
        Ok(rows.first().is_some_and(|row| row.get::<_, &str>(0) == "in-flight"))
    }

    /// What became of a handler's transaction that left this key and whose commit was not acknowledged. Waits until the
    /// orphaned transaction has ended, which its lock tells, and never writes anything itself: a record without its effect
    /// would be a lie.
    ///
    /// # Errors
    /// The store cannot be reached, or the orphan does not end in time.
    pub async fn fate(&self, id: &Id, fence: Fence) -> Result<Fate, StoreError> {
        let until = tokio::time::Instant::now() + ORPHANED_MAX;
        let mut pause = PAUSE_FIRST;
        while !has_ended(&self.core, id).await.map_err(PgFailure::of_read)? {
            if tokio::time::Instant::now() >= until {
                let why = "a transaction whose commit was not acknowledged does not end";
                return Err(StoreError::Unavailable(why.to_owned()));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_LONGEST);
        }
        let (entry, _) = self.core.look_up(id).await?;
        let own = entry.filter(|entry| is_same_attempt(entry.record.fence, fence));
        Ok(match own.map(|entry| entry.record.state) {
            Some(State::Settled | State::Unkept) => Fate::Committed,
            Some(State::Claimed | State::Released | State::Unknown | State::Sealed) | None => {
                Fate::NotCommitted
            }
        })
    }
}

/// Whether no transaction holds the key.
async fn has_ended(core: &Core, id: &Id) -> Result<bool, PgFailure> {
    let rows = core.link.query(TRY_LOCK, &[&lock_number(&id.hash())]).await?;
    Ok(rows.first().is_some_and(|row| row.get(0)))
}

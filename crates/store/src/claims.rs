//! The claim store: who may execute a key, and what came of it. Every method says what holds before it, after it, and
//! after a crash. A backend that keeps these words passes [`crate::conformance`].

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use semel_contract::decide::{Claim, Standing};
use semel_contract::fingerprint::Fingerprint;
use semel_contract::key::Key;
use semel_contract::profile::Lifetime;
use semel_contract::record::{Fence, Guarantee, Record, State};
use semel_contract::restore::Restore;
use semel_contract::scope::Scope;
use semel_contract::time::Timestamp;
use sha2::{Digest, Sha256};

use crate::forms::{Form, Forms};
use crate::hints::Hints;

/// What a store answers, in time.
pub type Reply<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Why a store did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// It cannot be reached, or is not ready. Nothing was written.
    Unavailable(String),
    /// The write may or may not have been committed. The same call, made again, tells: a claim by its nonce, a
    /// settlement by its fence.
    Unknown(String),
    /// There is no room. Nothing was written.
    Full(String),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Unavailable(why) => write!(f, "the store cannot be reached: {why}"),
            StoreError::Unknown(why) => write!(f, "it is not known whether the store committed: {why}"),
            StoreError::Full(why) => write!(f, "the store is full: {why}"),
        }
    }
}

impl std::error::Error for StoreError {}

/// Which key is meant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id {
    /// Whose it is and what it is for.
    pub scope: Scope,
    /// The key.
    pub key: Key,
}

impl Id {
    /// Sixteen bytes that stand for this id in indexes and hints. Rows keep the whole id and compare it.
    pub fn hash(&self) -> [u8; 16] {
        let mut hash = Sha256::new();
        hash.update(self.scope.as_bytes());
        hash.update(self.key.as_str().as_bytes());
        let digest: [u8; 32] = hash.finalize().into();
        *digest.first_chunk().expect("a digest has 32 bytes")
    }
}

/// What is written down about the request itself.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct About {
    /// The endpoint's name.
    pub endpoint: String,
    /// The tenant, where there is one.
    pub tenant: Option<String>,
    /// The principal.
    pub principal: String,
    /// When the user acted, as the client says. For inspection only.
    pub client_generated_at: Option<Timestamp>,
    /// The required headers, by name.
    pub headers: Vec<(String, String)>,
    /// The request that claimed it.
    pub request_id: String,
}

/// A request to hold a claim.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    /// The key.
    pub id: Id,
    /// How it is to be claimed, as decided.
    pub how: Claim,
    /// The fence of the record that was decided upon; `None` for [`Claim::New`].
    pub replaces: Option<Fence>,
    /// Random, one for each attempt: a request that is made again with the same nonce is the same request.
    pub nonce: u64,
    /// How long the claim is exclusive without renewal.
    pub lease: Duration,
    /// How long after the claim a dispatched request may still take effect; before that nobody may say that it did not.
    pub late: Duration,
    /// The level of the claim.
    pub guarantee: Guarantee,
    /// What the key is used for.
    pub fingerprint: Option<Fingerprint>,
    /// The body's own hash, where the profile shows it.
    pub payload_hash: Option<[u8; 32]>,
    /// Where the identity is a hashed credential: what recognises the same request under another credential.
    pub rotation: Option<[u8; 16]>,
    /// What is written down about the request.
    pub about: Arc<About>,
    /// What a settlement goes by that is made without semel, by SQL.
    pub terms: Option<Terms>,
}

/// What the route says about keeping answers.
#[derive(Clone, Debug)]
pub struct Terms {
    /// How long records live.
    pub lifetime: Lifetime,
    /// How large an answer may be.
    pub max_response_bytes: u64,
}

/// The first number of reservations: fences that no record has.
pub(crate) const RESERVED: u64 = 1 << 63;

/// Whether a fence is a reservation in this process.
pub fn is_reserved(fence: Fence) -> bool {
    fence.number >= RESERVED
}

/// Whether a record was written by the attempt that holds this fence.
pub fn is_same_attempt(recorded: Fence, held: Fence) -> bool {
    recorded == held || (is_reserved(held) && recorded.nonce == held.nonce)
}

/// What became of a request for a claim.
#[derive(Clone, Debug)]
pub enum ClaimOutcome {
    /// The claim is held.
    Won {
        /// The proof of it.
        fence: Fence,
        /// The store's time.
        now: Timestamp,
    },
    /// There is a record: decide by it.
    Known {
        /// The record.
        entry: Box<Entry>,
        /// The store's time.
        now: Timestamp,
    },
    /// The record that was decided upon is gone: look again.
    Changed,
    /// The same request was made under another credential.
    CredentialChanged,
    /// A handler's transaction holds the key and has not ended: wait, then look again.
    Entered,
}

/// A kept answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The kept headers, in order, names in lower case. Shared, since an answer is handed on several times.
    pub headers: Arc<[(String, Vec<u8>)]>,
    /// The exact bytes.
    pub body: Bytes,
    /// Whether it took effect is not known.
    pub outcome_unknown: bool,
}

/// Everything that is kept of one key.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The key.
    pub id: Id,
    /// The facts that decisions read.
    pub record: Record,
    /// What is written down about the request.
    pub about: Arc<About>,
    /// The answer, once there is one. Of an unkept answer the status and headers, without the body.
    pub answer: Option<Answer>,
    /// When it was settled, released or sealed.
    pub settled_at: Option<Timestamp>,
    /// Until when a dispatched request may still take effect.
    pub late_until: Timestamp,
}

/// What a holder writes at the end of its attempt.
#[derive(Clone, Debug)]
pub enum Settlement {
    /// Keep the answer.
    Settle(Answer),
    /// It took effect, but the answer is not kept; its body is ignored.
    Unkept(Answer),
    /// It surely had no effect.
    Release,
    /// It may or may not have had its effect.
    Unknown,
}

impl Settlement {
    /// The state it leads to.
    pub fn state(&self) -> State {
        match self {
            Settlement::Settle(_) => State::Settled,
            Settlement::Unkept(_) => State::Unkept,
            Settlement::Release => State::Released,
            Settlement::Unknown => State::Unknown,
        }
    }
}

/// What became of a holder's write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FencedWrite {
    /// It is durable. The same write made before counts as this one.
    Done,
    /// Somebody else holds the key, or it was resolved. Nothing was changed.
    Superseded,
}

/// What a person or a probe found out about an unknown outcome.
#[derive(Clone, Debug)]
pub enum Resolution {
    /// It took effect, with this answer if it is known.
    Applied(Option<Answer>),
    /// It did not.
    NotApplied,
}

/// What became of a resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolved {
    /// It is durable.
    Done,
    /// There is nothing unknown under this key and fence.
    NotUnknown,
    /// The request could still take effect until then.
    TooEarly {
        /// The earliest time.
        until: Timestamp,
    },
}

/// What became of a request to cancel a key.
#[derive(Clone, Debug)]
pub enum Sealed {
    /// Nothing had happened under it, and nothing will.
    Done,
    /// It is already used: here is its record.
    Known(Box<Entry>),
}

/// Which entries to list.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Only these states.
    pub state: Option<State>,
    /// Only this principal.
    pub principal: Option<String>,
    /// Only this endpoint.
    pub endpoint: Option<String>,
    /// Only created before.
    pub created_before: Option<Timestamp>,
    /// Beyond this fence number in the order of the list, for the next page.
    pub after: Option<u64>,
    /// At most so many.
    pub limit: u32,
    /// Which come first.
    pub order: Order,
}

/// Which entries of a list come first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// The lowest fence number.
    #[default]
    OldestFirst,
    /// The highest fence number.
    NewestFirst,
}

impl Filter {
    /// Whether it shows an entry.
    pub fn shows(&self, entry: &Entry) -> bool {
        let number = entry.record.fence.number;
        self.state.is_none_or(|state| state == entry.record.state)
            && self.principal.as_ref().is_none_or(|principal| *principal == entry.about.principal)
            && self.endpoint.as_ref().is_none_or(|endpoint| *endpoint == entry.about.endpoint)
            && self.created_before.is_none_or(|before| entry.record.created_at < before)
            && self.after.is_none_or(|after| self.order.compare(after, number).is_lt())
    }
}

impl Order {
    /// How two fence numbers follow each other.
    pub fn compare(self, one: u64, other: u64) -> std::cmp::Ordering {
        match self {
            Order::OldestFirst => one.cmp(&other),
            Order::NewestFirst => other.cmp(&one),
        }
    }
}

/// What one sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Expired records removed.
    pub removed: u64,
    /// Claims whose lease lapsed and that are now marked unknown.
    pub unknown: u64,
    /// Abandoned atomic claims released.
    pub released: u64,
}

/// What is known of several keys: for each that was asked about, in the same order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownAmong {
    /// Whether there is a record that stands.
    pub ids: Vec<bool>,
    /// Whether another key's record has the mark, and lives.
    pub marks: Vec<bool>,
}

/// Whether a record stands: one that has expired, or that was released without effect, does not.
pub fn is_standing(record: Option<&Record>, now: Timestamp) -> bool {
    !matches!(Standing::of(record, now), Standing::Absent | Standing::Expired | Standing::Released)
}

/// A claim store as a gate takes it: owned, or shared with other parts of the program.
pub trait IntoStore {
    /// The store, shared.
    fn into_store(self) -> Arc<dyn ClaimStore>;
}

impl<S: ClaimStore> IntoStore for S {
    fn into_store(self) -> Arc<dyn ClaimStore> {
        Arc::new(self)
    }
}

impl<S: ClaimStore> IntoStore for Arc<S> {
    fn into_store(self) -> Arc<dyn ClaimStore> {
        self
    }
}

impl IntoStore for Arc<dyn ClaimStore> {
    fn into_store(self) -> Arc<dyn ClaimStore> {
        self
    }
}

/// Keeps claims and their outcomes. Times are the store's own; they never go back.
pub trait ClaimStore: std::any::Any + Send + Sync {
    /// Claims a key.
    ///
    /// Before: anything. After `Won`: the claim is durable (an `atomic` claim of an embedded store is a reservation in
    /// this process), its fence number is greater than every number given before, and no other request wins until it is
    /// settled, released, resolved, superseded or, when abandoned or unknown, replaced by a request that names its fence.
    /// A request with [`Claim::New`] wins only over an absent record. Any other request wins only over the record whose fence
    /// it names, and only while that record has the standing that belongs to it: `TakeOver` expired, `Reclaim` released,
    /// `Supersede` abandoned, `Forward` and `Rerun` unknown. After `Known`, `Changed` or `CredentialChanged`: nothing was
    /// written; the entry of a claim that is still being made may show a lower number than its winner is given, with the same
    /// nonce, and who names that number is told `Changed`. After [`StoreError::Unknown`]: the same request, with the same
    /// nonce, made again, wins if it had won.
    ///
    /// Crash: before the reply the claim may or may not be there. A restart finds it as claimed or, once its lease has
    /// lapsed (embedded stores: at once), as unknown.
    fn claim(&self, request: ClaimRequest) -> Reply<'_, ClaimOutcome>;

    /// Claims a key for a handler that runs in this process and settles in a transaction of its own, with what
    /// [`ClaimStore::claim`] promises. Where that transaction itself can exclude others, nothing is written for it: the fence
    /// is then a reservation ([`is_reserved`]), which ends with this process, and the record is under another number with
    /// the same nonce ([`is_same_attempt`]).
    fn reserve(&self, request: ClaimRequest) -> Reply<'_, ClaimOutcome> {
        self.claim(request)
    }

    /// Ends a reservation whose attempt is over, whatever came of it. Any other fence is left alone.
    fn give_back(&self, _id: &Id, _fence: Fence) {}

    /// What is known of a key, with the store's time. Changes nothing. Sees everything that was acknowledged before.
    fn look_up<'a>(&'a self, id: &'a Id) -> Reply<'a, (Option<Entry>, Timestamp)>;

    /// Ends an attempt.
    ///
    /// Before: the caller was given `fence` by [`ClaimStore::claim`]. After `Done`: the settlement is durable, and waiters
    /// are told. A released record is removed, or kept as the lifetime says. The same fence and settlement again is
    /// `Done` again. An unknown record that nobody has resolved still accepts its holder's settlement. After
    /// `Superseded`: nothing was changed, and nothing that this holder does can change anything any more.
    ///
    /// Crash: before the reply the settlement may or may not be there; settling again tells.
    fn settle<'a>(
        &'a self,
        id: &'a Id,
        fence: Fence,
        settlement: Settlement,
        lifetime: &'a Lifetime,
    ) -> Reply<'a, FencedWrite>;

    /// Extends leases to `lease` from now. A fence that no longer holds is answered `Superseded` and left alone; an
    /// unknown record is not revived. Crash: a renewal that was not acknowledged may be lost.
    fn renew<'a>(&'a self, held: &'a [(Id, Fence)], lease: Duration) -> Reply<'a, Vec<FencedWrite>>;

    /// Resolves an unknown outcome. After `Done`: the record is settled (or unkept, where the answer is not known) or
    /// released, under a new fence, so that the old holder changes nothing any more; an audit row names `by` and
    /// `reason`. `NotApplied` is refused while the request could still take effect. It also frees a key whose kept answer is
    /// marked as of unknown outcome: see [`semel_contract::transitions::resolve`].
    fn resolve<'a>(
        &'a self,
        id: &'a Id,
        fence: Fence,
        resolution: Resolution,
        lifetime: &'a Lifetime,
        by: &'a str,
        reason: &'a str,
    ) -> Reply<'a, Resolved>;

    /// Cancels a key that has not taken effect: absent, expired or released ones become sealed, durably. Anything else is
    /// returned as it is.
    fn seal<'a>(&'a self, id: &'a Id, about: &'a About, lifetime: &'a Lifetime) -> Reply<'a, Sealed>;

    /// Removes at most `batch` records that are settled, unkept, released or sealed and have been expired for `grace`;
    /// marks lapsed fenced claims unknown; releases abandoned atomic ones. Never touches a live claim or an unknown
    /// outcome, and removes nothing while the clock is frozen.
    fn sweep(&self, batch: u32, grace: Duration) -> Reply<'_, Swept>;

    /// Erases the records of a principal of a tenant (`None`: of those without one) that are settled, unkept, released or sealed, and says how many; an audit row
    /// names `by`. Claims and unknown outcomes stay. Where a record has not expired, its key stays as one whose answer is not
    /// kept, or as sealed, with nothing else.
    fn forget<'a>(&'a self, tenant: Option<&'a str>, principal: &'a str, by: &'a str) -> Reply<'a, u64>;

    /// Lists entries by fence number, in the order that the filter says.
    fn list<'a>(&'a self, filter: &'a Filter) -> Reply<'a, Vec<Entry>>;

    /// Whether the store can be used now.
    fn ready(&self) -> Reply<'_, ()>;

    /// Whether a look-up costs next to nothing. Then it is asked before a claim, which costs more even where it is refused.
    fn lookup_is_local(&self) -> bool {
        false
    }

    /// How many of its connections are in use, and how many it may have; `None` for a store without connections.
    fn connections(&self) -> Option<(usize, usize)> {
        None
    }

    /// The restores from backups that still matter: see [`semel_contract::restore`]. A store that cannot be restored
    /// behind its users' backs has none. At most a second old.
    fn restores(&self) -> Reply<'_, Vec<Restore>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// Writes one run of the sweeper into the cleanup log. A store without operators has none.
    fn log_sweep(&self, _swept: Swept, _took: Duration) -> Reply<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Counts a stale action of a principal that was put on record.
    fn count_stale<'a>(&'a self, _tenant: Option<&'a str>, _principal: &'a str) -> Reply<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Writes down the forms in which a gate of this name claims from now on, and tells every form of that gate whose
    /// records may still live.
    ///
    /// After: the forms are durable, and registered now; those of any gate whose records have all expired are forgotten. A
    /// form stays while a record that was claimed before its last registration lives: an unknown outcome does not expire, and
    /// one that is resolved lives for one lifetime more.
    /// Crash: before the reply they may or may not be there; registering again is the same.
    ///
    /// A store that keeps no forms tells of none.
    fn register_forms<'a>(&'a self, _gate: &'a str, _forms: &'a [Form]) -> Reply<'a, Forms> {
        Box::pin(std::future::ready(Ok(Forms::default())))
    }

    /// Whether a record other than this key's was claimed with this mark of rotation and lives.
    fn is_marked<'a>(&'a self, _rotation: [u8; 16], _other_than: &'a Id) -> Reply<'a, bool> {
        Box::pin(std::future::ready(Ok(false)))
    }

    /// Which of these keys have a record that stands, and which of these marks of rotation a record other than the key's has
    /// that lives: as [`ClaimStore::look_up`] and [`ClaimStore::is_marked`] tell, all at once.
    fn known_among<'a>(&'a self, ids: &'a [Id], marks: &'a [([u8; 16], Id)]) -> Reply<'a, KnownAmong> {
        Box::pin(async move {
            let mut found = KnownAmong::default();
            for id in ids {
                let (entry, now) = self.look_up(id).await?;
                found.ids.push(is_standing(entry.as_ref().map(|entry| &entry.record), now));
            }
            for (mark, other_than) in marks {
                found.marks.push(self.is_marked(*mark, other_than).await?);
            }
            Ok(found)
        })
    }

    /// Whether it keeps answers in a form that it alone can write, so that no handler can settle in its own transaction.
    fn encodes_answers(&self) -> bool {
        false
    }

    /// Where waiters learn that a key may have changed. A hint may be lost; polling is the backstop.
    fn hints(&self) -> &Hints;
}

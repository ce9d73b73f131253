//! What an operator may ask of a store and do to it, beyond what requests need. Everything that changes something leaves
//! a row in the audit trail, in the same commit. The trail only grows.
//!
//! A record's id, for people, is the number of its fence: unique in the store, and never given twice. A resolution gives
//! the record a new number; the old one still finds it, through the trail.

use std::time::Duration;

use semel_contract::profile::Lifetime;
use semel_contract::restore::{Restore, Undated};
use semel_contract::time::Timestamp;

use crate::claims::{About, ClaimStore, Entry, Id, Reply, Sealed, StoreError, Swept};

/// Rows of the cleanup log that are kept; older ones make room.
pub const CLEANUPS_KEPT_MAX: u32 = 10_000;
/// How long a count of stale actions is kept after the last of them.
pub const STALE_KEPT: Duration = Duration::from_secs(90 * 86_400);
/// The pause between two batches of one sweep, so that requests are not held up.
const BATCH_PAUSE: Duration = Duration::from_millis(20);

/// What the rows of the trail call the things that are done.
pub mod action {
    /// An unknown outcome was found to have taken effect.
    pub const RESOLVE_APPLIED: &str = "resolve-applied";
    /// An unknown outcome was found not to have taken effect.
    pub const RESOLVE_NOT_APPLIED: &str = "resolve-not-applied";
    /// A key was cancelled.
    pub const SEAL: &str = "seal";
    /// Expired records were removed by hand.
    pub const SWEEP: &str = "sweep";
    /// The records of a principal were erased.
    pub const FORGET: &str = "forget";
    /// The store was restored from a backup.
    pub const RESTORED: &str = "restored";
    /// A jump of the clock was confirmed.
    pub const CONFIRM_CLOCK: &str = "confirm-clock";
}

/// What somebody is looking for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sought {
    /// The record with this number.
    Record(u64),
    /// Those of the request with this id.
    RequestId(String),
    /// Those with this key, whoever it belongs to.
    Key(String),
}

/// A row of the audit trail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audited {
    /// Its number; they only grow.
    pub number: u64,
    /// When, by the store's time.
    pub at: Timestamp,
    /// Who.
    pub actor: String,
    /// What was done: one of [`action`], or a word of an earlier release.
    pub action: String,
    /// The hash of the key that it was done to, where it was one.
    pub hash: Option<[u8; 16]>,
    /// The fence under which it was found.
    pub fence: Option<String>,
    /// Why, in the actor's words.
    pub reason: String,
    /// How many records it touched.
    pub count: u64,
}

/// Which rows of the trail to show, the latest first.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trail {
    /// Only those of one key, by its hash.
    pub hash: Option<[u8; 16]>,
    /// Only those before this number, for the next page.
    pub before: Option<u64>,
    /// At most so many.
    pub limit: u32,
}

/// Something that was done by hand, to be put on the trail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Who.
    pub actor: String,
    /// What: one of [`action`].
    pub action: &'static str,
    /// Why.
    pub reason: String,
    /// How many records it touched.
    pub count: u64,
}

/// A row of the cleanup log: one run of the sweeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cleanup {
    /// Its number; they only grow.
    pub number: u64,
    /// When it ended, by the store's time.
    pub at: Timestamp,
    /// How long it took.
    pub took: Duration,
    /// What it did.
    pub swept: Swept,
}

/// How many stale actions of one principal were put on record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaleCount {
    /// The tenant, where there is one.
    pub tenant: Option<String>,
    /// The principal.
    pub principal: String,
    /// How many.
    pub count: u64,
    /// The first of them.
    pub first_at: Timestamp,
    /// The latest of them.
    pub last_at: Timestamp,
}

/// A place in the order of the counts of stale actions: the highest first, equal ones by principal and tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StalePlace {
    /// The count.
    pub count: u64,
    /// Whose.
    pub principal: String,
    /// Of which tenant; empty where there is none.
    pub tenant: String,
}

impl StalePlace {
    /// The place of a count.
    pub fn of(row: &StaleCount) -> Self {
        let tenant = row.tenant.clone().unwrap_or_default();
        Self { count: row.count, principal: row.principal.clone(), tenant }
    }

    /// Whether a count stands behind this place.
    pub fn is_before(&self, row: &StaleCount) -> bool {
        let other = Self::of(row);
        let ordered = |one: &Self| (std::cmp::Reverse(one.count), one.principal.clone(), one.tenant.clone());
        ordered(self) < ordered(&other)
    }
}

/// The store's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockState {
    /// The store's time.
    pub now: Timestamp,
    /// By how many milliseconds the clock beneath jumped ahead, while nobody has confirmed it.
    pub jump_millis: Option<i64>,
}

/// How far a search by key reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyReach {
    /// All records.
    All,
    /// So many of the newest, and all that came since the start: the keys of the others are still being read.
    Newest(u64),
}

/// A store that operators can look into.
pub trait AdminStore: ClaimStore {
    /// Finds records, the oldest first, at most `limit`. By number and by key this is quick; by request id it may read
    /// everything. Changes nothing. The number of a record that was resolved finds it under its new one. Of a key that more than
    /// a thousand records have, it finds a thousand.
    fn find<'a>(&'a self, sought: &'a Sought, limit: u32) -> Reply<'a, Vec<Entry>>;

    /// How far a [`Self::find`] by key reaches that begins after this. On SQLite the keys of a file are read after it was
    /// opened, in the background: of ten million records that takes a minute or two. Both wait a little for the end of it, which
    /// is enough for small files.
    fn key_reach(&self) -> Reply<'_, KeyReach> {
        Box::pin(std::future::ready(Ok(KeyReach::All)))
    }

    /// Rows of the audit trail, the latest first.
    fn trail<'a>(&'a self, trail: &'a Trail) -> Reply<'a, Vec<Audited>>;

    /// Puts something on the trail. After `Ok` the row is durable.
    fn note<'a>(&'a self, note: &'a Note) -> Reply<'a, ()>;

    /// [`ClaimStore::seal`], with a row in the trail in the same commit where the key was sealed.
    fn seal_by<'a>(
        &'a self,
        id: &'a Id,
        about: &'a About,
        lifetime: &'a Lifetime,
        by: &'a str,
        reason: &'a str,
    ) -> Reply<'a, Sealed>;

    /// Rows of the cleanup log, the latest first; those before a number, for the next page.
    fn cleanups(&self, before: Option<u64>, limit: u32) -> Reply<'_, Vec<Cleanup>>;

    /// Counts of stale actions, the highest first; of one principal, where one is named.
    fn stale<'a>(&'a self, principal: Option<&'a str>, limit: u32) -> Reply<'a, Vec<StaleCount>> {
        self.stale_after(principal, None, limit)
    }

    /// The same from after this place in that order, for the next page.
    fn stale_after<'a>(
        &'a self,
        principal: Option<&'a str>,
        after: Option<StalePlace>,
        limit: u32,
    ) -> Reply<'a, Vec<StaleCount>>;

    /// An operator says that the store was restored from a backup of that time. After `Ok`: the restore is durable,
    /// on the trail, and [`ClaimStore::restores`] tells of it, here at once and in other processes within a second.
    /// The same backup again changes what is done with undated keys, and keeps the time of the first call.
    fn restored<'a>(
        &'a self,
        backup_at: Timestamp,
        undated: Undated,
        by: &'a str,
        reason: &'a str,
    ) -> Reply<'a, Restore>;

    /// The store's clock.
    fn clock(&self) -> Reply<'_, ClockState>;

    /// An operator confirms that the clock beneath is right, after a jump. On the trail.
    fn confirm_jump<'a>(&'a self, by: &'a str, reason: &'a str) -> Reply<'a, ()>;
}

/// Sweeps until nothing is left to sweep, writes the run into the cleanup log, and says what was done. A run that did
/// nothing is logged only where `log` asks for it.
///
/// # Errors
/// The store did not answer. What was swept before stays swept, and may be missing from the log.
pub async fn sweep_all(
    store: &dyn ClaimStore,
    batch: u32,
    grace: Duration,
    log: bool,
) -> Result<Swept, StoreError> {
    let started = crate::clock::boot_time();
    let mut total = Swept::default();
    loop {
        let swept = store.sweep(batch, grace).await?;
        total.removed += swept.removed;
        total.unknown += swept.unknown;
        total.released += swept.released;
        // A kind of which a whole batch was found may have more.
        if [swept.removed, swept.unknown, swept.released].iter().all(|count| *count < u64::from(batch.max(1)))
        {
            break;
        }
        tokio::time::sleep(BATCH_PAUSE).await;
    }
    if log || total != Swept::default() {
        store.log_sweep(total, crate::clock::boot_time().saturating_sub(started)).await?;
    }
    Ok(total)
}

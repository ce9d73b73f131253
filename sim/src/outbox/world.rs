//! What everything in one run of the outbox shares: the stage, the disk, the server and what callers were told.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard};

use futures_util::FutureExt;
use semel_contract::time::Timestamp;
use semel_delivery::sqlite::SqliteStore;
use semel_delivery::store::{Filter, Find, OutboxStore, Reply, StoreError};
use semel_delivery::{Row, Status};

use crate::delivery_faults::DeliveryFault;
use crate::log::SlotNumber;
use crate::outbox::plan::Plan;
use crate::outbox::server::Server;
use crate::plan::Options;
use crate::rng::Rng;
use crate::stage::{Stage, lock};

/// What a caller was told of an id.
#[derive(Clone, Debug)]
pub struct Told {
    /// The row.
    pub row: i64,
    /// Whether the id is another name of the row.
    pub is_alias: bool,
}

/// What was sent under a key first: its body, and when the first attempt began.
pub(super) type First = (Vec<u8>, Option<Timestamp>);

/// The disk.
#[derive(Debug)]
struct Platter {
    store: Arc<SqliteStore>,
    /// What was there before the commit whose sync failed: the next start finds either.
    before: Option<Vec<u8>>,
}

/// What everything in one run of the outbox shares.
pub struct OutboxWorld {
    stage: Stage,
    /// What the seed decided.
    pub plan: Plan,
    platter: Mutex<Platter>,
    server: Mutex<Server>,
    told: Mutex<BTreeMap<String, Told>>,
    /// What was sent under a key: the first body and the first time.
    pub(super) sent: Mutex<BTreeMap<String, First>>,
    slots: Mutex<BTreeMap<String, SlotNumber>>,
    tokens: Mutex<BTreeMap<String, u64>>,
}

impl fmt::Debug for OutboxWorld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboxWorld").field("plan", &self.plan).finish_non_exhaustive()
    }
}

impl Deref for OutboxWorld {
    type Target = Stage;

    fn deref(&self) -> &Stage {
        &self.stage
    }
}

/// What a store in memory answers, which is at once.
pub(super) fn at_once<T>(reply: Reply<'_, T>) -> Result<T, StoreError> {
    // A task that has done much would otherwise be made to wait for its next turn.
    tokio::task::unconstrained(reply).now_or_never().expect("a store in memory answers at once")
}

impl OutboxWorld {
    /// A world without a past.
    pub fn new(options: &Options) -> Self {
        let mut rng = Rng::new(options.seed);
        let plan = Plan::draw(options, &mut rng);
        let store = Arc::new(SqliteStore::memory().expect("there is memory for a database"));
        let world = Self {
            stage: Stage::new(rng),
            server: Mutex::new(Server::new(&plan)),
            plan,
            platter: Mutex::new(Platter { store, before: None }),
            told: Mutex::default(),
            sent: Mutex::default(),
            slots: Mutex::default(),
            tokens: Mutex::default(),
        };
        world.note(None, world.plan.describe());
        world
    }

    /// Whether a fault happens now.
    pub fn strikes(&self, fault: DeliveryFault) -> bool {
        self.happens(self.plan.rates.of(fault), fault.name())
    }

    /// The store itself, without faults: what is written there is written.
    pub fn base(&self) -> Arc<SqliteStore> {
        Arc::clone(&lock(&self.platter).store)
    }

    /// A sync fails: whether what was written since this image is there, the next start will find.
    pub(super) fn sync_failed(&self, before: Vec<u8>) {
        lock(&self.platter).before.get_or_insert(before);
    }

    /// Whether only a new start can tell what is on disk.
    pub(super) fn is_doubtful(&self) -> bool {
        lock(&self.platter).before.is_some()
    }

    /// The store as a new process finds it: what was committed, and nothing else.
    pub(super) fn reopen(&self) -> Arc<SqliteStore> {
        let mut platter = lock(&self.platter);
        let before = platter.before.take().filter(|_| self.rng(|rng| rng.chance(500)));
        if before.is_some() {
            self.note(None, "what was not synced is gone");
        }
        let image = before.or_else(|| platter.store.image()).expect("a store in memory has an image");
        platter.store = Arc::new(SqliteStore::of_image(&image).expect("an image can be opened"));
        Arc::clone(&platter.store)
    }

    /// The server.
    pub fn server(&self) -> MutexGuard<'_, Server> {
        lock(&self.server)
    }

    /// What callers were told.
    pub(super) fn told(&self) -> MutexGuard<'_, BTreeMap<String, Told>> {
        lock(&self.told)
    }

    /// The number under which the log knows an id.
    pub fn slot(&self, id: &str) -> SlotNumber {
        let mut slots = lock(&self.slots);
        let next = slots.len();
        *slots.entry(id.to_owned()).or_insert(next)
    }

    /// The present credential of a principal.
    pub(super) fn token(&self, principal: &str) -> String {
        let version = lock(&self.tokens).get(principal).copied().unwrap_or(0);
        format!("{principal}-{version}")
    }

    /// A principal logs in again.
    pub(super) fn log_in(&self, principal: &str) {
        *lock(&self.tokens).entry(principal.to_owned()).or_default() += 1;
    }

    /// One message, as it is on disk.
    pub fn row(&self, id: &str) -> Option<Row> {
        at_once(self.base().find(Find::Id(id.to_owned()))).ok().flatten()
    }

    /// Messages, as they are on disk.
    pub(super) fn rows(&self, status: Option<Status>) -> Vec<Row> {
        let base = self.base();
        let mut filter = Filter { status, limit: 1000, ..Filter::default() };
        let mut all: Vec<Row> = Vec::new();
        loop {
            let some = at_once(base.list(filter.clone())).unwrap_or_default();
            let Some(last) = some.last() else { return all };
            filter.after = last.id;
            all.extend(some);
        }
    }

    /// The first message of a lane with this status.
    pub(super) fn first(&self, status: Status, lane: &str) -> Option<Row> {
        let filter =
            Filter { status: Some(status), lane: Some(lane.to_owned()), limit: 1, ..Filter::default() };
        at_once(self.base().list(filter)).ok()?.into_iter().next()
    }

    /// How many messages may still be sent.
    pub(super) fn live(&self) -> u64 {
        let depth = at_once(self.base().depth()).unwrap_or_default();
        depth.by_status.iter().filter(|(status, _)| status.is_live()).map(|(_, count)| count).sum()
    }
}

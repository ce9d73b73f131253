//! What everything in one run of the relay shares: the stage, the database, the upstream and what senders were told.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::FutureExt;
use semel_delivery::relay::RelayStore;
use semel_delivery::relay::store::StoreError;
use semel_delivery::relay::store::sqlite::Sqlite;
use tokio::task::unconstrained;
use tokio::time::sleep;

use crate::delivery_faults::DeliveryFault;
use crate::log::SlotNumber;
use crate::plan::Options;
use crate::relay::plan::{Home, Plan};
use crate::relay::service::Service;
use crate::rng::Rng;
use crate::stage::{Stage, lock};
use crate::way::{Air, Ground};

/// The target's name.
pub(super) const TARGET: &str = "scores";

/// How far ahead a wall clock may be when the machine starts: for longer than a write may be late.
const AHEAD_MILLIS_MAX: i64 = 600_000;

/// What a sender was told.
#[derive(Clone, Debug)]
pub struct Told {
    /// The request's number.
    pub request: i64,
    /// Its items: lane and value.
    pub items: Vec<(String, i64)>,
}

/// What everything in one run of the relay shares.
pub struct RelayWorld {
    stage: Stage,
    /// What the seed decided.
    pub plan: Plan,
    base: Mutex<Arc<Sqlite>>,
    is_broken: Mutex<bool>,
    air: Air,
    service: Mutex<Service>,
    told: Mutex<BTreeMap<String, Told>>,
    /// The bytes that were sent under a key.
    pub(super) sent: Mutex<BTreeMap<String, String>>,
    tokens: Mutex<BTreeMap<String, u64>>,
    pub(super) checked: Mutex<u64>,
}

impl fmt::Debug for RelayWorld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RelayWorld").field("plan", &self.plan).finish_non_exhaustive()
    }
}

impl Deref for RelayWorld {
    type Target = Stage;

    fn deref(&self) -> &Stage {
        &self.stage
    }
}

impl Ground for RelayWorld {
    fn strikes(&self, fault: DeliveryFault) -> bool {
        RelayWorld::strikes(self, fault)
    }

    fn is_shared(&self) -> bool {
        self.plan.home != Home::File
    }

    fn break_file(&self) {
        *lock(&self.is_broken) = true;
    }

    fn is_broken(&self) -> bool {
        *lock(&self.is_broken)
    }

    fn air(&self) -> &Air {
        &self.air
    }
}

impl RelayWorld {
    /// A world without a past.
    pub fn new(options: &Options) -> Self {
        let mut rng = Rng::new(options.seed);
        let plan = Plan::draw(options, &mut rng);
        let stage = Stage::new(rng);
        stage.clock.start_machine();
        let base = Sqlite::memory(Arc::clone(&stage.clock) as _).expect("there is memory for a database");
        let world = Self {
            stage,
            base: Mutex::new(Arc::new(base)),
            is_broken: Mutex::new(false),
            air: Air::default(),
            service: Mutex::new(Service::new(plan.tier, plan.reducer)),
            plan,
            told: Mutex::default(),
            sent: Mutex::default(),
            tokens: Mutex::default(),
            checked: Mutex::default(),
        };
        world.note(None, world.plan.describe());
        world
    }

    /// Whether a fault happens now.
    pub fn strikes(&self, fault: DeliveryFault) -> bool {
        self.happens(self.plan.rates.of(fault), fault.name())
    }

    /// The database itself, without faults.
    pub(super) fn base(&self) -> Arc<Sqlite> {
        Arc::clone(&lock(&self.base))
    }

    /// The store on the database itself.
    pub(super) fn store(&self) -> RelayStore {
        RelayStore::new(self.base())
    }

    /// What the store says now, if nobody holds the database.
    pub(super) fn peek<T>(&self, asked: impl Future<Output = Result<T, StoreError>>) -> Option<T> {
        unconstrained(std::pin::pin!(asked)).now_or_never()?.ok()
    }

    /// The database as a new process finds it. A database that is shared goes on without it.
    pub(super) async fn reopen(&self) -> Arc<Sqlite> {
        *lock(&self.is_broken) = false;
        if self.plan.home == Home::File {
            // Whoever of the old process waited for its database has to see first that it is gone.
            let image = loop {
                match self.base().image() {
                    Some(image) => break image,
                    None => sleep(Duration::from_millis(1)).await,
                }
            };
            if self.rng(|rng| rng.chance(300)) {
                self.start_machine();
            }
            let opened = Sqlite::of_image(&image, Arc::clone(&self.clock) as _);
            *lock(&self.base) = Arc::new(opened.expect("an image can be opened"));
        }
        self.base()
    }

    /// The machine starts anew. Its wall clock is then believed, and so is never wrong by days; by minutes it may be.
    fn start_machine(&self) {
        let (creep, jump) = self.clock.wrong_millis();
        self.clock.set_wrong_millis((creep, jump.min(AHEAD_MILLIS_MAX)));
        self.clock.start_machine();
        self.note(None, "the machine starts anew");
    }

    /// The upstream.
    pub fn service(&self) -> MutexGuard<'_, Service> {
        lock(&self.service)
    }

    /// What senders were told.
    pub(super) fn told(&self) -> MutexGuard<'_, BTreeMap<String, Told>> {
        lock(&self.told)
    }

    /// The number under which the log knows a lane.
    pub fn slot(&self, lane: &str) -> Option<SlotNumber> {
        lane.strip_prefix("lane-").and_then(|number| number.parse().ok())
    }

    /// The present credential of a principal.
    pub(super) fn token(&self, principal: &str) -> String {
        let version = lock(&self.tokens).get(principal).copied().unwrap_or(0);
        format!("{principal}-{version}")
    }

    /// A principal logs in again, if it has to.
    pub(super) fn log_in(&self, principal: &str) {
        if self.service().is_revoked(&self.token(principal)) {
            *lock(&self.tokens).entry(principal.to_owned()).or_default() += 1;
            self.note(None, format!("{principal} logs in again"));
        }
    }
}

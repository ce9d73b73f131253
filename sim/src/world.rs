//! What everything in one run shares: clocks, random numbers, the log, the store, the ledger and the first failure.
//! Holds no lock across an await.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use semel_contract::hex::hex;
use semel_contract::key::{Format, Key};
use semel_contract::scope::Scope;
use semel_store::clock::Clock;
use semel_store::{ClaimStore, Id};
use sha2::{Digest, Sha256};
use tokio::sync::Notify;

use crate::check::Acknowledged;
use crate::clock::SimClock;
use crate::coverage::{Coverage, Met};
use crate::faults::Fault;
use crate::ledger::Ledger;
use crate::log::{Log, SlotNumber};
use crate::plan::{Options, Plan, Recognised};
use crate::planted;
use crate::rng::Rng;
use crate::routes::Endpoint;
use crate::shadow::Shadow;

/// What must always hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    /// At most one effect for one scope and key.
    I1,
    /// Every replay is the first settled answer, byte for byte.
    I2,
    /// Another request under the same key is refused and never executed.
    I3,
    /// At most one dispatch while a key is claimed.
    I4,
    /// What a client sees is durable.
    I5,
    /// Fences only grow, and stale ones change nothing.
    I7,
    /// Settled stays settled until it expires; unknown is not run again without a policy.
    I8,
    /// No answer of one principal reaches another.
    I9,
    /// What was acknowledged survives every crash.
    I12,
    /// A jump of the clock never makes anything run twice.
    I13,
    /// Work in progress and waiters are bounded, and what they hold comes back.
    I14,
    /// After the faults, everything is settled or listed as unknown, and every client has a last word.
    I15,
}

/// A promise that was broken.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Which one.
    pub invariant: Invariant,
    /// How.
    pub why: String,
    /// The key it is about.
    pub slot: Option<SlotNumber>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.invariant, self.why)
    }
}

/// One scope and key.
#[derive(Clone, Debug)]
pub struct Slot {
    /// Whose it is, by number.
    pub person: usize,
    /// The credential that is used.
    pub credential: String,
    /// At which route.
    pub endpoint: Endpoint,
    /// Under which name the store knows it.
    pub id: Id,
    /// How often the key was taken for a new purpose after its record had expired.
    pub generation: u32,
    /// How it is called in the log.
    pub label: String,
}

/// Every scope and key so far.
#[derive(Debug, Default)]
struct Slots {
    all: Vec<Slot>,
    by_id: BTreeMap<Id, SlotNumber>,
}

/// What everything in one run shares.
pub struct World {
    /// What the seed decided.
    pub plan: Plan,
    /// The clocks.
    pub clock: Arc<SimClock>,
    /// The store itself, without faults: what is written there is written.
    pub base: Arc<dyn ClaimStore>,
    rng: Mutex<Rng>,
    log: Mutex<Log>,
    coverage: Mutex<Coverage>,
    slots: Mutex<Slots>,
    pub(crate) shadow: Mutex<Shadow>,
    pub(crate) ledger: Mutex<Ledger>,
    acknowledged: Mutex<Vec<Acknowledged>>,
    failure: Mutex<Option<Failure>>,
    failed: Notify,
    quiet: AtomicBool,
    over: AtomicBool,
    store_away_until: Mutex<Duration>,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("plan", &self.plan).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nothing that holds this lock panics")
}

impl World {
    /// A world without a past.
    pub fn new(options: &Options) -> Self {
        let mut rng = Rng::new(options.seed);
        let plan = Plan::draw(options, &mut rng);
        let clock = Arc::new(SimClock::new());
        let base = planted::store(options.planted, &clock);
        let world = Self {
            plan,
            clock,
            base,
            rng: Mutex::new(rng),
            log: Mutex::default(),
            coverage: Mutex::default(),
            slots: Mutex::default(),
            shadow: Mutex::default(),
            ledger: Mutex::default(),
            acknowledged: Mutex::default(),
            failure: Mutex::new(None),
            failed: Notify::new(),
            quiet: AtomicBool::new(false),
            over: AtomicBool::new(false),
            store_away_until: Mutex::new(Duration::ZERO),
        };
        world.note(None, world.plan.describe());
        world
    }

    /// Virtual time since the start, in milliseconds.
    pub fn now(&self) -> u64 {
        u64::try_from(self.clock.ticks().as_millis()).unwrap_or(u64::MAX)
    }

    /// Writes down what happened.
    pub fn note(&self, slot: Option<SlotNumber>, text: impl Into<String>) {
        lock(&self.log).note(self.now(), slot, text.into());
    }

    /// How much has happened.
    pub fn steps(&self) -> usize {
        lock(&self.log).len()
    }

    /// Draws from the seed.
    pub fn rng<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut lock(&self.rng))
    }

    /// Whether a fault happens now. None does once it is quiet.
    pub fn strikes(&self, fault: Fault) -> bool {
        let rate = self.plan.rates.of(fault);
        let strikes = rate > 0 && !self.is_quiet() && self.rng(|rng| rng.chance(rate));
        if strikes {
            self.count(Met::Fault, fault.name());
        }
        strikes
    }

    /// Counts something for the table.
    pub fn count(&self, met: Met, name: &'static str) {
        lock(&self.coverage).count(met, name);
    }

    /// Begins or ends a time without faults.
    pub fn set_quiet(&self, quiet: bool) {
        self.quiet.store(quiet, Ordering::Relaxed);
        if quiet {
            *lock(&self.store_away_until) = Duration::ZERO;
        }
        self.note(None, if quiet { "the faults stop" } else { "the faults begin" });
    }

    /// The run is over: what is dropped from now on is dropped with everything.
    pub fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Whether the run is over.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Whether faults have stopped.
    pub fn is_quiet(&self) -> bool {
        self.quiet.load(Ordering::Relaxed)
    }

    /// The store cannot be reached for a while.
    pub fn send_store_away(&self, time: Duration) {
        *lock(&self.store_away_until) = self.clock.ticks() + time;
        self.note(None, format!("the store is away for {time:?}"));
    }

    /// Whether the store cannot be reached now.
    pub fn is_store_away(&self) -> bool {
        self.clock.ticks() < *lock(&self.store_away_until)
    }

    /// A promise was broken. The first one ends the run.
    pub fn fail(&self, invariant: Invariant, slot: Option<SlotNumber>, why: impl Into<String>) {
        let why = why.into();
        self.note(slot, format!("BROKEN {invariant:?}: {why}"));
        lock(&self.failure).get_or_insert(Failure { invariant, why, slot });
        self.failed.notify_one();
    }

    /// Waits for the first broken promise.
    pub async fn failed(&self) {
        loop {
            if lock(&self.failure).is_some() {
                return;
            }
            self.failed.notified().await;
        }
    }

    /// The first broken promise.
    pub fn failure(&self) -> Option<Failure> {
        lock(&self.failure).clone()
    }

    /// What was met so far.
    pub fn coverage(&self) -> Coverage {
        lock(&self.coverage).clone()
    }

    /// The log, taken out at the end.
    pub fn take_log(&self) -> Log {
        std::mem::take(&mut lock(&self.log))
    }

    /// The number of a scope and key, which is made if it is new.
    pub fn slot(&self, person: usize, rotation: usize, endpoint: Endpoint, key: &str) -> SlotNumber {
        let credential = format!("person-{person}-{rotation}");
        let principal = match self.plan.recognised {
            Recognised::ByProxy => credential.clone(),
            Recognised::ByCredential => format!("authorization:{}", hex(&Sha256::digest(&credential))),
        };
        let key = Key::parse(&Format::Printable255, key).expect("the simulated keys are keys");
        let id = Id { scope: scope_of(&principal, endpoint), key };
        let mut slots = lock(&self.slots);
        if let Some(known) = slots.by_id.get(&id) {
            return *known;
        }
        let number = slots.all.len();
        slots.by_id.insert(id.clone(), number);
        let label = format!("{credential}/{}/{}", endpoint.name(), short(id.key.as_str()));
        slots.all.push(Slot { person, credential, endpoint, id, generation: 0, label });
        number
    }

    /// A scope and key by its number.
    pub fn slot_of(&self, number: SlotNumber) -> Slot {
        lock(&self.slots).all[number].clone()
    }

    /// The number that the store's id belongs to.
    pub fn number_of(&self, id: &Id) -> Option<SlotNumber> {
        lock(&self.slots).by_id.get(id).copied()
    }

    /// Which use of a key is the present one.
    pub fn current_use(&self, number: SlotNumber) -> u32 {
        lock(&self.slots).all[number].generation
    }

    /// A key is taken for a new purpose.
    pub fn use_again(&self, number: SlotNumber) {
        lock(&self.slots).all[number].generation += 1;
    }

    /// How a scope and key is called in the log.
    pub fn label(&self, number: Option<SlotNumber>) -> String {
        match number.map(|number| self.slot_of(number)) {
            Some(slot) => slot.label,
            None => "a key of nobody".to_owned(),
        }
    }

    /// The shadow of the store.
    pub(crate) fn shadow(&self) -> MutexGuard<'_, Shadow> {
        lock(&self.shadow)
    }

    /// What clients were told and must be able to get again.
    pub(crate) fn acknowledged(&self) -> MutexGuard<'_, Vec<Acknowledged>> {
        lock(&self.acknowledged)
    }

    /// The upstream's ledger.
    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.ledger)
    }

    /// The clock as the gate and the store take it.
    pub fn clock_for_gate(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock) as _
    }
}

/// The scope of a principal at a route, made here once more from the words of the contract: a gate that mixes callers up
/// must not be able to mix the checkers up as well.
fn scope_of(principal: &str, endpoint: Endpoint) -> Scope {
    let mut hash = Sha256::new();
    for (letter, part) in [("", "semel.scope.1"), ("p", principal), ("e", endpoint.name())] {
        hash.update(letter);
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    Scope::from_bytes(hash.finalize().into())
}

/// The end of a key, which is what tells simulated keys apart.
fn short(key: &str) -> &str {
    key.rsplit('-').next().map_or(key, |tail| tail.trim_start_matches('0'))
}

//! What everything in one run of the gate shares: the stage, the store, the ledger, and every scope and key so far.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard};

use semel_contract::key::{Format, Key};
use semel_contract::time::Timestamp;
use semel_store::clock::Clock;
use semel_store::{ClaimStore, Entry, Id};

use crate::book::{Acknowledged, Ledger};
use crate::edition::Edition;
use crate::faults::Fault;
use crate::log::SlotNumber;
use crate::plan::{Options, Plan};
use crate::planted;
use crate::rng::Rng;
use crate::routes::Endpoint;
use crate::shadow::Shadow;
pub use crate::stage::{Failure, Invariant};
use crate::stage::{Stage, lock};
use crate::uptime::Uptime;

/// One scope and key.
#[derive(Clone, Debug)]
pub struct Slot {
    /// Whose it is, by number.
    pub person: usize,
    /// The host that is asked.
    pub host: usize,
    /// The credential that is used.
    pub credential: String,
    /// At which route.
    pub endpoint: Endpoint,
    /// The key.
    pub key: Key,
    /// Under which names the store may know it: one for each configuration.
    pub ids: Vec<Id>,
    /// How often the key was taken for a new purpose after its record had expired.
    pub generation: u32,
    /// How it is called in the log.
    pub label: String,
}

impl Slot {
    /// What an answer must say of whom it is for: the person and the host.
    pub fn who(&self) -> u64 {
        (self.person + 100 * self.host) as u64
    }

    /// How a proxy calls the person.
    pub fn user(&self) -> String {
        format!("person-{}", self.person)
    }
}

/// Whose a key is: the person, which of their credentials, and the host that is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The person, by number.
    pub person: usize,
    /// How often the credential was changed.
    pub rotation: usize,
    /// The host, by number.
    pub host: usize,
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
    stage: Stage,
    /// The store itself, without faults: what is written there is written.
    pub base: Arc<dyn ClaimStore>,
    /// The time of a store that is closed and opened again.
    pub uptime: Option<Arc<Uptime>>,
    slots: Mutex<Slots>,
    pub(crate) shadow: Mutex<Shadow>,
    pub(crate) ledger: Mutex<Ledger>,
    acknowledged: Mutex<Vec<Acknowledged>>,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("plan", &self.plan).finish_non_exhaustive()
    }
}

impl Deref for World {
    type Target = Stage;

    fn deref(&self) -> &Stage {
        &self.stage
    }
}

impl World {
    /// A world without a past.
    pub fn new(options: &Options) -> Self {
        let mut rng = Rng::new(options.seed);
        let plan = Plan::draw(options, &mut rng);
        let stage = Stage::new(rng);
        let down = plan.rates.has(Fault::ClockWhileDown);
        let uptime = down.then(|| Arc::new(Uptime::new(Arc::clone(&stage.clock))));
        let base = planted::store(options.planted, &stage.clock, uptime.as_ref());
        let world = Self {
            plan,
            stage,
            base,
            uptime,
            slots: Mutex::default(),
            shadow: Mutex::default(),
            ledger: Mutex::default(),
            acknowledged: Mutex::default(),
        };
        world.note(None, world.plan.describe());
        world
    }

    /// Whether a fault happens now. None does once it is quiet.
    pub fn strikes(&self, fault: Fault) -> bool {
        self.happens(self.plan.rates.of(fault), fault.name())
    }

    /// The number of a scope and key, which is made if it is new.
    pub fn slot(&self, owner: Owner, endpoint: Endpoint, key: &str) -> SlotNumber {
        let Owner { person, rotation, host } = owner;
        let (user, credential) = (format!("person-{person}"), format!("person-{person}-{rotation}"));
        let key = Key::parse(&Format::Printable255, key).expect("the simulated keys are keys");
        let id = |edition: &Edition| Id {
            scope: edition.scope((&user, &credential), endpoint, host),
            key: key.clone(),
        };
        let ids: Vec<Id> = self.plan.editions.iter().map(id).collect();
        let mut slots = lock(&self.slots);
        if let Some(known) = slots.by_id.get(&ids[0]) {
            return *known;
        }
        let number = slots.all.len();
        slots.by_id.extend(ids.iter().map(|id| (id.clone(), number)));
        let label = format!("{credential}@{host}/{}/{}", endpoint.name(), short(key.as_str()));
        slots.all.push(Slot { person, host, credential, endpoint, key, ids, generation: 0, label });
        number
    }

    /// What is recorded of a scope and key, under whichever name, and the store's time.
    pub fn peek_slot(&self, number: SlotNumber) -> (Vec<Entry>, Timestamp) {
        let found: Vec<_> = self.slot_of(number).ids.iter().map(|id| self.peek(id)).collect();
        let now = found.first().map_or(Timestamp::from_millis(0), |(_, now)| *now);
        (found.into_iter().filter_map(|(entry, _)| entry).collect(), now)
    }

    /// Whether nobody runs at all: then the store is closed, too.
    pub fn is_dark(&self) -> bool {
        self.uptime.as_ref().is_some_and(|uptime| uptime.is_closed())
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

/// The end of a key, which is what tells simulated keys apart.
fn short(key: &str) -> &str {
    key.rsplit('-').next().map_or(key, |tail| tail.trim_start_matches('0'))
}

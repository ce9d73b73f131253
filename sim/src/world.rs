//! What everything in one run of the gate shares: the stage, the store, the ledger, and every scope and key so far.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard};

use semel_contract::hex::hex;
use semel_contract::key::{Format, Key};
use semel_contract::scope::Scope;
use semel_store::clock::Clock;
use semel_store::{ClaimStore, Id};
use sha2::{Digest, Sha256};

use crate::book::{Acknowledged, Ledger};
use crate::faults::Fault;
use crate::log::SlotNumber;
use crate::plan::{Options, Plan, Recognised};
use crate::planted;
use crate::rng::Rng;
use crate::routes::Endpoint;
use crate::shadow::Shadow;
pub use crate::stage::{Failure, Invariant};
use crate::stage::{Stage, lock};

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
    stage: Stage,
    /// The store itself, without faults: what is written there is written.
    pub base: Arc<dyn ClaimStore>,
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
        let base = planted::store(options.planted, &stage.clock);
        let world = Self {
            plan,
            stage,
            base,
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

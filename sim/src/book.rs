//! What is written down in a run of the gate: what reached the upstream, what took effect, what somebody was told. Checks
//! nothing: `ledger` and `check` do.

use std::collections::{BTreeMap, BTreeSet};

use semel_store::Answer;

use crate::log::SlotNumber;

/// One use of a scope and key: a key may be used again once its record has expired.
pub type Use = (SlotNumber, u32);

/// One effect.
#[derive(Clone, Debug)]
pub struct Effect {
    /// What it is called in the request's body.
    pub name: String,
    /// The attempt that caused it.
    pub fence: u64,
    /// When, in milliseconds of virtual time.
    pub at: u64,
}

/// Everything that reached the upstream.
#[derive(Debug, Default)]
pub struct Ledger {
    pub(crate) effects: BTreeMap<Use, Vec<Effect>>,
    pub(crate) by_name: BTreeMap<String, u32>,
    pub(crate) sent: BTreeMap<u64, u64>,
    /// What each send asks for.
    pub(crate) asked: BTreeMap<u64, String>,
    pub(crate) sealed: BTreeSet<Use>,
}

impl Ledger {
    /// What took effect under this use of a key, first.
    pub fn effect(&self, used: Use) -> Option<&Effect> {
        self.effects.get(&used).and_then(|effects| effects.first())
    }

    /// What took effect of this send's request under this key, and in which use of it.
    pub fn effect_of_send(&self, slot: SlotNumber, send: u64) -> Option<(Use, &Effect)> {
        let name = self.asked.get(&send)?;
        let uses = self.effects.range((slot, 0)..=(slot, u32::MAX));
        let mut effects = uses.flat_map(|(used, effects)| effects.iter().map(|effect| (*used, effect)));
        effects.find(|(_, effect)| effect.name == *name)
    }

    /// Remembers what a send asks for.
    pub fn asks(&mut self, send: u64, name: &str) {
        self.asked.insert(send, name.to_owned());
    }

    /// How often this request took effect.
    pub fn times(&self, name: &str) -> u32 {
        self.by_name.get(name).copied().unwrap_or(0)
    }

    /// How many uses of a key had an effect, each of which is one promise that was checked.
    pub fn uses(&self) -> u64 {
        self.effects.len() as u64
    }

    /// Whether this send was dispatched.
    pub fn was_sent(&self, send: u64) -> bool {
        self.sent.contains_key(&send)
    }
}

/// What somebody was told and must be able to get again.
#[derive(Clone, Debug)]
pub struct Acknowledged {
    pub(crate) slot: SlotNumber,
    pub(crate) answer: Answer,
    pub(crate) until: u64,
}

/// What the effect of this body at this path is called.
pub fn effect_name(body: &str, item: &str) -> String {
    if item == "usual" { body.to_owned() } else { format!("{body}-at-{item}") }
}

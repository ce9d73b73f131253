//! The upstream that the relay writes to: a value for each lane, and a ledger of what was applied. It offers what its tier
//! says, and applies whatever arrives by these rules.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use semel_delivery::relay::recovery::Capability;
use semel_delivery::relay::reduce::Reducer;
use semel_delivery::relay::upstream::{Batch, Current};
use serde_json::{Value, json};

/// One lane's value.
#[derive(Debug, Default)]
struct Slot {
    value: i64,
    version: u64,
    markers: Vec<String>,
}

/// A write, as it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The lane.
    pub lane: String,
    /// The change, or the wanted value.
    pub delta: i64,
    /// The value that it leads to, where that is known.
    pub after: Option<i64>,
    /// The batch's key.
    pub key: String,
    /// The version that was read.
    pub version: Option<String>,
}

impl Write {
    /// The bytes of a batch.
    pub(super) fn frozen(batch: &Batch) -> String {
        let Batch { lane, delta, after, key, version, .. } = batch;
        json!({"lane": lane, "delta": delta, "after": after, "key": key, "version": version}).to_string()
    }

    /// Reads the bytes.
    pub(super) fn of(frozen: &str) -> Self {
        let read: Value = serde_json::from_str(frozen).expect("the bytes are those that were frozen");
        Self {
            lane: read["lane"].as_str().unwrap_or_default().to_owned(),
            delta: read["delta"].as_i64().unwrap_or_default(),
            after: read["after"].as_i64(),
            key: read["key"].as_str().unwrap_or_default().to_owned(),
            version: read["version"].as_str().map(str::to_owned),
        }
    }
}

/// The upstream.
#[derive(Debug)]
pub struct Service {
    tier: Capability,
    reducer: Reducer,
    slots: BTreeMap<String, Slot>,
    /// Keys that were used, and when.
    keys: BTreeMap<String, u64>,
    applied: BTreeMap<String, u64>,
    revoked: BTreeSet<String>,
    foreign: BTreeSet<String>,
    rejected: BTreeSet<String>,
}

impl Service {
    /// An upstream that nothing has reached yet.
    pub(super) fn new(tier: Capability, reducer: Reducer) -> Self {
        Self {
            tier,
            reducer,
            slots: BTreeMap::new(),
            keys: BTreeMap::new(),
            applied: BTreeMap::new(),
            revoked: BTreeSet::new(),
            foreign: BTreeSet::new(),
            rejected: BTreeSet::new(),
        }
    }

    /// How often a batch was applied.
    pub fn times(&self, key: &str) -> u64 {
        self.applied.get(key).copied().unwrap_or(0)
    }

    /// A lane's value.
    pub fn value(&self, lane: &str) -> i64 {
        self.slots.get(lane).map_or(0, |slot| slot.value)
    }

    /// Whether somebody else wrote to a lane.
    pub fn is_foreign(&self, lane: &str) -> bool {
        self.foreign.contains(lane)
    }

    /// What a reader sees.
    pub(super) fn current(&mut self, lane: &str) -> Current {
        let slot = self.slots.entry(lane.to_owned()).or_default();
        Current {
            value: Some(slot.value),
            version: Some(slot.version.to_string()),
            markers: slot.markers.clone(),
        }
    }

    /// A credential is refused from now on.
    pub(super) fn revoke(&mut self, token: &str) {
        self.revoked.insert(token.to_owned());
    }

    /// Whether a credential is refused.
    pub(super) fn is_revoked(&self, token: &str) -> bool {
        self.revoked.contains(token)
    }

    /// Somebody else writes.
    pub(super) fn interfere(&mut self, lane: &str, change: i64) {
        let slot = self.slots.entry(lane.to_owned()).or_default();
        slot.value += change;
        slot.version += 1;
        self.foreign.insert(lane.to_owned());
    }

    /// Refuses a write for good, unless it was applied. One that knows keys again says the same ever after.
    pub(super) fn reject(&mut self, write: &Write) -> bool {
        let is_new = self.times(&write.key) == 0;
        if is_new {
            self.rejected.insert(write.key.clone());
        }
        is_new
    }

    /// A write arrives, at this millisecond. Returns the status.
    pub(super) fn apply(&mut self, write: &Write, now: u64) -> u16 {
        let slot = self.slots.entry(write.lane.clone()).or_default();
        let reduced = match self.reducer {
            Reducer::Sum => slot.value + write.delta,
            Reducer::Max => slot.value.max(write.delta),
            Reducer::Last => write.delta,
        };
        match self.tier {
            Capability::Key { .. } if self.rejected.contains(&write.key) => return 422,
            Capability::Key { retention } => {
                let known = self.keys.get(&write.key).copied();
                if known.is_some_and(|at| Duration::from_millis(now - at) < retention) {
                    return 200;
                }
                self.keys.insert(write.key.clone(), now);
                slot.value = reduced;
            }
            Capability::Blind(_) => slot.value = reduced,
            Capability::CompareAndSet => {
                if write.version.as_deref() != Some(slot.version.to_string().as_str()) {
                    return 412;
                }
                slot.value = write.after.unwrap_or(reduced);
            }
            Capability::Marker => {
                slot.value = write.after.unwrap_or(reduced);
                slot.markers.push(write.key.clone());
            }
            Capability::ReadBack => slot.value = write.after.unwrap_or(reduced),
        }
        slot.version += 1;
        *self.applied.entry(write.key.clone()).or_default() += 1;
        200
    }
}

//! What the checkers remember of the store: every claim that was won and every answer that was settled, by virtual ticks.
//! It never asks the store's own clock, so that a store that trusts a wrong clock is caught.

use std::collections::BTreeMap;
use std::time::Duration;

use semel_contract::record::{Fence, State};
use semel_contract::time::Timestamp;
use semel_store::clock::SLEW_PARTS;
use semel_store::{Answer, Entry, Id};

/// A claim that was won.
#[derive(Clone, Debug)]
pub struct ClaimSeen {
    /// The key.
    pub id: Id,
    /// By whom it was won.
    pub by: String,
    /// When, in milliseconds of virtual time.
    pub won_at: u64,
    /// Its first lease.
    pub lease: Duration,
    /// Until when it is exclusive, renewals included.
    pub lease_until: u64,
    /// Until when its effect may come.
    pub late_until: u64,
    /// When it was dispatched.
    pub dispatched_at: Option<u64>,
    /// Whether its handler still runs.
    pub is_running: bool,
}

/// What is sure of a lease by the ticks: the store's clock may make up for the wall clock meanwhile.
pub fn surely(lease: Duration) -> Duration {
    lease - lease * 2 / SLEW_PARTS
}

impl ClaimSeen {
    /// After this nothing may be sent under it: the first lease, which renewals do not extend.
    pub fn dispatch_by(&self) -> u64 {
        self.won_at + millis(surely(self.lease))
    }
}

/// An answer that was settled.
#[derive(Clone, Debug)]
pub struct Epoch {
    /// Under which fence.
    pub fence: Fence,
    /// The state it led to.
    pub state: State,
    /// The answer, as it was handed to the store.
    pub answer: Option<Answer>,
    /// When.
    pub at: u64,
    /// Until when it must stay.
    pub until: u64,
}

/// Everything that was seen.
#[derive(Debug, Default)]
pub struct Shadow {
    /// The highest fence number so far.
    pub highest_fence: u64,
    /// Claims by fence number.
    pub claims: BTreeMap<u64, ClaimSeen>,
    /// What was settled under each key, oldest first.
    pub epochs: BTreeMap<Id, Vec<Epoch>>,
    /// When each node renewed leases.
    pub renewals: BTreeMap<String, Vec<u64>>,
}

impl Shadow {
    /// What must still be there.
    pub fn lasting(&self, id: &Id, now: u64) -> Option<&Epoch> {
        self.epochs.get(id).and_then(|epochs| epochs.last()).filter(|epoch| now < epoch.until)
    }

    /// What was settled at any time since.
    pub fn settled_since(&self, id: &Id, since: u64) -> Vec<Epoch> {
        let epochs = self.epochs.get(id).map(Vec::as_slice).unwrap_or_default();
        // The one before the first that came later still stood at that time.
        let first = epochs.partition_point(|epoch| epoch.at <= since).saturating_sub(1);
        epochs[first..].to_vec()
    }

    /// Marks what a dead node was running as ended.
    pub fn node_died(&mut self, by: &str) {
        // A process may have had several gates one after another.
        let is_of = |claim: &&mut ClaimSeen| claim.by.split('/').next() == Some(by);
        for claim in self.claims.values_mut().filter(is_of) {
            claim.is_running = false;
        }
    }
}

/// A duration in milliseconds.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Why the store was asked to change something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Somebody claims.
    Claim,
    /// A holder ends its attempt, with this fence.
    Settle(Fence),
    /// Holders renew.
    Renew,
    /// Somebody resolves an unknown outcome, with this fence.
    Resolve(Fence),
    /// An owner cancels.
    Seal,
    /// The sweeper runs.
    Sweep,
    /// Nobody asked: a crash came between.
    Nothing,
}

/// A record as far as it may not change by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    state: State,
    fence: Fence,
    answer: Option<Answer>,
    expires_at: Option<Timestamp>,
}

/// The facts of an entry.
pub fn facts(entry: &Entry) -> Facts {
    Facts {
        state: entry.record.state,
        fence: entry.record.fence,
        answer: entry.answer.clone(),
        expires_at: entry.record.expires_at,
    }
}

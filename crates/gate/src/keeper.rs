//! Renews the leases of claims whose handlers still run. One task for all of them, one call for each round.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use semel_contract::planted::{self, Bug};
use semel_contract::record::Fence;
use semel_store::{ClaimStore, Id};

/// A lease is renewed so many times before it would lapse.
const RENEWALS_PER_LEASE: u32 = 3;

/// Renews what is held.
pub(crate) struct Keeper {
    store: Arc<dyn ClaimStore>,
    held: Arc<Mutex<Held>>,
}

/// The claims that are held.
#[derive(Default)]
struct Held {
    claims: BTreeMap<u64, (Id, Fence, Duration)>,
    last: u64,
    /// Whether the task that renews them is there.
    renewing: bool,
}

/// A claim that is renewed until this is dropped.
pub(crate) struct Hold {
    held: Arc<Mutex<Held>>,
    number: u64,
}

fn lock(held: &Mutex<Held>) -> MutexGuard<'_, Held> {
    held.lock().expect("nothing that holds this lock panics")
}

impl Keeper {
    pub(crate) fn new(store: Arc<dyn ClaimStore>) -> Self {
        Self { store, held: Arc::default() }
    }

    /// Renews a claim from now on.
    pub(crate) fn hold(&self, id: &Id, fence: Fence, lease: Duration) -> Hold {
        let mut held = lock(&self.held);
        held.last += 1;
        let number = held.last;
        held.claims.insert(number, (id.clone(), fence, lease));
        if !std::mem::replace(&mut held.renewing, true) {
            tokio::spawn(renew(Arc::downgrade(&self.store), Arc::downgrade(&self.held)));
        }
        drop(held);
        Hold { held: Arc::clone(&self.held), number }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        lock(&self.held).claims.remove(&self.number);
    }
}

/// The shortest lease that is held; `None` ends the task, and the next claim starts another.
fn shortest(held: &Mutex<Held>) -> Option<Duration> {
    let mut held = lock(held);
    let shortest = held.claims.values().map(|(_, _, lease)| *lease).min();
    held.renewing = shortest.is_some();
    shortest
}

/// Runs while anything is held. Keeps neither the gate nor its store alive: a store that is given up must close.
async fn renew(store: Weak<dyn ClaimStore>, held: Weak<Mutex<Held>>) {
    while let Some(shortest) = held.upgrade().and_then(|held| shortest(&held)) {
        tokio::time::sleep(shortest / RENEWALS_PER_LEASE).await;
        let (Some(store), Some(held)) = (store.upgrade(), held.upgrade()) else { return };
        let mut by_lease: BTreeMap<Duration, Vec<(Id, Fence)>> = BTreeMap::new();
        for (id, fence, lease) in lock(&held).claims.values() {
            by_lease.entry(*lease).or_default().push((id.clone(), *fence));
        }
        for (lease, claims) in by_lease {
            if planted::is(Bug::LeaseNotRenewed) {
                continue;
            }
            // A renewal that fails is tried again in the next round; a lost lease is noticed at the settlement.
            if let Err(error) = store.renew(&claims, lease).await {
                tracing::warn!(%error, claims = claims.len(), "failed to renew leases");
            }
        }
    }
}

//! Renews the leases of claims whose handlers still run. One task for all of them, one call for each round.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use semel_contract::record::Fence;
use semel_store::{ClaimStore, Id};

/// A lease is renewed so many times before it would lapse.
const RENEWALS_PER_LEASE: u32 = 3;

/// Held claims, by the lease that they are renewed with.
type Held = BTreeMap<u64, (Id, Fence, Duration)>;

/// Renews what is held.
pub(crate) struct Keeper {
    store: Arc<dyn ClaimStore>,
    held: Arc<Mutex<Held>>,
    next: AtomicU64,
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
        Self { store, held: Arc::default(), next: AtomicU64::new(0) }
    }

    /// Renews a claim from now on.
    pub(crate) fn hold(&self, id: &Id, fence: Fence, lease: Duration) -> Hold {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let starts = {
            let mut held = lock(&self.held);
            held.insert(number, (id.clone(), fence, lease));
            held.len() == 1
        };
        if starts {
            tokio::spawn(renew(Arc::clone(&self.store), Arc::downgrade(&self.held)));
        }
        Hold { held: Arc::clone(&self.held), number }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        lock(&self.held).remove(&self.number);
    }
}

/// Runs while anything is held.
async fn renew(store: Arc<dyn ClaimStore>, held: Weak<Mutex<Held>>) {
    loop {
        let Some(shortest) =
            held.upgrade().and_then(|held| lock(&held).values().map(|(_, _, lease)| *lease).min())
        else {
            return;
        };
        tokio::time::sleep(shortest / RENEWALS_PER_LEASE).await;
        let mut by_lease: BTreeMap<Duration, Vec<(Id, Fence)>> = BTreeMap::new();
        match held.upgrade() {
            Some(held) => {
                for (id, fence, lease) in lock(&held).values() {
                    by_lease.entry(*lease).or_default().push((id.clone(), *fence));
                }
            }
            None => return,
        }
        for (lease, claims) in by_lease {
            // A renewal that fails is tried again in the next round; a lost lease is noticed at the settlement.
            if let Err(error) = store.renew(&claims, lease).await {
                tracing::warn!(%error, claims = claims.len(), "failed to renew leases");
            }
        }
    }
}

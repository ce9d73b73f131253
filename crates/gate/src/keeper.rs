//! Renews the leases of claims whose handlers still run. One task for each length of lease, one call for each round: a
//! short lease never waits for the round of a longer one.

use std::collections::{BTreeMap, btree_map};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use semel_contract::decide::Claim;
use semel_contract::planted::{self, Bug};
use semel_contract::record::Fence;
use semel_store::{ClaimStore, FencedWrite, Id};
use tokio::time::Instant;

use crate::route::Route;

/// A lease is renewed so many times before it would lapse.
const RENEWALS_PER_LEASE: u32 = 3;

/// Renews what is held.
pub(crate) struct Keeper {
    store: Arc<dyn ClaimStore>,
    held: Arc<Mutex<HeldClaims>>,
}

/// A claim that somebody holds.
#[derive(Clone)]
pub(crate) struct RenewedClaim {
    pub(crate) id: Id,
    pub(crate) fence: Fence,
    /// What it was claimed over: an attempt that follows an unknown one leaves the key unknown.
    pub(crate) how: Claim,
    pub(crate) route: Arc<Route>,
}

/// The claims that are held, by the length of their lease; each length that is there has its task.
#[derive(Default)]
struct HeldClaims {
    claims: BTreeMap<Duration, BTreeMap<u64, RenewedClaim>>,
    last: u64,
}

/// A claim that is renewed until this is dropped.
pub(crate) struct RenewalGuard {
    held: Arc<Mutex<HeldClaims>>,
    lease: Duration,
    number: u64,
}

fn lock(held: &Mutex<HeldClaims>) -> MutexGuard<'_, HeldClaims> {
    held.lock().expect("nothing that holds this lock panics")
}

impl Keeper {
    pub(crate) fn new(store: Arc<dyn ClaimStore>) -> Self {
        Self { store, held: Arc::default() }
    }

    /// Renews a claim from now on.
    pub(crate) fn hold(&self, id: &Id, fence: Fence, how: Claim, route: &Arc<Route>) -> RenewalGuard {
        let lease = route.lease;
        let claimed = RenewedClaim { id: id.clone(), fence, how, route: Arc::clone(route) };
        let mut held = lock(&self.held);
        held.last += 1;
        let number = held.last;
        match held.claims.entry(lease) {
            btree_map::Entry::Occupied(mut there) => drop(there.get_mut().insert(number, claimed)),
            btree_map::Entry::Vacant(free) => {
                free.insert(BTreeMap::from([(number, claimed)]));
                tokio::spawn(renew(Arc::downgrade(&self.store), Arc::downgrade(&self.held), lease));
            }
        }
        drop(held);
        RenewalGuard { held: Arc::clone(&self.held), lease, number }
    }

    /// What is held now.
    pub(crate) fn held(&self) -> Vec<RenewedClaim> {
        lock(&self.held).claims.values().flat_map(BTreeMap::values).cloned().collect()
    }
}

impl Drop for RenewalGuard {
    fn drop(&mut self) {
        if let Some(claims) = lock(&self.held).claims.get_mut(&self.lease) {
            claims.remove(&self.number);
        }
    }
}

/// The claims of one round; `None` ends the task, and the next claim starts another.
fn round(held: &Mutex<HeldClaims>, lease: Duration) -> Option<Vec<(Id, Fence)>> {
    let mut held = lock(held);
    let claims = held.claims.get(&lease)?;
    if claims.is_empty() {
        held.claims.remove(&lease);
        return None;
    }
    Some(claims.values().map(|claimed| (claimed.id.clone(), claimed.fence)).collect())
}

/// A claim that is somebody else's by now is not asked about again; its attempt learns of it when it settles.
fn drop_lost(held: &Mutex<HeldClaims>, lease: Duration, claims: &[(Id, Fence)], written: &[FencedWrite]) {
    let lost: Vec<Fence> = claims
        .iter()
        .zip(written)
        .filter(|(_, written)| **written == FencedWrite::Superseded)
        .map(|((_, fence), _)| *fence)
        .collect();
    if lost.is_empty() {
        return;
    }
    if let Some(claims) = lock(held).claims.get_mut(&lease) {
        claims.retain(|_, claimed| !lost.contains(&claimed.fence));
    }
}

fn count_renewed(store: &dyn ClaimStore, claims: &[(Id, Fence)], written: &[FencedWrite]) {
    for ((_, fence), written) in claims.iter().zip(written) {
        if *written == FencedWrite::Done {
            store.hints().renewals().add(fence.number);
        }
    }
}

/// Runs while anything is held. Keeps neither the gate nor its store alive: a store that is given up must close.
async fn renew(store: Weak<dyn ClaimStore>, held: Weak<Mutex<HeldClaims>>, lease: Duration) {
    let period = lease / RENEWALS_PER_LEASE;
    let mut next = Instant::now() + period;
    loop {
        tokio::time::sleep_until(next).await;
        let (Some(store), Some(held)) = (store.upgrade(), held.upgrade()) else { return };
        let Some(claims) = round(&held, lease) else { return };
        next = Instant::now() + period;
        if planted::is(Bug::LeaseNotRenewed) {
            continue;
        }
        // A renewal that fails or hangs is tried again in the next round, which comes before the lease lapses; a lost
        // lease is noticed at the settlement.
        match tokio::time::timeout(period / 2, store.renew(&claims, lease)).await {
            Ok(Ok(written)) => {
                count_renewed(&*store, &claims, &written);
                drop_lost(&held, lease, &claims, &written);
            }
            Ok(Err(error)) => tracing::warn!(%error, claims = claims.len(), "failed to renew leases"),
            Err(_) => tracing::warn!(claims = claims.len(), "the store took too long to renew leases"),
        }
    }
}

//! Reservations: atomic requests that this process runs. Owns who runs which key here, so that one handler per key runs at a
//! time. Nothing of it is in the database: the handler's own transaction enters, and excludes the other processes. A crash
//! leaves nothing.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use semel_contract::decide::Claim;
use semel_contract::profile::Lifetime;
use semel_contract::record::Fence;

use super::settle::{Ending, Write};
use super::{Core, PostgresStore, upkeep};
use crate::claims::{
    ClaimOutcome, ClaimRequest, ClaimStore, FencedWrite, Id, RESERVED, Settlement, StoreError, is_reserved,
};

/// By the hash of the key: the reservation, and what was wished.
type Held = HashMap<[u8; 16], (Fence, Arc<ClaimRequest>)>;

/// The keys that handlers of this process run, with what was wished for each.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    held: Mutex<Held>,
    last: AtomicU64,
}

impl Reservations {
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().expect("nothing that holds this lock panics")
    }

    /// Takes a key, unless a handler of this process has it.
    fn take(&self, request: &Arc<ClaimRequest>) -> Option<Fence> {
        match self.lock().entry(request.id.hash()) {
            Slot::Occupied(_) => None,
            Slot::Vacant(free) => {
                let number = RESERVED | self.last.fetch_add(1, Ordering::Relaxed);
                let fence = Fence { number, nonce: request.nonce };
                free.insert((fence, Arc::clone(request)));
                Some(fence)
            }
        }
    }

    /// What was wished under a reservation that still holds.
    pub(super) fn claim_request(&self, id: &Id, fence: Fence) -> Option<Arc<ClaimRequest>> {
        let held = self.lock();
        let (known, request) = held.get(&id.hash())?;
        (*known == fence).then(|| Arc::clone(request))
    }

    /// Gives a key back, and wakes whoever waits for it in this process.
    pub(super) fn give_back(&self, core: &Core, id: &Id, fence: Fence) {
        let hash = id.hash();
        if let Slot::Occupied(there) = self.lock().entry(hash)
            && there.get().0 == fence
        {
            there.remove();
        }
        core.hints.wake(hash);
    }
}

/// A key that is given back when this is dropped, unless it is kept: whoever wished for it may go away while the store looks.
struct Taken<'a> {
    core: &'a Core,
    request: Arc<ClaimRequest>,
    fence: Fence,
    is_kept: bool,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            self.core.reservations.give_back(self.core, &self.request.id, self.fence);
        }
    }
}

/// Reserves a key, if nothing on record stands in the way. The reservation comes first: once a handler of this process has
/// given its key back, whoever comes next finds its record.
pub(super) async fn reserve(
    store: &PostgresStore,
    request: ClaimRequest,
) -> Result<ClaimOutcome, StoreError> {
    match request.how {
        Claim::New | Claim::TakeOver | Claim::Supersede | Claim::Reclaim => {}
        // What is unknown stays so until its retry is settled: that has to be on record.
        Claim::Forward | Claim::Rerun => return store.claim(request).await,
    }
    let core = &*store.core;
    let request = Arc::new(request);
    let Some(fence) = core.reservations.take(&request) else { return Ok(ClaimOutcome::Entered) };
    let mut taken = Taken { core, request, fence, is_kept: false };
    match store.reserves.ask(ClaimRequest::clone(&taken.request)).await? {
        ClaimOutcome::Won { now, .. } => {
            taken.is_kept = true;
            Ok(ClaimOutcome::Won { fence, now })
        }
        other => Ok(other),
    }
}

/// Ends a reservation. What is to be on record is claimed and settled now, since nothing of it is there yet.
pub(super) async fn settle(
    store: &PostgresStore,
    id: &Id,
    fence: Fence,
    settlement: Settlement,
    lifetime: &Lifetime,
) -> Result<FencedWrite, StoreError> {
    let core = &*store.core;
    let Some(request) = core.reservations.claim_request(id, fence) else {
        return Ok(FencedWrite::Superseded);
    };
    let written = match settlement {
        Settlement::Release => FencedWrite::Done,
        Settlement::Settle(_) | Settlement::Unkept(_) | Settlement::Unknown => {
            write_down(store, &request, settlement, lifetime).await?
        }
    };
    core.reservations.give_back(core, id, fence);
    core.announce(id.hash());
    Ok(written)
}

async fn write_down(
    store: &PostgresStore,
    request: &ClaimRequest,
    settlement: Settlement,
    lifetime: &Lifetime,
) -> Result<FencedWrite, StoreError> {
    let fence = match store.claim(request.clone()).await? {
        ClaimOutcome::Won { fence, .. } => fence,
        // An earlier try got so far, and its answer was lost.
        ClaimOutcome::Known { entry, .. } if entry.record.fence.nonce == request.nonce => entry.record.fence,
        // Whoever holds the key may still roll back, and then it must not be free: it is tried again.
        ClaimOutcome::Entered if matches!(settlement, Settlement::Unknown) => {
            return Err(StoreError::Unavailable("another transaction holds the key".to_owned()));
        }
        ClaimOutcome::Known { .. }
        | ClaimOutcome::Changed
        | ClaimOutcome::CredentialChanged
        | ClaimOutcome::Entered => {
            return Ok(FencedWrite::Superseded);
        }
    };
    let ending = Ending { id: request.id.clone(), fence, write: Write::of(settlement, lifetime) };
    store.settlements.ask(ending).await
}

/// Renews leases; a reservation has none, and holds as long as this process.
pub(super) async fn renew(
    core: &Core,
    held: &[(Id, Fence)],
    lease: Duration,
) -> Result<Vec<FencedWrite>, StoreError> {
    if !held.iter().any(|(_, fence)| is_reserved(*fence)) {
        return upkeep::renew(core, held, lease).await;
    }
    let claims: Vec<(Id, Fence)> = held.iter().filter(|(_, fence)| !is_reserved(*fence)).cloned().collect();
    let mut renewed = match claims.is_empty() {
        true => Vec::new(),
        false => upkeep::renew(core, &claims, lease).await?,
    }
    .into_iter();
    Ok(held
        .iter()
        .map(|(id, fence)| match is_reserved(*fence) {
            true if core.reservations.claim_request(id, *fence).is_some() => FencedWrite::Done,
            true => FencedWrite::Superseded,
            false => renewed.next().unwrap_or(FencedWrite::Superseded),
        })
        .collect())
}

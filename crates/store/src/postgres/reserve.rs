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
use crate::claims::{ClaimStore, Claimed, Id, RESERVED, Settlement, StoreError, Wish, Written, is_reserved};

/// By the hash of the key: the reservation, and what was wished.
type Held = HashMap<[u8; 16], (Fence, Arc<Wish>)>;

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
    fn take(&self, wish: &Arc<Wish>) -> Option<Fence> {
        match self.lock().entry(wish.id.hash()) {
            Slot::Occupied(_) => None,
            Slot::Vacant(free) => {
                let number = RESERVED | self.last.fetch_add(1, Ordering::Relaxed);
                let fence = Fence { number, nonce: wish.nonce };
                free.insert((fence, Arc::clone(wish)));
                Some(fence)
            }
        }
    }

    /// What was wished under a reservation that still holds.
    pub(super) fn wish(&self, id: &Id, fence: Fence) -> Option<Arc<Wish>> {
        let held = self.lock();
        let (known, wish) = held.get(&id.hash())?;
        (*known == fence).then(|| Arc::clone(wish))
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
    wish: Arc<Wish>,
    fence: Fence,
    is_kept: bool,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            self.core.reservations.give_back(self.core, &self.wish.id, self.fence);
        }
    }
}

/// Reserves a key, if nothing on record stands in the way. The reservation comes first: once a handler of this process has
/// given its key back, whoever comes next finds its record.
pub(super) async fn reserve(store: &PostgresStore, wish: Wish) -> Result<Claimed, StoreError> {
    match wish.how {
        Claim::New | Claim::TakeOver | Claim::Supersede | Claim::Reclaim => {}
        // What is unknown stays so until its retry is settled: that has to be on record.
        Claim::Forward | Claim::Rerun => return store.claim(wish).await,
    }
    let core = &*store.core;
    let wish = Arc::new(wish);
    let Some(fence) = core.reservations.take(&wish) else { return Ok(Claimed::Entered) };
    let mut taken = Taken { core, wish, fence, is_kept: false };
    match store.reserves.ask(Wish::clone(&taken.wish)).await? {
        Claimed::Won { now, .. } => {
            taken.is_kept = true;
            Ok(Claimed::Won { fence, now })
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
) -> Result<Written, StoreError> {
    let core = &*store.core;
    let Some(wish) = core.reservations.wish(id, fence) else { return Ok(Written::Superseded) };
    let written = match settlement {
        Settlement::Release => Written::Done,
        Settlement::Settle(_) | Settlement::Unkept(_) | Settlement::Unknown => {
            write_down(store, &wish, settlement, lifetime).await?
        }
    };
    core.reservations.give_back(core, id, fence);
    core.announce(id.hash());
    Ok(written)
}

async fn write_down(
    store: &PostgresStore,
    wish: &Wish,
    settlement: Settlement,
    lifetime: &Lifetime,
) -> Result<Written, StoreError> {
    let fence = match store.claim(wish.clone()).await? {
        Claimed::Won { fence, .. } => fence,
        // An earlier try got so far, and its answer was lost.
        Claimed::Known { entry, .. } if entry.record.fence.nonce == wish.nonce => entry.record.fence,
        // Whoever holds the key may still roll back, and then it must not be free: it is tried again.
        Claimed::Entered if matches!(settlement, Settlement::Unknown) => {
            return Err(StoreError::Unavailable("another transaction holds the key".to_owned()));
        }
        Claimed::Known { .. } | Claimed::Changed | Claimed::CredentialChanged | Claimed::Entered => {
            return Ok(Written::Superseded);
        }
    };
    let ending = Ending { id: wish.id.clone(), fence, write: Write::of(settlement, lifetime) };
    store.settlements.ask(ending).await
}

/// Renews leases; a reservation has none, and holds as long as this process.
pub(super) async fn renew(
    core: &Core,
    held: &[(Id, Fence)],
    lease: Duration,
) -> Result<Vec<Written>, StoreError> {
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
            true if core.reservations.wish(id, *fence).is_some() => Written::Done,
            true => Written::Superseded,
            false => renewed.next().unwrap_or(Written::Superseded),
        })
        .collect())
}

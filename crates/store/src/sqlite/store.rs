//! The methods of the claim store: each hands its work to the writer, or reads. The call itself queues the work;
//! dropping the reply does not take it back.

use std::collections::{HashMap, HashSet};
use std::future::ready;
use std::time::Duration;

use semel_contract::profile::Lifetime;
use semel_contract::record::{Fence, State};
use semel_contract::restore::Restore;
use semel_contract::time::Timestamp;

use super::SqliteStore;
use super::claim_tx::ClaimTx;
use super::engine::Fault;
use super::recent::Age;
use super::row::{Hash, StoredEntry};
use super::shared::StoreShared;
use super::statements;
use super::transitions::{self, Word};
use crate::claims::{
    About, ClaimOutcome, ClaimRequest, ClaimStore, Entry, FencedWrite, Filter, Id, Order, Reply, Resolution,
    Resolved, Sealed, Settlement, StoreError, Swept,
};
use crate::forms::{Form, Forms};
use crate::hints::Hints;

/// Records that one member of a batch removes; more are removed by several.
const REMOVED_AT_ONCE_MAX: u32 = 1000;
/// Lapsed claims that one member of a batch ends.
const LAPSED_AT_ONCE_MAX: usize = 1000;

impl SqliteStore {
    /// Hands work to the writer; `bytes` is roughly what it writes beside a row's usual content.
    pub(super) fn submit<T, F>(&self, bytes: usize, work: F) -> Reply<'static, T>
    where
        T: Send + 'static,
        F: FnMut(&mut ClaimTx<'_>) -> Result<T, Fault> + Send + 'static,
    {
        let submitted = self.engine.submit(bytes, work);
        Box::pin(async move { Ok(submitted.await?) })
    }

    fn look(&self, id: &Id, hash: Hash) -> Result<(Option<Entry>, Timestamp), StoreError> {
        self.shared.check()?;
        let mut known = self.shared.index.of(hash);
        loop {
            // What is held counts before what is written, and is let go only after its end was committed: whatever was
            // acknowledged is found in one of the two.
            let held = self.shared.open_claims().get(hash).filter(|kept| kept.entry.id == *id).cloned();
            let found = match held {
                Some(kept) => Some(kept.entry),
                None => self.written(&known, hash, id)?,
            };
            // A row that came meanwhile is looked for again.
            let now_known = if found.is_some() { Vec::new() } else { self.shared.index.of(hash) };
            if found.is_some() || now_known == known {
                return Ok((found, self.shared.now()));
            }
            known = now_known;
        }
    }
}

impl SqliteStore {
    /// What is written of an id under these numbers.
    fn written(&self, known: &[u64], hash: Hash, id: &Id) -> Result<Option<Entry>, StoreError> {
        let Some(latest) = known.first() else { return Ok(None) };
        if let Some(entry) = self.shared.recent.get(hash, *latest).filter(|entry| entry.id == *id) {
            return Ok(Some(entry));
        }
        let age = self.shared.recent.age();
        let kept = self.shared.look(|connection| statements::find(connection, known, hash, id))?;
        Ok(kept.map(|kept| {
            // Where another number is higher it would not be found there.
            if kept.entry.record.fence.number == *latest {
                self.remember(hash, &kept.entry, age);
            }
            kept.entry
        }))
    }

    /// Whoever sends a request again may well send it once more.
    fn remember(&self, hash: Hash, entry: &Entry, age: Age) {
        let number = entry.record.fence.number;
        if entry.record.state == State::Settled && self.shared.recent.add(hash, entry, age) {
            // A row that was removed meanwhile is not kept in memory either.
            if self.shared.index.of(hash).first() != Some(&number) {
                self.shared.recent.remove(hash, number);
            }
        }
    }
}

impl SqliteStore {
    /// Whether another key's record lives that was claimed with this mark. What is held counts before what is written.
    fn has_mark(&self, rotation: [u8; 16], hash: Hash) -> Result<bool, StoreError> {
        self.shared.check()?;
        if self.shared.open_claims().rotation(rotation).is_some_and(|holder| holder != hash) {
            return Ok(true);
        }
        let now = self.shared.now();
        let lives = |connection: &rusqlite::Connection| {
            let mut numbers = self.shared.index.of_rotation(rotation).into_iter();
            numbers.try_fold(false, |found, number| {
                Ok(found || statements::rotation_lives(connection, number, rotation, hash, now)?)
            })
        };
        self.shared.look(lives)
    }
}

impl ClaimStore for SqliteStore {
    fn claim(&self, request: ClaimRequest) -> Reply<'_, ClaimOutcome> {
        let hash = request.id.hash();
        self.submit(0, move |tx| transitions::claim(tx, &request, hash))
    }

    fn look_up<'a>(&'a self, id: &'a Id) -> Reply<'a, (Option<Entry>, Timestamp)> {
        Box::pin(ready(self.look(id, id.hash())))
    }

    fn settle<'a>(
        &'a self,
        id: &'a Id,
        fence: Fence,
        settlement: Settlement,
        lifetime: &'a Lifetime,
    ) -> Reply<'a, FencedWrite> {
        let (id, lifetime) = (id.clone(), lifetime.clone());
        let bytes = bytes_of(&settlement);
        self.submit(bytes, move |tx| transitions::settle(tx, &id, fence, &settlement, &lifetime))
    }

    fn renew<'a>(&'a self, held: &'a [(Id, Fence)], lease: Duration) -> Reply<'a, Vec<FencedWrite>> {
        if let Err(error) = self.shared.check() {
            return Box::pin(ready(Err(error)));
        }
        let mut live = self.shared.open_claims();
        // Read under the lock: see what a renewal asks for.
        let now = self.shared.now();
        let renewed = held.iter().map(|(id, fence)| live.renew(id, *fence, lease, now)).collect();
        Box::pin(ready(Ok(renewed)))
    }

    fn resolve<'a>(
        &'a self,
        id: &'a Id,
        fence: Fence,
        resolution: Resolution,
        lifetime: &'a Lifetime,
        by: &'a str,
        reason: &'a str,
    ) -> Reply<'a, Resolved> {
        let (id, lifetime) = (id.clone(), lifetime.clone());
        let bytes = match &resolution {
            Resolution::Applied(Some(answer)) => answer.body.len(),
            Resolution::Applied(None) | Resolution::NotApplied => 0,
        };
        let word = Word { resolution, by: by.to_owned(), reason: reason.to_owned() };
        self.submit(bytes, move |tx| transitions::resolve(tx, &id, fence, &word, &lifetime))
    }

    fn seal<'a>(&'a self, id: &'a Id, about: &'a About, lifetime: &'a Lifetime) -> Reply<'a, Sealed> {
        let (id, about, lifetime) = (id.clone(), about.clone(), lifetime.clone());
        self.submit(0, move |tx| transitions::seal(tx, &id, &about, &lifetime))
    }

    fn sweep(&self, batch: u32, grace: Duration) -> Reply<'_, Swept> {
        Box::pin(async move {
            let mut total = Swept::default();
            loop {
                let left = u64::from(batch).saturating_sub(total.removed);
                let limit = u32::try_from(left).map_or(REMOVED_AT_ONCE_MAX, |it| it.min(REMOVED_AT_ONCE_MAX));
                let sweep =
                    move |tx: &mut ClaimTx<'_>| transitions::sweep(tx, limit, LAPSED_AT_ONCE_MAX, grace);
                let swept = self.submit(0, sweep).await?;
                total.removed += swept.removed;
                total.unknown += swept.unknown;
                total.released += swept.released;
                let may_have_more = (swept.removed == u64::from(limit) && total.removed < u64::from(batch))
                    || swept.unknown + swept.released == LAPSED_AT_ONCE_MAX as u64;
                if !may_have_more {
                    return Ok(total);
                }
            }
        })
    }

    fn forget<'a>(&'a self, tenant: Option<&'a str>, principal: &'a str, by: &'a str) -> Reply<'a, u64> {
        Box::pin(async move {
            let sought = principal.to_owned();
            let numbers = self.ask(move |shared| Ok(shared.index.of_principal(&sought, 0))).await?;
            let mut total = 0;
            // At least one, for the trail.
            for at in 0..numbers.len().div_ceil(REMOVED_AT_ONCE_MAX as usize).max(1) {
                let from = at * REMOVED_AT_ONCE_MAX as usize;
                let to = numbers.len().min(from + REMOVED_AT_ONCE_MAX as usize);
                let numbers = numbers[from..to].to_vec();
                let (tenant, principal) = (tenant.map(str::to_owned), principal.to_owned());
                let by = by.to_owned();
                let forget = move |tx: &mut ClaimTx<'_>| {
                    transitions::forget(tx, tenant.as_deref(), &principal, &by, &numbers)
                };
                total += self.submit(0, forget).await?;
            }
            Ok(total)
        })
    }

    fn list<'a>(&'a self, filter: &'a Filter) -> Reply<'a, Vec<Entry>> {
        let filter = filter.clone();
        self.ask(move |shared| listed(shared, &filter))
    }

    fn lookup_is_local(&self) -> bool {
        true
    }

    fn ready(&self) -> Reply<'_, ()> {
        Box::pin(ready(self.shared.engine.health.ready().map_err(StoreError::from)))
    }

    fn restores(&self) -> Reply<'_, Vec<Restore>> {
        let restores = self.shared.restores.lock().expect("a list is only copied").clone();
        Box::pin(ready(Ok(restores)))
    }

    fn log_sweep(&self, swept: Swept, took: Duration) -> Reply<'_, ()> {
        self.log_one_sweep(swept, took)
    }

    fn count_stale<'a>(&'a self, tenant: Option<&'a str>, principal: &'a str) -> Reply<'a, ()> {
        self.count_one_stale(tenant, principal)
    }

    fn register_forms<'a>(&'a self, gate: &'a str, forms: &'a [Form]) -> Reply<'a, Forms> {
        self.register_all_forms(gate, forms)
    }

    fn is_marked<'a>(&'a self, rotation: [u8; 16], other_than: &'a Id) -> Reply<'a, bool> {
        Box::pin(ready(self.has_mark(rotation, other_than.hash())))
    }

    fn hints(&self) -> &Hints {
        &self.shared.hints
    }
}

fn bytes_of(settlement: &Settlement) -> usize {
    match settlement {
        Settlement::Settle(answer) => answer.body.len(),
        Settlement::Unkept(_) | Settlement::Release | Settlement::Unknown => 0,
    }
}

/// What is held and what is written, in one list. Held claims are read first: one that ends meanwhile is then found
/// twice, and its end counts.
fn listed(shared: &StoreShared, filter: &Filter) -> Result<Vec<Entry>, StoreError> {
    let (mut found, held): (Vec<StoredEntry>, HashMap<Hash, u64>) = {
        let live = shared.open_claims();
        let fences = live.all().map(|kept| (kept.hash, kept.entry.record.fence.number)).collect();
        (live.matching(filter), fences)
    };
    let written = written_rows(shared, filter, &held)?;
    let ended: HashSet<Hash> = written.iter().map(|kept| kept.hash).collect();
    found.retain(|kept| !ended.contains(&kept.hash));
    found.extend(written);
    let number = |kept: &StoredEntry| kept.entry.record.fence.number;
    found.sort_by(|a, b| filter.order.compare(number(a), number(b)));
    found.truncate(filter.limit as usize);
    Ok(found.into_iter().map(|kept| kept.entry).collect())
}

/// The rows that a list shows, without those in whose place a claim is held.
fn written_rows(
    shared: &StoreShared,
    filter: &Filter,
    held: &HashMap<Hash, u64>,
) -> Result<Vec<StoredEntry>, StoreError> {
    let mut written = Vec::new();
    let mut page = filter.clone();
    while written.len() < filter.limit as usize {
        let rows = rows(shared, &page)?;
        let Some(last) = rows.last() else { break };
        page.after = Some(last.entry.record.fence.number);
        let is_whole = rows.len() == filter.limit as usize;
        let counts = |kept: &StoredEntry| {
            held.get(&kept.hash).is_none_or(|number| *number <= kept.entry.record.fence.number)
        };
        written.extend(rows.into_iter().filter(counts));
        if !is_whole {
            break;
        }
    }
    Ok(written)
}

fn rows(shared: &StoreShared, page: &Filter) -> Result<Vec<StoredEntry>, StoreError> {
    match &page.principal {
        Some(principal) => {
            let numbers = match page.order {
                Order::OldestFirst => shared.index.of_principal(principal, page.after.unwrap_or(0)),
                Order::NewestFirst => {
                    let mut all = shared.index.of_principal(principal, 0);
                    all.retain(|number| page.after.is_none_or(|after| *number < after));
                    all.reverse();
                    all
                }
            };
            shared.list(|connection| statements::list_at(connection, page, &numbers))
        }
        None => shared.list(|connection| statements::list(connection, page)),
    }
}

//! The store in memory: for the simulator and for users' own tests. It keeps nothing across a restart of the process,
//! and is therefore never a production store.

mod admin;

use std::collections::BTreeMap;
use std::future::ready;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_contract::decide::Standing;
use semel_contract::planted::{self, Bug};
use semel_contract::profile::Lifetime;
use semel_contract::record::{Fence, State};
use semel_contract::restore::Restore;
use semel_contract::time::Timestamp;
use semel_contract::transitions::{self, Claiming, Holding, Resolving, Sweeping, is_sealable};

use crate::admin::{Audited, Cleanup, StaleCount, action};
use crate::claims::{
    About, ClaimOutcome, ClaimRequest, ClaimStore, Entry, FencedWrite, Filter, Id, Reply, Resolution,
    Resolved, Sealed, Settlement, Swept, is_standing,
};
use crate::clock::{Clock, StoreClock, SystemClock};
use crate::forms::{FORM_PAUSE, Form, Forms, KnownForm};
use crate::hints::Hints;

/// A claim store in memory.
pub struct MemoryStore {
    clock: Arc<dyn Clock>,
    time: StoreClock,
    rows: Mutex<Rows>,
    hints: Hints,
}

#[derive(Default)]
struct Rows {
    entries: BTreeMap<Id, Entry>,
    rotations: BTreeMap<[u8; 16], Id>,
    last_fence: u64,
    audit: Vec<Audited>,
    cleanups: Vec<Cleanup>,
    stale: BTreeMap<(String, Option<String>), StaleCount>,
    restores: Vec<Restore>,
    /// By the gate's name, then in the order of their coming.
    forms: BTreeMap<String, Vec<KnownForm>>,
}

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryStore").finish_non_exhaustive()
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryStore {
    /// An empty store that goes by the system's clock.
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock))
    }

    /// An empty store that goes by this clock.
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        let time = StoreClock::new(clock.read(), None);
        Self { clock, time, rows: Mutex::default(), hints: Hints::default() }
    }

    fn now(&self) -> Timestamp {
        self.time.now(self.clock.read())
    }

    fn rows(&self) -> std::sync::MutexGuard<'_, Rows> {
        self.rows.lock().expect("no store operation panics")
    }

    /// The audit trail so far.
    pub fn audit(&self) -> Vec<Audited> {
        self.rows().audit.clone()
    }
}

impl Rows {
    fn next_fence(&mut self, nonce: u64) -> Fence {
        self.last_fence += 1;
        Fence { number: self.last_fence, nonce }
    }

    fn remove(&mut self, id: &Id) {
        if planted::is(Bug::FencesReused) {
            self.last_fence = 0;
        }
        self.entries.remove(id);
        self.rotations.retain(|_, known| known != id);
    }

    fn claim(&mut self, request: ClaimRequest, now: Timestamp) -> ClaimOutcome {
        let known = self.entries.get(&request.id);
        match (request.claiming(known, now), known) {
            (Claiming::Win, _) => {}
            (Claiming::Again, Some(entry)) => return ClaimOutcome::Won { fence: entry.record.fence, now },
            (Claiming::Known, Some(entry)) => {
                return ClaimOutcome::Known { entry: Box::new(entry.clone()), now };
            }
            (Claiming::Changed | Claiming::Again | Claiming::Known, _) => return ClaimOutcome::Changed,
        }
        if let Some(rotation) = request.rotation {
            let other = self.rotations.get(&rotation).filter(|known| **known != request.id);
            let lives = other
                .and_then(|id| self.entries.get(id))
                .is_some_and(|entry| Standing::of(Some(&entry.record), now) != Standing::Expired);
            if lives {
                return ClaimOutcome::CredentialChanged;
            }
            self.rotations.insert(rotation, request.id.clone());
        }
        let fence = self.next_fence(request.nonce);
        let entry = Entry::of_claim(&request, fence, now);
        self.entries.insert(request.id, entry);
        ClaimOutcome::Won { fence, now }
    }

    fn settle(
        &mut self,
        id: &Id,
        fence: Fence,
        settlement: Settlement,
        lifetime: &Lifetime,
        now: Timestamp,
    ) -> FencedWrite {
        let Some(entry) = self
            .entries
            .get_mut(id)
            .filter(|entry| entry.record.fence == fence || planted::is(Bug::NoFenceOnSettle))
        else {
            return FencedWrite::Superseded;
        };
        match transitions::holding(entry.record.state) {
            Holding::Open => {
                entry.settle(settlement, lifetime, now);
                if entry.record.state == State::Released && entry.record.expires_at.is_none() {
                    self.remove(id);
                }
                FencedWrite::Done
            }
            Holding::Ended if entry.is_said_by(&settlement) => FencedWrite::Done,
            Holding::Ended | Holding::Nothing => FencedWrite::Superseded,
        }
    }
}

impl ClaimStore for MemoryStore {
    fn claim(&self, request: ClaimRequest) -> Reply<'_, ClaimOutcome> {
        let now = self.now();
        Box::pin(ready(Ok(self.rows().claim(request, now))))
    }

    fn look_up<'a>(&'a self, id: &'a Id) -> Reply<'a, (Option<Entry>, Timestamp)> {
        Box::pin(ready(Ok((self.rows().entries.get(id).cloned(), self.now()))))
    }

    fn settle<'a>(
        &'a self,
        id: &'a Id,
        fence: Fence,
        settlement: Settlement,
        lifetime: &'a Lifetime,
    ) -> Reply<'a, FencedWrite> {
        let now = self.now();
        let written = self.rows().settle(id, fence, settlement, lifetime, now);
        self.hints.wake(id.hash());
        Box::pin(ready(Ok(written)))
    }

    fn renew<'a>(&'a self, held: &'a [(Id, Fence)], lease: Duration) -> Reply<'a, Vec<FencedWrite>> {
        let now = self.now();
        let mut rows = self.rows();
        let renewed = held.iter().map(|(id, fence)| match rows.entries.get_mut(id) {
            Some(entry) if transitions::is_renewed(&entry.record, *fence, now) => {
                entry.record.lease_until = now.plus(lease);
                FencedWrite::Done
            }
            Some(_) | None => FencedWrite::Superseded,
        });
        Box::pin(ready(Ok(renewed.collect())))
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
        let now = self.now();
        let mut rows = self.rows();
        let new_fence = rows.next_fence(fence.nonce);
        let Some(entry) = rows.entries.get_mut(id) else { return Box::pin(ready(Ok(Resolved::NotUnknown))) };
        if entry.record.fence != fence {
            return Box::pin(ready(Ok(Resolved::NotUnknown)));
        }
        match entry.resolving(&resolution, now) {
            Resolving::Write => {}
            Resolving::NotUnknown => return Box::pin(ready(Ok(Resolved::NotUnknown))),
            Resolving::TooEarly => {
                return Box::pin(ready(Ok(Resolved::TooEarly { until: entry.late_until })));
            }
        }
        let done = resolution.action();
        entry.settle(resolution.into_settlement(), lifetime, now);
        entry.record.fence = new_fence;
        let removed = entry.record.state == State::Released && entry.record.expires_at.is_none();
        if removed {
            rows.remove(id);
        }
        rows.note(now, by, done, reason, 1);
        rows.note_is_about(id, Some(fence));
        self.hints.wake(id.hash());
        Box::pin(ready(Ok(Resolved::Done)))
    }

    fn seal<'a>(&'a self, id: &'a Id, about: &'a About, lifetime: &'a Lifetime) -> Reply<'a, Sealed> {
        let now = self.now();
        let mut rows = self.rows();
        let known = rows.entries.get(id);
        if let Some(entry) = known.filter(|entry| !is_sealable(Standing::of(Some(&entry.record), now))) {
            return Box::pin(ready(Ok(Sealed::Known(Box::new(entry.clone())))));
        }
        rows.remove(id);
        let entry = Entry::of_seal(id, about, rows.next_fence(0), lifetime, now);
        rows.entries.insert(id.clone(), entry);
        self.hints.wake(id.hash());
        Box::pin(ready(Ok(Sealed::Done)))
    }

    fn sweep(&self, batch: u32, grace: Duration) -> Reply<'_, Swept> {
        let now = self.now();
        let mut swept = Swept::default();
        let mut rows = self.rows();
        let mut gone = Vec::new();
        for (id, entry) in &mut rows.entries {
            match transitions::sweep(&entry.record, grace, now) {
                Sweeping::MarkUnknown => {
                    entry.record.state = State::Unknown;
                    swept.unknown += 1;
                }
                Sweeping::LetGo => {
                    gone.push(id.clone());
                    swept.released += 1;
                }
                Sweeping::Remove if self.time.frozen().is_none() && swept.removed < u64::from(batch) => {
                    gone.push(id.clone());
                    swept.removed += 1;
                }
                Sweeping::Keep
                    if planted::is(Bug::SweepsLiveClaims)
                        && Standing::of(Some(&entry.record), now) == Standing::Claimed =>
                {
                    gone.push(id.clone());
                }
                Sweeping::Remove | Sweeping::Keep => {}
            }
        }
        for id in &gone {
            rows.remove(id);
            self.hints.wake(id.hash());
        }
        Box::pin(ready(Ok(swept)))
    }

    fn forget<'a>(&'a self, tenant: Option<&'a str>, principal: &'a str, by: &'a str) -> Reply<'a, u64> {
        let now = self.now();
        let mut rows = self.rows();
        let theirs = |entry: &&Entry| entry.is_forgotten_with(tenant, principal);
        let ids: Vec<Id> = rows.entries.values().filter(theirs).map(|entry| entry.id.clone()).collect();
        for id in &ids {
            match rows.entries.get(id).and_then(|entry| entry.bare(now)) {
                Some(entry) => drop(rows.entries.insert(id.clone(), entry)),
                None => rows.remove(id),
            }
        }
        rows.stale.retain(|(known, of), _| known != principal || of.as_deref() != tenant);
        rows.note(now, by, action::FORGET, "", ids.len() as u64);
        Box::pin(ready(Ok(ids.len() as u64)))
    }

    fn list<'a>(&'a self, filter: &'a Filter) -> Reply<'a, Vec<Entry>> {
        let shown = |entry: &&Entry| filter.shows(entry);
        let mut found: Vec<Entry> = self.rows().entries.values().filter(shown).cloned().collect();
        found.sort_by(|a, b| filter.order.compare(a.record.fence.number, b.record.fence.number));
        found.truncate(filter.limit as usize);
        Box::pin(ready(Ok(found)))
    }

    fn ready(&self) -> Reply<'_, ()> {
        Box::pin(ready(Ok(())))
    }

    fn restores(&self) -> Reply<'_, Vec<Restore>> {
        Box::pin(ready(Ok(self.rows().restores.clone())))
    }

    fn log_sweep(&self, swept: Swept, took: Duration) -> Reply<'_, ()> {
        self.rows().log_sweep(self.now(), swept, took);
        Box::pin(ready(Ok(())))
    }

    fn count_stale<'a>(&'a self, tenant: Option<&'a str>, principal: &'a str) -> Reply<'a, ()> {
        self.rows().count_stale(tenant, principal, self.now());
        Box::pin(ready(Ok(())))
    }

    fn register_forms<'a>(&'a self, gate: &'a str, forms: &'a [Form]) -> Reply<'a, Forms> {
        let now = self.now();
        let mut rows = self.rows();
        let Rows { forms: kept, entries, .. } = &mut *rows;
        let is_needed = |form: &KnownForm| {
            let standing = |entry: &Entry| is_standing(Some(&entry.record), now);
            entries.values().any(|entry| entry.record.created_at <= form.claimed_until() && standing(entry))
        };
        for form in kept.values_mut().flatten().filter(|form| form.is_due(now)) {
            if is_needed(form) {
                form.keep_until(now);
            }
        }
        kept.values_mut().for_each(|known| known.retain(|form| !form.is_due(now)));
        rows.forms.retain(|_, known| !known.is_empty());
        let mut known = rows.forms.get(gate).cloned().unwrap_or_default();
        // Of two forms one came later, also within a millisecond: otherwise each gate would claim in the other's.
        let latest = known.iter().map(|form| form.since.plus(Duration::from_millis(1))).max();
        let since = latest.map_or(now, |latest| latest.max(now));
        for form in forms {
            let last_at = now.plus(form.ahead);
            match known.iter_mut().find(|known| known.text == form.text) {
                Some(known) => {
                    if known.last_at.plus(FORM_PAUSE) < now {
                        known.since = since;
                    }
                    known.last_at = known.last_at.max(last_at);
                    known.kept = known.kept.max(form.kept);
                }
                None => known.push(KnownForm {
                    text: form.text.clone(),
                    kept: form.kept,
                    first_at: now,
                    since,
                    last_at,
                }),
            }
        }
        if !forms.is_empty() {
            rows.forms.insert(gate.to_owned(), known.clone());
        }
        Box::pin(ready(Ok(Forms { known, now })))
    }

    fn is_marked<'a>(&'a self, rotation: [u8; 16], other_than: &'a Id) -> Reply<'a, bool> {
        let now = self.now();
        let rows = self.rows();
        let other = rows.rotations.get(&rotation).filter(|known| *known != other_than);
        let lives = other
            .and_then(|id| rows.entries.get(id))
            .is_some_and(|entry| Standing::of(Some(&entry.record), now) != Standing::Expired);
        Box::pin(ready(Ok(lives)))
    }

    fn hints(&self) -> &Hints {
        &self.hints
    }
}

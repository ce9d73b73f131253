//! What is checked: every first byte against the database, and at rest every lane against the upstream's ledger.

use std::collections::BTreeMap;

use semel_delivery::relay::recovery::{Blind, Capability};
use semel_delivery::relay::reduce::{Reducer, step};
use semel_delivery::relay::store::AuditRow;
use semel_delivery::relay::store::look::{Counts, ItemState};

use crate::coverage::Met;
use crate::relay::service::Write;
use crate::relay::upstream::short;
use crate::relay::world::{RelayWorld, TARGET};
use crate::stage::{Invariant, lock};

/// More rows than a run ever writes.
const ALL: i64 = 1_000_000;

impl RelayWorld {
    /// A write is about to be sent: its bytes are those of the first time, and its batch is in the database.
    pub(super) fn first_byte(&self, write: &Write, frozen: &str) {
        let slot = self.slot(&write.lane);
        self.note(slot, format!("{} goes out for {}: {}", short(&write.key), write.lane, write.delta));
        let mut sent = lock(&self.sent);
        let is_same = sent.entry(write.key.clone()).or_insert_with(|| frozen.to_owned()).as_str() == frozen;
        drop(sent);
        if !is_same {
            let why = format!("the batch {} is sent with other bytes than before", short(&write.key));
            self.fail(Invariant::I3, slot, why);
        }
        let store = self.store();
        let found = self.peek(async {
            let lane = store.find_lane(TARGET, "", &write.lane).await?;
            match lane {
                Some(lane) => store.detail(lane.id).await,
                None => Ok(None),
            }
        });
        // Somebody's transaction is open: it cannot be asked now.
        let Some(found) = found else { return };
        let intent = found.and_then(|detail| detail.intent);
        // Whoever stood still for longer than the lease may find that others have settled it.
        if let Some(intent) = intent.filter(|intent| intent.key == write.key) {
            self.count(Met::Decision, if intent.tries > 1 { "sent-again" } else { "sent" });
            if intent.request != frozen {
                let why = format!("the batch {} is not sent as it was frozen", short(&write.key));
                self.fail(Invariant::I5, slot, why);
            }
        } else if self.is_first(write) {
            let why = format!("the batch {} is sent and is not in the database", short(&write.key));
            self.fail(Invariant::I5, slot, why);
        }
    }

    /// Whether nothing can have come between the freezing of this write and now: no replica ever stands still.
    fn is_first(&self, _: &Write) -> bool {
        use crate::delivery_faults::DeliveryFault::{
            ClockForward, ClockSteps, CommitLate, DiskSlow, Freeze, LongPause,
        };
        ![ClockForward, ClockSteps, CommitLate, DiskSlow, Freeze, LongPause]
            .into_iter()
            .any(|fault| self.plan.rates.has(fault))
    }

    /// How much is left to do, if the database can be asked.
    pub(super) fn left(&self) -> Option<Counts> {
        let store = self.store();
        self.peek(store.counts())
    }

    /// Everything has come to rest: what was accepted is what the upstream has.
    pub(super) async fn check_everything(&self) {
        let store = self.store();
        let Ok(rows) = store.audit_after(0, ALL).await else {
            return self.fail(Invariant::I15, None, "the audit trail cannot be read");
        };
        for row in &rows {
            self.count_event(&row.event);
            if row.event == "in-doubt" && !self.plan.may_doubt(&row.detail) {
                let why = format!("{} is left to a person: {}", row.lane, row.detail);
                self.fail(Invariant::I15, self.slot(&row.lane), why);
            }
        }
        let applied: Vec<&AuditRow> = rows.iter().filter(|row| row.event == "applied").collect();
        *lock(&self.checked) = applied.len() as u64;
        self.check_batches(&applied);
        self.check_chains(&applied);
        self.check_totals(&applied);
        self.check_requests(&applied).await;
    }

    fn count_event(&self, event: &str) {
        let known = ["applied", "parked", "dead", "released", "requeued", "in-doubt", "resolved", "blocked"];
        if let Some(name) = known.into_iter().find(|known| *known == event) {
            self.count(Met::Word, name);
        }
    }

    /// What the trail says was written was written, and once.
    fn check_batches(&self, applied: &[&AuditRow]) {
        let mut last: Option<&str> = None;
        for row in applied {
            let Some(key) = row.batch.as_deref().filter(|key| last != Some(*key)) else { continue };
            last = Some(key);
            let times = self.service().times(key);
            let was_sent = lock(&self.sent).contains_key(key);
            let (slot, key) = (self.slot(&row.lane), short(key));
            if was_sent && times == 0 {
                self.fail(Invariant::I11, slot, format!("the batch {key} is settled and was never applied"));
            }
            if !was_sent && !row.detail.contains("nothing was written") {
                self.fail(Invariant::I11, slot, format!("the batch {key} is settled and was never sent"));
            }
        }
        let often = self.plan.tier == Capability::Blind(Blind::AtLeastOnce);
        let sent: Vec<String> = lock(&self.sent).keys().cloned().collect();
        for key in sent.iter().filter(|key| !often && self.service().times(key) > 1) {
            let why = format!("the batch {} was applied {} times", short(key), self.service().times(key));
            self.fail(Invariant::I1, None, why);
        }
    }

    /// One row follows from the other.
    fn check_chains(&self, applied: &[&AuditRow]) {
        let mut last: BTreeMap<&str, i64> = BTreeMap::new();
        for row in applied {
            let slot = self.slot(&row.lane);
            let (Some(before), Some(value), Some(after)) = (row.before, row.value, row.after) else {
                // Where the value cannot be read, a chain begins anew.
                last.remove(row.lane.as_str());
                last.extend(row.after.map(|after| (row.lane.as_str(), after)));
                continue;
            };
            if step(self.plan.reducer, before, value) != Ok(after) {
                self.fail(Invariant::I11, slot, format!("row {}: {before} and {value} made {after}", row.id));
            }
            let known = last.insert(&row.lane, after);
            let is_broken = known.is_some_and(|known| known != before);
            if is_broken && !self.service().is_foreign(&row.lane) {
                let why =
                    format!("row {} begins at {before}, and the one before it ended at {known:?}", row.id);
                self.fail(Invariant::I11, slot, why);
            }
        }
    }

    /// The upstream's value is what all applied entries make.
    fn check_totals(&self, applied: &[&AuditRow]) {
        if self.plan.tier == Capability::Blind(Blind::AtLeastOnce) && self.plan.reducer == Reducer::Sum {
            return;
        }
        let mut totals: BTreeMap<&str, i64> = BTreeMap::new();
        for row in applied {
            let total = totals.entry(&row.lane).or_default();
            *total = step(self.plan.reducer, *total, row.value.unwrap_or(0)).unwrap_or(i64::MAX);
        }
        for (lane, total) in totals {
            let value = self.service().value(lane);
            if value != total && !self.service().is_foreign(lane) {
                let why = format!("{lane} is {value} at the upstream, and the entries make {total}");
                self.fail(Invariant::I11, self.slot(lane), why);
            }
        }
    }

    /// Every item that was acknowledged was applied once, or is a dead letter.
    async fn check_requests(&self, applied: &[&AuditRow]) {
        let mut times: BTreeMap<(i64, i64), u64> = BTreeMap::new();
        for row in applied {
            *times.entry((row.request.unwrap_or(0), row.pos.unwrap_or(0))).or_default() += 1;
        }
        let store = self.store();
        let all = self.told().clone();
        for (key, told) in all {
            let Ok(Some(request)) = store.request(told.request).await else {
                self.fail(Invariant::I12, None, format!("{key} was acknowledged and is gone"));
                continue;
            };
            let items: Vec<(String, i64)> =
                request.items.iter().map(|item| (item.lane.clone(), item.value)).collect();
            if items != told.items {
                self.fail(Invariant::I12, None, format!("{key} had {:?} and has {items:?}", told.items));
            }
            for (pos, item) in (0..).zip(&request.items) {
                let (slot, times) =
                    (self.slot(&item.lane), times.get(&(told.request, pos)).copied().unwrap_or(0));
                let wanted = match item.state {
                    ItemState::Completed => 1,
                    ItemState::Failed => 0,
                    ItemState::Pending
                    | ItemState::Processing
                    | ItemState::AuthRevoked
                    | ItemState::InDoubt
                    | ItemState::Blocked => {
                        let why = format!("item {pos} of {key} is still {}", item.state.name());
                        return self.fail(Invariant::I15, slot, why);
                    }
                };
                if times != wanted {
                    let why = format!("item {pos} of {key} is {} and has {times} rows", item.state.name());
                    self.fail(Invariant::I6, slot, why);
                }
            }
        }
    }
}

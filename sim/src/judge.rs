//! Judges every change of a record: what may become what, by whom, and when by the ticks.

use semel_contract::decide::Standing;
use semel_contract::record::{Guarantee, State};
use semel_store::{Entry, Id};

use crate::log::SlotNumber;
use crate::routes::{Effects, Endpoint};
use crate::shadow::{Cause, facts, millis};
use crate::world::{Invariant, World};

/// Renewals of one lease that a node may make while it lasts, for each of its leases: what it needs, and some more for
/// those that begin meanwhile.
const RENEWALS_PER_LEASE_MAX: usize = 4;

impl World {
    /// Judges one change.
    pub(crate) fn judge(&self, cause: Cause, id: &Id, before: Option<&Entry>, after: Option<&Entry>) {
        let slot = self.number_of(id);
        self.judge_fence(slot, before, after);
        let same = match (before, after) {
            (None, None) => true,
            (Some(before), Some(after)) => facts(before) == facts(after),
            (Some(_), None) | (None, Some(_)) => false,
        };
        let Some(before) = before.filter(|_| !same) else { return };
        match before.record.state {
            State::Settled | State::Unkept | State::Sealed => self.judge_finished(cause, slot, before),
            State::Released => self.judge_released(cause, slot, before),
            State::Claimed | State::Unknown => self.judge_open(cause, slot, before, after),
        }
    }

    fn judge_fence(&self, slot: Option<SlotNumber>, before: Option<&Entry>, after: Option<&Entry>) {
        let Some(after) = after else { return };
        let fence = after.record.fence;
        if before.is_some_and(|before| before.record.fence == fence) {
            return;
        }
        let highest = std::mem::replace(&mut self.shadow().highest_fence, fence.number);
        if fence.number <= highest {
            self.fail(Invariant::I7, slot, format!("fence {} was given after {highest}", fence.number));
        }
    }

    fn judge_finished(&self, cause: Cause, slot: Option<SlotNumber>, before: &Entry) {
        let now = self.now();
        if self.shadow().lasting(&before.id, now).is_none() {
            return;
        }
        let believes = Standing::of(Some(&before.record), self.peek(&before.id).1) == Standing::Expired;
        let invariant = match (believes, cause) {
            (true, _) => Invariant::I13,
            (false, Cause::Settle(fence)) if fence != before.record.fence => Invariant::I7,
            (false, Cause::Nothing) => Invariant::I12,
            (false, _) => Invariant::I8,
        };
        let state = before.record.state.name();
        self.fail(invariant, slot, format!("a {state} record was changed by {cause:?} before its time"));
    }

    fn judge_released(&self, cause: Cause, slot: Option<SlotNumber>, before: &Entry) {
        match cause {
            Cause::Claim | Cause::Sweep if self.shadow().lasting(&before.id, self.now()).is_some() => {
                self.fail(
                    Invariant::I8,
                    slot,
                    format!("a spent key was changed by {cause:?} before its time"),
                );
            }
            Cause::Claim | Cause::Seal | Cause::Sweep => {}
            Cause::Settle(_) | Cause::Renew | Cause::Resolve(_) | Cause::Nothing => {
                self.fail(Invariant::I7, slot, format!("a released record was changed by {cause:?}"));
            }
        }
    }

    /// A claim or an unknown outcome changed.
    fn judge_open(&self, cause: Cause, slot: Option<SlotNumber>, before: &Entry, after: Option<&Entry>) {
        let fence = before.record.fence;
        if cause == Cause::Settle(fence) {
            return;
        }
        if let Cause::Settle(stale) = cause {
            let why =
                format!("the stale fence {} changed the record of fence {}", stale.number, fence.number);
            return self.fail(Invariant::I7, slot, why);
        }
        let lives = before.record.state == State::Claimed
            && self.shadow().claims.get(&fence.number).is_some_and(|claim| self.now() < claim.lease_until);
        let standing = Standing::of(Some(&before.record), self.peek(&before.id).1);
        if lives {
            let invariant = if standing == Standing::Claimed { Invariant::I4 } else { Invariant::I13 };
            return self.fail(
                invariant,
                slot,
                format!("the live claim of fence {} was changed by {cause:?}", fence.number),
            );
        }
        if !self.may_follow(cause, slot, before, after) {
            let state = before.record.state.name();
            self.fail(
                Invariant::I8,
                slot,
                format!("{state} of fence {} was changed by {cause:?}", fence.number),
            );
        }
    }

    /// Whether this may happen to a claim that lapsed, or to an unknown outcome.
    fn may_follow(
        &self,
        cause: Cause,
        slot: Option<SlotNumber>,
        before: &Entry,
        after: Option<&Entry>,
    ) -> bool {
        let endpoint = slot.map(|slot| self.slot_of(slot).endpoint);
        let is_atomic = before.record.guarantee == Guarantee::Atomic;
        let runs_again = endpoint.is_some_and(|endpoint| match endpoint.effects() {
            Effects::AtLeastOnce | Effects::OnceByUpstream => true,
            Effects::Once => endpoint == Endpoint::Atomic,
        });
        let marked = after.is_some_and(|after| {
            after.record.state == State::Unknown && after.record.fence == before.record.fence
        });
        match cause {
            Cause::Claim => runs_again && (is_atomic || endpoint != Some(Endpoint::Atomic)),
            Cause::Sweep => marked || (is_atomic && after.is_none()),
            Cause::Resolve(fence) => fence == before.record.fence,
            Cause::Settle(_) | Cause::Renew | Cause::Seal | Cause::Nothing => false,
        }
    }

    /// Somebody said that a request did not take effect. By the ticks it can no longer do so, or this was too early.
    pub(crate) fn judge_not_applied(&self, slot: Option<SlotNumber>, fence: semel_contract::record::Fence) {
        let late_until = self.shadow().claims.get(&fence.number).map_or(0, |claim| claim.late_until);
        if self.now() < late_until {
            let why = format!(
                "fence {} was resolved as not applied {} ms too early",
                fence.number,
                late_until - self.now()
            );
            let is_ahead = slot.is_some_and(|slot| self.peek_slot(slot).1 > self.clock.true_time());
            self.fail(if is_ahead { Invariant::I13 } else { Invariant::I1 }, slot, why);
        }
    }

    /// A node renewed its leases. More than a few times in a lease means that renewing tasks pile up.
    pub(crate) fn renewed(&self, by: &str) {
        let now = self.now();
        let leases = self.plan.endpoints.iter().map(|endpoint| endpoint.lease(self.plan.has_mixed_leases()));
        let lease = millis(leases.min().unwrap_or_default());
        let mut shadow = self.shadow();
        let times = shadow.renewals.entry(by.to_owned()).or_default();
        times.retain(|at| now - at < lease);
        times.push(now);
        let (count, kinds) = (times.len(), if self.plan.has_mixed_leases() { 2 } else { 1 });
        drop(shadow);
        if count > RENEWALS_PER_LEASE_MAX * kinds {
            self.fail(
                Invariant::I14,
                None,
                format!("{by} renewed {count} times within one lease of {lease} ms"),
            );
        }
    }
}

//! Asks the store and looks at what each call changed. Everything that is written passes through here, whatever the
//! faults in front of it do; what may change how is judged in `judge`.

use std::time::Duration;

use futures_util::FutureExt;
use semel_contract::decide::{Claim, Standing};
use semel_contract::profile::Lifetime;
use semel_contract::record::{Fence, State};
use semel_contract::time::Timestamp;
use semel_store::{
    About, Answer, ClaimOutcome, ClaimRequest, Entry, FencedWrite, Filter, Form, Forms, Id, Reply,
    Resolution, Resolved, Sealed, Settlement, Swept,
};

use crate::coverage::Met;
use crate::faults::Fault;
use crate::routes::{DEADLINE, Endpoint, LATE};
use crate::shadow::{Cause, ClaimSeen, Epoch, millis, surely};
use crate::world::{Invariant, World};

/// What a store in memory answers, which it does at once.
fn at_once<T>(reply: Reply<'_, T>) -> T {
    match reply.now_or_never() {
        Some(Ok(answer)) => answer,
        Some(Err(error)) => panic!("a store in memory has no reason to fail: {error}"),
        None => panic!("a store in memory answers at once"),
    }
}

/// The name of a decision to execute.
fn how_name(how: Claim) -> &'static str {
    match how {
        Claim::New => "execute-new",
        Claim::TakeOver => "execute-take-over",
        Claim::Supersede => "execute-supersede",
        Claim::Reclaim => "execute-reclaim",
        Claim::Forward => "execute-forward",
        Claim::Rerun => "execute-rerun",
    }
}

impl World {
    /// What is there now, for the checkers.
    pub fn peek(&self, id: &Id) -> (Option<Entry>, Timestamp) {
        at_once(self.base.look_up(id))
    }

    /// Everything that is there now, for the checkers.
    pub fn peek_all(&self) -> Vec<Entry> {
        at_once(self.base.list(&Filter { limit: u32::MAX, ..Filter::default() }))
    }

    fn saw(&self, by: &str, entry: Option<&Entry>, now: Timestamp) {
        let standing = Standing::of(entry.map(|entry| &entry.record), now);
        self.count(Met::Standing, standing.name());
        let lapsed =
            entry.filter(|entry| entry.record.state == State::Claimed && standing == Standing::Unknown);
        if let Some(entry) = lapsed
            && self.plan.is_healthy()
            && self.shadow().claims.get(&entry.record.fence.number).is_some_and(|claim| claim.is_running)
        {
            let slot = self.number_of(&entry.id);
            let why = format!(
                "{by} finds that the lease of fence {} lapsed though its holder is well",
                entry.record.fence.number
            );
            self.fail(Invariant::I4, slot, why);
        }
    }

    pub(crate) fn store_look_up(&self, by: &str, id: &Id) -> (Option<Entry>, Timestamp) {
        let (entry, now) = self.peek(id);
        self.saw(by, entry.as_ref(), now);
        (entry, now)
    }

    pub(crate) fn store_claim(&self, by: &str, request: ClaimRequest) -> ClaimOutcome {
        let (id, how, nonce, lease) = (request.id.clone(), request.how, request.nonce, request.lease);
        let slot = self.number_of(&id);
        if slot.is_none() {
            self.fail(Invariant::I9, None, format!("{by} claims a key in a scope that is nobody's"));
        }
        let (before, _) = self.peek(&id);
        let claimed = at_once(self.base.claim(request));
        let (after, now) = self.peek(&id);
        self.judge(Cause::Claim, &id, before.as_ref(), after.as_ref());
        match &claimed {
            ClaimOutcome::Won { fence, .. } => {
                self.note(
                    slot,
                    format!("{by} {} {} → fence {}", how_name(how), self.label(slot), fence.number),
                );
                let again = before.as_ref().is_some_and(|entry| entry.record.fence == *fence);
                if fence.nonce != nonce || after.as_ref().is_none_or(|entry| entry.record.fence != *fence) {
                    let why = format!(
                        "{by} is told that it holds fence {}, which is somebody else's",
                        fence.number
                    );
                    self.fail(Invariant::I4, slot, why);
                } else if !again {
                    self.count(Met::Decision, how_name(how));
                    self.won(by, &id, *fence, lease);
                }
            }
            ClaimOutcome::Known { entry, .. } => {
                self.saw(by, Some(entry), now);
                let state = entry.record.state.name();
                self.note(slot, format!("{by} claim {} → known, {state}", self.label(slot)));
            }
            ClaimOutcome::Changed => self.note(slot, format!("{by} claim → changed")),
            ClaimOutcome::Entered => self.note(slot, format!("{by} claim → entered")),
            ClaimOutcome::CredentialChanged => self.note(slot, format!("{by} claim → credential changed")),
        }
        if matches!(claimed, ClaimOutcome::Won { .. }) && before.is_none() {
            self.saw(by, None, now);
        }
        claimed
    }

    fn won(&self, by: &str, id: &Id, fence: Fence, lease: Duration) {
        let won_at = self.now();
        if self.plan.has_mixed_leases() {
            self.count(Met::Fault, Fault::MixedLeases.name());
        }
        // What is sent at the last moment of the first lease may take effect until the late window after its time-out.
        let sure = millis(surely(lease));
        let claim = ClaimSeen {
            id: id.clone(),
            by: by.to_owned(),
            won_at,
            lease,
            lease_until: won_at + sure,
            late_until: won_at + sure + millis(DEADLINE + LATE),
            dispatched_at: None,
            is_running: false,
        };
        self.shadow().claims.insert(fence.number, claim);
    }

    pub(crate) fn store_settle(
        &self,
        by: &str,
        id: &Id,
        fence: Fence,
        settlement: Settlement,
        lifetime: &Lifetime,
    ) -> FencedWrite {
        let slot = self.number_of(id);
        let (before, _) = self.peek(id);
        let (state, answer) = (settlement.state(), answer_of(&settlement));
        let written = at_once(self.base.settle(id, fence, settlement, lifetime));
        let (after, _) = self.peek(id);
        self.note(slot, format!("{by} settle {} {} → {written:?}", fence.number, state.name()));
        self.judge(Cause::Settle(fence), id, before.as_ref(), after.as_ref());
        let changed =
            before.is_some_and(|entry| matches!(entry.record.state, State::Claimed | State::Unknown));
        if written == FencedWrite::Done && changed {
            self.ended(id, fence, state, answer, lifetime);
        }
        written
    }

    /// Remembers what was settled, from what was handed in, not from what the store says it has.
    fn ended(&self, id: &Id, fence: Fence, state: State, answer: Option<Answer>, lifetime: &Lifetime) {
        let at = self.now();
        let until = match state {
            State::Settled | State::Unkept | State::Sealed => at + millis(lifetime.record()),
            // Where a failed key is spent, its row must stay as long as a settled one.
            State::Released if self.is_spent_when_released(id) => at + millis(lifetime.record()),
            State::Released | State::Unknown | State::Claimed => return,
        };
        let transient = |answer: &Answer| matches!(answer.status, 429 | 503);
        if state == State::Settled && answer.as_ref().is_some_and(transient) {
            self.fail(Invariant::I15, self.number_of(id), "a passing refusal of the upstream was made final");
        }
        self.shadow().epochs.entry(id.clone()).or_default().push(Epoch { fence, state, answer, at, until });
    }

    fn is_spent_when_released(&self, id: &Id) -> bool {
        self.number_of(id).is_some_and(|slot| self.slot_of(slot).endpoint == Endpoint::Spent)
    }

    pub(crate) fn store_renew(&self, by: &str, held: &[(Id, Fence)], lease: Duration) -> Vec<FencedWrite> {
        let before: Vec<_> = held.iter().map(|(id, _)| self.peek(id).0).collect();
        let written = at_once(self.base.renew(held, lease));
        let now = self.now();
        for (((id, fence), before), written) in held.iter().zip(before).zip(&written) {
            self.note(self.number_of(id), format!("{by} renew {} → {written:?}", fence.number));
            self.judge(Cause::Renew, id, before.as_ref(), self.peek(id).0.as_ref());
            if *written == FencedWrite::Done
                && let Some(claim) = self.shadow().claims.get_mut(&fence.number)
            {
                claim.lease_until = now + millis(surely(lease));
            }
        }
        self.renewed(by);
        written
    }

    pub(crate) fn store_resolve(
        &self,
        by: &str,
        id: &Id,
        fence: Fence,
        resolution: Resolution,
        lifetime: &Lifetime,
        reason: &str,
    ) -> Resolved {
        let slot = self.number_of(id);
        let (before, _) = self.peek(id);
        let (answer, says, applied) = match &resolution {
            Resolution::Applied(Some(answer)) => (Some(answer.clone()), State::Settled, true),
            Resolution::Applied(None) => (None, State::Unkept, true),
            Resolution::NotApplied => (None, State::Released, false),
        };
        let resolved = at_once(self.base.resolve(id, fence, resolution, lifetime, by, reason));
        let (after, _) = self.peek(id);
        let said = if applied { "applied" } else { "not applied" };
        self.note(slot, format!("{by} resolve {} as {said} → {resolved:?}", fence.number));
        self.judge(Cause::Resolve(fence), id, before.as_ref(), after.as_ref());
        if resolved == Resolved::Done {
            if !applied {
                self.judge_not_applied(slot, fence);
            }
            let fence = after.map_or(fence, |entry| entry.record.fence);
            self.ended(id, fence, says, answer, lifetime);
        }
        resolved
    }

    pub(crate) fn store_seal(&self, by: &str, id: &Id, about: &About, lifetime: &Lifetime) -> Sealed {
        let slot = self.number_of(id);
        let (before, _) = self.peek(id);
        let sealed = at_once(self.base.seal(id, about, lifetime));
        let (after, _) = self.peek(id);
        self.judge(Cause::Seal, id, before.as_ref(), after.as_ref());
        match &sealed {
            Sealed::Done => {
                self.note(slot, format!("{by} seal {} → done", self.label(slot)));
                let fence = after.map_or(Fence { number: 0, nonce: 0 }, |entry| entry.record.fence);
                self.ended(id, fence, State::Sealed, None, lifetime);
            }
            Sealed::Known(entry) => {
                self.note(slot, format!("{by} seal → known, {}", entry.record.state.name()));
            }
        }
        sealed
    }

    pub(crate) fn store_register_forms(&self, gate: &str, forms: &[Form]) -> Forms {
        at_once(self.base.register_forms(gate, forms))
    }

    pub(crate) fn store_is_marked(&self, rotation: [u8; 16], other_than: &Id) -> bool {
        at_once(self.base.is_marked(rotation, other_than))
    }

    pub(crate) fn store_sweep(&self, by: &str, batch: u32, grace: Duration) -> Swept {
        let before = self.peek_all();
        let swept = at_once(self.base.sweep(batch, grace));
        if swept != Swept::default() {
            self.note(None, format!("{by} sweep → {swept:?}"));
        }
        for entry in &before {
            self.judge(Cause::Sweep, &entry.id, Some(entry), self.peek(&entry.id).0.as_ref());
        }
        swept
    }
}

/// The answer that a settlement keeps.
fn answer_of(settlement: &Settlement) -> Option<Answer> {
    match settlement {
        Settlement::Settle(answer) | Settlement::Unkept(answer) => Some(answer.clone()),
        Settlement::Release | Settlement::Unknown => None,
    }
}

//! A lane with a batch that may or may not have been applied: looks where the target allows it, and takes the step of the recovery table.

use std::time::Duration;

use semel_contract::planted::{self, Bug};
use semel_contract::schedule::Cause;
use semel_contract::time::millis_of;
use serde_json::{Value, json};

use super::fresh::Looked;
use super::sender::Sender;
use super::{FencedWrite, LaneOutcome, PATIENCE, Turn};
use crate::relay::policy::{Scope, Verdict};
use crate::relay::recovery::{Ages, Capability, Doubt, RecoveryStep, Seen, recover};
use crate::relay::store::settle::Seen as Evidence;
use crate::relay::store::{Intent, StoreError};
use crate::relay::upstream::Current;

/// Rows of evidence that are kept for a person.
const EVIDENCE_MAX: usize = 50;

impl Turn<'_> {
    pub(super) async fn recover(&self, batch: &Intent) -> Result<LaneOutcome, StoreError> {
        let store = &self.engine.store;
        if let Some(until) = self.held_up().await? {
            return self.waits("the target is paused", until).await;
        }
        let (name, origin) = (&self.target.name, self.target.upstream.origin());
        let scope = Scope::Credential.key(name, &batch.principal, origin);
        if let Some(until) = store.paused(&[scope], self.began).await?.values().next() {
            return self.waits("the credential is paused", *until).await;
        }
        let asked = self.engine.credentials.credential_for(&batch.principal, name, origin);
        let credential = match asked.await {
            Ok(credential) => credential,
            Err(why) => return self.waits(&why, self.now() + millis_of(PATIENCE)).await,
        };
        let sender = Sender { principal: batch.principal.clone(), credential };
        let refused = store.refused(name, std::slice::from_ref(&batch.principal)).await?;
        if refused.get(&batch.principal) == Some(&sender.digest()) {
            // It may have been applied, so it stays frozen until its sender has a new credential.
            return self.waits("the credential was refused", self.now() + millis_of(PATIENCE)).await;
        }
        let (seen, found) = match self.target.tier.looks() {
            false => (Seen::NotAsked, None),
            true => match self.look(&sender).await {
                Looked::Current(current) => (seen(self.target.tier, batch, &current), Some(current)),
                Looked::Not(verdict) => return self.still_open(batch, &sender, verdict).await,
            },
        };
        let age = |since: i64| Duration::from_millis(u64::try_from(self.began - since).unwrap_or(0));
        // A clock that is not believed may be right, and the key forgotten: it is as old as it may be.
        let ages = Ages { first: age(batch.first - store.clock_ahead()), last: age(batch.last) };
        // Until the last attempt can no longer go out, its age is negative: the rest of that time counts as well.
        let not_yet = Duration::from_millis(u64::try_from(batch.last - self.began).unwrap_or(0));
        let late = match planted::is(Bug::RelayLateWindowIgnored) {
            true => Duration::ZERO,
            false => self.target.late_window + not_yet,
        };
        let step = recover(self.target.tier, self.target.reducer, seen, ages, late);
        match step {
            RecoveryStep::Resend => self.resend(batch, &sender).await,
            RecoveryStep::Applied => {
                let members = self.members(batch);
                let quiet = millis_of(self.target.debounce.quiet);
                let settled =
                    store.applied(&self.work.hold, self.target.reducer, quiet, "found by looking").await?;
                self.engine.meters.completed.add(members);
                self.engine.meters.calls_saved.add(members.saturating_sub(1));
                Ok(self.settled(settled))
            }
            RecoveryStep::NotApplied => {
                let written =
                    store.dissolve(&self.work.hold, "it was not applied", false, self.began).await?;
                Ok(self.done(written, LaneOutcome::Again))
            }
            RecoveryStep::Wait(wait) => {
                self.look_again_at(
                    batch,
                    "it may still be applied late",
                    found.as_ref(),
                    None,
                    false,
                    self.now() + millis_of(wait),
                )
                .await
            }
            RecoveryStep::InDoubt(doubt) => self.leave_in_doubt(batch, doubt, found.as_ref()).await,
        }
    }

    async fn resend(&self, batch: &Intent, sender: &Sender) -> Result<LaneOutcome, StoreError> {
        let (store, hold) = (&self.engine.store, &self.work.hold);
        if store.resending(hold, hold.until).await? == FencedWrite::Stale {
            return Ok(LaneOutcome::Superseded);
        }
        if !self.in_time() {
            return self.waits("the lane's lease was about to end", self.now()).await;
        }
        self.engine.meters.calls.add(1);
        self.engine.meters.retries.add(1);
        let credential = sender.credential.as_ref();
        let sent = self.target.upstream.write(&batch.request, credential, self.may_send()).await;
        match self.judge(sent, sender) {
            Verdict::Applied => {
                let members = self.members(batch);
                let quiet = millis_of(self.target.debounce.quiet);
                let settled = store.applied(hold, self.target.reducer, quiet, "answered again").await?;
                self.engine.meters.completed.add(members);
                self.engine.meters.calls_saved.add(members.saturating_sub(1));
                Ok(self.settled(settled))
            }
            // The refusal is of this attempt. One before it may have been applied, and nothing here could tell by looking.
            Verdict::Refused(why) if matches!(self.target.tier, Capability::Key { .. }) => {
                let why = format!("refused with {why} after an attempt without an answer");
                self.gone_to_a_person(batch, &why).await
            }
            Verdict::Ambiguous(why) => self.keep_frozen(batch, &why, true).await,
            verdict => self.still_open(batch, sender, verdict).await,
        }
    }

    /// What an answer means that says nothing about the attempts before it: the batch stays frozen.
    async fn still_open(
        &self,
        batch: &Intent,
        sender: &Sender,
        verdict: Verdict,
    ) -> Result<LaneOutcome, StoreError> {
        match verdict {
            Verdict::Limited { .. } | Verdict::Blocked(_) => {
                let (why, until) = self.pause(sender, &verdict).await?;
                self.look_again_at(batch, &why, None, Some(self.now()), false, until).await
            }
            Verdict::Unauthorized if planted::is(Bug::RelayUnauthorizedParksAmbiguous) => {
                let (digest, reducer) = (sender.digest(), self.target.reducer);
                let written =
                    self.engine.store.park(&self.work.hold, &sender.principal, &digest, reducer).await?;
                Ok(self.done(written, LaneOutcome::Again))
            }
            Verdict::Unauthorized => {
                self.engine.meters.unauthorized.add(1);
                let due = self.now() + millis_of(PATIENCE);
                let written = self
                    .engine
                    .store
                    .refuse(&self.work.hold, &sender.principal, &sender.digest(), due)
                    .await?;
                Ok(self.done(written, LaneOutcome::Waits("the credential was refused".to_owned())))
            }
            // Ours may have been the write that changed the version: look again.
            Verdict::Conflict => {
                self.look_again_at(
                    batch,
                    "the version had changed",
                    None,
                    Some(self.now()),
                    false,
                    self.now(),
                )
                .await
            }
            Verdict::Failed(why) | Verdict::Refused(why) | Verdict::Ambiguous(why) => {
                self.keep_frozen(batch, &why, true).await
            }
            Verdict::Applied => self.keep_frozen(batch, "an answer nobody expected", true).await,
        }
    }

    /// Keeps a batch frozen, to be looked at again by the schedule; when that gives up, a person decides.
    pub(super) async fn keep_frozen(
        &self,
        batch: &Intent,
        why: &str,
        is_counted: bool,
    ) -> Result<LaneOutcome, StoreError> {
        match self.next(Cause::Failed, batch.first) {
            Some(due) => self.look_again_at(batch, why, None, Some(self.sent_by()), is_counted, due).await,
            None => self.gone_to_a_person(batch, why).await,
        }
    }

    /// Leaves a batch that was sent in this turn in doubt.
    async fn gone_to_a_person(&self, batch: &Intent, why: &str) -> Result<LaneOutcome, StoreError> {
        tracing::error!(lane = self.work.lane.name, why, "a person must decide: semel relay show");
        let evidence = self.evidence(batch, why, None);
        let seen = Evidence { error: why, evidence: &evidence, last: Some(self.sent_by()), is_counted: true };
        let written = self.engine.store.in_doubt(&self.work.hold, &seen).await?;
        self.engine.meters.in_doubt.add(1);
        Ok(self.done(written, LaneOutcome::InDoubt))
    }

    /// The latest time at which the call of this turn can have gone out.
    fn sent_by(&self) -> i64 {
        let left = self.ends.saturating_sub(self.engine.clock.read().ticks);
        self.work.hold.until - millis_of(left)
    }

    /// Keeps a batch frozen until it is looked at again, with what is known of it.
    async fn look_again_at(
        &self,
        batch: &Intent,
        why: &str,
        found: Option<&Current>,
        last: Option<i64>,
        is_counted: bool,
        due: i64,
    ) -> Result<LaneOutcome, StoreError> {
        let evidence = self.evidence(batch, why, found);
        let seen = Evidence { error: why, evidence: &evidence, last, is_counted };
        let written = self.engine.store.keep(&self.work.hold, &seen, due.max(self.now() + 1)).await?;
        Ok(self.done(written, LaneOutcome::Waits(why.to_owned())))
    }

    /// Leaves a batch that looking cannot settle to a person.
    async fn leave_in_doubt(
        &self,
        batch: &Intent,
        doubt: Doubt,
        found: Option<&Current>,
    ) -> Result<LaneOutcome, StoreError> {
        if doubt == Doubt::Interference {
            self.engine.meters.interference.add(1);
        }
        let why = format!("in doubt: {}", doubt.name());
        tracing::error!(
            lane = self.work.lane.name,
            doubt = doubt.name(),
            "a person must decide: semel relay show"
        );
        let evidence = self.evidence(batch, &why, found);
        let seen = Evidence { error: &why, evidence: &evidence, last: None, is_counted: false };
        let written = self.engine.store.in_doubt(&self.work.hold, &seen).await?;
        self.engine.meters.in_doubt.add(1);
        Ok(self.done(written, LaneOutcome::InDoubt))
    }

    fn members(&self, batch: &Intent) -> u64 {
        self.work.entries.iter().filter(|entry| entry.seq <= batch.hi).count() as u64
    }

    fn evidence(&self, batch: &Intent, why: &str, found: Option<&Current>) -> String {
        let mut rows: Vec<Value> = serde_json::from_str(&batch.evidence).unwrap_or_default();
        rows.push(json!({
            "at_ms": self.began,
            "what": why,
            "tries": batch.tries,
            "value": found.and_then(|current| current.value),
            "version": found.and_then(|current| current.version.clone()),
        }));
        // The first ones and the last ones tell the most.
        if rows.len() > EVIDENCE_MAX {
            rows.remove(EVIDENCE_MAX / 2);
        }
        Value::Array(rows).to_string()
    }
}

fn seen(tier: Capability, batch: &Intent, current: &Current) -> Seen {
    let is = |value: Option<i64>| value.is_some() && value == current.value;
    if tier == Capability::Marker && current.markers.contains(&batch.key) {
        return Seen::Marker;
    }
    let is_same_version =
        tier == Capability::CompareAndSet && current.version.is_some() && current.version == batch.version;
    match tier {
        Capability::CompareAndSet if is_same_version => Seen::Before,
        Capability::CompareAndSet if is(batch.after) => Seen::After,
        Capability::CompareAndSet => Seen::Other,
        Capability::Key { .. } | Capability::Marker | Capability::ReadBack | Capability::Blind(_) => {
            match (is(batch.after), is(batch.before)) {
                (true, _) => Seen::After,
                (false, true) => Seen::Before,
                (false, false) => Seen::Other,
            }
        }
    }
}

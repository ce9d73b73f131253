//! A lane with nothing frozen: reads the value, freezes a batch, sends it, and does what the answer means.

use semel_contract::planted::{self, Bug};
use semel_contract::schedule::Cause;
use semel_contract::time::{Timestamp, millis_of};

use super::sender::{Choice, Sender};
use super::{LaneOutcome, Turn};
use crate::date::retry_after;
use crate::message::Answer;
use crate::relay::policy::{self, Scope, Verdict};
use crate::relay::reduce::{Reducer, fitting_prefix, reduced, step};
use crate::relay::store::{Entry, Intent, StoreError};
use crate::relay::target::Interference;
use crate::relay::upstream::{Batch, Current, Place, Read};
use crate::transport::Sent;

/// What a reading led to.
pub(super) enum Looked {
    Current(Current),
    /// It could not be read, and this is what that means.
    Not(Verdict),
}

impl Turn<'_> {
    pub(super) async fn fresh(&self) -> Result<LaneOutcome, StoreError> {
        let entries = &self.work.entries[..self.work.entries.len().min(self.target.batch_max)];
        let mut principals: Vec<String> = Vec::new();
        for entry in entries {
            if !principals.contains(&entry.principal) {
                principals.push(entry.principal.clone());
            }
        }
        let sender = match self.choose(&principals).await? {
            Choice::Sender(sender) => sender,
            Choice::Ended(outcome) => return Ok(outcome),
        };
        let mut current = Current::default();
        if self.target.upstream.reads() {
            current = match self.look(&sender).await {
                Looked::Current(current) => current,
                Looked::Not(verdict) => return self.not_applied(&sender, verdict, entries).await,
            };
            if self.work.lane.applied.is_some() && self.work.lane.applied != current.value {
                self.engine.meters.interference.add(1);
                let (ours, theirs) = (self.work.lane.applied, current.value);
                tracing::warn!(lane = self.work.lane.name, ?ours, ?theirs, "somebody else changed the value");
                if self.target.interference == Interference::Hold {
                    let shown = |value: Option<i64>| {
                        value.map_or_else(|| "none".to_owned(), |value| value.to_string())
                    };
                    let (ours, theirs) = (shown(ours), shown(theirs));
                    let why = format!("somebody else changed the value: we left {ours} and found {theirs}");
                    let written = self.engine.store.block(&self.work.hold, &why).await?;
                    return Ok(self.done(written, LaneOutcome::Waits(why)));
                }
            }
        }
        self.send_batch(&sender, current, entries).await
    }

    /// Reads the value, by this sender.
    pub(super) async fn look(&self, sender: &Sender) -> Looked {
        if !self.in_time() {
            return Looked::Not(Verdict::Failed("the lane's lease is about to end".to_owned()));
        }
        let lane = &self.work.lane;
        let place = Place { lane: &lane.name, group: &lane.group, principal: &sender.principal };
        match self.target.upstream.read(&place, sender.credential.as_ref()).await {
            Read::Current(current) => Looked::Current(current),
            Read::Failed(why) => Looked::Not(Verdict::Failed(why)),
            Read::Answered(answer) => Looked::Not(match self.judge(Sent::Answered(answer), sender) {
                // Nothing was written: a reading is never ambiguous.
                Verdict::Applied => Verdict::Failed("there is no value where it should be".to_owned()),
                Verdict::Ambiguous(why) => Verdict::Failed(why),
                Verdict::Conflict => Verdict::Failed("the reading met a conflict".to_owned()),
                verdict => verdict,
            }),
        }
    }

    /// What an answer means.
    pub(super) fn judge(&self, sent: Sent, sender: &Sender) -> Verdict {
        let sent = match (sent, &sender.credential) {
            (Sent::Answered(answer), Some(credential)) => Sent::Answered(credential.redact(answer)),
            (sent, _) => sent,
        };
        let reading = policy::Reading {
            tier: self.target.tier,
            blocked: &self.target.blocked,
            classify: &self.target.profile.classify,
        };
        let now = Timestamp::from_millis(self.now());
        let told = match &sent {
            Sent::Answered(Answer { .. }) => retry_after_text(&sent).and_then(|text| retry_after(text, now)),
            Sent::NotSent(_) | Sent::Broken(_) | Sent::TimedOut(_) => None,
        };
        policy::judge(&reading, &sent, told)
    }

    async fn send_batch(
        &self,
        sender: &Sender,
        current: Current,
        entries: &[Entry],
    ) -> Result<LaneOutcome, StoreError> {
        let (store, hold, lane) = (&self.engine.store, &self.work.hold, &self.work.lane);
        let reducer = self.target.reducer;
        let values: Vec<i64> = entries.iter().map(|entry| entry.value).collect();
        let before = current.value;
        let fits = fitting_prefix(reducer, before.unwrap_or(0), &values);
        let (Some(last), Ok(Some(delta))) =
            (fits.checked_sub(1).map(|at| &entries[at]), reduced(reducer, &values[..fits]))
        else {
            let hi = entries.first().map_or(lane.watermark, |entry| entry.seq);
            return self.give_up_entries(hi, 1, "the value would leave the range that can be written").await;
        };
        let after = before.and_then(|before| step(reducer, before, delta).ok());
        let key = format!("{:032x}", self.engine.entropy.bits());
        let batch = Batch {
            lane: lane.name.clone(),
            group: lane.group.clone(),
            label: lane.label.clone(),
            principal: sender.principal.clone(),
            delta,
            before,
            after,
            key: key.clone(),
            version: current.version.clone(),
        };
        let mut intent = Intent {
            principal: sender.principal.clone(),
            lo: lane.watermark,
            hi: if planted::is(Bug::RelayMergedIntoFrozen) { last.seq + 2 } else { last.seq },
            before,
            after,
            version: current.version,
            key,
            request: String::new(),
            tries: 1,
            first: self.now(),
            // Until the hold ends a byte may go out; afterwards nobody sends it any more.
            last: hold.until,
            evidence: "[]".to_owned(),
        };
        let quiet = millis_of(self.target.debounce.quiet);
        let changes_nothing =
            (before.is_some() && after == before) || (reducer == Reducer::Sum && delta == 0);
        if changes_nothing {
            let settled = store.settled_without_call(hold, &intent, reducer, quiet).await?;
            self.engine.meters.completed.add(fits as u64);
            self.engine.meters.calls_saved.add(fits as u64);
            return Ok(self.settled(settled));
        }
        intent.request = match self.target.upstream.freeze(&batch) {
            Ok(request) => request,
            Err(why) => return self.give_up_entries(intent.hi, fits, &why).await,
        };
        if planted::is(Bug::RelaySentBeforeFrozen) {
            let early = self
                .target
                .upstream
                .write(&intent.request, sender.credential.as_ref(), self.may_send())
                .await;
            tracing::trace!(?early, "sent before it was frozen");
        }
        if store.freeze(hold, &intent).await? == super::FencedWrite::Stale {
            return Ok(LaneOutcome::Superseded);
        }
        if !self.in_time() {
            let why = "the lane's lease was about to end";
            let written = store.dissolve(hold, why, false, self.now()).await?;
            return Ok(self.done(written, LaneOutcome::Waits(why.to_owned())));
        }
        self.engine.meters.calls.add(1);
        if planted::is(Bug::RelayWatermarkFirst) {
            store.applied(hold, reducer, quiet, "answered").await?;
        }
        let credential = sender.credential.as_ref();
        let sent = self.target.upstream.write(&intent.request, credential, self.may_send()).await;
        match self.judge(sent, sender) {
            Verdict::Applied => {
                // Said before the commit, so that whoever reads the log after a crash finds it.
                tracing::info!(
                    lane = lane.name,
                    ?before,
                    ?after,
                    batch = intent.key,
                    "the upstream has applied a batch"
                );
                let settled = store.applied(hold, reducer, quiet, "answered").await?;
                self.engine.meters.completed.add(fits as u64);
                self.engine.meters.calls_saved.add(fits as u64 - 1);
                Ok(self.settled(settled))
            }
            Verdict::Ambiguous(why) if planted::is(Bug::RelayAmbiguousSentAnew) => {
                self.not_applied(sender, Verdict::Failed(why), &entries[..fits]).await
            }
            Verdict::Ambiguous(why) => self.keep_frozen(&intent, &why, true).await,
            verdict => self.not_applied(sender, verdict, &entries[..fits]).await,
        }
    }

    /// Does what a verdict means by which nothing was applied, and nothing of the batch can be.
    async fn not_applied(
        &self,
        sender: &Sender,
        verdict: Verdict,
        entries: &[Entry],
    ) -> Result<LaneOutcome, StoreError> {
        let (store, hold) = (&self.engine.store, &self.work.hold);
        let (first, last) = match entries {
            [] => (self.now(), self.work.lane.watermark),
            [first, .., last] => (first.created, last.seq),
            [one] => (one.created, one.seq),
        };
        let (why, is_counted, due) = match verdict {
            Verdict::Unauthorized => {
                self.engine.meters.unauthorized.add(1);
                let written =
                    store.park(hold, &sender.principal, &sender.digest(), self.target.reducer).await?;
                return Ok(self.done(written, LaneOutcome::Again));
            }
            Verdict::Refused(why) => return self.give_up_entries(last, entries.len(), &why).await,
            Verdict::Limited { .. } | Verdict::Blocked(_) => {
                let (why, until) = self.pause(sender, &verdict).await?;
                (why, false, Some(until))
            }
            Verdict::Failed(why) => (why, true, self.next(Cause::Failed, first)),
            Verdict::Conflict => {
                self.engine.meters.interference.add(1);
                ("the version had changed".to_owned(), true, self.next(Cause::Failed, first))
            }
            // Neither leads here.
            Verdict::Applied | Verdict::Ambiguous(_) => {
                ("an answer nobody expected".to_owned(), true, Some(self.now()))
            }
        };
        let Some(due) = due else {
            // Only what is itself too old is given up; what came later has its own time.
            let is_old = |entry: &&Entry| self.next(Cause::Failed, entry.created).is_none();
            let old: Vec<&Entry> = entries.iter().take_while(is_old).collect();
            let hi = old.last().map_or(last, |entry| entry.seq);
            return self.give_up_entries(hi, old.len(), &format!("{why}; it waited for too long")).await;
        };
        self.engine.meters.retries.add(1);
        let written = store.dissolve(hold, &why, is_counted, due).await?;
        Ok(self.done(written, LaneOutcome::Waits(why)))
    }

    /// Pauses what the answer is about. Returns why, and until when.
    pub(super) async fn pause(
        &self,
        sender: &Sender,
        verdict: &Verdict,
    ) -> Result<(String, i64), StoreError> {
        let schedule = &self.target.profile.schedule;
        let (scope, why, wait) = match verdict {
            Verdict::Limited { after } => {
                self.engine.meters.limited.add(1);
                let least = schedule.delay(u32::try_from(self.work.lane.attempts + 1).unwrap_or(1), 0.5);
                let wait =
                    after.unwrap_or(least).clamp(schedule.base, semel_contract::limits::RETRY_AFTER_MAX);
                (self.target.limit_scope, "the upstream asks for a pause".to_owned(), wait)
            }
            Verdict::Blocked(why) => {
                (Scope::Target, format!("the upstream blocks us: {why}"), schedule.blocked)
            }
            Verdict::Applied
            | Verdict::Failed(_)
            | Verdict::Unauthorized
            | Verdict::Conflict
            | Verdict::Refused(_)
            | Verdict::Ambiguous(_) => (Scope::Credential, "no pause".to_owned(), schedule.base),
        };
        let until = self.now() + millis_of(wait);
        let key = scope.key(&self.target.name, &sender.principal, self.target.upstream.origin());
        self.engine.store.pause(&key, until, &why).await?;
        Ok((why, until))
    }

    async fn give_up_entries(&self, hi: i64, count: usize, why: &str) -> Result<LaneOutcome, StoreError> {
        tracing::warn!(lane = self.work.lane.name, why, "entries were given up");
        let written = self.engine.store.bury(&self.work.hold, hi, why, self.target.reducer).await?;
        self.engine.meters.failed.add(count as u64);
        Ok(self.done(written, LaneOutcome::Again))
    }
}

fn retry_after_text(sent: &Sent) -> Option<&str> {
    match sent {
        Sent::Answered(answer) => answer.header("retry-after"),
        Sent::NotSent(_) | Sent::Broken(_) | Sent::TimedOut(_) => None,
    }
}

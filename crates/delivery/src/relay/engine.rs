//! Works on lanes: claims one, freezes a batch, writes it, settles it; or decides by the recovery table what became of one that was
//! frozen before. Makes no decision of its own ([`super::recovery`], [`super::policy`], [`super::reduce`]) and keeps nothing
//! in memory that must not be lost.

mod fresh;
mod recover;
mod sender;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use semel_contract::planted::{self, Bug};
use semel_contract::schedule::{Cause, Next, Progress};
use semel_contract::time::millis_of;
use semel_http::MaySend;
use semel_store::clock::Clock;
use tokio::sync::Notify;

use super::meters::Meters;
use super::store::claim::{LaneClaim, Work};
use super::store::hold::refusal_scope;
use super::store::settle::{MEMBERS_MAX, Settled};
use super::store::{FencedWrite, RelayStore, StoreError};
use super::target::{LEASE, Target};
use crate::Entropy;
use crate::credentials::Credentials;
use crate::operator::Operator;

/// How long a lane waits whose target is not configured, or whose principal has no credential now.
const PATIENCE: Duration = Duration::from_secs(60);

/// What became of one turn on a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaneOutcome {
    /// There was nothing to do.
    Idle,
    /// Somebody else works on it.
    Busy,
    /// A batch was settled, and nothing more is due now.
    Applied,
    /// Something else changed, and the lane can be worked on again at once.
    Again,
    /// It waits, because of this.
    Waits(String),
    /// A person decides.
    InDoubt,
    /// Somebody else took the lane over: nothing more was done.
    Superseded,
}

/// The engine.
pub struct Engine {
    /// Where everything is kept.
    pub store: RelayStore,
    /// The targets, by name.
    pub targets: BTreeMap<String, Arc<Target>>,
    /// Where credentials come from.
    pub credentials: Arc<dyn Credentials>,
    /// Randomness.
    pub entropy: Entropy,
    /// The clock by which a hold is checked before the first byte.
    pub clock: Arc<dyn Clock>,
    /// Who works, with a nonce of this start.
    pub owner: String,
    /// What is counted.
    pub meters: Meters,
    /// Told when something was settled.
    pub settled: Notify,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("owner", &self.owner).finish_non_exhaustive()
    }
}

/// One turn: the lane that is held, its target, and until when a byte may go out.
struct Turn<'a> {
    engine: &'a Engine,
    target: &'a Target,
    work: &'a Work,
    /// The ticking clock at which the hold ends.
    ends: Duration,
    /// The store's time when the turn began, and the ticking clock then.
    began: i64,
    since: Duration,
}

impl Engine {
    /// Works on a lane once.
    ///
    /// # Errors
    /// The store failed. The lane is then worked on again when its lease ends.
    pub async fn sync(&self, lane: i64) -> Result<LaneOutcome, StoreError> {
        let ticks = self.clock.read().ticks;
        let claimed = self.store.claim(lane, &self.owner, millis_of(LEASE), MEMBERS_MAX).await?;
        self.worked(claimed, ticks).await
    }

    /// The same, if the lane is due.
    async fn sync_due(&self, lane: i64) -> Result<LaneOutcome, StoreError> {
        let ticks = self.clock.read().ticks;
        let claimed = self.store.claim_due(lane, &self.owner, millis_of(LEASE), MEMBERS_MAX).await?;
        self.worked(claimed, ticks).await
    }

    /// Does the work of a claim that was asked for at this time.
    async fn worked(&self, claimed: LaneClaim, ticks: Duration) -> Result<LaneOutcome, StoreError> {
        let work = match claimed {
            LaneClaim::Held(work) => work,
            LaneClaim::Busy { .. } => return Ok(LaneOutcome::Busy),
            LaneClaim::Idle => return Ok(LaneOutcome::Idle),
        };
        let now = work.hold.until - millis_of(LEASE);
        let Some(target) = self.targets.get(&work.lane.target) else {
            let why = "its target is not in the configuration";
            self.store.let_go(&work.hold, Some(why), now + millis_of(PATIENCE)).await?;
            return Ok(LaneOutcome::Waits(why.to_owned()));
        };
        let turn = Turn {
            engine: self,
            target,
            work: &work,
            ends: ticks + LEASE,
            began: now,
            since: self.clock.read().ticks,
        };
        let outcome = match &work.intent {
            Some(batch) => turn.recover(batch).await?,
            None => turn.fresh().await?,
        };
        self.settled.notify_waiters();
        Ok(outcome)
    }

    /// Works on a lane until it has nothing more to do now.
    ///
    /// # Errors
    /// The store failed.
    pub async fn sync_all(&self, lane: i64) -> Result<LaneOutcome, StoreError> {
        let first = self.sync(lane).await?;
        self.go_on(lane, first).await
    }

    /// The same, if the lane is due.
    ///
    /// # Errors
    /// The store failed.
    pub async fn sync_all_due(&self, lane: i64) -> Result<LaneOutcome, StoreError> {
        let first = self.sync_due(lane).await?;
        self.go_on(lane, first).await
    }

    async fn go_on(&self, lane: i64, mut outcome: LaneOutcome) -> Result<LaneOutcome, StoreError> {
        while outcome == LaneOutcome::Again {
            match self.sync_due(lane).await? {
                LaneOutcome::Idle => return Ok(LaneOutcome::Applied),
                next => outcome = next,
            }
        }
        Ok(outcome)
    }

    /// Works on every lane that is due, one after the other. Returns how many turns there were.
    ///
    /// # Errors
    /// The store failed.
    pub async fn run_due(&self) -> Result<usize, StoreError> {
        let now = self.store.now().await?;
        let lanes = self.store.due(now, 1000).await?;
        for lane in &lanes {
            self.sync(*lane).await?;
        }
        Ok(lanes.len())
    }

    /// Releases what was parked by a credential that is no longer the same. Returns how many entries came back.
    ///
    /// # Errors
    /// The store failed.
    pub async fn release_renewed(&self) -> Result<i64, StoreError> {
        let mut count = 0;
        let refused = self.store.all_refused().await?;
        let scopes: Vec<String> =
            refused.iter().map(|(target, principal, _)| refusal_scope(target, principal)).collect();
        let waits = self.store.paused(&scopes, self.store.now().await?).await?;
        for ((target, principal, digest), scope) in refused.into_iter().zip(scopes) {
            let Some(known) = self.targets.get(&target).filter(|_| !waits.contains_key(&scope)) else {
                continue;
            };
            let origin = known.upstream.origin();
            let Ok(credential) = self.credentials.credential_for(&principal, &target, origin).await else {
                continue;
            };
            if sender::digest(credential.as_ref()) != digest {
                count += self.release_by_itself(&target, &principal).await?;
            }
        }
        Ok(count)
    }

    /// A person releases what a principal has parked, spread over a few seconds.
    ///
    /// # Errors
    /// The store failed.
    pub async fn release(
        &self,
        target: &str,
        principal: &str,
        who: impl Into<Operator> + Send,
    ) -> Result<i64, StoreError> {
        let who = who.into();
        self.store.start_over(target, principal).await?;
        self.release_for(target, principal, who).await
    }

    /// The same, because there is another credential: where many were refused in a row, the next one waits.
    async fn release_by_itself(&self, target: &str, principal: &str) -> Result<i64, StoreError> {
        self.release_for(target, principal, "a new credential".into()).await
    }

    async fn release_for(&self, target: &str, principal: &str, who: Operator) -> Result<i64, StoreError> {
        let spread = || (self.entropy.unit() * 5000.0) as i64;
        let count = self.store.release(target, principal, who, &spread).await?;
        self.settled.notify_waiters();
        Ok(count)
    }
}

impl Turn<'_> {
    /// The store's time now: pauses count from the answer, not from the question.
    fn now(&self) -> i64 {
        self.began + millis_of(self.engine.clock.read().ticks.saturating_sub(self.since))
    }

    /// Whether a call may still begin and end while the lane is ours.
    fn in_time(&self) -> bool {
        self.engine.clock.read().ticks + self.target.timeout < self.ends
    }

    /// The same, for whoever connects first and then sends: connecting may take longer than the lease.
    fn may_send(&self) -> MaySend {
        if planted::is(Bug::RelayFirstByteUnasked) {
            return MaySend::always();
        }
        let (clock, timeout, ends) = (Arc::clone(&self.engine.clock), self.target.timeout, self.ends);
        MaySend::when(move || clock.read().ticks + timeout < ends)
    }

    /// When to try again after a failure; `None` when it is time to give up.
    fn next(&self, cause: Cause, oldest: i64) -> Option<i64> {
        let attempts = u32::try_from(self.work.lane.attempts + 1).unwrap_or(u32::MAX);
        let age = Duration::from_millis(u64::try_from(self.now() - oldest).unwrap_or(0));
        let schedule = &self.target.profile.schedule;
        let burst = schedule.burst_attempts.map_or(attempts, |burst| (attempts - 1) % burst.max(1) + 1);
        let progress = Progress { attempts, attempts_in_burst: burst, burst_elapsed: Duration::ZERO, age };
        match schedule.next(&progress, cause, self.engine.entropy.unit()) {
            Next::After(wait) | Next::NextPeriod(wait) => Some(self.now() + millis_of(wait)),
            Next::GiveUp(_) => None,
        }
    }

    fn settled(&self, settled: Settled) -> LaneOutcome {
        self.done(settled.written, if settled.is_due { LaneOutcome::Again } else { LaneOutcome::Applied })
    }

    fn done(&self, written: FencedWrite, outcome: LaneOutcome) -> LaneOutcome {
        match written {
            FencedWrite::Done => outcome,
            FencedWrite::Stale => LaneOutcome::Superseded,
        }
    }

    /// Gives the lane back unchanged.
    async fn waits(&self, why: &str, due: i64) -> Result<LaneOutcome, StoreError> {
        let written = self.engine.store.let_go(&self.work.hold, Some(why), due.max(self.now() + 1)).await?;
        Ok(self.done(written, LaneOutcome::Waits(why.to_owned())))
    }
}

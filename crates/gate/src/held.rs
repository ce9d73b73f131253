//! A claim that is held: what the end of its attempt writes, and what is answered then. An answer goes out once what it
//! rests on is durable.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum_core::body::Body;
use bytes::Bytes;
use http::{HeaderValue, Response};
use semel_contract::decide::{Claim, Decision};
use semel_contract::outcome::{Disposition, Ending, Told, dispose};
use semel_contract::planted::{self, Bug};
use semel_contract::problem::{Kind, Problem};
use semel_contract::profile::OnUnknown;
use semel_contract::record::{Fence, Guarantee, State};
use semel_store::{FencedWrite, Settlement, is_reserved, is_same_attempt};
use tokio::time::Instant;

use crate::answer::{self, OUTCOME};
use crate::capture::{Captured, capture};
use crate::context::{Context, Reserved};
use crate::grant::Grant;
use crate::keeper::RenewalGuard;
use crate::measure::{self, Call};
use crate::no_answer::NoAnswer;
#[cfg(feature = "postgres")]
use crate::postgres::is_committed;
use crate::step::Step;

/// How often a write whose result is not known is made again before the client is told so.
pub(crate) const WRITE_TRIES: u32 = 4;
/// The pause before the first of them; it doubles.
pub(crate) const WRITE_PAUSE: Duration = Duration::from_millis(50);
/// How long a settlement that the store did not take is tried again in the background.
pub(crate) const BACKGROUND_SETTLEMENT_TRIES: u32 = 12;

/// How long a client whose handler was cut off waits until it is known whether its transaction was committed.
const COMMIT_PATIENCE: Duration = Duration::from_secs(5);

/// What an attempt leaves that surely had no effect itself. Where an earlier one is unknown, it stays unknown.
pub(crate) fn without_effect(how: Claim) -> Settlement {
    match how {
        Claim::New | Claim::TakeOver | Claim::Supersede | Claim::Reclaim => Settlement::Release,
        Claim::Forward | Claim::Rerun => Settlement::Unknown,
    }
}

/// A claim that is held, to be settled.
pub(crate) struct HeldClaim<'a> {
    fence: Fence,
    job: &'a Arc<Context>,
    how: Claim,
    /// Kept until what the attempt leaves is written.
    reserved: Option<Arc<Reserved>>,
    /// When the attempt must be over, its answer included.
    pub(crate) until: Instant,
}

impl<'a> HeldClaim<'a> {
    /// The handler is called now: from here on the attempt has as long as its route says.
    pub(crate) fn begin(&mut self) {
        self.until = Instant::now() + self.job.route.runs_at_most();
    }

    /// A claim that was won.
    pub(crate) fn new(fence: Fence, job: &'a Arc<Context>, how: Claim) -> Self {
        Self { fence, job, how, reserved: None, until: Instant::now() + job.route.runs_at_most() }
    }

    /// The same of a claim that may be a reservation.
    pub(crate) fn of(reserved: Arc<Reserved>, job: &'a Arc<Context>, how: Claim) -> Self {
        Self { reserved: Some(Arc::clone(&reserved)), ..Self::new(reserved.fence, job, how) }
    }

    fn guarantee(&self) -> Guarantee {
        self.job.route.profile.guarantee
    }

    fn refused(&self, problem: &Problem) -> Response<Body> {
        measure::problem(&self.job.route.name, problem.kind);
        answer::refused(&self.job.route, problem, &self.job.request_id)
    }

    /// Nothing was sent.
    pub(crate) async fn not_sent(&self, kind: Kind, why: &str) -> Response<Body> {
        let response = self.refused(&Problem::new(kind, why).retry_after(Duration::from_secs(1)));
        self.give_up(response).await
    }

    /// The key is somebody else's by now: nothing is left to settle. What that other attempt came to is the answer, where a
    /// handler's own transaction found it in its way.
    async fn superseded(&self) -> Response<Body> {
        if is_reserved(self.fence) {
            return match self.job.look_up().await {
                Ok(known) => match self.job.decision(&known) {
                    Ok(Decision::Replay) => self.job.replay(known.0.as_deref()),
                    Ok(Decision::Refuse(kind)) => self.refused(&self.job.refusal(kind, known.0.as_deref())),
                    Ok(Decision::Execute(_) | Decision::Wait | Decision::Accepted | Decision::Probe) => {
                        self.refused(&self.job.refusal(Kind::InFlight, known.0.as_deref()))
                    }
                    Err(problem) => self.refused(&problem),
                },
                Err(problem) => self.refused(&problem),
            };
        }
        let problem = Problem::new(Kind::Superseded, "this attempt lost its claim while it ran");
        self.refused(&problem.retry_after(Duration::from_secs(1)))
    }

    fn pending(&self) -> Response<Body> {
        self.refused(&Problem::from(Kind::SettlementPending).retry_after(Duration::from_secs(1)))
    }

    /// The attempt broke off. Whether it took effect is known only where it was atomic.
    pub(crate) async fn cut_off(&self, grant: &Grant, kind: Kind, why: &str) -> Response<Body> {
        if is_outside(grant) {
            return self.outside().await;
        }
        if let Some(kept) = self.settled_by_handler(grant).await {
            return kept;
        }
        let response = self.refused(&Problem::new(kind, why));
        match dispose(&self.job.route.profile, self.guarantee(), Ending::CutOff) {
            Disposition::Unknown => self.unknown(response).await,
            Disposition::Settle
            | Disposition::SettleUnknown
            | Disposition::Release
            | Disposition::NotSettled => self.give_up(response).await,
        }
    }

    /// Nobody knows whether it took effect; the answer says so.
    async fn unknown(&self, mut response: Response<Body>) -> Response<Body> {
        measure::unknown(&self.job.route.name);
        self.settle(Settlement::Unknown).await;
        response.headers_mut().insert(OUTCOME, HeaderValue::from_static("unknown"));
        response
    }

    /// The handler left its own transaction before the record was written. Whether it wrote anything since nobody knows.
    async fn outside(&self) -> Response<Body> {
        tracing::error!(route = self.job.route.name, "an atomic handler ended its transaction by itself");
        let why =
            "the handler ended its transaction by itself; what it wrote since may stand without a record";
        self.unknown(self.refused(&Problem::new(Kind::NotSettled, why))).await
    }

    /// Where the handler settled by itself, its record's answer: by its grant, or by SQL in a process of its own.
    async fn settled_by_handler(&self, grant: &Grant) -> Option<Response<Body>> {
        if let Some(kept) = grant.settled() {
            return Some(answer::restored(&kept));
        }
        if is_reserved(self.fence) && grant.is_committing() {
            return self.committed_by_handler(grant).await;
        }
        match self.guarantee() {
            // What is not seen here was not committed yet, or could not be asked for. Of a claim that is on record, the
            // write that follows waits for it, and tells; a reservation is not written, and never comes here in doubt.
            Guarantee::Atomic => self.recorded().await.ok()?,
            Guarantee::Fenced | Guarantee::None => None,
        }
    }

    /// What came of a handler's transaction that was told to commit and was not heard of again: its record's answer; nothing,
    /// where it surely did not commit; or that nobody knows yet. Whoever tries again finds its lock or its record.
    async fn committed_by_handler(&self, grant: &Grant) -> Option<Response<Body>> {
        match tokio::time::timeout(COMMIT_PATIENCE, is_committed(grant)).await {
            Ok(Some(true)) => {
                let recorded = self.recorded().await.ok().flatten();
                Some(recorded.unwrap_or_else(|| self.pending()))
            }
            Ok(Some(false)) => None,
            Ok(None) | Err(_) => Some(self.pending()),
        }
    }

    /// The answer that stands in the record of this attempt, if there is one.
    async fn recorded(&self) -> Result<Option<Response<Body>>, Problem> {
        let (entry, _) = self.job.look_up().await?;
        let Some(entry) = entry.filter(|entry| is_same_attempt(entry.record.fence, self.fence)) else {
            return Ok(None);
        };
        Ok(match (entry.record.state, &entry.answer) {
            (State::Settled, Some(answer)) => Some(answer::restored(answer)),
            (State::Unkept, _) => Some(self.refused(&self.job.refusal(Kind::AnswerNotKept, Some(&entry)))),
            (State::Settled, None)
            | (State::Claimed | State::Released | State::Unknown | State::Sealed, _) => None,
        })
    }

    /// This attempt had no effect: the key is free again, unless an earlier attempt is unknown, which it then stays; or the
    /// handler settled at the last moment, which counts.
    async fn give_up(&self, response: Response<Body>) -> Response<Body> {
        match without_effect(self.how) {
            Settlement::Unknown => self.unknown(response).await,
            settlement => self.settle_against_handler(settlement, response).await,
        }
    }

    /// Writes; where the handler of an atomic route was faster, its record is the answer.
    async fn settle_against_handler(
        &self,
        settlement: Settlement,
        response: Response<Body>,
    ) -> Response<Body> {
        match self.settle(settlement).await {
            Settled::Superseded if self.guarantee() == Guarantee::Atomic => match self.recorded().await {
                Ok(recorded) => recorded.unwrap_or(response),
                // It may have been carried out, and its record cannot be read now.
                Err(_) => self.pending(),
            },
            Settled::Durable | Settled::Superseded | Settled::Pending => response,
        }
    }

    pub(crate) fn keep_alive(&self) -> RenewalGuard {
        self.job.shared.keeper.hold(&self.job.arrival.id, self.fence, self.how, &self.job.route)
    }

    /// The handler answered.
    pub(crate) async fn answered(&self, response: Response<Body>, grant: &Grant) -> Response<Body> {
        if is_outside(grant) {
            return Box::pin(self.outside()).await;
        }
        // Its transaction was rolled back: nothing is to be found out but what the other attempt came to.
        let is_superseded = matches!(response.extensions().get(), Some(NoAnswer::Superseded));
        if is_superseded && is_reserved(self.fence) {
            return self.superseded().await;
        }
        if let Some(kept) = self.settled_by_handler(grant).await {
            return kept;
        }
        if let Some(no_answer) = response.extensions().get::<NoAnswer>() {
            return Box::pin(self.no_answer(no_answer, grant)).await;
        }
        let mut response = response;
        // What an upstream says of its effect is for the gate; what the gate makes of it is for the client.
        let said = response.headers_mut().remove(OUTCOME);
        let told = said.as_ref().and_then(|value| Told::parse(value.as_bytes()));
        let is_fenced = self.guarantee() != Guarantee::Atomic;
        if said.as_ref().is_some_and(|value| value == Told::PENDING) && is_fenced {
            // A gate behind this one. Its answer is about another attempt, and promises nothing.
            let why = "the service still works on an earlier attempt";
            return Box::pin(self.cut_off(grant, Kind::UpstreamTimeout, why)).await;
        }
        if said.is_some_and(|value| value == "unknown") && is_fenced {
            return match self.job.route.profile.on_unknown {
                OnUnknown::Hold => Box::pin(self.keep(response, true, grant)).await,
                OnUnknown::Probe | OnUnknown::Forward | OnUnknown::Rerun => {
                    Box::pin(self.unknown(response)).await
                }
            };
        }
        let ending = Ending::Answered { status: response.status().as_u16(), told };
        match dispose(&self.job.route.profile, self.guarantee(), ending) {
            Disposition::Settle => self.keep(response, false, grant).await,
            // This path is rare. In a box it takes no room in the future of every attempt.
            Disposition::SettleUnknown => Box::pin(self.keep(response, true, grant)).await,
            // An upstream that knows the key says so of all its attempts.
            Disposition::Release if told == Some(Told::NotApplied) => {
                Box::pin(self.settle_against_handler(Settlement::Release, response)).await
            }
            Disposition::Release => Box::pin(self.give_up(response)).await,
            Disposition::Unknown => Box::pin(self.unknown(response)).await,
            Disposition::NotSettled => Box::pin(self.not_settled()).await,
        }
    }

    /// The service that forwards has no answer.
    async fn no_answer(&self, no_answer: &NoAnswer, grant: &Grant) -> Response<Body> {
        match no_answer {
            NoAnswer::NotSent(why) => self.not_sent(Kind::UpstreamUnreachable, why).await,
            NoAnswer::Reset(why) => self.cut_off(grant, Kind::UpstreamReset, why).await,
            NoAnswer::TimedOut(why) => self.cut_off(grant, Kind::UpstreamTimeout, why).await,
            NoAnswer::Superseded => self.superseded().await,
            NoAnswer::NotSettled(why) => {
                let refused = self.refused(&Problem::new(Kind::NotSettled, why.as_str()));
                Box::pin(self.give_up(refused)).await
            }
        }
    }

    async fn not_settled(&self) -> Response<Body> {
        tracing::error!(route = self.job.route.name, "an atomic handler answered without settling its grant");
        if self.job.shared.is_strict {
            panic!("an atomic handler must settle with its grant");
        }
        let why = "the handler answered but did not settle with its grant";
        let refused = self.refused(&Problem::new(Kind::NotSettled, why));
        self.settle_against_handler(Settlement::Unknown, refused).await
    }

    /// Keeps an answer, or a tombstone where it is too large or a stream. Either is durable before its first byte passes.
    async fn keep(&self, response: Response<Body>, outcome_unknown: bool, grant: &Grant) -> Response<Body> {
        let (mut parts, body) = response.into_parts();
        if outcome_unknown {
            parts.headers.insert(OUTCOME, HeaderValue::from_static("unknown"));
        }
        let limit = self.job.route.profile.stored.max_response_bytes;
        let captured = {
            let mut capturing = pin!(capture(&parts.headers, body, limit));
            match self.job.route.deadline {
                Some(_) => tokio::time::timeout_at(self.until, capturing.as_mut()).await,
                None => Ok(capturing.as_mut().await),
            }
        };
        match captured {
            Ok(Captured::Whole(bytes)) => {
                Step::Captured.reached();
                let kept = answer::kept(&parts, bytes.clone(), outcome_unknown);
                self.answer_once(Settlement::Settle(kept), Response::from_parts(parts, Body::from(bytes)))
                    .await
            }
            Ok(Captured::Passing(body)) if planted::is(Bug::LargeAnswerForgotten) => {
                Box::pin(self.settle(Settlement::Release)).await;
                Response::from_parts(parts, body)
            }
            Ok(Captured::Passing(body)) => {
                let tombstone = answer::kept(&parts, Bytes::new(), outcome_unknown);
                self.answer_once(Settlement::Unkept(tombstone), Response::from_parts(parts, body)).await
            }
            Ok(Captured::Broken(error)) => {
                tracing::warn!(%error, "an answer broke off");
                Box::pin(self.cut_off(grant, Kind::UpstreamReset, "the answer broke off")).await
            }
            Err(_) => {
                let why = "the answer did not end in time";
                Box::pin(self.cut_off(grant, Kind::HandlerTimeout, why)).await
            }
        }
    }

    /// Answers, once the settlement is durable.
    pub(crate) async fn answer_once(
        &self,
        settlement: Settlement,
        response: Response<Body>,
    ) -> Response<Body> {
        if planted::is(Bug::AnswerBeforeSettle) {
            self.settle_in_background(settlement, WRITE_PAUSE);
            return response;
        }
        match self.settle(settlement).await {
            Settled::Durable => response,
            Settled::Superseded => Box::pin(self.superseded()).await,
            Settled::Pending => self.pending(),
        }
    }

    /// Settles. A store that does not answer is asked again in the background: what happened is not forgotten.
    pub(crate) async fn settle(&self, settlement: Settlement) -> Settled {
        let mut pause = WRITE_PAUSE;
        for _ in 0..WRITE_TRIES {
            let (store, lifetime) = (&self.job.shared.store, &self.job.route.profile.lifetime);
            let settling = store.settle(&self.job.arrival.id, self.fence, settlement.clone(), lifetime);
            match self.job.shared.meters.time(Call::Settle, settling).await {
                Ok(FencedWrite::Done) => {
                    Step::Settled.reached();
                    return Settled::Durable;
                }
                Ok(FencedWrite::Superseded) => return Settled::Superseded,
                Err(error) => tracing::warn!(%error, "failed to settle"),
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        self.settle_in_background(settlement, pause);
        Settled::Pending
    }

    fn settle_in_background(&self, settlement: Settlement, mut pause: Duration) {
        let (context, fence, kept_alive) = (Arc::clone(self.job), self.fence, self.keep_alive());
        let reserved = self.reserved.clone();
        tokio::spawn(async move {
            let _kept = (kept_alive, reserved);
            let Context { shared, route, arrival, .. } = &*context;
            for _ in 0..BACKGROUND_SETTLEMENT_TRIES {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_secs(30));
                if shared
                    .store
                    .settle(&arrival.id, fence, settlement.clone(), &route.profile.lifetime)
                    .await
                    .is_ok()
                {
                    return;
                }
            }
            tracing::error!(
                route = route.name,
                "gave up settling; the outcome stays unknown until somebody resolves it"
            );
        });
    }
}

/// Whether the handler may have written outside of its transaction, and no record of it stands.
fn is_outside(grant: &Grant) -> bool {
    grant.is_outside() && grant.settled().is_none()
}

/// Nothing is reserved but on PostgreSQL.
#[cfg(not(feature = "postgres"))]
async fn is_committed(_: &Grant) -> Option<bool> {
    None
}

/// What became of a settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    Durable,
    Superseded,
    Pending,
}

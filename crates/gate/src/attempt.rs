//! One attempt at a request: claim, run, capture, settle, answer. From the claim on it depends on no client: it
//! runs to its settlement whether or not anybody waits.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum_core::body::Body;
use futures_util::FutureExt;
use futures_util::future::poll_fn;
use http::{Request, Response};
use semel_contract::decide::Claim;
use semel_contract::planted::{self, Bug};
use semel_contract::problem::{Kind, Problem};
use semel_contract::record::{Fence, Guarantee};
use semel_contract::time::Timestamp;
use semel_store::clock::SLEW_PARTS;
use semel_store::{Answer, ClaimOutcome, ClaimRequest, Entry, Settlement, StoreError, Terms};
use tower_service::Service;

use crate::answer;
use crate::arrival::Whole;
use crate::context::{Context, Reserved};
use crate::dispatch::Dispatch;
use crate::grant::Grant;
use crate::held::{BACKGROUND_SETTLEMENT_TRIES, HeldClaim, WRITE_PAUSE, WRITE_TRIES, without_effect};
use crate::measure::{self, Call};
use crate::no_answer::NoAnswer;
use crate::problems::{closed, credential_changed, held_up, store_away};
use crate::step::Step;

/// A keyed request with everything that running it needs.
pub(crate) struct Job<S> {
    pub(crate) context: Arc<Context>,
    pub(crate) inner: S,
    pub(crate) whole: Whole,
}

/// What became of a request to run.
pub(crate) enum Outcome<S> {
    /// It ran, or could not; this is the answer.
    Answered(Response<Body>),
    /// There is a record: decide by it.
    Known { entry: Box<Entry>, now: Timestamp, job: Job<S> },
    /// The record that was decided upon is gone: look again.
    Changed(Job<S>),
    /// A handler's transaction holds the key: wait, then look again.
    Entered(Job<S>),
    /// Refused.
    Refused(Problem),
}

pub(crate) fn claim_request(job: &Context, how: Claim, replaces: Option<Fence>) -> ClaimRequest {
    let arrival = &job.arrival;
    ClaimRequest {
        id: arrival.id.clone(),
        how,
        replaces: replaces.filter(|_| how != Claim::New),
        nonce: (job.shared.entropy)(),
        lease: job.route.lease,
        // A request that was sent in time may take effect until its own time-out, and the declared window after that.
        // The store's clock may run fast by one part in so many.
        late: (job.route.runs_at_most() + job.route.late) * (SLEW_PARTS + 1) / SLEW_PARTS,
        guarantee: job.route.profile.guarantee,
        fingerprint: arrival.fingerprints.first().copied(),
        payload_hash: arrival.payload_hash,
        rotation: arrival.rotation.filter(|_| !planted::is(Bug::RotationUnnoticed)),
        about: arrival.about.clone(),
        terms: Some(Terms {
            lifetime: job.route.profile.lifetime.clone(),
            max_response_bytes: job.route.profile.stored.max_response_bytes,
        }),
    }
}

/// Claims. A claim whose commit is not known is made again with the same nonce, which tells. One that stays unknown is
/// not held by anybody, and is settled in the background as `unused` says, once the store can be asked again.
pub(crate) async fn claim(
    job: &Arc<Context>,
    request: ClaimRequest,
    unused: Settlement,
) -> Result<ClaimOutcome, StoreError> {
    let mut pause = WRITE_PAUSE;
    let mut unsure = None;
    job.shared.meters.connections(&*job.shared.store);
    for _ in 0..WRITE_TRIES {
        // A handler that runs here enters its key in its own transaction: until then it is reserved and no more.
        let is_reserved = request.guarantee == Guarantee::Atomic && !job.shared.handlers_elsewhere;
        let claiming = match is_reserved {
            true => job.shared.store.reserve(request.clone()),
            false => job.shared.store.claim(request.clone()),
        };
        match job.shared.meters.time(Call::Claim, claiming).await {
            Err(error @ StoreError::Unknown(_)) => unsure = Some(error),
            Ok(ClaimOutcome::Entered) if unsure.is_some() => tracing::debug!("a claim is still under way"),
            Err(error) if unsure.is_some() => tracing::debug!(%error, "a claim is still unsure"),
            other => return other,
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
    free_in_background(Arc::clone(job), request, unused, pause);
    Err(unsure.expect("only an unsure claim is tried to the end"))
}

/// Finds out about a claim that nobody will use, and gives it up if it was won.
fn free_in_background(job: Arc<Context>, request: ClaimRequest, unused: Settlement, mut pause: Duration) {
    tokio::spawn(async move {
        for _ in 0..BACKGROUND_SETTLEMENT_TRIES {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(30));
            match job.shared.store.claim(request.clone()).await {
                Ok(ClaimOutcome::Won { fence, .. }) => {
                    HeldClaim::new(fence, &job, request.how).settle(unused).await;
                    return;
                }
                // It was won, and its lease has lapsed since.
                Ok(ClaimOutcome::Known { entry, .. }) if entry.record.fence.nonce == request.nonce => {
                    HeldClaim::new(entry.record.fence, &job, request.how).settle(unused).await;
                    return;
                }
                Ok(ClaimOutcome::Known { .. } | ClaimOutcome::Changed | ClaimOutcome::CredentialChanged) => {
                    return;
                }
                Ok(ClaimOutcome::Entered) | Err(_) => {}
            }
        }
    });
}

/// Claims the key and, once it is held, runs the request.
pub(crate) async fn claim_and_run<S>(job: Job<S>, how: Claim, replaces: Option<Fence>) -> Outcome<S>
where
    S: Service<Request<Body>, Response = Response<Body>> + Send + 'static,
    S::Future: Send,
{
    // Read before the claim is sent: whatever the store takes to answer is already gone from the lease.
    let context = Arc::clone(&job.context);
    let asked = context.shared.clock.read().ticks;
    match claim(&context, claim_request(&context, how, replaces), without_effect(how)).await {
        Ok(ClaimOutcome::Won { fence, .. }) => {
            let reserved = Reserved::new(&context, fence);
            Step::Claimed.reached();
            if let Some(problem) = refuse_won(&context, how).await {
                Box::pin(HeldClaim::new(fence, &context, how).settle(without_effect(how))).await;
                return Outcome::Refused(problem);
            }
            if matches!(how, Claim::New | Claim::TakeOver) {
                context.route.meters.new_key(&context.route.name);
            }
            // Short of the lease by more than the store's clock may run fast.
            let dispatch_by = asked + context.route.lease - context.route.lease * 2 / SLEW_PARTS;
            Outcome::Answered(run(job, reserved, dispatch_by, how).await)
        }
        other => not_won(job, other),
    }
}

/// Why a claim that was won is not used: somebody else may have the key in another form.
async fn refuse_won(context: &Context, how: Claim) -> Option<Problem> {
    // A gate that has taken over since looks for this claim and may have looked too early: so this one looks too.
    if context.shared.is_draining() && !planted::is(Bug::ReplacedGateClaims) {
        return Some(closed());
    }
    if context.shared.forms.is_outdated(context.arrival.as_of) {
        return Some(held_up());
    }
    // Somebody who knows this endpoint by a former name may have come in between.
    match context.arrival.is_known_by_a_former_name(context.shared.asked(), how).await {
        Ok(false) => None,
        Ok(true) => {
            let problem = Problem::new(Kind::InFlight, "this key is in use under a former configuration");
            Some(problem.retry_after(Duration::from_secs(1)))
        }
        Err(error) => Some(store_away(&error)),
    }
}

/// Claims the key and settles it with an answer that needs no handler. The answer is given only once it is on record.
pub(crate) async fn record<S>(job: Job<S>, kept: Answer, how: Claim, replaces: Option<Fence>) -> Outcome<S> {
    let context = Arc::clone(&job.context);
    match claim(&context, claim_request(&context, how, replaces), without_effect(how)).await {
        Ok(ClaimOutcome::Won { fence, .. }) => {
            let held = HeldClaim::of(Reserved::new(&context, fence), &context, how);
            let response = answer::restored(&kept);
            Outcome::Answered(held.answer_once(Settlement::Settle(kept), response).await)
        }
        other => not_won(job, other),
    }
}

/// What a claim comes to that was not won.
fn not_won<S>(job: Job<S>, claimed: Result<ClaimOutcome, StoreError>) -> Outcome<S> {
    match claimed {
        Ok(ClaimOutcome::Known { entry, now }) => Outcome::Known { entry, now, job },
        Ok(ClaimOutcome::Changed | ClaimOutcome::Won { .. }) => Outcome::Changed(job),
        Ok(ClaimOutcome::CredentialChanged) => Outcome::Refused(credential_changed()),
        Ok(ClaimOutcome::Entered) => Outcome::Entered(job),
        Err(error) => Outcome::Refused(store_away(&error)),
    }
}

/// Claims the key and marks its outcome unknown, without running anything: a record of it was lost. Then it is decided
/// upon like any other.
pub(crate) async fn mark_unknown<S>(job: Job<S>, how: Claim, replaces: Option<Fence>) -> Outcome<S> {
    let context = Arc::clone(&job.context);
    match claim(&context, claim_request(&context, how, replaces), Settlement::Unknown).await {
        Ok(ClaimOutcome::Won { fence, .. }) => {
            measure::unknown(&context.route.name);
            tracing::warn!(record = fence.number, "a key's record may be lost; its outcome is unknown");
            // Whatever becomes of this write: a claim that nobody renews is an unknown outcome all the same.
            HeldClaim::of(Reserved::new(&context, fence), &context, how).settle(Settlement::Unknown).await;
            Outcome::Changed(job)
        }
        Ok(ClaimOutcome::Known { entry, now }) => Outcome::Known { entry, now, job },
        Ok(ClaimOutcome::Changed) => Outcome::Changed(job),
        Ok(ClaimOutcome::Entered) => Outcome::Entered(job),
        Ok(ClaimOutcome::CredentialChanged) => Outcome::Refused(Kind::CredentialChanged.into()),
        Err(error) => Outcome::Refused(store_away(&error)),
    }
}

/// Runs the handler under a claim and settles what comes of it.
async fn run<S>(job: Job<S>, reserved: Arc<Reserved>, dispatch_by: Duration, how: Claim) -> Response<Body>
where
    S: Service<Request<Body>, Response = Response<Body>> + Send + 'static,
    S::Future: Send,
{
    let Job { context, mut inner, mut whole } = job;
    let fence = reserved.fence;
    let mut held = HeldClaim::of(reserved, &context, how);
    let _kept_alive = held.keep_alive();
    let grant = Grant::new(Arc::clone(&context), fence);
    let dispatch = Dispatch::new(Arc::clone(&context.shared.clock), dispatch_by);
    whole.parts.extensions.insert(grant.clone());
    whole.parts.extensions.insert(dispatch.clone());
    let request = Request::from_parts(whole.parts, Body::from(whole.body));
    if poll_fn(|cx| inner.poll_ready(cx)).await.is_err() {
        measure::answered_unrun(&context.route.name);
        return Box::pin(held.not_sent(Kind::Overloaded, "the service was not ready")).await;
    }
    if !dispatch.in_time() && !planted::is(Bug::DispatchAfterLease) {
        measure::answered_unrun(&context.route.name);
        return Box::pin(held.not_sent(Kind::Overloaded, "the claim took longer than its lease")).await;
    }
    Step::Dispatched.reached();
    held.begin();
    let ended = {
        // Dropped at the end of this block, before anything is said of it: what it holds must not stand in the way.
        let mut call = pin!(AssertUnwindSafe(async move { inner.call(request).await }).catch_unwind());
        match context.route.deadline {
            Some(_) => tokio::time::timeout_at(held.until, call.as_mut()).await,
            None => Ok(call.as_mut().await),
        }
    };
    let was_sent = match &ended {
        Ok(Ok(Ok(response))) => !matches!(response.extensions().get(), Some(NoAnswer::NotSent(_))),
        Ok(Ok(Err(_)) | Err(_)) | Err(_) => true,
    };
    match was_sent {
        true => context.route.meters.executed(&context.route.name),
        false => measure::answered_unrun(&context.route.name),
    }
    match ended {
        Ok(Ok(Ok(response))) => held.answered(response, &grant).await,
        Ok(Ok(Err(_))) => Box::pin(held.cut_off(&grant, Kind::UpstreamReset, "the service failed")).await,
        Ok(Err(_)) => Box::pin(held.cut_off(&grant, Kind::UpstreamReset, "the handler panicked")).await,
        Err(_) => {
            let why = "the handler did not finish in time";
            Box::pin(held.cut_off(&grant, Kind::HandlerTimeout, why)).await
        }
    }
}

//! One attempt at a request: claim, run, capture, settle, answer. From the claim on it depends on no client: it runs in a
//! task of its own to its settlement.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum_core::body::Body;
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::poll_fn;
use http::{HeaderValue, Request, Response};
use semel_contract::decide::Claim;
use semel_contract::identity::Caller;
use semel_contract::outcome::{Disposition, Ending, Told, dispose};
use semel_contract::planted::{self, Bug};
use semel_contract::problem::{Kind, Problem};
use semel_contract::record::{Fence, Guarantee, State};
use semel_contract::time::Timestamp;
use semel_store::clock::SLEW_PARTS;
use semel_store::{Answer, Claimed, Entry, Settlement, StoreError, Terms, Wish, Written};
use tower_service::Service;

use crate::answer::{self, OUTCOME};
use crate::arrival::{Arrival, Whole};
use crate::capture::{Captured, capture};
use crate::dispatch::Dispatch;
use crate::grant::Grant;
use crate::keeper::Hold;
use crate::layer::Shared;
use crate::measure;
use crate::route::Route;
use crate::step::Step;
use crate::walk::store_away;

/// How often a write whose result is not known is made again before the client is told so.
const WRITE_TRIES: u32 = 4;
/// The pause before the first of them; it doubles.
const WRITE_PAUSE: Duration = Duration::from_millis(50);
/// How long a settlement that the store did not take is tried again in the background.
const BACKGROUND_SETTLEMENT_TRIES: u32 = 12;

/// What a keyed request is about, without what runs it.
pub(crate) struct Context {
    pub(crate) shared: Arc<Shared>,
    pub(crate) route: Arc<Route>,
    pub(crate) arrival: Arrival,
    pub(crate) request_id: String,
    pub(crate) arrived: tokio::time::Instant,
    pub(crate) caller: Caller,
    /// The request limiter's refusal, which only a new key meets.
    pub(crate) over_limit: Option<Problem>,
}

/// How a service that forwards requests says that it has no answer: put into the extensions of the response that stands
/// in for one. Only what surely was not sent frees the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Broken {
    /// Not a byte of the request was sent.
    NotSent(String),
    /// It broke off after something was sent.
    Reset(String),
    /// No answer came in time.
    TimedOut(String),
    /// Another attempt holds the key by now, and this one was rolled back.
    Superseded,
}

/// A keyed request with everything that running it needs.
pub(crate) struct Job<S> {
    pub(crate) context: Arc<Context>,
    pub(crate) inner: S,
    pub(crate) whole: Whole,
}

/// What became of a wish to run.
pub(crate) enum Outcome<S> {
    /// It ran, or could not; this is the answer.
    Answered(Response<Body>),
    /// There is a record: decide by it.
    Known { entry: Box<Entry>, now: Timestamp, job: Job<S> },
    /// The record that was decided upon is gone: look again.
    Changed(Job<S>),
    /// Refused.
    Refused(Problem),
}

pub(crate) fn wish(job: &Context, how: Claim, replaces: Option<Fence>) -> Wish {
    let arrival = &job.arrival;
    Wish {
        id: arrival.id.clone(),
        how,
        replaces: replaces.filter(|_| how != Claim::New),
        nonce: (job.shared.entropy)(),
        lease: job.route.lease,
        // A request that was sent in time may take effect until its own time-out, and the declared window after that.
        // The store's clock may run fast by one part in so many.
        late: (job.route.deadline.unwrap_or_default() + job.route.late) * (SLEW_PARTS + 1) / SLEW_PARTS,
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
/// not held by anybody, and is freed in the background once the store can be asked again.
pub(crate) async fn claim(job: &Arc<Context>, wish: Wish) -> Result<Claimed, StoreError> {
    let mut pause = WRITE_PAUSE;
    let mut unsure = None;
    measure::connections(&*job.shared.store);
    for _ in 0..WRITE_TRIES {
        match measure::store("claim", job.shared.store.claim(wish.clone())).await {
            Err(error @ StoreError::Unknown(_)) => unsure = Some(error),
            Err(error) if unsure.is_some() => tracing::debug!(%error, "a claim is still unsure"),
            other => return other,
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
    free_in_background(Arc::clone(job), wish, pause);
    Err(unsure.expect("only an unsure claim is tried to the end"))
}

/// Finds out about a claim that nobody will use, and releases it if it was won.
fn free_in_background(job: Arc<Context>, wish: Wish, mut pause: Duration) {
    tokio::spawn(async move {
        for _ in 0..BACKGROUND_SETTLEMENT_TRIES {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(30));
            match job.shared.store.claim(wish.clone()).await {
                Ok(Claimed::Won { fence, .. }) => {
                    Held { fence, job: &job }.settle(Settlement::Release).await;
                    return;
                }
                Ok(Claimed::Known { .. } | Claimed::Changed | Claimed::CredentialChanged) => return,
                Err(_) => {}
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
    match claim(&context, wish(&context, how, replaces)).await {
        Ok(Claimed::Won { fence, .. }) => {
            Step::Claimed.taken();
            if matches!(how, Claim::New | Claim::TakeOver) {
                measure::new_key(&context.route.name);
            }
            // Short of the lease by more than the store's clock may run fast.
            let dispatch_by = asked + context.route.lease - context.route.lease * 2 / SLEW_PARTS;
            Outcome::Answered(run(job, fence, dispatch_by).await)
        }
        other => not_won(job, other),
    }
}

/// Claims the key and settles it with an answer that needs no handler. The answer is given only once it is on record.
pub(crate) async fn record<S>(job: Job<S>, kept: Answer, how: Claim, replaces: Option<Fence>) -> Outcome<S> {
    let context = Arc::clone(&job.context);
    match claim(&context, wish(&context, how, replaces)).await {
        Ok(Claimed::Won { fence, .. }) => {
            let held = Held { fence, job: &context };
            let response = answer::restored(&kept);
            Outcome::Answered(held.answer_once(Settlement::Settle(kept), response).await)
        }
        other => not_won(job, other),
    }
}

/// What a claim comes to that was not won.
fn not_won<S>(job: Job<S>, claimed: Result<Claimed, StoreError>) -> Outcome<S> {
    match claimed {
        Ok(Claimed::Known { entry, now }) => Outcome::Known { entry, now, job },
        Ok(Claimed::Changed | Claimed::Won { .. }) => Outcome::Changed(job),
        Ok(Claimed::CredentialChanged) => Outcome::Refused(Problem::new(
            Kind::CredentialChanged,
            "this key was used for the same request with another credential; it is not run again",
        )),
        Err(error) => Outcome::Refused(store_away(&error)),
    }
}

/// Claims the key and marks its outcome unknown, without running anything: a record of it was lost. Then it is decided
/// upon like any other.
pub(crate) async fn mark_unknown<S>(job: Job<S>, how: Claim, replaces: Option<Fence>) -> Outcome<S> {
    let context = Arc::clone(&job.context);
    match claim(&context, wish(&context, how, replaces)).await {
        Ok(Claimed::Won { fence, .. }) => {
            measure::unknown(&context.route.name);
            tracing::warn!(record = fence.number, "a key's record may be lost; its outcome is unknown");
            // Whatever becomes of this write: a claim that nobody renews is an unknown outcome all the same.
            Held { fence, job: &context }.settle(Settlement::Unknown).await;
            Outcome::Changed(job)
        }
        Ok(Claimed::Known { entry, now }) => Outcome::Known { entry, now, job },
        Ok(Claimed::Changed) => Outcome::Changed(job),
        Ok(Claimed::CredentialChanged) => Outcome::Refused(Kind::CredentialChanged.into()),
        Err(error) => Outcome::Refused(store_away(&error)),
    }
}

/// Runs the handler under a claim and settles what comes of it.
async fn run<S>(job: Job<S>, fence: Fence, dispatch_by: Duration) -> Response<Body>
where
    S: Service<Request<Body>, Response = Response<Body>> + Send + 'static,
    S::Future: Send,
{
    let Job { context, mut inner, mut whole } = job;
    let held = Held { fence, job: &context };
    measure::executed(&context.route.name);
    let _kept_alive = held.keep_alive();
    let grant = Grant::new(
        context.arrival.id.clone(),
        fence,
        context.route.profile.lifetime.clone(),
        Arc::clone(&context.shared.store),
    );
    let dispatch = Dispatch::new(Arc::clone(&context.shared.clock), dispatch_by);
    whole.parts.extensions.insert(grant.clone());
    whole.parts.extensions.insert(dispatch.clone());
    let request = Request::from_parts(whole.parts, Body::from(whole.body));
    if poll_fn(|cx| inner.poll_ready(cx)).await.is_err() {
        return held.not_sent("the service was not ready").await;
    }
    if !dispatch.in_time() && !planted::is(Bug::DispatchAfterLease) {
        return held.not_sent("the claim took longer than its lease").await;
    }
    Step::Dispatched.taken();
    let call = AssertUnwindSafe(async move { inner.call(request).await }).catch_unwind();
    let deadline = context.route.deadline;
    let ended = match deadline {
        Some(deadline) => tokio::time::timeout(deadline, call).await,
        None => Ok(call.await),
    };
    match ended {
        Ok(Ok(Ok(response))) => held.answered(response, &grant).await,
        Ok(Ok(Err(_))) => held.cut_off(&grant, Kind::UpstreamReset, "the service failed").await,
        Ok(Err(_)) => held.cut_off(&grant, Kind::UpstreamReset, "the handler panicked").await,
        Err(_) => held.cut_off(&grant, Kind::HandlerTimeout, "the handler did not finish in time").await,
    }
}

/// A claim that is held, to be settled.
struct Held<'a> {
    fence: Fence,
    job: &'a Arc<Context>,
}

impl Held<'_> {
    fn guarantee(&self) -> Guarantee {
        self.job.route.profile.guarantee
    }

    fn refused(&self, problem: &Problem) -> Response<Body> {
        measure::refused(&self.job.route.name, problem.kind);
        answer::refused(&self.job.route, problem, &self.job.request_id)
    }

    /// Nothing was sent: the key is free again.
    async fn not_sent(&self, why: &str) -> Response<Body> {
        self.settle(Settlement::Release).await;
        self.refused(&Problem::new(Kind::Overloaded, why).retry_after(Duration::from_secs(1)))
    }

    /// The key is somebody else's by now: nothing is left to settle.
    fn superseded(&self) -> Response<Body> {
        let problem = Problem::new(Kind::Superseded, "this attempt lost its claim while it ran");
        self.refused(&problem.retry_after(Duration::from_secs(1)))
    }

    /// The upstream was not reached: the key is free again.
    async fn unreachable(&self, why: &str) -> Response<Body> {
        self.settle(Settlement::Release).await;
        self.refused(&Problem::new(Kind::UpstreamUnreachable, why).retry_after(Duration::from_secs(1)))
    }

    /// The attempt broke off. Whether it took effect is known only where it was atomic.
    async fn cut_off(&self, grant: &Grant, kind: Kind, why: &str) -> Response<Body> {
        if let Some(kept) = self.settled_by_handler(grant).await {
            return kept;
        }
        let disposition = dispose(&self.job.route.profile, self.guarantee(), Ending::CutOff);
        let mut response = self.refused(&Problem::new(kind, why));
        if disposition == Disposition::Unknown {
            measure::unknown(&self.job.route.name);
            response.headers_mut().insert(OUTCOME, HeaderValue::from_static("unknown"));
            self.settle(Settlement::Unknown).await;
            return response;
        }
        self.release(response).await
    }

    /// Where the handler settled by itself, its record's answer: by its grant, or by SQL in a process of its own.
    async fn settled_by_handler(&self, grant: &Grant) -> Option<Response<Body>> {
        if let Some(kept) = grant.settled() {
            return Some(answer::restored(&kept));
        }
        if self.guarantee() != Guarantee::Atomic {
            return None;
        }
        let (store, arrival) = (&self.job.shared.store, &self.job.arrival);
        let found = measure::store("look-up", store.look_up(&arrival.id)).await;
        // What is not seen here was not committed yet; the write that follows waits for it, and tells.
        let entry = found.ok()?.0.filter(|entry| entry.record.fence == self.fence)?;
        match entry.record.state {
            State::Settled => Some(answer::restored(entry.answer.as_ref()?)),
            State::Unkept => Some(self.refused(&self.job.refusal(Kind::AnswerNotKept, Some(&entry)))),
            State::Claimed | State::Released | State::Unknown | State::Sealed => None,
        }
    }

    /// Frees the key, then answers; unless the handler settled at the last moment, which counts.
    async fn release(&self, response: Response<Body>) -> Response<Body> {
        match self.settle(Settlement::Release).await {
            Settled::Superseded if self.guarantee() == Guarantee::Atomic => {
                self.settled_meanwhile().await.unwrap_or(response)
            }
            Settled::Durable | Settled::Superseded | Settled::Pending => response,
        }
    }

    async fn settled_meanwhile(&self) -> Option<Response<Body>> {
        let (entry, _) = self.job.look_up().await.ok()?;
        let entry = entry.filter(|entry| entry.record.fence == self.fence)?;
        Some(answer::restored(entry.answer.as_ref().filter(|_| entry.record.state == State::Settled)?))
    }

    fn keep_alive(&self) -> Hold {
        self.job.shared.keeper.hold(&self.job.arrival.id, self.fence, &self.job.route)
    }

    /// The handler answered.
    async fn answered(&self, response: Response<Body>, grant: &Grant) -> Response<Body> {
        if let Some(kept) = self.settled_by_handler(grant).await {
            return kept;
        }
        match response.extensions().get::<Broken>() {
            Some(Broken::NotSent(why)) => return self.unreachable(why).await,
            Some(Broken::Reset(why)) => return self.cut_off(grant, Kind::UpstreamReset, why).await,
            Some(Broken::TimedOut(why)) => return self.cut_off(grant, Kind::UpstreamTimeout, why).await,
            Some(Broken::Superseded) => return self.superseded(),
            None => {}
        }
        let told = response.headers().get(OUTCOME).and_then(|value| Told::parse(value.as_bytes()));
        let ending = Ending::Answered { status: response.status().as_u16(), told };
        match dispose(&self.job.route.profile, self.guarantee(), ending) {
            Disposition::Settle => self.keep(response, false).await,
            Disposition::SettleUnknown => self.keep(response, true).await,
            Disposition::Release => self.release(response).await,
            Disposition::Unknown => {
                measure::unknown(&self.job.route.name);
                self.settle(Settlement::Unknown).await;
                let mut response = response;
                response.headers_mut().insert(OUTCOME, HeaderValue::from_static("unknown"));
                response
            }
            Disposition::NotSettled => {
                tracing::error!(
                    route = self.job.route.name,
                    "an atomic handler answered without settling its grant"
                );
                if cfg!(feature = "testing") {
                    panic!("an atomic handler must settle with its grant");
                }
                let refused = self.refused(&Problem::new(
                    Kind::NotSettled,
                    "the handler answered but did not settle with its grant",
                ));
                match self.settle(Settlement::Unknown).await {
                    Settled::Superseded => self.settled_meanwhile().await.unwrap_or(refused),
                    Settled::Durable | Settled::Pending => refused,
                }
            }
        }
    }

    /// Keeps an answer, or a tombstone where it is too large or a stream. Either is durable before its first byte passes.
    async fn keep(&self, response: Response<Body>, outcome_unknown: bool) -> Response<Body> {
        let (mut parts, body) = response.into_parts();
        if outcome_unknown {
            parts.headers.insert(OUTCOME, HeaderValue::from_static("unknown"));
        }
        let capturing = capture(&parts.headers, body, self.job.route.profile.stored.max_response_bytes);
        let captured = match self.job.route.deadline {
            Some(deadline) => tokio::time::timeout(deadline, capturing).await,
            None => Ok(capturing.await),
        };
        let Ok(captured) = captured else {
            measure::unknown(&self.job.route.name);
            self.settle(Settlement::Unknown).await;
            let mut response =
                self.refused(&Problem::new(Kind::HandlerTimeout, "the answer did not end in time"));
            response.headers_mut().insert(OUTCOME, HeaderValue::from_static("unknown"));
            return response;
        };
        match captured {
            Captured::Whole(bytes) => {
                Step::Captured.taken();
                let kept = answer::kept(&parts, bytes.clone(), outcome_unknown);
                self.answer_once(Settlement::Settle(kept), Response::from_parts(parts, Body::from(bytes)))
                    .await
            }
            Captured::Passing(body) if planted::is(Bug::LargeAnswerForgotten) => {
                self.settle(Settlement::Release).await;
                Response::from_parts(parts, body)
            }
            Captured::Passing(body) => {
                let tombstone = answer::kept(&parts, Bytes::new(), outcome_unknown);
                self.answer_once(Settlement::Unkept(tombstone), Response::from_parts(parts, body)).await
            }
            Captured::Broken(error) => {
                tracing::warn!(%error, "an answer broke off");
                measure::unknown(&self.job.route.name);
                self.settle(Settlement::Unknown).await;
                let mut response = self.refused(&Problem::new(Kind::UpstreamReset, "the answer broke off"));
                response.headers_mut().insert(OUTCOME, HeaderValue::from_static("unknown"));
                response
            }
        }
    }

    /// Answers, once the settlement is durable.
    async fn answer_once(&self, settlement: Settlement, response: Response<Body>) -> Response<Body> {
        if planted::is(Bug::AnswerBeforeSettle) {
            self.settle_in_background(settlement, WRITE_PAUSE);
            return response;
        }
        match self.settle(settlement).await {
            Settled::Durable => response,
            Settled::Superseded => self.superseded(),
            Settled::Pending => {
                self.refused(&Problem::from(Kind::SettlementPending).retry_after(Duration::from_secs(1)))
            }
        }
    }

    /// Settles. A store that does not answer is asked again in the background: what happened is not forgotten.
    async fn settle(&self, settlement: Settlement) -> Settled {
        let mut pause = WRITE_PAUSE;
        for _ in 0..WRITE_TRIES {
            let (store, lifetime) = (&self.job.shared.store, &self.job.route.profile.lifetime);
            let settling = store.settle(&self.job.arrival.id, self.fence, settlement.clone(), lifetime);
            match measure::store("settle", settling).await {
                Ok(Written::Done) => {
                    Step::Settled.taken();
                    return Settled::Durable;
                }
                Ok(Written::Superseded) => return Settled::Superseded,
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
        tokio::spawn(async move {
            let _kept_alive = kept_alive;
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

/// What became of a settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Settled {
    Durable,
    Superseded,
    Pending,
}

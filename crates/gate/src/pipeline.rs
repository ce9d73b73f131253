//! The walk of one request, in one direction: identity, key, fingerprint, look-up, decision. What is decided is carried
//! out here or in `attempt`; the decision itself is the contract's.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum_core::body::Body;
use http::{HeaderValue, Request, Response};
use semel_contract::decide::{Claim, Decision};
use semel_contract::hex::hex;
use semel_contract::identity::Caller;
use semel_contract::key::{KEY_HEADERS, Presence, Source};
use semel_contract::planted::{self, Bug};
use semel_contract::problem::{Kind, Problem};
use semel_contract::record::{Fence, Guarantee, Record};
use semel_contract::request;
use semel_contract::restore::Recall;
use semel_contract::route::SAFE_METHODS;
use semel_contract::time::Timestamp;
use semel_http::UnreadBody;
use semel_store::Entry;
use tower_service::Service;
use tracing::Instrument;

use crate::answer;
use crate::arrival::{self, Arrival, KeyRead, Reading, Whole};
use crate::attempt::{Job, Outcome, claim_and_run, mark_unknown};
use crate::context::Context;
use crate::identity::{Lines, Verified};
use crate::keys;
use crate::limit;
use crate::measure;
use crate::outlive::{Work, outlive};
use crate::problems::{STORE_RETRY_SECONDS, closed};
use crate::route::Route;
use crate::shared::Shared;
use crate::step::Step;

/// How often a record may change under a request before it gives up deciding.
const DECISIONS_MAX: usize = 64;

/// A request on its way through the gate.
pub(crate) type Walking<E> = Pin<Box<dyn Future<Output = Result<Response<Body>, E>> + Send>>;

/// Walks a request through the gate. What needs no protection takes a short way, with little to carry.
pub(crate) fn walk<S>(shared: Arc<Shared>, inner: S, request: Request<Body>) -> Walking<S::Error>
where
    S: Service<Request<Body>, Response = Response<Body>> + Send + 'static,
    S::Future: Send,
    S::Error: Send,
{
    let (parts, body) = request.into_parts();
    let path = parts.uri.path();
    let covering = shared.route(parts.method.as_str(), path).filter(|_| !keys::is_asked(path));
    let Some(route) = covering.map(|(route, _)| Arc::clone(route)) else {
        return Box::pin(unprotected(shared, inner, parts, body));
    };
    Step::Accepted.reached();
    if shared.observes {
        let request_id = request_id(&shared, &parts.headers);
        return Box::pin(crate::observe::observe(shared, route, inner, parts, body, request_id));
    }
    if route.profile.key.presence == Presence::Optional
        && !route.profile.key.may_have_key(&Lines(&parts.headers))
    {
        return Box::pin(unkeyed(route, inner, Request::from_parts(parts, body)));
    }
    Box::pin(keyed(shared, route, inner, parts, body))
}

/// A request that needs no key and has none.
async fn unkeyed<S>(
    route: Arc<Route>,
    mut inner: S,
    request: Request<Body>,
) -> Result<Response<Body>, S::Error>
where
    S: Service<Request<Body>, Response = Response<Body>>,
{
    route.meters.passed(&route.name);
    let mut response = inner.call(request).await?;
    answer::mark(response.headers_mut(), &route.profile, Guarantee::None);
    Ok(response)
}

/// A request that has a key, or may have one.
async fn keyed<S>(
    shared: Arc<Shared>,
    route: Arc<Route>,
    inner: S,
    parts: http::request::Parts,
    body: Body,
) -> Result<Response<Body>, S::Error>
where
    S: Service<Request<Body>, Response = Response<Body>> + Send + 'static,
    S::Future: Send,
    S::Error: Send,
{
    let profile = &route.profile;
    let request_id = request_id(&shared, &parts.headers);
    let refuse = |problem: Problem| {
        measure::refused(&route.name, problem.kind);
        let mut response = answer::refused(&route, &problem, &request_id);
        answer::mark(response.headers_mut(), profile, profile.guarantee);
        Ok(response)
    };
    let verified = match shared.identity(&route).identify(&parts).await {
        Ok(verified) => verified,
        Err(_) if planted::is(Bug::IdentityLast) => {
            Verified::new(Caller { tenant: None, principal: "alice".to_owned() })
        }
        Err(problem) => {
            shared.warnings.note_unidentified(&route.name, &problem);
            return refuse(problem);
        }
    };
    // A caller's fields are anybody's to fill in; what no store could keep is refused here, not there.
    if let Err(problem) = verified.caller.check() {
        return refuse(problem);
    }
    Step::Identified.reached();
    let over_limit = limit::request(&shared, &route, &verified.caller).await;
    if (profile.limits.request_refuses_known || planted::is(Bug::ReplayCharged))
        && let Some(problem) = over_limit
    {
        return refuse(problem);
    }
    Step::Limited.reached();
    let limit = usize::try_from(profile.stored.max_body_bytes).unwrap_or(usize::MAX);
    // What the headers alone condemn is not read first.
    let declared = parts.headers.get(http::header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    if declared.and_then(|length| length.parse::<usize>().ok()).is_some_and(|length| length > limit) {
        return refuse(UnreadBody::TooLarge(limit).problem());
    }
    let by_header = profile.key.sources.iter().all(|source| matches!(source, Source::Header(_)));
    let nothing = request::Body::new(None, b"");
    let early = match by_header.then(|| arrival::read_key(profile, &parts.headers, &nothing)).transpose() {
        Ok(early) => early,
        Err(problem) => return refuse(problem),
    };
    drop(nothing);
    let bytes = match shared.bodies.read(body, limit).await {
        Ok(bytes) => bytes,
        Err(unread) => return refuse(unread.problem()),
    };
    let body = request::Body::new(arrival::content_type(&parts.headers), &bytes);
    let mut is_minted = false;
    let key = match early.map_or_else(|| arrival::read_key(profile, &parts.headers, &body), Ok) {
        Ok(KeyRead::Found(found)) => found.key,
        Ok(KeyRead::Unkeyed) if profile.key.presence == Presence::Mint => {
            let random = u128::from((shared.entropy)()) << 64 | u128::from((shared.entropy)());
            is_minted = true;
            profile.generator.mint(random, shared.now())
        }
        Ok(KeyRead::Unkeyed) => {
            if let Some(problem) = over_limit {
                return refuse(problem);
            }
            // This path is rare. In a box it takes no room in the future of every request.
            return Box::pin(unkeyed(route, inner, Request::from_parts(parts, Body::from(bytes)))).await;
        }
        Err(problem) => return refuse(problem),
    };
    Step::Keyed.reached();
    let view = match shared.forms.view(&shared.meters).await {
        Ok(view) => view,
        Err(problem) => return refuse(problem),
    };
    let formers = match view.formers(&route) {
        [] => Vec::new(),
        _ => {
            let asked = (parts.method.as_str(), parts.uri.path());
            Box::pin(view.callers(&route, asked, &parts, &verified)).await
        }
    };
    let read = {
        let reading = Reading {
            route: &route,
            parts: &parts,
            body: &body,
            caller: &verified.caller,
            credential: verified.credential,
            request_id: &request_id,
            secrets: &shared.fingerprint_secrets,
            has_headers: true,
            by_host: shared.forms.is_by_host(),
            formers: &formers,
            as_of: view.asked_at,
        };
        Arrival::read(&reading, key)
    };
    drop(formers);
    let mut arrival = match read {
        Ok(arrival) => Arrival { is_minted, ..arrival },
        Err(problem) => return refuse(problem),
    };
    if !arrival.formers.is_empty()
        && let Err(problem) = Box::pin(arrival.recognise(shared.asked())).await
    {
        return refuse(problem);
    }
    Step::Fingerprinted.reached();
    drop(body);
    let context = Arc::new(Context {
        shared,
        route: Arc::clone(&route),
        arrival,
        request_id: request_id.clone(),
        arrived: tokio::time::Instant::now(),
        caller: verified.caller,
        over_limit,
    });
    Ok(Deciding::new(Job { context, inner, whole: Whole { parts, body: bytes } }).run().await)
}

/// A request that no route covers. A key on it is not silently ignored: its answer says that it promises nothing.
async fn unprotected<S>(
    shared: Arc<Shared>,
    mut inner: S,
    parts: http::request::Parts,
    body: Body,
) -> Result<Response<Body>, S::Error>
where
    S: Service<Request<Body>, Response = Response<Body>>,
{
    if keys::is_asked(parts.uri.path()) {
        let request_id = request_id(&shared, &parts.headers);
        return Ok(Box::pin(keys::answer(&shared, &parts, &request_id)).await);
    }
    let has_key = KEY_HEADERS.iter().any(|name| parts.headers.contains_key(*name));
    let promises_nothing = has_key && !SAFE_METHODS.contains(&parts.method.as_str()) && !shared.observes;
    if promises_nothing {
        shared.warnings.note_unprotected(parts.method.as_str(), parts.uri.path());
    }
    let mut response = inner.call(Request::from_parts(parts, body)).await?;
    if promises_nothing {
        response.headers_mut().insert(answer::GUARANTEE, HeaderValue::from_static(Guarantee::None.name()));
    }
    Ok(response)
}

fn request_id(shared: &Shared, headers: &http::HeaderMap) -> String {
    let given = headers.get("x-request-id").and_then(|value| value.to_str().ok());
    match given {
        Some(text) if (1..=128).contains(&text.len()) => text.to_owned(),
        Some(_) | None => format!("{:016x}", (shared.entropy)()),
    }
}

/// What stands for a key in logs, found in the extensions of every answer to a keyed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyHash(pub String);

/// A keyed request that is being decided upon.
pub(crate) struct Deciding<S> {
    job: Option<Job<S>>,
    context: Arc<Context>,
    guard_passed: bool,
}

/// What is known of the key at the moment.
pub(crate) type Known = (Option<Box<Entry>>, Timestamp);

impl<S> Deciding<S>
where
    S: Service<Request<Body>, Response = Response<Body>> + Send + 'static,
    S::Future: Send,
    S::Error: Send,
{
    pub(crate) fn new(job: Job<S>) -> Self {
        Self { context: Arc::clone(&job.context), job: Some(job), guard_passed: false }
    }

    async fn run(mut self) -> Response<Body> {
        // Keys never stand in logs; their hashes are enough to follow one.
        let hash = KeyHash(hex(&self.context.arrival.id.hash()[..8]));
        let known = self.context.look_up_if_local().await;
        let mut response = match &known {
            // Nothing of it is told in logs, so that nothing is made ready for them.
            Some(found) if self.is_quiet_replay(found) => {
                Step::LookedUp.reached();
                self.context.replay(found.0.as_deref())
            }
            Some(_) | None => self.decide_in_span(known, &hash).await,
        };
        let profile = &self.context.route.profile;
        if !response.headers().contains_key(answer::GUARANTEE) {
            answer::mark(response.headers_mut(), profile, profile.guarantee);
        }
        response.extensions_mut().insert(hash);
        Step::Answered.reached();
        response
    }

    /// Decides under a name by which logs tell what comes of it.
    async fn decide_in_span(&mut self, known: Option<Known>, key: &KeyHash) -> Response<Body> {
        let context = Arc::clone(&self.context);
        let (route, request_id) = (&context.route.name, &context.request_id);
        let span = tracing::info_span!("semel", route, request_id, key = key.0);
        match self.decide(known).instrument(span).await {
            Ok(response) => response,
            Err(problem) => {
                measure::refused(route, problem.kind);
                answer::refused(&context.route, &problem, request_id)
            }
        }
    }

    /// Whether it is answered from a record of which there is nothing more to say.
    fn is_quiet_replay(&self, known: &Known) -> bool {
        let answer = known.0.as_deref().and_then(|entry| entry.answer.as_ref());
        matches!(self.context.decision(known), Ok(Decision::Replay))
            && answer.is_none_or(|answer| !answer.outcome_unknown)
    }

    /// Decides, and carries it out. What is known already is not looked up again.
    pub(crate) async fn decide(&mut self, known: Option<Known>) -> Result<Response<Body>, Problem> {
        let context = Arc::clone(&self.context);
        let profile = &context.route.profile;
        // Where nothing comes between look-up and claim, the claim is the look-up.
        let between = profile.limits.admission.is_some() || context.over_limit.is_some();
        // A gate that has no room for new work still answers from its records.
        let has_room = context.shared.in_flight.available_permits() > 0 && !context.shared.is_draining();
        let is_plain = profile.guard.is_none() && profile.age.is_none() && !context.arrival.is_by_former_name;
        let direct = is_plain && !between && has_room && !context.shared.store.lookup_is_local();
        let unasked = || direct.then_some((None, Timestamp::from_millis(0)));
        let mut known = known.or_else(unasked);
        let (mut decisions, mut pause) = (0, Duration::ZERO);
        while decisions < DECISIONS_MAX {
            decisions += 1;
            let found = match known.take() {
                Some(known) => known,
                None => context.look_up().await?,
            };
            Step::LookedUp.reached();
            let decision = context.decision(&found)?;
            let (entry, now) = found;
            match decision {
                Decision::Execute(how) => {
                    if how == Claim::TakeOver {
                        measure::expired_access(&context.route.name);
                    }
                    match self.execute(how, entry.map(|entry| entry.record), now).await? {
                        Executed::Answered(response) => return Ok(response),
                        Executed::Known(found) => known = found,
                        Executed::Entered => {
                            if let Some(response) = Box::pin(context.wait_for_entered(&mut pause)).await? {
                                return Ok(response);
                            }
                            // However long it takes: the route's own deadline ends it.
                            decisions -= 1;
                            known = unasked();
                        }
                    }
                }
                Decision::Replay => return Ok(context.replay(entry.as_deref())),
                Decision::Wait => known = Some(Box::pin(context.wait()).await?),
                Decision::Accepted => return Ok(context.accepted()),
                Decision::Probe => Box::pin(context.probe(entry, now)).await?,
                Decision::Refuse(kind) => return Err(context.refusal(kind, entry.as_deref())),
            }
        }
        Err(Problem::from(Kind::InFlight).retry_after(Duration::from_secs(1)))
    }

    /// The guard, then the claim and, once it is won, the handler. From the claim on, the work no longer depends on the
    /// client: it outlives whoever waits for it.
    async fn execute(
        &mut self,
        how: Claim,
        known: Option<Record>,
        now: Timestamp,
    ) -> Result<Executed, Problem> {
        let replaces = known.as_ref().map(|record| record.fence);
        let is_retry = matches!(how, Claim::Forward | Claim::Rerun);
        let begins_anew = matches!(how, Claim::New | Claim::TakeOver | Claim::Reclaim);
        if self.context.arrival.is_by_former_name && begins_anew {
            // What it was known by is gone, or free again. The next try begins under the endpoint's present name: others may
            // have begun there, and nobody who claims here would look.
            let problem = Problem::new(
                Kind::InFlight,
                "the configuration was changed; send it again with the same key",
            );
            return Err(problem.retry_after(Duration::from_secs(STORE_RETRY_SECONDS)));
        }
        if self.context.shared.is_draining() && !planted::is(Bug::ReplacedGateClaims) {
            return Err(closed());
        }
        limit::admit(&self.context, how).await?;
        Step::Admitted.reached();
        // What was accepted once is not refused now: the guard has no say about a retry of what is unknown, nor, in a store
        // that was restored, about a key that may have had a record.
        let job = self.job.take().expect("a request is executed once");
        let known_since = known.map(|record| record.created_at);
        let recalled = self.context.recalls(how, known_since, &job.whole.parts.headers).await?;
        let is_lost = recalled == Recall::Lost;
        if let (Some(guard), false) =
            (&self.context.route.profile.guard, self.guard_passed || is_lost || is_retry)
        {
            let body = request::Body::new(arrival::content_type(&job.whole.parts.headers), &job.whole.body);
            let checked = crate::guard::check(guard, &body, now);
            drop(body);
            if let Err(problem) = checked {
                return Box::pin(self.refuse_stale(job, problem, how, replaces, now)).await;
            }
            self.guard_passed = true;
        }
        Step::Guarded.reached();
        let permit = Arc::clone(&self.context.shared.in_flight).try_acquire_owned();
        let permit = permit.map_err(|_| {
            Problem::from(Kind::Overloaded).retry_after(Duration::from_secs(STORE_RETRY_SECONDS))
        })?;
        // With its permit it is seen by whoever drains; before, it may have been missed.
        if self.context.shared.is_draining() && !planted::is(Bug::ReplacedGateClaims) {
            return Err(closed());
        }
        if planted::is(Bug::CancelledByClient) {
            let outcome = Box::pin(claim_and_run(job, how, replaces)).await;
            return self.carry_on(outcome);
        }
        // In a box from the beginning: it is large, and is handed on several times.
        let attempt: Work<Outcome<S>> = match is_lost {
            true => Box::pin(async move {
                let outcome = mark_unknown(job, how, replaces).await;
                drop(permit);
                outcome
            }),
            false => Box::pin(async move {
                let outcome = claim_and_run(job, how, replaces).await;
                drop(permit);
                outcome
            }),
        };
        let outcome = outlive(attempt).await;
        self.carry_on(outcome)
    }

    fn carry_on(&mut self, outcome: Outcome<S>) -> Result<Executed, Problem> {
        match outcome {
            Outcome::Answered(response) => Ok(Executed::Answered(response)),
            Outcome::Known { entry, now, job } => {
                self.job = Some(job);
                Ok(Executed::Known(Some((Some(entry), now))))
            }
            Outcome::Changed(job) => {
                self.job = Some(job);
                Ok(Executed::Known(None))
            }
            Outcome::Entered(job) => {
                self.job = Some(job);
                Ok(Executed::Entered)
            }
            Outcome::Refused(problem) => Err(problem),
        }
    }

    /// A stale action leaves its refusal as a record, so that a retry gets the same answer and the trail is kept.
    async fn refuse_stale(
        &mut self,
        job: Job<S>,
        problem: Problem,
        how: Claim,
        replaces: Option<Fence>,
        now: Timestamp,
    ) -> Result<Executed, Problem> {
        if problem.kind != Kind::StaleAction || !limit::may_record_stale(&self.context, now).await {
            return Err(problem);
        }
        let kept = answer::kept_refusal(&self.context.route.profile, &problem, &self.context.request_id);
        let outcome = outlive(Box::pin(crate::attempt::record(job, kept, how, replaces))).await;
        let executed = self.carry_on(outcome);
        if matches!(executed, Ok(Executed::Answered(_))) {
            measure::refused(&self.context.route.name, problem.kind);
            limit::count_stale(&self.context).await;
        }
        executed
    }
}

/// What came of a decision to execute.
enum Executed {
    /// It is answered.
    Answered(Response<Body>),
    /// Somebody else was faster: decide by what is known now, or look again.
    Known(Option<Known>),
    /// A handler's transaction holds the key: wait, then look again.
    Entered,
}

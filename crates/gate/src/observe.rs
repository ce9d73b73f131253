//! The mode that changes nothing: requests pass as if there were no gate, keys are noted, and what the gate would have
//! done about a known one is counted and logged.

use std::sync::Arc;
use std::time::Duration;

use axum_core::body::Body;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Request, Response};
use semel_contract::decide::{Claim, Decision, decide};
use semel_contract::outcome::{Disposition, Ending, Told, dispose};
use semel_contract::record::Guarantee;
use semel_contract::{decide as table, request};
use semel_store::{Answer, ClaimOutcome, Settlement};
use tower_service::Service;

use crate::answer::OUTCOME;
use crate::arrival::{self, Arrival, KeyRead, Reading};
use crate::attempt::{claim, claim_request};
use crate::capture::{Captured, capture};
use crate::context::Context;
use crate::measure;
use crate::no_answer::NoAnswer;
use crate::route::Route;
use crate::shared::Shared;

/// Noting a key must not hold a request up for longer than this.
const NOTING: Duration = Duration::from_millis(500);

/// Passes a request on, and notes what would have been done.
pub(crate) async fn observe<S>(
    shared: Arc<Shared>,
    route: Arc<Route>,
    mut inner: S,
    parts: Parts,
    body: Body,
    request_id: String,
) -> Result<Response<Body>, S::Error>
where
    S: Service<Request<Body>, Response = Response<Body>>,
{
    let max = route.profile.stored.max_body_bytes;
    let (body, whole) = match capture(&HeaderMap::new(), body, max).await {
        Captured::Whole(bytes) => (Body::from(bytes.clone()), Some(bytes)),
        Captured::Passing(body) => (body, None),
        // The service sees it break off too.
        Captured::Broken(error) => (Body::new(http_body_util::StreamBody::new(failed(error))), None),
    };
    let noted = match whole {
        Some(bytes) => note(&shared, &route, &parts, &bytes, request_id).await,
        None => None,
    };
    let response = inner.call(Request::from_parts(parts, body)).await?;
    if let Some(noted) = noted {
        noted.settle(&response);
    }
    Ok(response)
}

fn failed(
    error: axum_core::Error,
) -> impl futures_util::Stream<Item = Result<http_body::Frame<Bytes>, axum_core::Error>> {
    futures_util::stream::once(std::future::ready(Err(error)))
}

/// A key that this request was the first to bring.
struct Noted {
    context: Arc<Context>,
    fence: semel_contract::record::Fence,
}

/// Notes a key; `None` where there is none, or it is known, or nothing can be noted.
async fn note(
    shared: &Arc<Shared>,
    route: &Arc<Route>,
    parts: &Parts,
    bytes: &Bytes,
    request_id: String,
) -> Option<Noted> {
    let would = |what: &'static str| measure::observed(&route.name, what);
    let body = request::Body::new(arrival::content_type(&parts.headers), bytes);
    let key = match arrival::read_key(&route.profile, &parts.headers, &body) {
        Ok(KeyRead::Found(found)) => found.key,
        Ok(KeyRead::Unkeyed) => return None,
        Err(problem) => {
            would(problem.kind.slug());
            return None;
        }
    };
    let verified = match shared.identity(route).identify(parts).await {
        Ok(verified) => verified,
        Err(problem) => {
            would(problem.kind.slug());
            return None;
        }
    };
    // What is noted is found in this form once the gate enforces; where that cannot be written down, nothing is noted.
    let Ok(view) = shared.forms.view(&shared.meters).await else {
        would("store-unavailable");
        return None;
    };
    let read = {
        let reading = Reading {
            route,
            parts,
            body: &body,
            caller: &verified.caller,
            credential: verified.credential,
            request_id: &request_id,
            secrets: &shared.fingerprint_secrets,
            has_headers: true,
            by_host: shared.forms.is_by_host(),
            formers: &[],
            as_of: view.asked_at,
        };
        Arrival::read(&reading, key)
    };
    let arrival = match read {
        Ok(arrival) => arrival,
        Err(problem) => {
            would(problem.kind.slug());
            return None;
        }
    };
    let context = Arc::new(Context {
        shared: Arc::clone(shared),
        route: Arc::clone(route),
        arrival,
        request_id,
        arrived: tokio::time::Instant::now(),
        caller: verified.caller,
        over_limit: None,
    });
    let request =
        semel_store::ClaimRequest { guarantee: Guarantee::None, ..claim_request(&context, Claim::New, None) };
    let (entry, now) = match tokio::time::timeout(NOTING, claim(&context, request, Settlement::Release)).await
    {
        Ok(Ok(ClaimOutcome::Won { fence, .. })) => return Some(Noted { context, fence }),
        Ok(Ok(ClaimOutcome::Known { entry, now })) => (entry, now),
        Ok(Ok(ClaimOutcome::CredentialChanged)) => {
            would("credential-changed");
            return None;
        }
        Ok(Ok(ClaimOutcome::Entered)) => {
            would("wait");
            return None;
        }
        Ok(Ok(ClaimOutcome::Changed) | Err(_)) | Err(_) => {
            would("store-unavailable");
            return None;
        }
    };
    let seen = table::Arrival {
        fingerprints: &context.arrival.fingerprints,
        first_sent: context.arrival.first_sent,
    };
    let what = match decide(&route.profile, &seen, Some(&entry.record), now) {
        Decision::Execute(_) => return None,
        Decision::Replay => "replay",
        Decision::Wait | Decision::Accepted => "wait",
        Decision::Probe => "probe",
        // What was noted is never kept with its answer, but would have been.
        Decision::Refuse(semel_contract::problem::Kind::AnswerNotKept) => "replay",
        Decision::Refuse(kind) => kind.slug(),
    };
    would(what);
    tracing::info!(
        route = route.name,
        request_id = context.request_id,
        would = what,
        "a duplicate passed: this gate only observes"
    );
    None
}

impl Noted {
    /// Writes down that the key was used, or frees it, without holding up the answer.
    fn settle(self, response: &Response<Body>) {
        let said = response.headers().get(OUTCOME);
        let told = said.and_then(|value| Told::parse(value.as_bytes()));
        let is_open = said.is_some_and(|value| value == Told::PENDING || value == "unknown");
        let ending = match response.extensions().get::<NoAnswer>() {
            Some(NoAnswer::NotSent(_) | NoAnswer::Superseded | NoAnswer::NotSettled(_)) => Ending::NotSent,
            Some(NoAnswer::Reset(_) | NoAnswer::TimedOut(_)) => Ending::CutOff,
            None if is_open => Ending::CutOff,
            None => Ending::Answered { status: response.status().as_u16(), told },
        };
        let kept = Answer {
            status: response.status().as_u16(),
            headers: [].into(),
            body: Bytes::new(),
            outcome_unknown: false,
        };
        let profile = &self.context.route.profile;
        let settlement = match dispose(profile, Guarantee::Fenced, ending) {
            Disposition::Settle => Settlement::Unkept(kept),
            // Nothing is claimed of what nobody knows: a retry passes, as it does without a gate.
            Disposition::Release
            | Disposition::SettleUnknown
            | Disposition::Unknown
            | Disposition::NotSettled => Settlement::Release,
        };
        tokio::spawn(async move {
            let Context { shared, route, arrival, .. } = &*self.context;
            let settling = shared.store.settle(&arrival.id, self.fence, settlement, &route.profile.lifetime);
            if let Err(error) = settling.await {
                tracing::debug!(%error, "a key that was only observed stays as it is");
            }
        });
    }
}

//! The two limiters of a route: before the look-up every request counts, after it only new keys. A known key is answered
//! whatever the limiters say, unless the route asks otherwise.

use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use semel_contract::decide::Claim;
use semel_contract::identity::Caller;
use semel_contract::problem::{Kind, Problem};
use semel_contract::profile::Rate;
use semel_contract::time::Timestamp;
use semel_store::Id;
use semel_store::limits::{Admission, Limiter as _, Verdict, rate_limit_policy};

use crate::context::Context;
use crate::measure;
use crate::route::Route;
use crate::shared::Shared;

/// Refusals of stale actions that one principal may have put on record.
const STALE_RECORDS: Rate = Rate { count: 60, window: Duration::from_secs(3600) };

/// Keys that were never used and that this process seals, for all principals together: a principal that is only hashed can
/// be made up, and each such seal is a row that stays for a retention.
const SEALS: Rate = Rate { count: 600, window: Duration::from_secs(60) };
/// Refusals of stale actions that this process puts on record, for all principals together.
const STALE_RECORDS_ALL: Rate = Rate { count: 600, window: Duration::from_secs(60) };

/// The names of the two policies in `RateLimit` headers.
const REQUEST: &str = "request";
const ADMISSION: &str = "admission";

/// Whose budget is spent: the principal's, at all routes that have this limit. A route with another limit has a budget of
/// its own.
fn subject(stage: &str, rate: Rate, caller: &Caller) -> Vec<u8> {
    let mut subject = Vec::new();
    let limit = format!("{}/{}", rate.count, rate.window.as_millis());
    for part in [stage, &limit, caller.tenant.as_deref().unwrap_or(""), &caller.principal] {
        subject.extend_from_slice(&(part.len() as u64).to_be_bytes());
        subject.extend_from_slice(part.as_bytes());
    }
    subject
}

/// When the limiter does not answer, the request passes: limits guard against load, not against second effects.
fn verdict(answer: Result<Verdict, semel_store::StoreError>) -> Option<Duration> {
    match answer {
        Ok(Verdict::Allowed { .. }) => None,
        Ok(Verdict::Denied { retry_after, .. }) => Some(retry_after.max(Duration::from_secs(1))),
        Err(error) => {
            tracing::warn!(%error, "a limiter did not answer");
            measure::limiter_away();
            None
        }
    }
}

/// The request stage: the refusal that a request over the limit gets, unless its key is known.
pub(crate) async fn request(shared: &Shared, route: &Route, caller: &Caller) -> Option<Problem> {
    let rate = route.profile.limits.request?;
    let now = shared.now();
    let after = verdict(shared.limiter.request(&subject(REQUEST, rate, caller), rate, now).await)?;
    Some(
        Problem::new(Kind::RequestLimited, format!("at most {} requests are taken", rate.count))
            .retry_after(after),
    )
}

/// The admission stage: a new key pays once, however often it is tried.
pub(crate) async fn admit(context: &Context, how: Claim) -> Result<(), Problem> {
    match how {
        Claim::New | Claim::TakeOver => {}
        Claim::Supersede | Claim::Reclaim | Claim::Forward | Claim::Rerun => return Ok(()),
    }
    if let Some(problem) = &context.over_limit {
        return Err(problem.clone());
    }
    charge(&context.shared, &context.route, &context.caller, &context.arrival.id).await
}

/// Charges a new key to its principal's admission budget.
async fn charge(shared: &Shared, route: &Route, caller: &Caller, id: &Id) -> Result<(), Problem> {
    let limits = &route.profile.limits;
    let Some(rate) = limits.admission else { return Ok(()) };
    let admission = Admission {
        principal: &subject(ADMISSION, rate, caller),
        id: id.hash(),
        rate,
        charge: limits.admission_charge,
        attempts_per_id: limits.attempts_per_id,
    };
    match verdict(shared.limiter.admit(admission, shared.now()).await) {
        None => Ok(()),
        Some(after) => {
            Err(Problem::new(Kind::AdmissionLimited, format!("at most {} new keys are taken", rate.count))
                .retry_after(after))
        }
    }
}

/// Whether a key that was never used may be sealed: it is a new key of its principal, and one of the few that this process
/// seals. Asking the process's own budget first leaves the principal's alone where there is no room.
pub(crate) async fn seal(shared: &Shared, route: &Route, caller: &Caller, id: &Id) -> Result<(), Problem> {
    if let Some(after) = verdict(shared.budgets.request(b"seals", SEALS, shared.now()).await) {
        return Err(too_many_seals(after));
    }
    // Where limits are counted for several processes together, so is this one.
    if let Some(after) = verdict(shared.limiter.request(b"seals", SEALS, shared.now()).await) {
        return Err(too_many_seals(after));
    }
    charge(shared, route, caller, id).await
}

fn too_many_seals(after: Duration) -> Problem {
    let why = format!("at most {} unused keys are sealed in {} s", SEALS.count, SEALS.window.as_secs());
    Problem::new(Kind::AdmissionLimited, why).retry_after(after)
}

/// Whether another refusal of a stale action of this principal may be put on record: storage is not free for the asking.
pub(crate) async fn may_record_stale(context: &Context, now: Timestamp) -> bool {
    let subject = subject("stale", STALE_RECORDS, &context.caller);
    let of_all = context.shared.budgets.request(b"stale", STALE_RECORDS_ALL, now).await;
    verdict(of_all).is_none()
        && verdict(context.shared.limiter.request(&subject, STALE_RECORDS, now).await).is_none()
}

/// Counts a stale action that was put on record, for operators: metrics never name a principal.
pub(crate) async fn count_stale(context: &Context) {
    let Caller { tenant, principal } = &context.caller;
    if let Err(error) = context.shared.store.count_stale(tenant.as_deref(), principal).await {
        tracing::warn!(%error, "failed to count a stale action");
    }
}

/// Says what the limit was, on the answer that refuses.
pub(crate) fn headers(route: &Route, problem: &Problem, headers: &mut HeaderMap) {
    let limits = &route.profile.limits;
    let (name, rate) = match problem.kind {
        Kind::RequestLimited => (REQUEST, limits.request),
        Kind::AdmissionLimited => (ADMISSION, limits.admission),
        _ => return,
    };
    let (Some(rate), Some(retry_after)) = (rate, problem.retry_after) else { return };
    let denied = Verdict::Denied { retry_after, limit: rate, why: semel_store::limits::Why::OverLimit };
    for (header, value) in
        [("ratelimit", denied.rate_limit(name)), ("ratelimit-policy", rate_limit_policy(name, rate))]
    {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(header, value);
        }
    }
}

//! Webhooks: workers claim one after the other under a lease with a fence, send what waits in the order of its line, and write down
//! what became of it. A crash between an answer and its writing down sends again, with the same id: receivers remove what comes
//! twice.

mod sign;

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use semel_contract::classify::{Class, Classify, code_of};
use semel_contract::outcome::Told;
use semel_contract::profile::presets;
use semel_contract::schedule::{Cause, Next, Progress, Schedule};
use semel_contract::time::{Timestamp, millis_of};
use semel_delivery::relay::store::sql::StoreError;
use semel_delivery::url::Target;
use semel_http::headers::OUTCOME;
use semel_http::{Addresses, HostSent, MaySend, NoAnswer, Pool, Upstream, client_tls};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::broker::Broker;
use crate::event::Event;
use crate::store::deliveries::{Claim, Due, Outcome, Written};
use crate::store::history::Stored;

/// How long a webhook is held without a renewal.
const LEASE: Duration = Duration::from_secs(60);
/// How much of a lease must be left for another attempt.
const LEASE_LEFT: Duration = Duration::from_secs(30);
/// How long one webhook is sent to before others that wait have their turn.
const TURN: Duration = Duration::from_secs(10);
/// How long an attempt may take.
const ATTEMPT_TIME_MAX: Duration = Duration::from_secs(15);
/// How often work is looked for that nobody was told of.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Webhooks that are sent to at a time.
const AT_ONCE: usize = 32;
/// Bytes of an answer that are looked at.
const ANSWER_BYTES_MAX: usize = 16 << 10;

/// Sends to webhooks until the broker is about to stop.
pub(crate) async fn run(broker: Broker) {
    let mut draining = broker.0.draining.subscribe();
    let (permits, held) = (Arc::new(Semaphore::new(AT_ONCE)), Arc::new(Mutex::new(BTreeSet::new())));
    let mut working = JoinSet::new();
    // The last one that had its turn: those after it come first, so that none waits for ever behind busy ones.
    let mut last = 0;
    loop {
        while working.try_join_next().is_some() {}
        for webhook in next_due(&broker, last).await.unwrap_or_default() {
            let is_new = held.lock().unwrap_or_else(PoisonError::into_inner).insert(webhook);
            let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else {
                held.lock().unwrap_or_else(PoisonError::into_inner).remove(&webhook);
                break;
            };
            last = webhook;
            if is_new {
                let (broker, held) = (broker.clone(), Arc::clone(&held));
                working.spawn(async move {
                    let _permit = permit;
                    if let Err(error) = deliver(&broker, webhook).await {
                        tracing::warn!(%error, webhook, "a webhook could not be worked on");
                    }
                    held.lock().unwrap_or_else(PoisonError::into_inner).remove(&webhook);
                });
            }
        }
        tokio::select! {
            biased;
            () = draining.wait_for(true) => break,
            () = broker.0.follower.deliver.notified() => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
    while working.join_next().await.is_some() {}
}

/// Webhooks that are due, those after this one first.
async fn next_due(broker: &Broker, after: i64) -> Result<Vec<i64>, StoreError> {
    let (store, most) = (&broker.0.store, AT_ONCE * 2);
    let mut found = store.due_webhooks(after, most).await?;
    if found.len() < most && after > 0 {
        let rest = store.due_webhooks(0, most - found.len()).await?;
        found.extend(rest.into_iter().filter(|webhook| *webhook <= after));
    }
    Ok(found)
}

/// Sends what waits for one webhook, as long as something is due and others need not wait too long.
async fn deliver(broker: &Broker, webhook: i64) -> Result<(), StoreError> {
    let store = &broker.0.store;
    let (begun, mut held_since) = (Instant::now(), Instant::now());
    let Some(claim) = store.claim_webhook(webhook, millis_of(LEASE)).await? else { return Ok(()) };
    let sender = Sender::new(&claim, broker.settings().webhook_addresses());
    while !broker.0.draining.get() && begun.elapsed() < TURN {
        let now = store.now().await?;
        let Some(due) = store.next_due(&claim).await?.filter(|due| due.due_at <= now) else { break };
        if held_since.elapsed() > LEASE - LEASE_LEFT {
            held_since = Instant::now();
            if store.renew_webhook(&claim, millis_of(LEASE)).await? == Written::Stale {
                return Ok(());
            }
        }
        let outcome = match store.due_message(&claim, due.number).await? {
            None => Outcome::Dead { why: "the message is no longer kept".to_owned() },
            Some(stored) => attempt(broker, &claim, &sender, &due, &stored, held_since).await,
        };
        let counter = match &outcome {
            Outcome::Delivered => &broker.0.meters.delivered,
            Outcome::Later { .. } => &broker.0.meters.attempts_failed,
            Outcome::Dead { .. } => &broker.0.meters.dead,
        };
        counter.fetch_add(1, Relaxed);
        if store.settle(&claim, due.number, &outcome).await? == Written::Stale {
            return Ok(());
        }
    }
    store.renew_webhook(&claim, 0).await.map(drop)
}

async fn attempt(
    broker: &Broker,
    claim: &Claim,
    sender: &Sender,
    due: &Due,
    stored: &Stored,
    held_since: Instant,
) -> Outcome {
    let event = Event::of(&claim.line.wire_name(), broker.0.directory.epoch(), stored);
    let now = broker.time().await;
    let answer = sender.send(claim, &stored.broker_message_id, &event.json, now, held_since).await;
    let policy = presets::mesh();
    judge(&answer, due, now, broker.0.entropy.unit(), &policy.classify, &policy.schedule)
}

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    Status {
        status: u16,
        code: Option<String>,
        retry_after: Option<Duration>,
    },
    /// A gate before the receiver says that an earlier attempt still runs, which may come to nothing.
    Pending(Option<Duration>),
    Nothing(String),
}

/// What an answer means for a delivery. The table is the contract's, as is the schedule; a receiver that is gone for good is not
/// asked again.
fn judge(
    answer: &Answer,
    due: &Due,
    now: Timestamp,
    random: f64,
    table: &Classify,
    schedule: &Schedule,
) -> Outcome {
    let attempts = u32::try_from(due.attempts + 1).unwrap_or(u32::MAX);
    let (class, told, why) = match answer {
        Answer::Nothing(why) => (&Class::Retry, None, why.clone()),
        Answer::Pending(wait) => (&Class::RetryAfter, *wait, "an earlier attempt still runs".to_owned()),
        Answer::Status { status, code, retry_after } => {
            let class = match status {
                200..=299 => &Class::Success,
                _ => table.classify(Some(*status), code.as_deref()),
            };
            (class, *retry_after, format!("HTTP {status}"))
        }
    };
    let class = match class {
        Class::RetryAtMost(most, then) if attempts >= *most => then,
        other => other,
    };
    let cause = match class {
        Class::Success => return Outcome::Delivered,
        Class::Drop(_) | Class::Dead(_) => return Outcome::Dead { why },
        Class::Retry | Class::RetryAtMost(..) | Class::Auth | Class::Rebuild | Class::RetryAfter => {
            told.map_or(Cause::Failed, Cause::Told)
        }
    };
    let age = u64::try_from(now.millis() - due.created_at).unwrap_or(0);
    let progress = Progress {
        attempts,
        attempts_in_burst: attempts,
        burst_elapsed: Duration::ZERO,
        age: Duration::from_millis(age),
    };
    match schedule.next(&progress, cause, random) {
        Next::After(wait) | Next::NextPeriod(wait) => {
            Outcome::Later { at: now.plus(wait.max(Duration::from_millis(100))).millis(), why }
        }
        Next::GiveUp(_) => Outcome::Dead { why: format!("{why}; it was tried for too long") },
    }
}

/// Sends to one webhook. Names are resolved with every connection, and every address is looked at before it is reached.
struct Sender(Result<(Arc<Pool>, Target), String>);

impl Sender {
    fn new(claim: &Claim, addresses: Addresses) -> Self {
        let open = || {
            let target = Target::absolute(&claim.url).map_err(|error| error.to_string())?;
            let upstream = Upstream {
                connect_timeout: ATTEMPT_TIME_MAX,
                host: HostSent::Own,
                addresses,
                ..Upstream::at(
                    target.origin.parse().map_err(|error: semel_http::BadTarget| error.to_string())?,
                )
            };
            let tls =
                if target.is_tls { client_tls(None).map(Arc::new) } else { Err("no TLS is needed".into()) };
            Ok((Pool::with_tls(upstream, tls)?, target))
        };
        Self(open())
    }

    async fn send(
        &self,
        claim: &Claim,
        id: &str,
        body: &[u8],
        now: Timestamp,
        held_since: Instant,
    ) -> Answer {
        let (pool, target) = match &self.0 {
            Ok(open) => open,
            Err(why) => return Answer::Nothing(why.clone()),
        };
        let seconds = now.millis() / 1000;
        let request = Request::post(target.path_and_query())
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::USER_AGENT, concat!("semel-broker/", env!("CARGO_PKG_VERSION")))
            .header("webhook-id", id)
            .header("webhook-timestamp", seconds)
            .header("webhook-signature", sign::signatures(&claim.secrets, id, seconds, body))
            .body(Body::from(body.to_vec()));
        let request = match request {
            Ok(request) => request,
            Err(error) => return Answer::Nothing(error.to_string()),
        };
        // Not a byte once somebody else may hold the webhook.
        let may_send = MaySend::when(move || held_since.elapsed() < LEASE);
        let sent = async {
            let response = pool.send_once(Box::new(request), may_send, ATTEMPT_TIME_MAX).await;
            match response {
                Ok(response) => read(response).await,
                Err(NoAnswer::NotSent(why) | NoAnswer::Reset(why) | NoAnswer::TimedOut(why)) => {
                    Answer::Nothing(why)
                }
            }
        };
        let late = |_| Answer::Nothing("no answer came in time".to_owned());
        tokio::time::timeout(ATTEMPT_TIME_MAX, sent).await.unwrap_or_else(late)
    }
}

async fn read(response: http::Response<semel_http::PooledBody>) -> Answer {
    let (parts, body) = response.into_parts();
    let status = parts.status;
    let is_read = status != StatusCode::OK && status != StatusCode::NO_CONTENT;
    let body = match is_read {
        true => Limited::new(body, ANSWER_BYTES_MAX).collect().await.ok().map(|body| body.to_bytes()),
        false => None,
    };
    let seconds = parts.headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let retry_after = seconds.map(Duration::from_secs);
    if parts.headers.get(OUTCOME).is_some_and(|said| said == Told::PENDING) {
        return Answer::Pending(retry_after);
    }
    Answer::Status { status: status.as_u16(), code: body.and_then(|body| code_of(&body)), retry_after }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(answer: Answer, attempts: i64, created_at: i64) -> Outcome {
        let due = Due { number: 1, attempts, due_at: 0, created_at };
        let policy = presets::mesh();
        judge(&answer, &due, Timestamp::from_millis(1_000_000), 0.5, &policy.classify, &policy.schedule)
    }

    fn status(status: u16) -> Answer {
        Answer::Status { status, code: None, retry_after: None }
    }

    #[test]
    fn an_answer_means_what_the_contract_says() {
        assert_eq!(judged(status(204), 0, 1_000_000), Outcome::Delivered);
        let pending = judged(Answer::Pending(Some(Duration::from_secs(1))), 0, 1_000_000);
        assert!(matches!(pending, Outcome::Later { at: 1_001_000, .. }), "{pending:?}");
        assert!(matches!(judged(status(503), 0, 1_000_000), Outcome::Later { .. }));
        assert!(matches!(judged(Answer::Nothing("x".to_owned()), 0, 1_000_000), Outcome::Later { .. }));
        assert!(matches!(judged(status(400), 0, 1_000_000), Outcome::Dead { .. }));
        assert!(matches!(judged(status(410), 0, 1_000_000), Outcome::Dead { .. }));
        let told = Answer::Status { status: 429, code: None, retry_after: Some(Duration::from_secs(30)) };
        assert_eq!(judged(told, 0, 1_000_000), Outcome::Later { at: 1_030_000, why: "HTTP 429".to_owned() });
    }

    #[test]
    fn a_redirect_is_not_followed_and_not_a_delivery() {
        assert_ne!(judged(status(302), 0, 1_000_000), Outcome::Delivered);
    }

    #[test]
    fn what_was_tried_for_days_is_dead() {
        let week = 7 * 86_400_000;
        assert!(matches!(judged(status(503), 500, 1_000_000 - week), Outcome::Dead { .. }));
    }
}

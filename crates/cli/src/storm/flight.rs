//! Sends a storm: every request's copies together, then again until there is an answer. Owns the connections.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::plan::{Client, Request, Sending};
use super::progress::Progress;
use super::tally::{Ended, Meaning, Sent, Tally, meaning};
use crate::client::{self, Answer, Connection, Failure, Target};
use crate::exit::Stop;

/// Times that a request is sent again before it counts as unanswered.
const AGAIN_MAX: u32 = 12;
/// The first pause before that, and the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_LONGEST: Duration = Duration::from_secs(1);
/// Connections that are kept for the next sending.
const IDLE_MAX: usize = 512;

/// What is sent, and how.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) target: Target,
    pub(crate) method: Method,
    pub(crate) headers: HeaderMap,
    pub(crate) key_header: HeaderName,
    /// The body; `{number}` is the request's number.
    pub(crate) body: String,
    /// How long a patient client waits.
    pub(crate) timeout: Duration,
    /// Requests under way at a time.
    pub(crate) concurrency: usize,
    /// No request is begun after this time.
    pub(crate) max_time: Duration,
}

/// Sends everything that was planned, or what fits into the time, and counts.
pub(crate) async fn fly(
    settings: Settings,
    plan: Vec<Request>,
    progress: Arc<Progress>,
) -> Result<Tally, Stop> {
    let until = Instant::now() + settings.max_time;
    let slots = Arc::new(Semaphore::new(settings.concurrency));
    let flight = Arc::new(Flight { settings, idle: Mutex::default(), progress });
    let mut under_way = JoinSet::new();
    let mut tally = Tally::default();
    for request in plan {
        let slot = Arc::clone(&slots).acquire_owned().await.expect("the slots are never closed");
        if Instant::now() >= until {
            break;
        }
        let key = client::uuid()?;
        let flight = Arc::clone(&flight);
        under_way.spawn(async move {
            let sent = flight.see_through(&request, &key).await;
            flight.progress.request_done();
            drop(slot);
            sent
        });
        while let Some(done) = under_way.try_join_next() {
            tally.add(&done.expect("sending does not panic"));
        }
    }
    while let Some(done) = under_way.join_next().await {
        tally.add(&done.expect("sending does not panic"));
    }
    Ok(tally)
}

struct Flight {
    settings: Settings,
    idle: Mutex<Vec<Connection>>,
    progress: Arc<Progress>,
}

/// One request on its way.
struct Passage {
    headers: HeaderMap,
    body: Bytes,
    /// Sendings that are under way.
    out: AtomicUsize,
}

impl Flight {
    /// Sends the copies of a request, and again until it has a final answer.
    async fn see_through(&self, request: &Request, key: &str) -> Vec<Sent> {
        let passage = self.passage(request.number, key);
        // Not as tasks of their own: a runtime that ends cancels tasks before those that wait for them.
        let copies = request.copies.iter().map(async |copy| {
            sleep(copy.after).await;
            self.send(&passage, *copy).await
        });
        let mut sent = join_all(copies).await;
        let patient = Sending { after: Duration::ZERO, client: Client::Patient };
        let mut pause = PAUSE_FIRST;
        for _ in 0..AGAIN_MAX {
            if sent.iter().any(is_final) {
                break;
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_LONGEST);
            sent.push(self.send(&passage, patient).await);
        }
        if let Some(after) = request.late {
            sleep(after).await;
            sent.push(self.send(&passage, patient).await);
        }
        sent
    }

    fn passage(&self, number: u32, key: &str) -> Passage {
        let mut headers = self.settings.headers.clone();
        let key = HeaderValue::try_from(format!("\"{key}\"")).expect("a quoted UUID can stand in a header");
        headers.insert(self.settings.key_header.clone(), key);
        let body = self.settings.body.replace("{number}", &number.to_string());
        Passage { headers, body: Bytes::from(body), out: AtomicUsize::new(0) }
    }

    async fn send(&self, passage: &Passage, sending: Sending) -> Sent {
        self.progress.sent();
        let overlapped = passage.out.fetch_add(1, Ordering::SeqCst) > 0;
        let patience = self.settings.timeout;
        let ended = match sending.client {
            Client::Patient => match self.exchange(passage, patience).await {
                Ok(answer) => Ended::Answered(answer),
                Err(failure) => Ended::Failed(failure),
            },
            Client::Impatient(after) => leave(after, Ended::GaveUp, self.exchange(passage, patience)).await,
            Client::HangsUp(after) => leave(after, Ended::HungUp, self.exchange(passage, patience)).await,
        };
        passage.out.fetch_sub(1, Ordering::SeqCst);
        Sent { ended, overlapped }
    }

    /// Sends once. When this future is dropped, its connection is too.
    async fn exchange(&self, passage: &Passage, within: Duration) -> Result<Answer, Failure> {
        let Settings { target, method, timeout, .. } = &self.settings;
        let mut connection = match self.idle_connection() {
            Some(connection) => connection,
            None => Connection::open(target, *timeout).await?,
        };
        let body = passage.body.clone();
        let answer = connection.send(target, method, &passage.headers, body, within).await?;
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX {
            idle.push(connection);
        }
        Ok(answer)
    }

    fn idle_connection(&self) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(connection) = idle.pop() {
            if connection.is_open() {
                return Some(connection);
            }
        }
        None
    }
}

/// Waits for so long, and then leaves whatever is under way.
async fn leave(
    after: Duration,
    left: Ended,
    exchange: impl Future<Output = Result<Answer, Failure>>,
) -> Ended {
    match timeout(after, exchange).await {
        Ok(Ok(answer)) => Ended::Answered(answer),
        Ok(Err(failure)) => Ended::Failed(failure),
        Err(_) => left,
    }
}

fn is_final(sent: &Sent) -> bool {
    match &sent.ended {
        Ended::Answered(answer) => meaning(answer.status) != Meaning::NotYet,
        Ended::GaveUp | Ended::HungUp | Ended::Failed(_) => false,
    }
}

//! A server that answers by a script, and a clock that goes with tokio's: what the engine does is seen to the millisecond.

#![allow(dead_code)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_contract::profile::presets;
use semel_contract::time::Timestamp;
use semel_delivery::message::Answer;
use semel_delivery::sqlite::SqliteStore;
use semel_delivery::transport::{Outgoing, Sending, Sent, Transport};
use semel_delivery::url::Target;
use semel_delivery::{Enqueue, Entropy, Outbox, Request, Settings};
use semel_store::clock::{Clock, Reading};
use tokio::time::Instant;

pub(crate) const START: i64 = 1_800_000_000_000;

/// Goes with tokio's clock; the wall may be set.
#[derive(Clone)]
pub(crate) struct Virtual {
    start: Instant,
    pub(crate) wall_off_by: Arc<Mutex<i64>>,
    pub(crate) boot: Arc<AtomicU64>,
    pub(crate) is_synchronised: Arc<AtomicBool>,
}

impl Virtual {
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
            wall_off_by: Arc::default(),
            boot: Arc::new(AtomicU64::new(1)),
            is_synchronised: Arc::default(),
        }
    }

    pub(crate) fn elapsed(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap()
    }
}

impl Clock for Virtual {
    fn read(&self) -> Reading {
        let ticks = self.start.elapsed();
        let wall = START + i64::try_from(ticks.as_millis()).unwrap() + *self.wall_off_by.lock().unwrap();
        Reading { wall: Timestamp::from_millis(wall), ticks }
    }

    fn boot(&self) -> u64 {
        self.boot.load(Ordering::SeqCst)
    }

    fn is_synchronised(&self) -> bool {
        self.is_synchronised.load(Ordering::SeqCst)
    }
}

type Script = Box<dyn Fn(&Outgoing, usize) -> (Duration, Sent) + Send + Sync>;

/// What the server saw: when, and what.
pub(crate) type Seen = Arc<Mutex<Vec<(u64, Outgoing)>>>;

pub(crate) struct Server {
    script: Script,
    clock: Virtual,
    pub(crate) seen: Seen,
    running: Mutex<Vec<String>>,
}

impl Transport for Server {
    fn send(&self, request: Outgoing) -> Sending<'_> {
        let count = {
            let mut seen = self.seen.lock().unwrap();
            seen.push((self.clock.elapsed(), request.clone()));
            seen.len()
        };
        let lane = header(&request, "x-lane");
        let (takes, sent) = (self.script)(&request, count);
        Box::pin(async move {
            if !lane.is_empty() {
                let mut running = self.running.lock().unwrap();
                assert!(!running.contains(&lane), "two of lane {lane} at once");
                running.push(lane.clone());
            }
            tokio::time::sleep(takes).await;
            self.running.lock().unwrap().retain(|other| *other != lane);
            sent
        })
    }
}

pub(crate) fn header(request: &Outgoing, name: &str) -> String {
    let found = request.headers.iter().find(|(given, _)| given.eq_ignore_ascii_case(name));
    found.map(|(_, value)| value.clone()).unwrap_or_default()
}

pub(crate) fn answer(status: u16, headers: &[(&str, &str)], body: &str) -> Sent {
    let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Sent::Answered(Answer { status, headers, body: body.into() })
}

pub(crate) struct World {
    pub(crate) clock: Virtual,
    pub(crate) seen: Seen,
    pub(crate) settings: Settings,
    pub(crate) store: Arc<SqliteStore>,
}

impl World {
    /// Random numbers are all one half: jitter by a ratio changes nothing.
    pub(crate) fn new(
        profile: &str,
        script: impl Fn(&Outgoing, usize) -> (Duration, Sent) + Send + Sync + 'static,
    ) -> Self {
        let clock = Virtual::new();
        let seen = Seen::default();
        let server = Server {
            script: Box::new(script),
            clock: clock.clone(),
            seen: Arc::clone(&seen),
            running: Mutex::default(),
        };
        let settings = Settings {
            profile: presets::preset(profile).unwrap(),
            upstream: Some(Target::absolute("http://server.test").unwrap()),
            clock: Arc::new(clock.clone()),
            entropy: Entropy::from_fn(|| 1 << 52),
            transport: Arc::new(server),
            ..Settings::default()
        };
        Self { clock, seen, settings, store: Arc::new(SqliteStore::memory().unwrap()) }
    }

    /// Answers each request at once.
    pub(crate) fn quick(
        profile: &str,
        script: impl Fn(&Outgoing, usize) -> Sent + Send + Sync + 'static,
    ) -> Self {
        Self::new(profile, move |request, count| (Duration::ZERO, script(request, count)))
    }

    pub(crate) async fn open(&self) -> Outbox {
        let store: Arc<SqliteStore> = Arc::clone(&self.store);
        Outbox::with_store(store, self.settings.clone()).await.unwrap()
    }

    pub(crate) fn times(&self) -> Vec<u64> {
        self.seen.lock().unwrap().iter().map(|(at, _)| *at).collect()
    }

    /// The pauses between what the server saw, in milliseconds.
    pub(crate) fn pauses(&self) -> Vec<u64> {
        self.times().windows(2).map(|pair| pair[1] - pair[0]).collect()
    }

    pub(crate) fn keys(&self, header_name: &str) -> Vec<String> {
        self.seen.lock().unwrap().iter().map(|(_, request)| header(request, header_name)).collect()
    }
}

/// A message whose id is a version 4 UUID with this number.
pub(crate) fn uuid(number: u32) -> String {
    format!("00000000-0000-4000-8000-{number:012}")
}

pub(crate) fn message(number: u32, lane: &str) -> Enqueue {
    let mut request = Request::json("POST", "/actions", format!("{{\"n\":{number}}}"));
    request.headers.push(("x-lane".to_owned(), lane.to_owned()));
    Enqueue { client_message_id: Some(uuid(number)), lane: Some(lane.to_owned()), ..Enqueue::new(request) }
}

/// Lets tokio's clock run.
pub(crate) async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}

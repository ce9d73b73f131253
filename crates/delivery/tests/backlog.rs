//! A large backlog: 100,000 messages in 1,000 lanes are found quickly at start, and cost little memory.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use semel_delivery::message::Answer;
use semel_delivery::sqlite::SqliteStore;
use semel_delivery::store::OutboxStore;
use semel_delivery::transport::{Outgoing, Sending, Sent, Transport};
use semel_delivery::{Enqueue, Outbox, Request, Settings};

const LANES: usize = 1000;

#[derive(Default)]
struct Counting(AtomicUsize);

impl Transport for Counting {
    fn send(&self, _: Outgoing) -> Sending<'_> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Box::pin(async { Sent::Answered(Answer { status: 200, headers: Vec::new(), body: Vec::new() }) })
    }
}

/// Resident memory of this process, in MiB.
fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok()).unwrap_or(0) / 1024
}

/// Opens the file, and says how long it took until its lanes were known.
async fn open(path: &Path, settings: &Settings) -> (Outbox, Duration) {
    let started = Instant::now();
    let store = Arc::new(SqliteStore::open(path).unwrap());
    let outbox = Outbox::with_store(Arc::clone(&store) as _, settings.clone()).await.unwrap();
    assert_eq!(store.live_lanes().await.unwrap().len(), LANES);
    (outbox, started.elapsed())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_backlog_is_found_quickly_and_costs_little() {
    // The full form, 100,000 messages, is for when somebody looks; the test sees to it that nothing grows out of bounds.
    let is_full = std::env::var_os("SEMEL_TEST_OUTBOX_FULL").is_some();
    let messages = if is_full { 100_000 } else { 20_000 };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("outbox.db");
    let transport = Arc::new(Counting::default());
    let settings = Settings { transport: Arc::clone(&transport) as _, ..Settings::default() };
    {
        let outbox = Outbox::open(&path, settings.clone()).await.unwrap();
        let mut sends = tokio::task::JoinSet::new();
        for number in 0..messages {
            let outbox = outbox.clone();
            sends.spawn(async move {
                let request = Request::json("POST", "http://server.test/x", format!("{{\"n\":{number}}}"));
                let lane = Some(format!("user:{}", number % LANES));
                outbox.enqueue(Enqueue { lane, ..Enqueue::new(request) }).await.unwrap();
            });
            if sends.len() >= 500 {
                sends.join_next().await;
            }
        }
        sends.join_all().await;
    }
    let before = resident_mib();
    // The quickest of three: the disk may still be busy with what was written just now.
    let mut start_up = Duration::MAX;
    for _ in 0..2 {
        start_up = start_up.min(open(&path, &settings).await.1);
    }
    let (outbox, took) = open(&path, &settings).await;
    let start_up = start_up.min(took);
    let sending = outbox.start();
    let mut rates = Vec::new();
    let measured = Instant::now();
    let mut peak = before;
    while measured.elapsed() < Duration::from_secs(if is_full { 20 } else { 3 }) {
        let sent = transport.0.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(500)).await;
        rates.push((transport.0.load(Ordering::Relaxed) - sent) * 2);
        peak = peak.max(resident_mib());
    }
    sending.stop(Duration::from_secs(5)).await;
    let grown = peak.saturating_sub(before);
    eprintln!(
        "{messages} messages: start-up {start_up:?}, {grown} MiB more while draining, {rates:?} a second"
    );
    assert!(start_up < Duration::from_secs(2), "start-up takes {start_up:?}");
    assert!(grown < 100, "it takes {grown} MiB");
    assert!(transport.0.load(Ordering::Relaxed) > 100, "it drains");
}

//! `kill -9`, again and again, while clients send and the server loses replies: nothing acknowledged is lost, order holds,
//! and behind a gate every message takes effect once.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use super::daemon::{Daemon, call};
use super::server::gated;

const CLIENTS: u64 = 8;
const LANES_OF_CLIENT: u64 = 4;

/// Sends one client's messages in order, each until it is acknowledged.
async fn client(socket: &Path, number: u64, count: u64, acknowledged: &AtomicU64) {
    for n in 0..count {
        let lane = format!("c{number}:{}", n % LANES_OF_CLIENT);
        let envelope = json!({
            "client_message_id": format!("00000000-0000-4000-8000-{number:04}{n:08}"),
            "lane": lane,
            "request": {"method": "POST", "url": "/notes", "headers": {"X-User": "tester"}, "body": {"lane": lane, "n": n}},
        });
        loop {
            match call(socket, "POST", "/v1/send", Some(&envelope), &[]).await {
                Some((200 | 202, _)) => break,
                Some((status, body)) => panic!("{status} {body}"),
                // Killed: the same message again, under the same id.
                None => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
        acknowledged.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_and_everything_takes_effect_once() {
    // The full form takes minutes: 20,000 messages and 30 kills.
    let is_full = std::env::var_os("SEMEL_TEST_OUTBOX_FULL").is_some();
    let (messages, kills) = if is_full { (20_000, 30) } else { (2_400, 6) };
    let (address, seen) = gated(10).await;
    let mut daemon = Daemon::start(&["--upstream", &format!("http://{address}")]);
    let (socket, started) = (daemon.socket(), Instant::now());
    let acknowledged = Arc::new(AtomicU64::new(0));
    let is_over = Arc::new(AtomicBool::new(false));
    let each = messages / CLIENTS;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let (socket, acknowledged) = (socket.clone(), Arc::clone(&acknowledged));
            tokio::spawn(async move { client(&socket, number, each, &acknowledged).await })
        })
        .collect();
    let watcher = {
        let is_over = Arc::clone(&is_over);
        tokio::spawn(async move {
            for client in clients {
                client.await.unwrap();
            }
            is_over.store(true, Ordering::Relaxed);
        })
    };
    // Kills are spread over the acknowledgements, so that they meet clients at work however fast the machine is.
    for kill in 1..=kills {
        let at = kill * messages / (kills + 1);
        while acknowledged.load(Ordering::Relaxed) < at && !is_over.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        daemon.kill();
        daemon.start_again();
    }
    watcher.await.unwrap();
    let sent_after = started.elapsed();
    for status in ["pending", "inflight"] {
        loop {
            let (_, list) = daemon.call("GET", &format!("/v1/messages?status={status}&limit=1"), None).await;
            if list["messages"].as_array().unwrap().is_empty() {
                break;
            }
            assert!(started.elapsed() < Duration::from_secs(1200), "it does not drain: {list}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    let (_, metrics) = daemon.call("GET", "/metrics", None).await;
    let done = format!("semel_outbox_depth{{status=\"done\"}} {messages}\n");
    assert!(metrics.as_str().unwrap().contains(&done), "every acknowledged message is done: {metrics}");
    let effects = seen.effects.lock().unwrap().clone();
    assert_eq!(effects.len() as u64, messages, "each takes effect, and once");
    let mut last: HashMap<&str, u64> = HashMap::new();
    for (lane, n) in &effects {
        let before = last.insert(lane, *n);
        assert!(before.is_none_or(|before| before < *n), "lane {lane}: {n} after {before:?}");
    }
    let keys = seen.keys.lock().unwrap();
    assert!(keys.values().all(|keys| keys.len() == 1), "the same key on every attempt");
    let attempts = seen.requests.lock().unwrap().len();
    eprintln!(
        "{messages} messages, {kills} kills, {attempts} attempts, accepted in {sent_after:?}, drained in {:?}",
        started.elapsed()
    );
}

//! Events by SSE: as they happen, and from where a reader left off.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

use super::daemon::Daemon;
use super::server::obedient;

/// Reads so many events, each as its number and kind.
async fn read(daemon: &Daemon, path: &str, header: &str, count: usize) -> Vec<(u64, String)> {
    let mut stream = UnixStream::connect(daemon.socket()).await.unwrap();
    stream
        .write_all(format!("GET {path} HTTP/1.1\r\nHost: outbox\r\n{header}\r\n").as_bytes())
        .await
        .unwrap();
    let mut lines = BufReader::new(stream).lines();
    let mut events = Vec::new();
    while events.len() < count {
        let line =
            tokio::time::timeout(Duration::from_secs(20), lines.next_line()).await.expect("events come");
        let Some(data) = line.unwrap().expect("the stream goes on").strip_prefix("data: ").map(str::to_owned)
        else {
            continue;
        };
        let event: Value = serde_json::from_str(&data).unwrap();
        events.push((event["number"].as_u64().unwrap(), event["kind"].as_str().unwrap().to_owned()));
    }
    events
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_resumes_where_it_left_off() {
    let (address, _) = obedient().await;
    let mut daemon = Daemon::start(&["--upstream", &format!("http://{address}")]);
    let send = async |daemon: &Daemon, id: &str| {
        let message = json!({"client_message_id": id, "request": {"method": "POST", "url": "/x"}});
        assert_eq!(daemon.send(&message).await.0, 202);
        daemon.until(id, "done").await;
    };
    send(&daemon, "a").await;
    let kind = |number, kind: &str| (number, kind.to_owned());
    assert_eq!(read(&daemon, "/v1/events?after=0", "", 2).await, [kind(1, "queued"), kind(2, "done")]);
    // What happens while nobody reads, and across a restart, is there for whoever comes back.
    send(&daemon, "b").await;
    daemon.kill();
    daemon.start_again();
    let resumed = read(&daemon, "/v1/events", "Last-Event-ID: 2\r\n", 2).await;
    assert_eq!(resumed, [kind(3, "queued"), kind(4, "done")]);
    let (live, ()) = tokio::join!(read(&daemon, "/v1/events", "Last-Event-ID: 4\r\n", 2), async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        send(&daemon, "c").await;
    });
    assert_eq!(live, [kind(5, "queued"), kind(6, "done")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_number_that_was_never_given_begins_at_the_newest_and_says_so() {
    let (address, _) = obedient().await;
    let daemon = Daemon::start(&["--upstream", &format!("http://{address}")]);
    let mut stream = UnixStream::connect(daemon.socket()).await.unwrap();
    stream.write_all(b"GET /v1/events HTTP/1.1\r\nHost: outbox\r\nLast-Event-ID: 700\r\n\r\n").await.unwrap();
    let mut lines = BufReader::new(stream).lines();
    let mut next = async |prefix: &str| loop {
        let line =
            tokio::time::timeout(Duration::from_secs(20), lines.next_line()).await.expect("events come");
        if let Some(found) = line.unwrap().expect("the stream goes on").strip_prefix(prefix) {
            return found.to_owned();
        }
    };
    assert_eq!(next("event: ").await, "reset");
    let reset: Value = serde_json::from_str(&next("data: ").await).unwrap();
    assert_eq!((reset["asked"].as_i64(), reset["newest"].as_i64()), (Some(700), Some(0)));
    let message = json!({"client_message_id": "a", "request": {"method": "POST", "url": "/x"}});
    assert_eq!(daemon.send(&message).await.0, 202);
    assert_eq!(next("event: ").await, "queued");
}

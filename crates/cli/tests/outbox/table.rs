//! The accept table, cell by cell, by HTTP; and what is refused before an id is used up.

use serde_json::{Value, json};

use super::daemon::{Daemon, call};
use super::server::obedient;

fn envelope(id: &str, path: &str, n: u64) -> Value {
    json!({"client_message_id": id, "lane": id, "request": {"method": "POST", "url": path, "body": {"n": n}}})
}

async fn daemon(flags: &[&str]) -> (Daemon, std::sync::Arc<super::server::Seen>) {
    let (address, seen) = obedient().await;
    let upstream = format!("http://{address}");
    (Daemon::start(&[&["--upstream", &upstream][..], flags].concat()), seen)
}

fn assert_conflict(answer: &(u16, Value), conflict: &str) {
    let (status, body) = answer;
    assert_eq!(
        (*status, body["error"].as_str(), body["conflict"].as_str()),
        (409, Some("idempotency_key_reused"), Some(conflict))
    );
    let prefix = body["request_fingerprint"].as_str().unwrap();
    assert!(prefix.len() == 16 && prefix.bytes().all(|b| b.is_ascii_hexdigit()), "{prefix}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_cell_of_the_accept_table() {
    let (daemon, seen) = daemon(&[]).await;
    // No row.
    let (status, body) = daemon.send(&envelope("none", "/x", 1)).await;
    assert_eq!(
        (status, body["status"].as_str(), body["client_message_id"].as_str()),
        (202, Some("queued"), Some("none"))
    );
    // Pending: its lane is paused.
    daemon.call("POST", "/v1/lanes/pending/pause", None).await;
    let (status, first) = daemon.send(&envelope("pending", "/x", 1)).await;
    assert_eq!((status, first["status"].as_str()), (202, Some("queued")));
    let (status, again) = daemon.send(&envelope("pending", "/x", 1)).await;
    assert_eq!((status, again["status"].as_str(), &again["id"]), (202, Some("queued"), &first["id"]));
    assert_conflict(&daemon.send(&envelope("pending", "/x", 2)).await, "outbox_pending_fingerprint_mismatch");
    // Inflight: the server takes its time.
    daemon.send(&envelope("inflight", "/slow/200", 1)).await;
    daemon.until("inflight", "inflight").await;
    let (status, body) = daemon.send(&envelope("inflight", "/slow/200", 1)).await;
    assert_eq!((status, body["status"].as_str()), (202, Some("inflight")));
    assert_conflict(
        &daemon.send(&envelope("inflight", "/slow/200", 2)).await,
        "outbox_inflight_fingerprint_mismatch",
    );
    // Done.
    daemon.until("none", "done").await;
    let sent = seen.requests.lock().unwrap().len();
    let (status, body) = daemon.send(&envelope("none", "/x", 1)).await;
    assert_eq!(
        (status, &body["duplicate"], &body["broker_message_id"], &body["history_id"]),
        (200, &json!(true), &json!("b-1"), &json!(7))
    );
    let other = daemon.send(&envelope("none", "/x", 2)).await;
    assert_conflict(&other, "outbox_done_fingerprint_mismatch");
    assert_eq!(other.1["broker_message_id"], "b-1");
    assert_eq!(seen.requests.lock().unwrap().len(), sent, "nothing was sent for either");
    // Dead.
    daemon.send(&envelope("dead", "/x/422", 1)).await;
    daemon.until("dead", "dead").await;
    let same = daemon.send(&envelope("dead", "/x/422", 1)).await;
    assert_conflict(&same, "outbox_dead_fingerprint_match");
    assert!(same.1["reason"].as_str().unwrap().contains("422"), "{}", same.1);
    assert_conflict(&daemon.send(&envelope("dead", "/x/422", 2)).await, "outbox_dead_fingerprint_mismatch");
    // Aborted.
    assert_eq!(daemon.call("POST", "/v1/messages/dead/abort", None).await.0, 200);
    assert_conflict(&daemon.send(&envelope("dead", "/x/422", 1)).await, "outbox_aborted_fingerprint_match");
    assert_conflict(
        &daemon.send(&envelope("dead", "/x/422", 2)).await,
        "outbox_aborted_fingerprint_mismatch",
    );
    // Held answers like pending.
    daemon.send(&envelope("held", "/x/401", 1)).await;
    daemon.until("held", "held").await;
    let (status, body) = daemon.send(&envelope("held", "/x/401", 1)).await;
    assert_eq!((status, body["status"].as_str()), (202, Some("queued")));
    assert_conflict(
        &daemon.send(&envelope("held", "/x/401", 2)).await,
        "outbox_pending_fingerprint_mismatch",
    );
    // A fresh credential, given by a call, lets it go.
    let credential = json!({"headers": {"Authorization": "Bearer good"}});
    assert_eq!(daemon.call("POST", "/v1/credentials", Some(&credential)).await.0, 204);
    daemon.until("held", "done").await;
    let file = std::fs::read(daemon.store()).unwrap();
    let log = std::fs::read(format!("{}-wal", daemon.store().display())).unwrap_or_default();
    for bytes in [file, log] {
        assert!(!bytes.windows(11).any(|window| window == b"Bearer good"), "the credential is on disk");
        assert!(!bytes.windows(10).any(|window| window == b"set-cookie"), "the cookie is on disk");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_uses_up_no_id() {
    let (daemon, seen) = daemon(&["--max-body", "1000", "--max-rows", "2"]).await;
    daemon.call("POST", "/v1/lanes/a/pause", None).await;
    let with = |change: &dyn Fn(&mut Value)| {
        let mut envelope = json!({"client_message_id": "m", "lane": "a", "request": {"method": "POST", "url": "/x", "headers": {}}});
        change(&mut envelope);
        envelope
    };
    let cases: [(u16, &str, Value); 8] = [
        (400, "malformed", json!({"client_message_id": "m"})),
        (400, "malformed", with(&|e| e["request"]["url"] = json!("nowhere"))),
        (400, "malformed", with(&|e| e["request"]["method"] = json!("DROP TABLE"))),
        (400, "malformed", with(&|e| e["unknown"] = json!(1))),
        (413, "too-large", with(&|e| e["request"]["body_text"] = json!("x".repeat(1001)))),
        (413, "too-large", with(&|e| e["request"]["body_text"] = json!("x".repeat(3 << 20)))),
        (
            422,
            "credential-in-request",
            with(&|e| e["request"]["headers"]["Authorization"] = json!("Bearer x")),
        ),
        (422, "credential-in-request", with(&|e| e["request"]["headers"]["cookie"] = json!("s=1"))),
    ];
    for (status, code, envelope) in cases {
        let answer = daemon.send(&envelope).await;
        assert_eq!((answer.0, answer.1["error"].as_str()), (status, Some(code)), "{answer:?}");
    }
    let credential = daemon.send(&with(&|e| e["request"]["headers"]["Authorization"] = json!("x"))).await.1;
    assert!(credential["message"].as_str().unwrap().contains("/v1/credentials"), "it says how: {credential}");
    assert_eq!(daemon.call("GET", "/v1/messages/m", None).await.0, 404, "the id is free");
    assert_eq!(daemon.send(&with(&|_| ())).await.0, 202);
    assert_eq!(daemon.send(&with(&|e| e["client_message_id"] = json!("m2"))).await.0, 202);
    let full = daemon.send(&with(&|e| e["client_message_id"] = json!("m3"))).await;
    assert_eq!((full.0, full.1["error"].as_str()), (507, Some("queue-full")));
    assert_eq!(daemon.call("GET", "/v1/messages/m3", None).await.0, 404);
    assert!(seen.paths().is_empty(), "no row, no request");
    let without = Daemon::start(&[]);
    let answer = without.send(&with(&|_| ())).await;
    assert_eq!((answer.0, answer.1["error"].as_str()), (422, Some("no-upstream")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receipt_has_the_upstreams_response_in_time_or_a_202_comes_first() {
    let (mut daemon, seen) = daemon(&[]).await;
    let wait = |n: &'static str| [("prefer", n)];
    let socket = daemon.socket();
    let minted = json!({"request": {"method": "PUT", "url": "/x/200?q=1", "headers": {"X-A": "b"}, "body_base64": "AAEC"}});
    let (status, body) = call(&socket, "POST", "/v1/send", Some(&minted), &wait("wait=30")).await.unwrap();
    assert_eq!(
        (status, body["status"].as_str(), &body["response"]["status"]),
        (200, Some("done"), &json!(200))
    );
    assert_eq!(body["response"]["body"]["broker_message_id"], "b-1");
    let id = body["client_message_id"].as_str().unwrap().to_owned();
    let (path, headers, bytes) = seen.requests.lock().unwrap()[0].clone();
    assert_eq!(
        (path.as_str(), bytes.as_slice(), headers["x-a"].as_bytes()),
        ("/x/200", &[0, 1, 2][..], &b"b"[..])
    );
    assert_eq!(headers["idempotency-key"].to_str().unwrap(), id);
    assert_eq!(headers["x-client-tx-id"].to_str().unwrap(), body["client_tx_id"].as_str().unwrap());
    let (status, body) =
        call(&socket, "POST", "/v1/send", Some(&envelope("late", "/slow/200", 1)), &wait("wait=1"))
            .await
            .unwrap();
    assert_eq!((status, body["client_message_id"].as_str()), (202, Some("late")));
    // Receipts survive restarts.
    assert_eq!(daemon.end(), 0);
    daemon.start_again();
    assert_eq!(daemon.receipt(&id).await["response"]["status"], 200);
    assert_eq!(daemon.until("late", "done").await["attempts"], 1, "it was waited for at the end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_double_tap_is_one_action() {
    let (daemon, seen) = daemon(&[]).await;
    daemon.call("POST", "/v1/lanes/a/pause", None).await;
    let tap = |id: &str| json!({"client_message_id": id, "lane": "a", "logical_key": "complete quest 5", "request": {"method": "POST", "url": "/x", "body": {}}});
    assert_eq!(daemon.send(&tap("t1")).await.0, 202);
    let (status, body) = daemon.send(&tap("t2")).await;
    assert_eq!(
        (status, body["alias_of"].as_str(), body["client_message_id"].as_str()),
        (202, Some("t1"), Some("t2"))
    );
    daemon.call("POST", "/v1/lanes/a/resume", None).await;
    let receipt = daemon.until("t2", "done").await;
    assert_eq!(
        (receipt["client_message_id"].as_str(), receipt["alias_of"].as_str()),
        (Some("t1"), Some("t1"))
    );
    let (status, body) = daemon.send(&tap("t2")).await;
    assert_eq!((status, &body["duplicate"]), (200, &json!(true)), "the alias is durable");
    assert_eq!(seen.paths().len(), 1);
}

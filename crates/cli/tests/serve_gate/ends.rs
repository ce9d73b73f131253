//! How it ends: in good order, at once, or killed; and what a retry is told after it.

use std::io::Write as _;
use std::time::{Duration, Instant};

use crate::client::{Client, keyed, post};
use crate::process::{Folder, Process};
use crate::upstream::{Reply, Upstream};

#[tokio::test]
async fn killed_while_the_service_works_the_retry_is_told_and_nothing_runs_twice() {
    let upstream = Upstream::start(|_, _| Reply::after(Duration::from_millis(300), 201, "", "done")).await;
    let folder = Folder::new();
    let mut gate = folder.start(&["--upstream", &upstream.url()]);
    let mut client = Client::connect(gate.listen).await;
    client.send(keyed("/orders", "k1", "{}")).await;
    while upstream.count() < 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    gate.signal("KILL");
    gate.ended().await;
    assert!(client.answer().await.is_none());
    let gate = folder.start(&["--upstream", &upstream.url()]);
    for _ in 0..3 {
        let retry = gate.ask(keyed("/orders", "k1", "{}")).await;
        assert_eq!(retry.status, 409, "{retry:?}");
        assert!(retry.body.contains("outcome-unknown"), "{retry:?}");
    }
    assert_eq!(upstream.count(), 1);
    assert_eq!(gate.ask(keyed("/orders", "k2", "{}")).await.status, 201);
}

#[tokio::test]
async fn told_to_end_it_answers_what_was_asked_and_exits_with_0() {
    let upstream = Upstream::start(|_, _| Reply::after(Duration::from_millis(500), 201, "", "done")).await;
    let folder = Folder::new();
    let mut gate = folder.start(&["--upstream", &upstream.url()]);
    let address = gate.listen;
    let asked: Vec<_> = (0..100)
        .map(|number| {
            tokio::spawn(async move {
                Client::connect(address).await.ask(keyed("/orders", &format!("k{number}"), "{}")).await
            })
        })
        .collect();
    while upstream.count() < 100 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    gate.signal("TERM");
    for answer in asked {
        let answer = answer.await.unwrap();
        assert_eq!((answer.status, answer.body.as_str()), (201, "done"));
    }
    assert_eq!(gate.ended().await.code(), Some(0), "{}", gate.errors());
    let gate = folder.start(&["--upstream", &upstream.url()]);
    for number in 0..100 {
        let again = gate.ask(keyed("/orders", &format!("k{number}"), "{}")).await;
        assert_eq!(again.header("idempotency-replayed"), Some("true"));
    }
    assert_eq!(upstream.count(), 100);
}

#[tokio::test]
async fn what_does_not_end_in_time_is_unknown_after_the_next_start() {
    let upstream = Upstream::start(|_, _| Reply::Silence).await;
    let folder = Folder::new();
    let config = folder.write(
        "semel.toml",
        &format!(
            "[gate]\nupstream = \"{}\"\ndrain = \"300ms\"\n[route.all]\nmatch = \"* /{{path*}}\"\n",
            upstream.url()
        ),
    );
    let config = config.display().to_string();
    let mut gate = folder.start(&["--config", &config]);
    let mut client = Client::connect(gate.listen).await;
    client.send(keyed("/orders", "k1", "{}")).await;
    while upstream.count() < 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    gate.signal("TERM");
    assert_eq!(gate.ended().await.code(), Some(0));
    gate.until_said("their outcome is unknown").await;
    let gate = folder.start(&["--config", &config]);
    assert!(gate.ask(keyed("/orders", "k1", "{}")).await.body.contains("outcome-unknown"));
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once() {
    let upstream = Upstream::start(|_, _| Reply::Silence).await;
    let folder = Folder::new();
    let mut gate = folder.start(&["--upstream", &upstream.url()]);
    let mut client = Client::connect(gate.listen).await;
    client.send(post("/orders", "", "{}")).await;
    while upstream.count() < 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let started = Instant::now();
    gate.signal("INT");
    gate.until_said("shutting down").await;
    assert_eq!(gate.admin("/readyz").await.status, 503);
    gate.signal("INT");
    gate.ended().await;
    assert!(started.elapsed() < Duration::from_secs(5));
}

/// Whoever reads the log may stand still: that must hold nobody up, neither requests nor the end.
#[tokio::test]
async fn a_log_that_nobody_reads_holds_nobody_up() {
    let (upstream, folder) = (Upstream::start(|_, _| Reply::status(201, "", "done")).await, Folder::new());
    let (unread, full) = std::io::pipe().unwrap();
    let mut filling = full.try_clone().unwrap();
    std::thread::spawn(move || while filling.write_all(&[b'.'; 4096]).is_ok() {});
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut command = folder.command(&["--upstream", &upstream.url()]);
    command.stderr(full);
    let mut gate = Process::of(command);
    for number in 0..20 {
        // Each is worth a warning.
        let unnamed = tokio::time::timeout(
            Duration::from_secs(20),
            gate.ask(post("/orders", "Idempotency-Key: k\r\n", "{}")),
        );
        assert_eq!(unnamed.await.expect("an answer").status, 401);
        assert_eq!(gate.ask(keyed("/orders", &format!("k{number}"), "{}")).await.status, 201);
    }
    gate.signal("TERM");
    assert_eq!(gate.ended().await.code(), Some(0));
    drop(unread);
}

//! Two replicas of the score API on one PostgreSQL, as processes: a sign-in at one is one at both, and no process that is
//! killed takes points along, PostgreSQL neither. Needs the programs of a PostgreSQL, as `cargo xtask test` finds them.

#[path = "../../../crates/gate/tests/outages/server.rs"]
mod server;

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use semel_delivery::transport::{MaySend, Outgoing, Sent, Transport};
use semel_delivery::{http1::Http1, url::Target};
use serde_json::{Value, json};

use server::Server;

const PATIENCE: Duration = Duration::from_secs(60);

/// A process that is killed with this.
struct Process {
    child: Child,
    args: Vec<String>,
}

impl Process {
    fn start(args: &[&str]) -> Self {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        Self { child: spawn(&args), args }
    }

    /// As `kill -9` does; then it is started again.
    fn kill_and_start(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = spawn(&self.args);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(args: &[String]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel-example-scores"));
    let mut child = command.args(args).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert!(said.contains("http://"), "{args:?} said {said:?}");
    child
}

fn free_port() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// Status and body; nothing when there is no answer.
async fn call(
    at: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &Value,
) -> Option<(u16, Value)> {
    let mut lines: Vec<_> =
        headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    lines.push(("content-type".to_owned(), "application/json".to_owned()));
    let outgoing = Outgoing {
        method: method.to_owned(),
        target: Target::absolute(&format!("http://{at}{path}")).unwrap(),
        headers: lines,
        body: if body.is_null() { Vec::new() } else { body.to_string().into_bytes() },
        timeout: Duration::from_secs(20),
        may_send: MaySend::always(),
    };
    match Http1::new().send(outgoing).await {
        Sent::Answered(answer) => {
            Some((answer.status, serde_json::from_slice(&answer.body).unwrap_or_default()))
        }
        _ => None,
    }
}

async fn login(at: &str) -> String {
    let body = json!({"leader": "alice", "password": "campfire"});
    let (status, said) = call(at, "POST", "/api/login", &[], &body).await.expect("an answer");
    assert_eq!(status, 200, "{said}");
    format!("Bearer {}", said["session"].as_str().unwrap())
}

async fn submit(at: &str, session: &str, key: &str, points: i64) -> Option<u16> {
    let body = json!({"patrols": [{"id": "eagles", "name": "Eagles", "points": points}]});
    let headers = [("authorization", session), ("x-idempotency-key", key)];
    Some(call(at, "POST", "/api/sections/7/scores", &headers, &body).await?.0)
}

/// Sends until there is an answer, as a client does that keeps its key.
async fn insist(at: &str, session: &str, key: &str, points: i64) {
    let until = Instant::now() + PATIENCE;
    while !matches!(submit(at, session, key, points).await, Some(200 | 202)) {
        assert!(Instant::now() < until, "{at} does not take {key}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until nothing of alice's is on its way any more, and gives the list's score of the eagles.
async fn settled(at: &str, session: &str) -> i64 {
    let until = Instant::now() + PATIENCE;
    loop {
        let headers = [("authorization", session)];
        let pending = call(at, "GET", "/api/session", &headers, &Value::Null).await;
        if pending.as_ref().is_some_and(|(_, body)| body["pendingWrites"] == 0) {
            let (_, list) =
                call(at, "GET", "/api/sections/7/scores", &headers, &Value::Null).await.expect("a list");
            let eagles =
                list["patrols"].as_array().unwrap().iter().find(|patrol| patrol["id"] == "eagles").cloned();
            let eagles = eagles.expect("the eagles");
            return eagles["score"].as_i64().unwrap() + eagles["pendingDelta"].as_i64().unwrap();
        }
        assert!(Instant::now() < until, "it does not settle: {pending:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

struct World {
    external: Process,
    replicas: [Process; 2],
    at: [String; 2],
    outside: String,
    postgres: Server,
    _folder: tempfile::TempDir,
}

impl World {
    async fn start() -> Self {
        let postgres = Server::create().await;
        let (store, folder) = (postgres.url(), tempfile::tempdir().unwrap());
        let keys = folder.path().join("keys");
        write_keys(&keys);
        let path = |name: &str| folder.path().join(name).display().to_string();
        let (outside, at) = (free_port(), [free_port(), free_port()]);
        let external = Process::start(&["external", "--external", &outside, "--books", &path("books.json")]);
        let replica = |at: &str| {
            let keys = path("keys");
            Process::start(&[
                "api",
                "--listen",
                at,
                "--external",
                &outside,
                "--store",
                &store,
                "--keys",
                &keys,
            ])
        };
        let replicas = [replica(&at[0]), replica(&at[1])];
        Self { external, replicas, at, outside, postgres, _folder: folder }
    }
}

fn write_keys(file: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(file, "one MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=\n").unwrap();
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).unwrap();
}

// S2-57, S2-58: one sign-in is for both replicas, and for those that are started later.
#[tokio::test(flavor = "multi_thread")]
async fn a_login_at_one_replica_is_one_at_both_and_after_restarts() {
    let mut world = World::start().await;
    let [one, two] = world.at.clone();
    let session = login(&one).await;
    assert_eq!(submit(&two, &session, "1", 5).await, Some(200), "the other replica writes in her name");
    for replica in &mut world.replicas {
        replica.kill_and_start();
    }
    assert_eq!(submit(&two, &session, "2", 1).await, Some(200), "after a restart it still can");
    // The external service signs her out: what she sends waits, until she signs in at the other replica.
    call(&world.outside, "DELETE", "/tokens/alice", &[], &Value::Null).await.expect("an answer");
    assert_eq!(submit(&one, &session, "3", 4).await, Some(202));
    let headers = [("authorization", session.as_str())];
    let (_, said) = call(&two, "GET", "/api/session", &headers, &Value::Null).await.expect("an answer");
    assert_eq!(
        (said["pendingWrites"].as_i64(), said["signInAgain"].as_bool()),
        (Some(1), Some(true)),
        "{said}"
    );
    let session = login(&two).await;
    assert_eq!(settled(&one, &session).await, 110);
}

// S2-07, S2-108: every process is killed in turn while points come in, also PostgreSQL; each counts once.
#[tokio::test(flavor = "multi_thread")]
async fn every_process_may_be_killed_and_points_count_once() {
    let mut world = World::start().await;
    let at = world.at.clone();
    let session = login(&at[0]).await;
    for round in 0..8_usize {
        let send = |turn: usize| {
            let (at, session) = (at[turn % 2].clone(), session.clone());
            tokio::spawn(async move { insist(&at, &session, &format!("{round}-{turn}"), 1).await })
        };
        let sent: Vec<_> = (0..4).map(send).collect();
        tokio::time::sleep(Duration::from_millis(30 * round as u64)).await;
        match round % 4 {
            0 => world.replicas[0].kill_and_start(),
            1 => world.replicas[1].kill_and_start(),
            2 => world.external.kill_and_start(),
            _ => {
                // Its own "immediate shutdown" flushes nothing, and leaves none of its processes.
                world.postgres.shut_down_immediately();
                let away = submit(&at[0], &session, &format!("{round}-away"), 1).await;
                assert!(!matches!(away, Some(200 | 202)), "nothing is taken that cannot be kept: {away:?}");
                world.postgres.start();
                world.postgres.wait().await;
                insist(&at[0], &session, &format!("{round}-away"), 1).await;
            }
        }
        for one in sent {
            one.await.unwrap();
        }
    }
    assert_eq!(settled(&at[1], &session).await, 100 + 34);
}

//! `semel serve gate` on PostgreSQL: two gateways on one store, killed ones, and a store that goes away and comes back.
//! Needs the PostgreSQL of `cargo xtask test`.

#[path = "../../gateway/tests/gateway/client.rs"]
#[allow(dead_code)]
mod client;
#[path = "serve_gate/process.rs"]
#[allow(dead_code)]
mod process;
#[path = "../../gateway/tests/gateway/upstream.rs"]
#[allow(dead_code)]
mod upstream;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use client::{Client, keyed, post};
use process::Folder;
use tokio::net::{TcpListener, TcpStream};
use tokio_postgres::NoTls;
use upstream::{Reply, Upstream};

const SERVER: &str = "SEMEL_TEST_POSTGRES";

/// A database of its own on the tests' server.
async fn database(name: &str) -> String {
    let server = std::env::var(SERVER)
        .unwrap_or_else(|_| panic!("run `cargo xtask test`, which starts PostgreSQL, or set {SERVER}"));
    let name = format!("serve_{name}_{}", std::process::id());
    let (client, connection) = tokio_postgres::connect(&server, NoTls).await.expect("the server answers");
    tokio::spawn(connection);
    client.batch_execute(&format!("CREATE DATABASE {name}")).await.expect("a database");
    let (place, _) = server.rsplit_once('/').expect("a URL with a database");
    format!("{place}/{name}")
}

fn settings(upstream: &Upstream, store: &str, lease: &str) -> String {
    format!(
        "store = \"{store}\"\n[gate]\nupstream = \"{}\"\n[defaults]\nlease = \"{lease}\"\n\
         [route.orders]\nmatch = \"POST /orders\"\n",
        upstream.url()
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn two_gateways_are_one_gate() {
    let upstream = Upstream::start(|_, before| {
        Reply::after(Duration::from_millis(300), 201, "", &format!("order {before}"))
    })
    .await;
    let store = database("two").await;
    let folder = Folder::new();
    folder.write("semel.toml", &settings(&upstream, &store, "10s"));
    let gates = [folder.start(&[]), folder.start(&[])];
    let asking = (0..200).map(|turn: usize| gates[turn % 2].ask(keyed("/orders", "k1", "{}")));
    let answers = futures_util::future::join_all(asking).await;
    assert!(answers.iter().all(|answer| answer.status == 201 && answer.body == "order 0"), "{answers:?}");
    assert_eq!(upstream.count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_gateway_left_is_unknown_to_the_other() {
    let upstream = Upstream::start(|_, _| Reply::Silence).await;
    let store = database("killed").await;
    let folder = Folder::new();
    folder.write("semel.toml", &settings(&upstream, &store, "1s"));
    let (mut one, other) = (folder.start(&[]), folder.start(&[]));
    let mut client = Client::connect(one.listen).await;
    client.send(keyed("/orders", "k1", "{}")).await;
    while upstream.count() < 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    one.signal("KILL");
    one.ended().await;
    // It waits for the first until nobody renews its lease any more.
    let retry = other.ask(keyed("/orders", "k1", "{}")).await;
    assert_eq!(retry.status, 409, "{retry:?}");
    assert!(retry.body.contains("outcome-unknown"), "{retry:?}");
    assert_eq!(upstream.count(), 1);
}

/// A way to the database that can be closed.
struct Bridge {
    address: SocketAddr,
    is_open: Arc<AtomicBool>,
}

impl Bridge {
    async fn to(url: &str) -> (Self, String) {
        let (before, rest) = url.split_once('@').map_or(("", url), |(before, rest)| (before, rest));
        let (place, database) = rest.trim_start_matches("postgres://").split_once('/').expect("a database");
        let place = place.to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let bridge =
            Self { address: listener.local_addr().unwrap(), is_open: Arc::new(AtomicBool::new(true)) };
        let is_open = Arc::clone(&bridge.is_open);
        let url = match before {
            "" => format!("postgres://{}/{database}", bridge.address),
            before => format!("{before}@{}/{database}", bridge.address),
        };
        tokio::spawn(async move {
            loop {
                let (mut near, _) = listener.accept().await.unwrap();
                let (place, is_open) = (place.clone(), Arc::clone(&is_open));
                tokio::spawn(async move {
                    if !is_open.load(Ordering::SeqCst) {
                        return;
                    }
                    let mut far = TcpStream::connect(place).await.unwrap();
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                        () = until(|| !is_open.load(Ordering::SeqCst)) => {}
                    }
                });
            }
        });
        (bridge, url)
    }

    fn set(&self, is_open: bool) {
        self.is_open.store(is_open, Ordering::SeqCst);
    }
}

async fn until(holds: impl Fn() -> bool) {
    while !holds() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_store_is_away_keyed_requests_wait_outside_and_others_pass() {
    let upstream = Upstream::start(|_, _| Reply::status(201, "", "done")).await;
    let (bridge, store) = Bridge::to(&database("away").await).await;
    let folder = Folder::new();
    folder.write("semel.toml", &settings(&upstream, &store, "10s"));
    let gate = folder.start(&[]);
    assert_eq!(gate.ask(keyed("/orders", "k1", "{}")).await.status, 201);
    assert_eq!(gate.admin("/readyz").await.status, 200);
    bridge.set(false);
    let started = Instant::now();
    while gate.admin("/readyz").await.status != 503 {
        assert!(started.elapsed() < Duration::from_secs(20));
    }
    // The bridge cuts each connection by itself: the last one goes a moment after the first.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let refused = gate.ask(keyed("/orders", "k2", "{}")).await;
    assert_eq!((refused.status, refused.header("retry-after").is_some()), (503, true), "{refused:?}");
    assert_eq!(upstream.count(), 1, "never unprotected");
    assert_eq!(gate.ask(post("/elsewhere", "", "{}")).await.status, 201);
    assert_eq!(gate.admin("/healthz").await.status, 200);
    bridge.set(true);
    let started = Instant::now();
    while gate.admin("/readyz").await.status != 200 {
        assert!(started.elapsed() < Duration::from_secs(20));
    }
    assert_eq!(gate.ask(keyed("/orders", "k1", "{}")).await.header("idempotency-replayed"), Some("true"));
    assert_eq!(gate.ask(keyed("/orders", "k2", "{}")).await.status, 201);
}

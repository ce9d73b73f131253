//! The gateway as a whole: its log, its end in good order, and other settings while it runs.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use semel_contract::record::State;
use semel_gateway::{AccessLog, LineForm};
use semel_store::{ClaimStore, Filter};
use serde_json::Value;

use crate::upstream::{Reply, Upstream};
use crate::world::{Wish, before, keyed, post};

#[derive(Clone, Default)]
struct Paper(Arc<Mutex<Vec<u8>>>);

impl Write for Paper {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Paper {
    async fn lines(&self, count: usize) -> Vec<Value> {
        let started = Instant::now();
        loop {
            let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
            let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            if lines.len() >= count {
                return lines;
            }
            assert!(started.elapsed() < Duration::from_secs(5), "{text}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test]
async fn the_log_tells_what_happened_and_no_secrets() {
    let upstream = Upstream::start(|_, _| Reply::status(201, "", "four")).await;
    let paper = Paper::default();
    let wish = Wish { log: AccessLog::to(paper.clone(), LineForm::Json), ..Wish::behind(&upstream.url()) };
    let world = wish.start().await;
    for _ in 0..2 {
        world.ask(keyed("/orders?card=4111", "the-key", "{}")).await;
    }
    world.ask("GET /orders?card=4111 HTTP/1.1\r\nHost: x\r\n\r\n").await;
    world.ask("GET /orders?card=4111 HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n").await;
    let lines = paper.lines(4).await;
    let text = format!("{lines:?}");
    for secret in ["4111", "the-key", "Bearer"] {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
    let (first, again) = (&lines[0], &lines[1]);
    assert_eq!((&first["method"], &first["path"]), (&"POST".into(), &"/orders".into()));
    assert_eq!(
        (&first["status"], &first["bytes"], &first["replayed"]),
        (&201.into(), &4.into(), &false.into())
    );
    assert_eq!((&first["guarantee"], &again["replayed"]), (&"fenced".into(), &true.into()));
    assert!(first["key"].is_string() && first["key"] == again["key"], "{text}");
    assert!(first["ms"].is_number() && first["request_id"] != again["request_id"], "{text}");
    assert_eq!((&lines[2]["status"], &lines[2]["guarantee"]), (&201.into(), &"none".into()));
    assert_eq!(lines[3]["status"], 400);
}

#[tokio::test]
async fn of_a_sampled_log_one_request_in_so_many_is_written_down() {
    let upstream = Upstream::start(|_, _| Reply::status(201, "", "four")).await;
    let paper = Paper::default();
    let log = AccessLog::to(paper.clone(), LineForm::Json).one_in(3.try_into().unwrap());
    let world = Wish { log, ..Wish::behind(&upstream.url()) }.start().await;
    let mut client = world.client().await;
    for number in 1..=7 {
        client.ask(post(&format!("/{number}"), "", "{}")).await;
    }
    drop(client);
    world.gateway.shut_down(Duration::from_secs(5)).await;
    let paths: Vec<_> = paper.lines(2).await.iter().map(|line| line["path"].clone()).collect();
    assert_eq!(paths, ["/3", "/6"]);
}

#[tokio::test]
async fn what_was_asked_before_the_end_is_answered() {
    let upstream = Upstream::start(|_, _| Reply::after(Duration::from_millis(400), 201, "", "done")).await;
    let world = before(&upstream).await;
    let asked: Vec<_> = (0..100)
        .map(|number| {
            let address = world.address;
            tokio::spawn(async move {
                let mut client = crate::world::Client::connect(address).await;
                match number % 2 {
                    0 => client.ask(keyed("/orders", &format!("k{number}"), "{}")).await,
                    _ => client.ask(post("/orders", "", "{}")).await,
                }
            })
        })
        .collect();
    while upstream.count() < 100 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let idle = world.client().await;
    let started = Instant::now();
    assert_eq!(world.gateway.shut_down(Duration::from_secs(10)).await, 0);
    assert!(started.elapsed() < Duration::from_secs(5), "idle connections hold nothing up");
    drop(idle);
    for answer in asked {
        assert_eq!(answer.await.unwrap().status, 201);
    }
    assert!(tokio::net::TcpStream::connect(world.address).await.is_err(), "nobody is let in any more");
}

#[tokio::test]
async fn what_does_not_end_in_time_is_unknown() {
    let upstream = Upstream::start(|_, _| Reply::Silence).await;
    let world = before(&upstream).await;
    let mut client = world.client().await;
    client.send(keyed("/orders", "k1", "{}")).await;
    while upstream.count() < 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(client);
    assert_eq!(world.gateway.shut_down(Duration::from_millis(200)).await, 1);
    let filter = Filter { limit: 10, ..Filter::default() };
    let entries = world.store.list(&filter).await.unwrap();
    assert_eq!(entries.iter().map(|entry| entry.record.state).collect::<Vec<_>>(), [State::Unknown]);
}

#[tokio::test]
async fn other_settings_hold_from_the_next_request_on() {
    let one = Upstream::start(|_, _| Reply::status(200, "", "one")).await;
    let two = Upstream::start(|_, _| Reply::status(200, "", "two")).await;
    let world = before(&one).await;
    let mut client = world.client().await;
    assert_eq!(client.ask(keyed("/orders", "k1", "{}")).await.body, "one");
    let store = Arc::clone(&world.store);
    world.gateway.swap(Wish { store, ..Wish::behind(&two.url()) }.plan()).unwrap();
    assert_eq!(client.ask(keyed("/orders", "k2", "{}")).await.body, "two");
    assert_eq!(client.ask(keyed("/orders", "k1", "{}")).await.body, "one", "records stay");
}

/// The retry of a request whose body is still on its way runs under the endpoint's next name; then the first must not.
#[tokio::test]
async fn a_request_that_began_before_the_swap_does_not_run_a_second_time() {
    let upstream = Upstream::start(|_, before| Reply::status(201, "", &before.to_string())).await;
    let named = |name: &'static str| semel_gate::Route::new(name, "POST /orders").unwrap();
    let of = |route: semel_gate::Route, store: Arc<semel_store::memory::MemoryStore>| {
        let mut plan = Wish { store: Arc::clone(&store), ..Wish::behind(&upstream.url()) }.plan();
        let callers = semel_gateway::Callers::new(&"authorization".parse().unwrap(), Default::default());
        plan.gate = {
            // By what is said of former names alone.
            let gate = semel_gate::GateLayer::builder(store).identity(callers.unwrap()).forget_former();
            gate.route(route).build().unwrap()
        };
        plan
    };
    let world = before(&upstream).await;
    world.gateway.swap(of(named("create"), Arc::clone(&world.store))).unwrap();
    let whole = keyed("/orders", "k1", "{}");
    let mut first = world.client().await;
    first.send(&whole[..whole.len() - 1]).await;
    // A request of its own on the same gateway is answered: the head of the first was read before it.
    assert_eq!(world.ask(keyed("/orders", "k0", "{}")).await.status, 201);
    let renamed = named("create-order").former_names(["create".to_owned()]);
    world.gateway.swap(of(renamed, Arc::clone(&world.store))).unwrap();
    assert_eq!(world.ask(keyed("/orders", "k1", "{}")).await.status, 201);
    let answer = first.ask(&whole[whole.len() - 1..]).await;
    assert!(matches!(answer.status, 201 | 503), "{answer:?}");
    assert_eq!(upstream.count(), 2, "k0 and k1, once each");
    assert_eq!(world.ask(keyed("/orders", "k1", "{}")).await.header("idempotency-replayed"), Some("true"));
}

#[tokio::test]
async fn a_gate_that_observes_changes_nothing() {
    let upstream = Upstream::start(|_, before| Reply::status(201, "", &before.to_string())).await;
    let world =
        Wish { gate: semel_gate::GateBuilder::observe, ..Wish::behind(&upstream.url()) }.start().await;
    for number in 0..3 {
        let answer = world.ask(keyed("/orders", "k1", "{}")).await;
        assert_eq!(answer.body, number.to_string());
        assert_eq!(answer.header("semel-guarantee"), None);
    }
    // Nor does it refuse whom it does not know.
    assert_eq!(world.ask(post("/orders", "Idempotency-Key: k1\r\n", "{}")).await.status, 201);
}

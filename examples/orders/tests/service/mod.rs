//! The real binary, started, killed and spoken to over HTTP, and the claims about it that hold on every store.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long one answer may take.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);
/// How long a retry goes on. A killed process holds its keys up for a lease of three seconds.
const RETRY_TIME_MAX: Duration = Duration::from_secs(60);
/// How long it may take until every client has its first answer.
const FIRST_ANSWERS_TIME_MAX: Duration = Duration::from_secs(60);
/// Clients that send at once while the service is killed.
const SENDERS: usize = 4;

/// An answer: its status, its head and its body.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn parse(text: &str) -> Option<Self> {
        let (head, body) = text.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some(Self { status, head: head.to_ascii_lowercase(), body: body.to_owned() })
    }

    fn is_replayed(&self) -> bool {
        self.head.contains("idempotency-replayed: true")
    }
}

/// A running service. Killed when it is dropped.
struct Service {
    process: Child,
    address: String,
}

impl Service {
    fn start(store: &str) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_semel-example-orders"))
            .args(["--listen", "127.0.0.1:0", "--store", store])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the service starts");
        let mut line = String::new();
        let mut said = BufReader::new(process.stdout.take().expect("its output is ours"));
        said.read_line(&mut line).expect("it says something");
        let address = line.strip_prefix("listening on ").and_then(|rest| rest.split(". ").next());
        let address = address.unwrap_or_else(|| panic!("it says where it listens, not {line:?}")).to_owned();
        // Whatever else it says is read, so that it never waits for a reader.
        thread::spawn(move || said.read_to_string(&mut line));
        Self { process, address }
    }

    /// As `kill -9`: the process gets no chance to tidy up.
    fn kill(mut self) {
        self.process.kill().expect("it can be killed");
        self.process.wait().expect("it ends");
    }

    fn order(&self, key: &str, item: &str) -> Option<Answer> {
        let body = format!(r#"{{"item":"{item}","quantity":1}}"#);
        send(&self.address, "POST /orders", Some(key), &body)
    }

    fn refund(&self, id: u32, key: &str) -> Answer {
        send(&self.address, &format!("POST /orders/{id}/refund"), Some(key), "").expect("an answer")
    }

    /// How many orders there are of each item.
    fn orders(&self) -> BTreeMap<String, u32> {
        let answer = send(&self.address, "GET /orders", None, "").expect("an answer");
        assert_eq!(answer.status, 200, "{answer:?}");
        let orders: serde_json::Value = serde_json::from_str(&answer.body).expect("JSON");
        let mut counts = BTreeMap::new();
        for order in orders.as_array().expect("a list") {
            *counts.entry(order["item"].as_str().expect("an item").to_owned()).or_default() += 1;
        }
        counts
    }

    /// Sends an order until it is answered with success, as a client should.
    fn insist(&self, key: &str) -> Answer {
        let began = Instant::now();
        loop {
            let answer = self.order(key, key);
            match answer {
                Some(answer) if answer.status == 201 => return answer,
                other => assert!(began.elapsed() < RETRY_TIME_MAX, "{key}: {other:?}"),
            }
            thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // One that was killed before is already gone.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Sends one request and reads its whole answer; `None` when the connection breaks before that.
fn send(address: &str, what: &str, key: Option<&str>, body: &str) -> Option<Answer> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(ANSWER_TIME_MAX)).ok()?;
    let key = key.map(|key| format!("Idempotency-Key: \"{key}\"\r\n")).unwrap_or_default();
    let length = body.len();
    let request = format!(
        "{what} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nX-User: alice\r\n{key}\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Answer::parse(&text)
}

pub(crate) fn the_same_key_twice_is_one_order_and_one_answer(store: &str) {
    let service = Service::start(store);
    let (first, again) = (service.insist("k"), service.insist("k"));
    assert_eq!((first.status, &first.body), (again.status, &again.body));
    assert_eq!((first.is_replayed(), again.is_replayed()), (false, true));
    assert!(first.head.contains("semel-guarantee: atomic"), "{first:?}");
    assert_eq!(service.order("k", "another item").expect("an answer").status, 422);
    assert_eq!(service.orders(), BTreeMap::from([("k".to_owned(), 1)]));

    // One refund for each key: the provider sees as many keys as we do.
    let refunds = ["r", "r", "s"].map(|key| service.refund(1, key));
    assert!(refunds.iter().all(|refund| refund.status == 200), "{refunds:?}");
    assert!(refunds[0].body.contains("provider_key") && refunds[0].body == refunds[1].body, "{refunds:?}");
    assert_ne!(refunds[0].body, refunds[2].body);
}

pub(crate) fn fifty_in_parallel_with_one_key_are_one_order(store: &str) {
    let service = Service::start(store);
    let answers: Vec<Answer> = thread::scope(|scope| {
        let sent: Vec<_> = (0..50).map(|_| scope.spawn(|| service.order("k", "k"))).collect();
        sent.into_iter().map(|sent| sent.join().expect("no client panics").expect("an answer")).collect()
    });
    assert!(
        answers.iter().all(|answer| (answer.status, &answer.body) == (201, &answers[0].body)),
        "{answers:?}"
    );
    assert_eq!(answers.iter().filter(|answer| !answer.is_replayed()).count(), 1);
    assert_eq!(service.orders(), BTreeMap::from([("k".to_owned(), 1)]));
}

pub(crate) fn a_killed_service_keeps_what_it_acknowledged_and_nothing_twice(store: &str) {
    let mut service = Service::start(store);
    let mut acknowledged = BTreeMap::new();
    for round in 0..2 {
        let address = service.address.clone();
        let counts: Arc<[AtomicUsize; SENDERS]> = Arc::default();
        let senders: Vec<_> = (0..SENDERS)
            .map(|sender| {
                let (address, counts) = (address.clone(), Arc::clone(&counts));
                let name = format!("{round}-{sender}");
                thread::spawn(move || send_until_it_breaks(&address, &name, &counts[sender]))
            })
            .collect();
        let began = Instant::now();
        while counts.iter().any(|count| count.load(Ordering::SeqCst) == 0) {
            assert!(began.elapsed() < FIRST_ANSWERS_TIME_MAX, "nothing is acknowledged to some: {counts:?}");
            thread::sleep(Duration::from_millis(10));
        }
        // In the middle of others.
        thread::sleep(Duration::from_millis(100));
        service.kill();
        service = Service::start(store);
        for sender in senders {
            let (answered, broken) = sender.join().expect("no sender panics");
            assert!(!answered.is_empty(), "something was acknowledged before the kill");
            for (key, body) in answered {
                assert_eq!(service.insist(&key).body, body, "{key}");
                acknowledged.insert(key, 1);
            }
            service.insist(&broken);
            acknowledged.insert(broken, 1);
        }
    }
    assert_eq!(service.orders(), acknowledged, "exactly one order for each key");
}

/// Sends one order after the other, each under a key of its own, until the service is gone: the answers by key, and the
/// key that got none. The answers are counted as they come.
fn send_until_it_breaks(
    address: &str,
    name: &str,
    count: &AtomicUsize,
) -> (BTreeMap<String, String>, String) {
    let mut answered = BTreeMap::new();
    for number in 0.. {
        let key = format!("{name}-{number}");
        let body = format!(r#"{{"item":"{key}","quantity":1}}"#);
        match send(address, "POST /orders", Some(&key), &body) {
            Some(answer) if answer.status == 201 => {
                count.fetch_add(1, Ordering::SeqCst);
                answered.insert(key, answer.body)
            }
            Some(_) | None => return (answered, key),
        };
    }
    unreachable!("the service is killed at some time")
}

//! The relays: two on the gateways' PostgreSQL, before a service that keeps scores. Whatever happens, the score of a lane
//! is the sum of what was accepted for it, unless the relay says that it is in doubt.

use std::collections::BTreeMap;
use std::io::{BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use semel_testbed::services::Services;
use serde_json::Value;

use super::http;
use super::preload::Machine;
use super::processes::{Processes, Start, semel};
use super::proxy::Proxy;
use super::random::Random;
use super::verdict::Row;

const SENDERS: u64 = 4;
const LANES: [&str; 4] = ["north", "east", "south", "west"];
const PATIENCE: Duration = Duration::from_secs(3);
/// One write in so many breaks off after its effect.
const BREAKS_ONE_IN: u64 = 25;

/// The service that keeps scores.
pub(crate) struct Scores {
    port: u16,
    books: Arc<Mutex<BTreeMap<String, i64>>>,
}

impl Scores {
    pub(crate) fn start(seed: u64) -> Result<Self, String> {
        let listener =
            TcpListener::bind("127.0.0.1:0").map_err(|error| format!("no port for scores: {error}"))?;
        let port = listener.local_addr().map_err(|error| error.to_string())?.port();
        let books: Arc<Mutex<BTreeMap<String, i64>>> = Arc::default();
        let serving = Arc::clone(&books);
        thread::spawn(move || {
            for (number, stream) in listener.incoming().flatten().enumerate() {
                let (books, mut random) = (Arc::clone(&serving), Random::new(seed + number as u64));
                thread::spawn(move || while answer(&stream, &books, &mut random).is_some() {});
            }
        });
        Ok(Self { port, books })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    fn score(&self, lane: &str) -> i64 {
        self.books.lock().unwrap_or_else(PoisonError::into_inner).get(lane).copied().unwrap_or(0)
    }
}

fn answer(mut stream: &TcpStream, books: &Mutex<BTreeMap<String, i64>>, random: &mut Random) -> Option<()> {
    let (head, body) = http::message(&mut BufReader::new(stream.try_clone().ok()?)).ok()?;
    let mut words = head.split(' ');
    let (method, lane) = (words.next()?, words.next()?.strip_prefix("/scores/")?.to_owned());
    thread::sleep(Duration::from_millis(random.below(15)));
    let mut books = books.lock().unwrap_or_else(PoisonError::into_inner);
    if method != "get" {
        let score = serde_json::from_str::<Value>(&body).ok()?["score"].as_i64()?;
        books.insert(lane.clone(), score);
        if random.below(BREAKS_ONE_IN) == 0 {
            return None;
        }
    }
    let text = format!("{{\"score\":{}}}", books.get(&lane).copied().unwrap_or(0));
    drop(books);
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        text.len()
    );
    stream.write_all(format!("{head}{text}").as_bytes()).ok()
}

/// Starts the relays, with operators' doors at these ports.
pub(crate) fn relays(
    services: &Services,
    postgres: &Proxy,
    scores: &Proxy,
    admins: &[u16],
    machines: &[Machine],
    planted: Option<&str>,
) -> Result<Processes, String> {
    let at = scores.port();
    let config = format!(
        "store = \"postgres://semel@127.0.0.1:{}/postgres\"\nidentity = \"trusted:X-User\"\n\
         [relay]\ndebounce = \"200ms\"\nmax_wait = \"1s\"\n[relay.target.scores]\nurl = \"http://127.0.0.1:{at}/scores/{{lane}}\"\n\
         body = '{{{{\"score\":{{after}}}}}}'\ntier = \"read-back\"\nlate_window = \"1s\"\nsync_deadline = \"3s\"\ntimeout = \"2s\"\n\
         read = {{ url = \"http://127.0.0.1:{at}/scores/{{lane}}\", value = \"/score\" }}\n",
        postgres.port()
    );
    let file = services.folder().join("relay.toml");
    std::fs::write(&file, config).map_err(|error| format!("failed to write {}: {error}", file.display()))?;
    let start = |number: usize| -> Start {
        let machine = machines[number].clone();
        let (file, log) = (file.clone(), services.folder().join(format!("relay-{number}.log")));
        let (admin, planted) = (format!("127.0.0.1:{}", admins[number]), planted.map(str::to_owned));
        Box::new(move |port| {
            let mut command = semel(&log, planted.as_deref());
            command.args(["serve", "relay", "--config"]).arg(&file);
            command.args(["--listen", &format!("127.0.0.1:{port}"), "--admin", &admin]);
            machine.take(&mut command);
            command
        })
    };
    Processes::start((0..admins.len()).map(start).collect())
}

/// Senders, at work.
pub(crate) struct Senders {
    threads: Vec<JoinHandle<Vec<(&'static str, i64)>>>,
    admins: Vec<u16>,
}

impl Senders {
    pub(crate) fn start(ports: &[u16], admins: &[u16], stop: &Arc<AtomicBool>, seed: u64) -> Self {
        let sender = |number: u64| {
            let (ports, stop) = (ports.to_vec(), Arc::clone(stop));
            thread::spawn(move || {
                let mut random = Random::new(seed.wrapping_mul(991) + number);
                let mut accepted = Vec::new();
                while !stop.load(Ordering::SeqCst) {
                    let lane = LANES[random.below(LANES.len() as u64) as usize];
                    let value = 1 + random.below(5) as i64;
                    submit(&ports, number, lane, value, &mut random);
                    accepted.push((lane, value));
                    thread::sleep(Duration::from_millis(10 + random.below(40)));
                }
                accepted
            })
        };
        Self { threads: (0..SENDERS).map(sender).collect(), admins: admins.to_vec() }
    }

    /// Waits until the relays have written what they accepted, and compares.
    pub(crate) fn judge(self, scores: &Scores, until: Instant) -> Vec<Row> {
        let accepted: Vec<(&str, i64)> =
            self.threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect();
        let operator = |path: &str| {
            let head = format!("GET {path} HTTP/1.1");
            http::send(self.admins[0], &head, "", Duration::from_secs(10))
                .map(|answer| answer.body)
                .unwrap_or_default()
        };
        while !operator("/metrics").contains("score_outbox_pending_total 0\n") && Instant::now() < until {
            thread::sleep(Duration::from_millis(300));
        }
        let settled = operator("/metrics").contains("score_outbox_pending_total 0\n");
        let doubted: Value =
            serde_json::from_str(&operator("/v1/relay/lanes?state=in-doubt")).unwrap_or_default();
        let doubted: Vec<&str> = doubted["lanes"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|lane| lane["lane"].as_str())
            .collect();
        let total =
            |lane: &str| accepted.iter().filter(|(of, _)| *of == lane).map(|(_, value)| value).sum::<i64>();
        let wrong: Vec<&str> = LANES
            .into_iter()
            .filter(|lane| !doubted.contains(lane) && scores.score(lane) != total(lane))
            .collect();
        for lane in &wrong {
            eprintln!("xtask: lane {lane}: accepted {}, the service has {}", total(lane), scores.score(lane));
        }
        vec![
            Row::count("score changes accepted by a relay", accepted.len()),
            Row::count("lanes of scores in doubt, and said to be", doubted.len()),
            Row::promise("lanes whose score is not the sum of what was accepted", wrong.len()),
            Row::promise("relays that never finished", usize::from(!settled)),
        ]
    }
}

/// Sends a change with one key until a relay has accepted it; the run does not end before that.
fn submit(ports: &[u16], sender: u64, lane: &str, value: i64, random: &mut Random) {
    let (key, body) = (random.uuid(), format!("{{\"items\":[{{\"lane\":\"{lane}\",\"value\":{value}}}]}}"));
    // Some wait until it is written; most are content when it is kept.
    let mode = if random.below(4) == 0 { "interactive" } else { "background" };
    let head = format!(
        "POST /v1/relay/scores HTTP/1.1\r\nX-User: user-{sender}\r\nX-Idempotency-Key: {key}\r\n\
         X-Sync-Mode: {mode}\r\nContent-Type: application/json"
    );
    for _ in 0..1200 {
        let port = ports[random.below(ports.len() as u64) as usize];
        match http::send(port, &head, &body, PATIENCE) {
            Ok(answer) if matches!(answer.status, 200 | 202) => return,
            Ok(_) | Err(_) => thread::sleep(Duration::from_millis(50)),
        }
    }
    eprintln!("xtask: no relay accepted {key}");
}

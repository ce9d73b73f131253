//! Clients that never give up on a key: each sends its request through either gateway until it is answered for good.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::http::{self, Answer};
use super::random::Random;
use super::tokens::{Token, Tokens};

/// How many send at a time.
const CLIENTS: u64 = 32;
/// How long one waits for an answer; shorter than some answers take.
const PATIENCE: Duration = Duration::from_millis(1500);
/// A request that is told "unknown" for so long is left to a person.
const UNKNOWN_MAX: Duration = Duration::from_secs(2);

/// What became of one logical request.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) intent: String,
    pub(crate) key: String,
    /// The credentials that it was sent with; the last of them got the answer.
    pub(crate) tokens: Vec<Token>,
    pub(crate) sends: u32,
    pub(crate) end: End,
}

/// How it ended for its client.
#[derive(Clone, Debug)]
pub(crate) enum End {
    /// Acknowledged, with this answer.
    Acknowledged(Answer),
    /// It was told that nobody knows.
    Unknown,
    /// It found nobody until the end.
    GaveUp,
}

/// The clients, at work.
pub(crate) struct Clients {
    threads: Vec<JoinHandle<Vec<Sent>>>,
    acknowledged: Arc<AtomicU64>,
    ports: Vec<u16>,
}

impl Clients {
    pub(crate) fn start(gates: &[u16], tokens: &Tokens, stop: &Arc<AtomicBool>, seed: u64) -> Self {
        let acknowledged = Arc::new(AtomicU64::new(0));
        let client = |number: u64| {
            let (ports, stop, acknowledged) = (gates.to_vec(), Arc::clone(stop), Arc::clone(&acknowledged));
            let tokens = tokens.clone();
            thread::spawn(move || {
                let mut random = Random::new(seed.wrapping_mul(1000) + number);
                let mut sent = Vec::new();
                while !stop.load(Ordering::SeqCst) {
                    let intent = format!("intent-{number}-{}", sent.len());
                    let one = request(&ports, &tokens, intent, &mut random, &stop);
                    acknowledged
                        .fetch_add(u64::from(matches!(one.end, End::Acknowledged(_))), Ordering::SeqCst);
                    sent.push(one);
                }
                sent
            })
        };
        let threads = (0..CLIENTS).map(client).collect();
        Self { threads, acknowledged, ports: gates.to_vec() }
    }

    /// How many requests are acknowledged so far.
    pub(crate) fn progress(&self) -> u64 {
        self.acknowledged.load(Ordering::SeqCst)
    }

    /// Waits for all of them; what was not answered is asked for once more, now that the faults have stopped.
    pub(crate) fn finish(self, until: Instant) -> Vec<Sent> {
        let mut all: Vec<Sent> =
            self.threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect();
        let mut random = Random::new(0);
        for one in all.iter_mut().filter(|one| !matches!(one.end, End::Acknowledged(_))) {
            while Instant::now() < until {
                // One of its credentials has the answer.
                one.tokens.rotate_left(1);
                let Some(token) = one.tokens.last() else { break };
                let again = try_once(&self.ports, &one.intent, (&one.key, *token), &mut random);
                one.sends += 1;
                if let Some(end) = again.and_then(|answer| ended(answer, UNKNOWN_MAX)) {
                    one.end = end;
                    break;
                }
                thread::sleep(Duration::from_millis(100));
            }
        }
        all
    }
}

fn request(ports: &[u16], tokens: &Tokens, intent: String, random: &mut Random, stop: &AtomicBool) -> Sent {
    let key = random.uuid();
    let mut used = vec![tokens.current()];
    let (mut sends, since) = (0, Instant::now());
    let mut unknown_since: Option<Instant> = None;
    loop {
        sends += 1;
        let token = used.last().copied().unwrap_or_else(|| tokens.current());
        // Now and then two at once, as a hasty client would.
        let twin = (random.below(8) == 0).then(|| {
            let (ports, intent, key, mut random) =
                (ports.to_vec(), intent.clone(), key.clone(), Random::new(random.next()));
            thread::spawn(move || try_once(&ports, &intent, (&key, token), &mut random))
        });
        let answer = try_once(ports, &intent, (&key, token), random);
        drop(twin.map(JoinHandle::join));
        if let Some(answer) = answer {
            let is_unknown = answer.body.contains("outcome-unknown");
            unknown_since = is_unknown.then(|| unknown_since.unwrap_or_else(Instant::now));
            let waited = unknown_since.map_or(Duration::ZERO, |since| since.elapsed());
            let is_anothers = answer.body.contains("credential-changed");
            if let Some(end) = ended(answer, waited) {
                return Sent { intent, key, tokens: used, sends, end };
            }
            if is_anothers {
                // It was sent with another one before.
                used.rotate_left(1);
            }
        }
        if !used.contains(&tokens.current()) {
            used.push(tokens.current());
        }
        if stop.load(Ordering::SeqCst) && since.elapsed() > Duration::from_secs(5) {
            return Sent { intent, key, tokens: used, sends, end: End::GaveUp };
        }
        thread::sleep(Duration::from_millis(20 + random.below(80)));
    }
}

fn try_once(ports: &[u16], intent: &str, (key, token): (&str, Token), random: &mut Random) -> Option<Answer> {
    let port = ports[usize::try_from(random.below(ports.len() as u64)).unwrap_or(0)];
    http::send(port, &head(key, token), intent, PATIENCE).ok()
}

/// The head of a keyed request.
pub(crate) fn head(key: &str, token: Token) -> String {
    format!("POST /chaos HTTP/1.1\r\nAuthorization: {}\r\nIdempotency-Key: {key}", token.value())
}

/// Whether an answer ends the matter. A refusal that says "same key" does not.
fn ended(answer: Answer, unknown_for: Duration) -> Option<End> {
    match answer.status {
        201 => Some(End::Acknowledged(answer)),
        409 if answer.body.contains("outcome-unknown") && unknown_for >= UNKNOWN_MAX => Some(End::Unknown),
        _ => None,
    }
}

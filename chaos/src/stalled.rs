//! Uploads that never come whole: each begins a keyed request, a message or a change of a score, falls silent and goes away. None
//! of them may have any effect, nor hold up the others.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::random::Random;
use super::settling;
use super::tokens::Tokens;
use super::upstream::Upstream;
use super::verdict::Row;

/// How many stall at a time.
const UPLOADS: u64 = 8;
/// How long one is silent at most.
const SILENT_MILLIS_MAX: u64 = 4000;
/// What their intents begin with.
const NAME: &str = "stalled";

/// Those who stall, at work.
pub(crate) struct Stalled {
    threads: Vec<JoinHandle<usize>>,
}

/// Whom they begin to send to.
#[derive(Clone)]
pub(crate) struct Doors {
    pub(crate) gates: Vec<u16>,
    pub(crate) outboxes: Vec<u16>,
    pub(crate) relays: Vec<u16>,
}

impl Stalled {
    pub(crate) fn start(doors: &Doors, tokens: &Tokens, stop: &Arc<AtomicBool>, seed: u64) -> Self {
        let upload = |number: u64| {
            let (doors, tokens, stop) = (doors.clone(), tokens.clone(), Arc::clone(stop));
            thread::spawn(move || {
                let mut random = Random::new(seed.wrapping_mul(53) + number);
                let mut begun = 0;
                while !stop.load(Ordering::SeqCst) {
                    begun += usize::from(begin(&doors, &tokens, &mut random).is_ok());
                }
                begun
            })
        };
        Self { threads: (0..UPLOADS).map(upload).collect() }
    }

    /// How many were begun, and how many of them took effect.
    pub(crate) fn finish(self, upstream: &Upstream) -> [Row; 2] {
        let begun = self.threads.into_iter().map(|thread| thread.join().unwrap_or(0)).sum();
        let done = upstream.effects().keys().filter(|intent| intent.starts_with(NAME)).count();
        [
            Row::count("uploads that stalled", begun),
            Row::promise("uploads that stalled and took effect", done),
        ]
    }
}

/// Begins one, is silent for a while, and goes away.
fn begin(doors: &Doors, tokens: &Tokens, random: &mut Random) -> std::io::Result<()> {
    let any = |of: &[u16], random: &mut Random| of[random.below(of.len() as u64) as usize];
    let key = random.uuid();
    let (port, head) = match random.below(4) {
        0 => (any(&doors.outboxes, random), settling::head("POST", "/v1/send")),
        1 => {
            let head = format!("POST /v1/relay/scores HTTP/1.1\r\nX-User: {NAME}\r\nIdempotency-Key: {key}");
            (any(&doors.relays, random), head)
        }
        _ => (any(&doors.gates, random), super::clients::head(&key, tokens.current())),
    };
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    let length = 1 + NAME.len() + usize::try_from(random.below(1 << 19)).unwrap_or(0);
    let rest = format!("{head}\r\nHost: 127.0.0.1\r\nContent-Length: {length}\r\n\r\n{NAME}");
    stream.write_all(rest.as_bytes())?;
    thread::sleep(Duration::from_millis(random.below(SILENT_MILLIS_MAX)));
    Ok(())
}

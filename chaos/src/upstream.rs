//! The service behind the gateways, over HTTP/1.1 and over HTTP/2: every request that reaches it has its effect, and it
//! counts them. It is slow now and then, and sometimes it breaks off after the effect.

use std::collections::BTreeMap;
use std::io::{BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::random::Random;
use super::{http, http2};

/// One request in so many breaks off after its effect.
const BREAKS_ONE_IN: u64 = 40;
/// The longest work, in milliseconds; one request in twenty takes ten times as long.
const WORK_MILLIS_MAX: u64 = 30;
/// One answer in about so many is larger than the gateways keep.
const LARGE_ONE_IN: u32 = 40;
/// How large: what [`ANSWER_KEPT_MAX`] says, and more.
const LARGE_BYTES: usize = 9 << 10;
/// What the gateways keep of an answer.
pub(crate) const ANSWER_KEPT_MAX: &str = "8KiB";
/// A stream of events has so many, so far apart.
const EVENTS: u32 = 15;
const EVENT_EVERY: Duration = Duration::from_millis(200);

/// A service that counts effects.
pub(crate) struct Upstream {
    /// Over HTTP/1.1, and over HTTP/2.
    ports: [u16; 2],
    shared: Arc<Shared>,
}

struct Shared {
    /// Effects by intent.
    effects: Mutex<BTreeMap<String, u32>>,
    /// First effects, in their order.
    order: Mutex<Vec<String>>,
    broken_off: AtomicU64,
    calm: AtomicBool,
    seed: AtomicU64,
}

impl Upstream {
    pub(crate) fn start(seed: u64) -> Result<Self, String> {
        let shared = Arc::new(Shared {
            effects: Mutex::default(),
            order: Mutex::default(),
            broken_off: AtomicU64::new(0),
            calm: AtomicBool::new(false),
            seed: AtomicU64::new(seed),
        });
        let ports = [
            listen(&shared, |shared, stream| shared.serve(stream))?,
            listen(&shared, |shared, stream| http2::serve(stream, &shared))?,
        ];
        Ok(Self { ports, shared })
    }

    /// Where it speaks HTTP/1.1, and where HTTP/2.
    pub(crate) fn ports(&self) -> [u16; 2] {
        self.ports
    }

    /// No more breaking off.
    pub(crate) fn calm(&self) {
        self.shared.calm.store(true, Ordering::SeqCst);
    }

    /// How often each intent took effect.
    pub(crate) fn effects(&self) -> BTreeMap<String, u32> {
        self.shared.effects.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// In which order intents first took effect.
    pub(crate) fn order(&self) -> Vec<String> {
        self.shared.order.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many answers broke off after their effect.
    pub(crate) fn broken_off(&self) -> u64 {
        self.shared.broken_off.load(Ordering::SeqCst)
    }
}

impl Shared {
    fn serve(&self, mut stream: TcpStream) {
        let Ok(reading) = stream.try_clone() else { return };
        let mut reading = BufReader::new(reading);
        let mut random = Random::new(self.seed.fetch_add(1, Ordering::SeqCst));
        while let Ok((head, intent)) = http::message(&mut reading) {
            if head.starts_with("get ") {
                // The client may be gone.
                let _ = self.tell_events(&mut stream);
                return;
            }
            let intent = entry(&head, intent);
            let Some(body) = self.take_effect(&intent, &mut random) else { return };
            let answer = format!("HTTP/1.1 201 Created\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }

    /// Does what is asked for and says so. `None`: it breaks off after that.
    fn take_effect(&self, intent: &str, random: &mut Random) -> Option<String> {
        let longer = if random.below(20) == 0 { 10 } else { 1 };
        thread::sleep(Duration::from_millis(random.below(WORK_MILLIS_MAX * longer)));
        let effect = {
            let mut effects = self.effects.lock().unwrap_or_else(PoisonError::into_inner);
            let count = effects.entry(intent.to_owned()).or_insert(0);
            *count += 1;
            if *count == 1 {
                self.order.lock().unwrap_or_else(PoisonError::into_inner).push(intent.to_owned());
            }
            *count
        };
        if random.below(BREAKS_ONE_IN) == 0 && !self.calm.load(Ordering::SeqCst) {
            self.broken_off.fetch_add(1, Ordering::SeqCst);
            return None;
        }
        let mut said = format!("{intent} took effect, number {effect}, as {:016x}", random.next());
        if is_large(intent) {
            said.push_str(&" ".repeat(LARGE_BYTES));
        }
        Some(said)
    }

    /// A stream of events, to its end.
    fn tell_events(&self, stream: &mut TcpStream) -> std::io::Result<()> {
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")?;
        (0..).map_while(event).try_for_each(|event| stream.write_all(event.as_bytes()))
    }
}

impl http2::Service for Arc<Shared> {
    fn act(&self, body: String) -> Option<String> {
        let mut random = Random::new(self.seed.fetch_add(1, Ordering::SeqCst));
        self.take_effect(&body, &mut random)
    }

    fn event(&self, number: u32) -> Option<String> {
        event(number)
    }
}

/// What the ledger calls a request: what it asks for, and at which of several hosts.
fn entry(head: &str, intent: String) -> String {
    match http::header(head, "host").filter(|host| host.ends_with(".example")) {
        Some(host) => format!("{intent}@{host}"),
        None => intent,
    }
}

/// Whether the answer to this is too large to be kept.
pub(crate) fn is_large(intent: &str) -> bool {
    intent.bytes().map(u32::from).sum::<u32>().is_multiple_of(LARGE_ONE_IN)
}

/// The next event, when it is time for it.
fn event(number: u32) -> Option<String> {
    thread::sleep(EVENT_EVERY);
    (number < EVENTS).then(|| format!("data: {number}\n\n"))
}

/// Serves every connection to a port of its own choice, which is said.
fn listen(shared: &Arc<Shared>, serve: fn(Arc<Shared>, TcpStream)) -> Result<u16, String> {
    let listener =
        TcpListener::bind("127.0.0.1:0").map_err(|error| format!("the service found no port: {error}"))?;
    let port = listener.local_addr().map_err(|error| error.to_string())?.port();
    let shared = Arc::clone(shared);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let shared = Arc::clone(&shared);
            thread::spawn(move || serve(shared, stream));
        }
    });
    Ok(port)
}

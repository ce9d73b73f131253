//! The service behind the gateways: every request that reaches it has its effect, and it counts them. It is slow now and
//! then, and sometimes it breaks off after the effect.

use std::collections::BTreeMap;
use std::io::{BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::http;
use super::random::Random;

/// One request in so many breaks off after its effect.
const BREAKS_ONE_IN: u64 = 40;
/// The longest work, in milliseconds; one request in twenty takes ten times as long.
const WORK_MILLIS_MAX: u64 = 30;

/// A service that counts effects.
pub(crate) struct Upstream {
    port: u16,
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
        let listener = TcpListener::bind("127.0.0.1:0")
            .map_err(|error| format!("the service found no port: {error}"))?;
        let port = listener.local_addr().map_err(|error| error.to_string())?.port();
        let shared = Arc::new(Shared {
            effects: Mutex::default(),
            order: Mutex::default(),
            broken_off: AtomicU64::new(0),
            calm: AtomicBool::new(false),
            seed: AtomicU64::new(seed),
        });
        let upstream = Self { port, shared: Arc::clone(&shared) };
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                thread::spawn(move || shared.serve(stream));
            }
        });
        Ok(upstream)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
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
        while let Ok((_, intent)) = http::message(&mut reading) {
            let longer = if random.below(20) == 0 { 10 } else { 1 };
            thread::sleep(Duration::from_millis(random.below(WORK_MILLIS_MAX * longer)));
            let effect = {
                let mut effects = self.effects.lock().unwrap_or_else(PoisonError::into_inner);
                let count = effects.entry(intent.clone()).or_insert(0);
                *count += 1;
                if *count == 1 {
                    self.order.lock().unwrap_or_else(PoisonError::into_inner).push(intent.clone());
                }
                *count
            };
            if random.below(BREAKS_ONE_IN) == 0 && !self.calm.load(Ordering::SeqCst) {
                self.broken_off.fetch_add(1, Ordering::SeqCst);
                return;
            }
            let body = format!("{intent} took effect, number {effect}, as {:016x}", random.next());
            let answer = format!("HTTP/1.1 201 Created\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }
}

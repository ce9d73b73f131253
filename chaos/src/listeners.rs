//! Those who listen to events through the gateways, and so hold streams that others wait for.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::random::Random;
use super::verdict::Row;

/// How many listen at a time.
const LISTENERS: u64 = 8;
const PATIENCE: Duration = Duration::from_secs(5);
/// A pause after which one listens again.
const PAUSE: Duration = Duration::from_millis(50);

/// The listeners, at work.
pub(crate) struct Listeners {
    threads: Vec<JoinHandle<usize>>,
}

impl Listeners {
    pub(crate) fn start(gates: &[u16], stop: &Arc<AtomicBool>, seed: u64) -> Self {
        let listener = |number: u64| {
            let (ports, stop) = (gates.to_vec(), Arc::clone(stop));
            thread::spawn(move || {
                let mut random = Random::new(seed.wrapping_mul(31) + number);
                let mut heard = 0;
                while !stop.load(Ordering::SeqCst) {
                    let port = ports[usize::try_from(random.below(ports.len() as u64)).unwrap_or(0)];
                    heard += usize::from(listen(port).is_ok_and(|bytes| bytes > 0));
                    thread::sleep(PAUSE);
                }
                heard
            })
        };
        Self { threads: (0..LISTENERS).map(listener).collect() }
    }

    /// How many streams of events were heard.
    pub(crate) fn finish(self) -> Row {
        let heard = self.threads.into_iter().map(|thread| thread.join().unwrap_or(0)).sum();
        Row::count("streams of events that were listened to", heard)
    }
}

/// Listens to one stream until it ends; says how many bytes came.
fn listen(port: u16) -> std::io::Result<usize> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")?;
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard)?;
    let is_told = heard.starts_with(b"HTTP/1.1 200");
    Ok(if is_told { heard.len() } else { 0 })
}

//! A proxy of our own between two processes, whose connections can be cut, refused, or accepted and left waiting at any
//! moment.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use semel_testbed::process;

const BUFFER_BYTES: usize = 64 << 10;

/// A proxy to one port of this machine.
pub(crate) struct Proxy {
    port: u16,
    target: Arc<AtomicU16>,
    refuses: Arc<AtomicBool>,
    waits: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    pub(crate) fn start(target: u16) -> Result<Self, String> {
        let listener =
            TcpListener::bind("127.0.0.1:0").map_err(|error| format!("a proxy found no port: {error}"))?;
        let port = listener.local_addr().map_err(|error| error.to_string())?.port();
        let proxy = Self {
            port,
            target: Arc::new(AtomicU16::new(target)),
            refuses: Arc::default(),
            waits: Arc::default(),
            open: Arc::default(),
        };
        let (target, open) = (Arc::clone(&proxy.target), Arc::clone(&proxy.open));
        let (refuses, waits) = (Arc::clone(&proxy.refuses), Arc::clone(&proxy.waits));
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if refuses.load(Ordering::SeqCst) {
                    continue;
                }
                let (target, open, waits) = (Arc::clone(&target), Arc::clone(&open), Arc::clone(&waits));
                thread::spawn(move || {
                    while waits.load(Ordering::SeqCst) {
                        thread::sleep(process::POLL);
                    }
                    lead(client, target.load(Ordering::SeqCst), &open);
                });
            }
        });
        Ok(proxy)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Leads to another port from now on; what is open is cut.
    pub(crate) fn lead_to(&self, target: u16) {
        self.target.store(target, Ordering::SeqCst);
        self.cut();
    }

    /// Cuts what is open.
    pub(crate) fn cut(&self) {
        for stream in self.open.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // Closed already, in many cases.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Accepts connections and leads them nowhere, until told otherwise; what is open is cut.
    pub(crate) fn keep_waiting(&self, waits: bool) {
        self.waits.store(waits, Ordering::SeqCst);
        if waits {
            self.cut();
        }
    }

    /// Lets nobody through, until told otherwise.
    pub(crate) fn refuse(&self, refuses: bool) {
        self.refuses.store(refuses, Ordering::SeqCst);
        if refuses {
            self.cut();
        }
    }
}

/// Leads one connection to its target.
fn lead(client: TcpStream, target: u16, open: &Mutex<Vec<TcpStream>>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else { return };
    for (from, to) in [(&client, &server), (&server, &client)] {
        if let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) {
            thread::spawn(move || pass(from, to));
        }
    }
    let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
    open.retain(|stream: &TcpStream| stream.peer_addr().is_ok());
    open.extend([client, server]);
}

fn pass(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = [0; BUFFER_BYTES];
    while let Ok(read) = from.read(&mut buffer) {
        if read == 0 || to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

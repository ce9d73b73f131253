//! A proxy of our own between two processes, whose connections can be cut and refused at any moment.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

const BUFFER_BYTES: usize = 64 << 10;

/// A proxy to one port of this machine.
pub(crate) struct Proxy {
    port: u16,
    target: Arc<AtomicU16>,
    refuses: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    pub(crate) fn start(target: u16) -> Result<Self, String> {
        let listener =
            TcpListener::bind("127.0.0.1:0").map_err(|error| format!("a proxy found no port: {error}"))?;
        let port = listener.local_addr().map_err(|error| error.to_string())?.port();
        let (refuses, open) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let target = Arc::new(AtomicU16::new(target));
        let proxy = Self {
            port,
            target: Arc::clone(&target),
            refuses: Arc::clone(&refuses),
            open: Arc::clone(&open),
        };
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if refuses.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(server) = TcpStream::connect(("127.0.0.1", target.load(Ordering::SeqCst))) else {
                    continue;
                };
                for (from, to) in [(&client, &server), (&server, &client)] {
                    if let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) {
                        thread::spawn(move || pass(from, to));
                    }
                }
                let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
                open.retain(|stream: &TcpStream| stream.peer_addr().is_ok());
                open.extend([client, server]);
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

    /// Lets nobody through, until told otherwise.
    pub(crate) fn refuse(&self, refuses: bool) {
        self.refuses.store(refuses, Ordering::SeqCst);
        if refuses {
            self.cut();
        }
    }
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

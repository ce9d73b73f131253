//! The addresses that are listened on: handed over by the service manager (socket activation), or bound here.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd};

use crate::exit::{Exit, Stop};

/// The first descriptor that a service manager hands over.
const FIRST: i32 = 3;

/// Clients that wait to be accepted; the system may allow fewer.
const ACCEPT_QUEUE: i32 = 4096;

/// The listeners of the gate.
pub(crate) struct Sockets {
    /// For clients.
    pub(crate) gate: TcpListener,
    /// For operators.
    pub(crate) admin: TcpListener,
}

impl Sockets {
    /// Takes over what was handed over, and binds the rest. A descriptor named `admin`, or without names the second one,
    /// is for operators.
    pub(crate) fn open(gate: SocketAddr, admin: SocketAddr) -> Result<Self, Stop> {
        let mut handed: Vec<(String, TcpListener)> = handed_over();
        let named = |name: &str, handed: &mut Vec<(String, TcpListener)>| {
            let at = handed.iter().position(|(given, _)| given == name)?;
            Some(handed.remove(at).1)
        };
        let for_admin = named("admin", &mut handed);
        let mut rest = handed.into_iter().map(|(_, listener)| listener);
        let for_gate = rest.next();
        let for_admin = for_admin.or_else(|| rest.next());
        let open = |given: Option<TcpListener>, address, flag| match given {
            Some(listener) => Ok(listener),
            None => bind(address, flag),
        };
        let sockets =
            Self { gate: open(for_gate, gate, "--listen")?, admin: open(for_admin, admin, "--admin")? };
        for listener in [&sockets.gate, &sockets.admin] {
            listener
                .set_nonblocking(true)
                .map_err(|error| Stop::new(Exit::Io, format!("failed to prepare a listener: {error}")))?;
        }
        Ok(sockets)
    }
}

/// Lets this process open as many descriptors as the system allows it: every client is one.
pub(crate) fn raise_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to a live rlimit.
    let is_read = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0;
    if is_read && limit.rlim_cur < limit.rlim_max {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: the pointer is to a live rlimit. Where this is refused, the old limit holds.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    }
}

/// Lets more clients wait to be accepted than is usual, so that a storm of them is not turned away.
fn lengthen_queue(listener: &TcpListener) {
    // SAFETY: the descriptor is a live listener's; listening again only changes the length of its queue.
    unsafe { libc::listen(listener.as_raw_fd(), ACCEPT_QUEUE) };
}

fn bind(address: SocketAddr, flag: &str) -> Result<TcpListener, Stop> {
    let bound = TcpListener::bind(address).inspect(lengthen_queue);
    bound.map_err(|error| {
        let what_to_do = match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                format!("; another process has it: stop it, or choose another with {flag}")
            }
            _ => String::new(),
        };
        Stop::new(Exit::Io, format!("failed to listen on {address}: {error}{what_to_do}"))
    })
}

/// What the service manager handed over, with the names it gave.
fn handed_over() -> Vec<(String, TcpListener)> {
    let variable = |name: &str| std::env::var(name).ok();
    let is_for_us = variable("LISTEN_PID").and_then(|pid| pid.parse().ok()) == Some(std::process::id());
    let count: i32 = variable("LISTEN_FDS").and_then(|count| count.parse().ok()).unwrap_or(0);
    if !is_for_us || count < 1 {
        return Vec::new();
    }
    let names = variable("LISTEN_FDNAMES").unwrap_or_default();
    let names: Vec<&str> = names.split(':').collect();
    (FIRST..FIRST.saturating_add(count))
        .zip(0..)
        .map(|(descriptor, at): (i32, usize)| {
            // SAFETY: the manager says that these descriptors are this process's own; nothing else uses them.
            let listener = unsafe { TcpListener::from_raw_fd(descriptor) };
            (names.get(at).copied().unwrap_or_default().to_owned(), listener)
        })
        .collect()
}

//! Tells the service manager what this process is doing (`Type=notify`). Without a manager it says nothing.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// It serves.
pub(crate) const READY: &str = "READY=1";
/// It ends.
pub(crate) const STOPPING: &str = "STOPPING=1";

/// It reads its settings anew; [`READY`] ends that.
pub(crate) fn reloading() -> String {
    format!("RELOADING=1\nMONOTONIC_USEC={}", monotonic_micros())
}

fn monotonic_micros() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live timespec, and every Linux has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec * 1_000_000 + time.tv_nsec / 1000
}

/// Tells the manager.
pub(crate) fn tell(what: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(&name),
    };
    let sent = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(what.as_bytes(), &address));
    if let Err(error) = sent {
        tracing::warn!(%error, "failed to tell the service manager");
    }
}

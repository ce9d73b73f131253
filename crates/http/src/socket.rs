//! What every TCP connection is set to, towards clients and towards services.

use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// After how long without traffic a peer is asked whether it is still there; one that left without a word is noticed even
/// where nothing has a deadline, as in a connection that changed its protocol.
const ASKED_AFTER: Duration = Duration::from_secs(60);
/// How often it is asked again.
const ASKED_EVERY: Duration = Duration::from_secs(15);

/// Small pieces go out at once, and a peer that is gone is noticed. A socket that refuses this still works.
pub fn prepare_socket(socket: &TcpStream) {
    let keepalive = TcpKeepalive::new().with_time(ASKED_AFTER).with_interval(ASKED_EVERY);
    let _ = socket.set_nodelay(true);
    let _ = SockRef::from(socket).set_tcp_keepalive(&keepalive);
}

//! Accepts connections, as many as are allowed at a time, until told to stop; then sees them to their end.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use super::Limits;
use super::connection::Connection;
use super::handler::Handler;
use crate::cores::Cores;

/// The pause after an accept that failed for want of resources.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// More connections than any system holds.
const CONNECTIONS_MAX: usize = 1 << 24;

/// Lets connections in, and asks them to end.
#[derive(Debug)]
pub struct Acceptor {
    closing: watch::Sender<bool>,
    open: Arc<Semaphore>,
    count: Arc<AtomicUsize>,
    connections_max: usize,
    /// Where connections are served; without cores of their own, in the runtime that accepts them.
    cores: Option<Cores>,
}

/// A connection, as long as it is open.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        metrics::gauge!("semel_gateway_connections").increment(1.0);
        Self(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
        metrics::gauge!("semel_gateway_connections").decrement(1.0);
    }
}

/// What the next connection is served with.
#[derive(Clone, Debug)]
pub struct ConnectionSettings {
    /// The certificate that clients see; without one there is no TLS.
    pub tls: Option<Arc<ServerConfig>>,
    /// What clients may take.
    pub limits: Limits,
}

impl Acceptor {
    /// At most so many connections are open at a time; more wait to be accepted.
    pub fn new(connections_max: usize) -> Self {
        let connections_max = connections_max.clamp(1, CONNECTIONS_MAX);
        Self {
            closing: watch::Sender::new(false),
            open: Arc::new(Semaphore::new(connections_max)),
            count: Arc::default(),
            connections_max,
            cores: None,
        }
    }

    /// Serves connections on these cores.
    pub fn on(self, cores: Cores) -> Self {
        Self { cores: Some(cores), ..self }
    }

    /// Connections that are open.
    pub fn open_connections(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Accepts until [`Acceptor::close`].
    ///
    /// # Errors
    /// The listener failed for good.
    pub async fn accept<D: Handler>(
        &self,
        listener: TcpListener,
        settings: impl Fn() -> ConnectionSettings,
        handler: D,
    ) -> io::Result<()> {
        let mut closing = self.closing.subscribe();
        loop {
            let accepted = async {
                // The permit comes first: what has no room waits in the system's queue.
                let permit = Arc::clone(&self.open).acquire_owned().await;
                (permit, listener.accept().await)
            };
            let (permit, accepted) = tokio::select! {
                biased;
                _ = closing.wait_for(|closing| *closing) => return Ok(()),
                accepted = accepted => accepted,
            };
            let (socket, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // One peer that is gone again is its own affair; no more descriptors is everybody's.
                    tracing::warn!(%error, "failed to accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let ConnectionSettings { tls, limits } = settings();
            let closing = self.closing.subscribe();
            let counted = Counted::new(&self.count);
            let handler = handler.clone();
            let serve = move |socket| async move {
                let connection = Connection { socket, peer, tls, limits, handler, closing };
                connection.run().await;
                drop((counted, permit));
            };
            match &self.cores {
                None => drop(tokio::spawn(serve(socket))),
                Some(cores) => hand_over(socket, cores, serve),
            }
        }
    }

    /// Lets nobody in any more, and asks those inside to end.
    pub fn close(&self) {
        self.closing.send_replace(true);
    }

    /// Waits until all connections have ended, or until then.
    pub async fn empty(&self, until: Instant) {
        let all = u32::try_from(self.connections_max).unwrap_or(u32::MAX);
        let _ = tokio::time::timeout_at(until, self.open.acquire_many(all)).await;
    }
}

/// Gives a socket to a core, whose own it is from then on: what comes on it wakes that core alone.
fn hand_over<F>(socket: TcpStream, cores: &Cores, serve: impl FnOnce(TcpStream) -> F + Send + 'static)
where
    F: Future<Output = ()> + Send,
{
    let failed = |error: io::Error| tracing::warn!(%error, "failed to hand over a connection");
    match socket.into_std() {
        Ok(socket) => cores.spawn(async move {
            match TcpStream::from_std(socket) {
                Ok(socket) => serve(socket).await,
                Err(error) => failed(error),
            }
        }),
        Err(error) => failed(error),
    }
}

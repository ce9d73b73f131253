//! Connections that are kept for the next request, by the core that opened them: a request that goes out on another core's
//! would wake that one, and be woken by it. Gives each to one request at a time, and takes it back when its answer has been
//! read in full. Over HTTP/2 requests without a key share connections, as far as their streams reach; a keyed
//! request has one of its own, so that it never waits for a stream. Sends nothing itself.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum_core::body::Body;
use hyper::client::conn::http2;
use rustls::ClientConfig;
use semel_contract::planted::{self, Bug};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::connect::Connector;
use super::connection::{Connection, Sender, SharedSender};
use super::{Protocol, Upstream};
use crate::HttpError;
use crate::cores;
use crate::tls::client_tls;

/// A connection that was idle for longer is not given a keyed request: its peer may be about to close it, and whether it
/// had read the request by then could not be told.
pub(crate) const IDLE_KEYED_MAX: Duration = Duration::from_secs(1);
/// A connection that was idle for longer is given no request at all.
pub(crate) const IDLE_MAX: Duration = Duration::from_secs(20);
/// Idle connections that a core keeps.
const IDLE_COUNT_MAX: usize = 256;
/// Cores that have connections of their own; of more, some share them.
const CORES_MAX: usize = 64;

/// The connections to one service.
pub struct Pool {
    pub(super) upstream: Upstream,
    connector: Connector,
    by_core: [OfCore; CORES_MAX],
    /// Room for keyed requests, and for others: streams that last do not take it from what must be answered once.
    keyed: Arc<Semaphore>,
    others: Arc<Semaphore>,
    /// Room for connections that changed their protocol.
    tunnels: Arc<Semaphore>,
}

/// The connections of a core.
#[derive(Default)]
struct OfCore {
    idle: Mutex<Vec<(Connection, Instant)>>,
    /// Connections that take many requests.
    shared: tokio::sync::Mutex<Vec<Shared>>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("target", &self.upstream.target).finish_non_exhaustive()
    }
}

/// Whose room a request takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    Keyed,
    Others,
}

/// An HTTP/2 connection that takes many requests.
struct Shared {
    shared: SharedSender,
    /// When it was last given to a request.
    used: Instant,
    /// Held by this and by every request on it.
    streams: Arc<()>,
}

impl Shared {
    fn is_fresh(&self, idle_max: Duration) -> bool {
        self.used.elapsed() <= idle_max && self.shared.sender.is_ready()
    }

    /// Whether the service allows another stream on it.
    fn has_stream(&self) -> bool {
        Arc::strong_count(&self.streams) <= (self.shared.streams_max)()
    }

    fn take_stream(&mut self) -> Lane {
        self.used = Instant::now();
        Lane::Shared { sender: self.shared.sender.clone(), _stream: Arc::clone(&self.streams) }
    }
}

/// What a request goes out on.
pub(super) enum Lane {
    /// A connection of its own.
    Own(Connection),
    /// A stream beside others, counted while it is held.
    Shared { sender: http2::SendRequest<Body>, _stream: Arc<()> },
}

/// A connection that belongs to a request until its answer has been read.
pub(crate) struct PooledConnection {
    pub(super) lane: Lane,
    permit: OwnedSemaphorePermit,
}

impl PooledConnection {
    /// Leaves the connection to what it became: it changed its protocol.
    pub(super) fn detach(self) {
        match self.lane {
            Lane::Own(connection) => connection.detach(),
            Lane::Shared { .. } => {}
        }
    }

    /// Whether HTTP/2 is spoken on it.
    pub(super) fn is_http2(&self) -> bool {
        match &self.lane {
            Lane::Own(connection) => matches!(connection.sender(), Sender::Http2(_)),
            Lane::Shared { .. } => true,
        }
    }
}

impl Pool {
    /// No connections yet.
    ///
    /// # Errors
    /// The service's certificates cannot be read.
    pub fn new(upstream: Upstream) -> Result<Arc<Self>, HttpError> {
        let tls = match upstream.target.is_tls() {
            true => client_tls(upstream.ca.as_deref()).map(Arc::new),
            false => Err("there is no TLS".into()),
        };
        Self::with_tls(upstream, tls)
    }

    /// The same, with certificates that were read before: `ca` is not looked at.
    ///
    /// # Errors
    /// The service is reached over TLS, and there are no certificates, or none could have its name.
    pub fn with_tls(
        upstream: Upstream,
        tls: Result<Arc<ClientConfig>, HttpError>,
    ) -> Result<Arc<Self>, HttpError> {
        Ok(Arc::new(Self {
            connector: Connector::new(&upstream, tls)?,
            keyed: Arc::new(Semaphore::new(upstream.connections_max)),
            others: Arc::new(Semaphore::new(upstream.connections_max)),
            tunnels: Arc::new(Semaphore::new(upstream.connections_max)),
            upstream,
            by_core: std::array::from_fn(|_| OfCore::default()),
        }))
    }

    /// Opens a connection and closes it again: whether the service can be reached at all. No request is sent.
    ///
    /// # Errors
    /// It cannot be reached; says why.
    pub async fn reach(&self) -> Result<(), HttpError> {
        self.open().await?;
        Ok(())
    }

    /// How long an answer to a keyed request may be silent.
    pub fn patience(&self) -> Duration {
        self.upstream.timeout
    }

    /// How long a stream may be silent.
    pub fn stream_idle(&self) -> Duration {
        self.upstream.stream_idle
    }

    /// Room for a connection that changes its protocol, if there is any.
    pub fn reserve_tunnel(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.tunnels).try_acquire_owned().ok()
    }

    /// A connection that is ready for a request: one that was idle for at most `idle_max`, or a new one. An error means
    /// that there is none, and that nothing was sent.
    pub(crate) async fn checkout(&self, room: Room, idle_max: Duration) -> Result<PooledConnection, String> {
        let semaphore = match room {
            Room::Keyed => &self.keyed,
            Room::Others => &self.others,
        };
        let permit = match Arc::clone(semaphore).try_acquire_owned() {
            Ok(permit) => permit,
            // This path is rare. In a box it takes no room in the future of every request.
            Err(_) => Box::pin(self.wait_for(semaphore)).await?,
        };
        let is_shared = room == Room::Others || planted::is(Bug::KeyedStreamShared);
        if self.upstream.protocol == Protocol::Http2 && is_shared {
            // The request that opens the connection is waited for, within bounds: what waited in vain was not sent.
            let patience = self.upstream.connect_timeout * 2;
            let lane = Box::pin(tokio::time::timeout(patience, self.share(room, idle_max))).await;
            let lane = lane.map_err(|_| format!("no connection within {patience:?}"))??;
            return Ok(PooledConnection { lane, permit });
        }
        while let Some(mut connection) = self.take_idle(idle_max) {
            if connection.ready().await {
                return Ok(PooledConnection { lane: Lane::Own(connection), permit });
            }
        }
        Ok(PooledConnection { lane: Lane::Own(Box::pin(self.open()).await?), permit })
    }

    /// Waits for room, as long as one may wait for a connection.
    async fn wait_for(&self, room: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, String> {
        let waiting = Arc::clone(room).acquire_owned();
        match tokio::time::timeout(self.upstream.connect_timeout, waiting).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) | Err(_) => Err(format!("all {} connections are busy", self.upstream.connections_max)),
        }
    }

    async fn open(&self) -> Result<Connection, String> {
        let mut connection = self.connector.connect().await?;
        match tokio::time::timeout(self.upstream.connect_timeout, connection.ready()).await {
            Ok(true) => Ok(connection),
            Ok(false) | Err(_) => Err(format!("{} closed the connection at once", self.upstream.target)),
        }
    }

    /// Takes a connection back as soon as it can take another request; never, if it cannot.
    pub(super) fn take_back(self: Arc<Self>, pooled: PooledConnection, ended: Instant) {
        let PooledConnection { lane, permit } = pooled;
        let mut connection = match lane {
            Lane::Own(connection) => connection,
            Lane::Shared { .. } => return,
        };
        if connection.is_ready() {
            return self.keep(connection, ended);
        }
        // The answer has ended and the request may not have: it is still being sent. A runtime that is gone sends nothing.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            // A service that reads no more would hold the room for ever.
            if let Ok(true) = tokio::time::timeout(IDLE_MAX, connection.ready()).await {
                self.keep(connection, Instant::now());
            }
            drop(permit);
        });
    }

    fn keep(&self, mut connection: Connection, since: Instant) {
        connection.finish();
        let mut idle = self.idle();
        // The oldest come first, and the closed ones are found when they are taken.
        let is_old = |other: Instant| since.saturating_duration_since(other) > IDLE_MAX;
        let old = idle.iter().take_while(|(_, other)| is_old(*other)).count();
        idle.drain(..old);
        if idle.len() < IDLE_COUNT_MAX {
            // In order of age, so that the last is the youngest.
            let place = idle.partition_point(|(_, other)| *other <= since);
            idle.insert(place, (connection, since));
        }
    }

    /// The connection that was used last, if it is fresh enough: the others are older still.
    fn take_idle(&self, idle_max: Duration) -> Option<Connection> {
        let mut idle = self.idle();
        let (_, since) = idle.last()?;
        if since.elapsed() > idle_max {
            // The newest has rested too long for anybody: so have the others, which the service would keep a place for.
            if since.elapsed() > IDLE_MAX {
                idle.clear();
            }
            return None;
        }
        idle.pop().map(|(connection, _)| connection)
    }

    /// A stream on a connection that takes many requests, opened by the first that needs it while the others wait. A
    /// service that turns out not to speak HTTP/2 gets a connection for each request.
    async fn share(&self, room: Room, idle_max: Duration) -> Result<Lane, String> {
        let mut shared = self.of_core().shared.lock().await;
        // Those that are too old for this request may serve others.
        shared.retain(|one| one.is_fresh(IDLE_MAX));
        let is_unasked = room == Room::Keyed && planted::is(Bug::KeyedStreamShared);
        let fits = |one: &&mut Shared| one.is_fresh(idle_max) && (one.has_stream() || is_unasked);
        if let Some(one) = shared.iter_mut().find(fits) {
            return Ok(one.take_stream());
        }
        let connection = self.open().await?;
        let sender = match connection.sender() {
            Sender::Http2(shared) => shared.clone(),
            Sender::Http1(_) => return Ok(Lane::Own(connection)),
        };
        let mut one = Shared { shared: sender, used: Instant::now(), streams: Arc::default() };
        let lane = one.take_stream();
        shared.push(one);
        Ok(lane)
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<(Connection, Instant)>> {
        // Nothing that holds this lock panics; a list of connections is whole in any case.
        self.of_core().idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connections of the core that asks.
    fn of_core(&self) -> &OfCore {
        &self.by_core[cores::here() % CORES_MAX]
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use http_body_util::BodyExt;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::first_byte::MaySend;

    async fn listen() -> (TcpListener, Upstream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, Upstream::at(format!("http://{address}").parse().unwrap()))
    }

    /// A service that answers before it has read the request, and then reads no more, keeps nobody out for ever.
    #[tokio::test]
    async fn a_request_that_is_never_read_gives_its_room_back() {
        let (listener, upstream) = listen().await;
        tokio::spawn(async move {
            let mut open = Vec::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut first = [0; 4];
                stream.read_exact(&mut first).await.unwrap();
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
                open.push(stream);
            }
        });
        let pool = Pool::new(Upstream { connections_max: 1, ..upstream }).unwrap();
        let send = async || {
            let request = Request::post("/").body(Body::from(vec![b'x'; 64 << 20])).unwrap();
            let answer = pool.send_once(Box::new(request), MaySend::always(), IDLE_MAX).await;
            answer.map(|response| response.into_body().collect())
        };
        send().await.expect("an answer").await.unwrap();
        assert_eq!(pool.keyed.available_permits(), 0, "its request is still on its way");
        // What takes it back has begun to wait.
        tokio::task::yield_now().await;
        tokio::time::pause();
        tokio::time::advance(IDLE_MAX + Duration::from_secs(1)).await;
        tokio::time::resume();
        send().await.expect("room again").await.unwrap();
    }

    /// A service whose handler has failed hangs up just after its answer: what is sent meanwhile is lost.
    #[tokio::test]
    async fn no_request_follows_a_server_error_on_its_connection() {
        for (status, connections) in [(200, 1), (404, 1), (500, 2), (503, 2)] {
            let (listener, upstream) = listen().await;
            let accepted = Arc::new(std::sync::atomic::AtomicUsize::new(0));
            let count = Arc::clone(&accepted);
            tokio::spawn(async move {
                loop {
                    let (mut stream, _) = listener.accept().await.unwrap();
                    count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    tokio::spawn(async move {
                        let mut read = [0; 4096];
                        while stream.read(&mut read).await.is_ok_and(|length| length > 0) {
                            let answer = format!("HTTP/1.1 {status} Said\r\ncontent-length: 2\r\n\r\nok");
                            stream.write_all(answer.as_bytes()).await.unwrap();
                        }
                    });
                }
            });
            let pool = Pool::new(upstream).unwrap();
            for _ in 0..2 {
                let request = Request::post("/").body(Body::from("x")).unwrap();
                let answer = pool.send_once(Box::new(request), MaySend::always(), IDLE_MAX).await.unwrap();
                assert_eq!(answer.status().as_u16(), status);
                answer.into_body().collect().await.unwrap();
            }
            assert_eq!(accepted.load(std::sync::atomic::Ordering::SeqCst), connections, "after {status}");
        }
    }

    /// A request that wants a new connection takes no stream from those that share the others.
    #[tokio::test]
    async fn a_request_on_a_new_connection_leaves_the_shared_ones_as_they_are() {
        let (listener, upstream) = listen().await;
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let answer = hyper::service::service_fn(async |_| {
                    Ok::<_, std::convert::Infallible>(Response::new(Body::empty()))
                });
                let http2 = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                tokio::spawn(http2.serve_connection(TokioIo::new(stream), answer));
            }
        });
        let pool = Pool::new(Upstream { protocol: Protocol::Http2, ..upstream }).unwrap();
        let shared = async || pool.of_core().shared.lock().await.len();
        let first = pool.checkout(Room::Others, IDLE_MAX).await.unwrap();
        let again = pool.checkout(Room::Others, Duration::ZERO).await.unwrap();
        assert_eq!(shared().await, 2, "a new one beside the old one");
        drop(pool.checkout(Room::Others, IDLE_MAX).await.unwrap());
        assert_eq!(shared().await, 2);
        drop((first, again));
    }
}

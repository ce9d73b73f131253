//! Connections that are kept for the next request. Lends each to one request at a time (HTTP/2: to many), and takes it
//! back when its answer has been read in full. Sends nothing itself.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum_core::body::Body;
use hyper::client::conn::{http1, http2};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::connect::{Connector, Sender};
use super::{Protocol, Upstream};

/// A connection that was idle for longer is not given a keyed request: its peer may be about to close it, and whether it
/// had read the request by then could not be told.
pub(crate) const IDLE_KEYED_MAX: Duration = Duration::from_secs(1);
/// A connection that was idle for longer is given no request at all.
pub(crate) const IDLE_MAX: Duration = Duration::from_secs(20);
/// Idle connections that are kept.
const IDLE_COUNT_MAX: usize = 256;

/// The connections to one service.
pub(crate) struct Pool {
    pub(super) upstream: Upstream,
    connector: Connector,
    idle: Mutex<Vec<(Sender, Instant)>>,
    /// The connection that takes many requests, and when it was last lent.
    shared: tokio::sync::Mutex<Option<(http2::SendRequest<Body>, Instant)>>,
    /// Room for keyed requests, and for others: streams that last do not take it from what must be answered once.
    keyed: Arc<Semaphore>,
    others: Arc<Semaphore>,
    /// Room for connections that changed their protocol.
    tunnels: Arc<Semaphore>,
}

/// Whose room a request takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    Keyed,
    Others,
}

/// A connection on loan.
pub(crate) struct Loan {
    pub(super) sender: Sender,
    pub(super) permit: OwnedSemaphorePermit,
}

impl Pool {
    /// No connections yet.
    ///
    /// # Errors
    /// The service's certificates cannot be read.
    pub(crate) fn new(upstream: Upstream) -> Result<Arc<Self>, String> {
        Ok(Arc::new(Self {
            connector: Connector::new(&upstream)?,
            keyed: Arc::new(Semaphore::new(upstream.connections_max)),
            others: Arc::new(Semaphore::new(upstream.connections_max)),
            tunnels: Arc::new(Semaphore::new(upstream.connections_max)),
            upstream,
            idle: Mutex::default(),
            shared: tokio::sync::Mutex::default(),
        }))
    }

    /// How long an answer to a keyed request may be silent.
    pub(crate) fn patience(&self) -> Duration {
        self.upstream.timeout
    }

    /// How long a stream may be silent.
    pub(crate) fn stream_idle(&self) -> Duration {
        self.upstream.stream_idle
    }

    /// Room for a connection that changes its protocol, if there is any.
    pub(crate) fn tunnel(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.tunnels).try_acquire_owned().ok()
    }

    /// A connection that is ready for a request: one that was idle for at most `idle_max`, or a new one. An error means
    /// that there is none, and that nothing was sent.
    pub(crate) async fn lend(&self, room: Room, idle_max: Duration) -> Result<Loan, String> {
        let room = match room {
            Room::Keyed => &self.keyed,
            Room::Others => &self.others,
        };
        let permit = match Arc::clone(room).try_acquire_owned() {
            Ok(permit) => permit,
            // What is done seldom is done in a box: otherwise every request would carry the room for it.
            Err(_) => Box::pin(self.wait_for(room)).await?,
        };
        if self.upstream.protocol == Protocol::Http2 {
            // Whoever opens the connection is waited for, within bounds: what waited in vain was not sent.
            let patience = self.upstream.connect_timeout * 2;
            let shared = Box::pin(tokio::time::timeout(patience, self.shared(idle_max))).await;
            let sender = shared.map_err(|_| format!("no connection within {patience:?}"))??;
            return Ok(Loan { sender, permit });
        }
        while let Some(mut sender) = self.take_idle(idle_max) {
            if is_ready(&mut sender).await {
                return Ok(Loan { sender, permit });
            }
        }
        Ok(Loan { sender: Box::pin(self.open()).await?, permit })
    }

    /// Waits for room, as long as one may wait for a connection.
    async fn wait_for(&self, room: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, String> {
        let waiting = Arc::clone(room).acquire_owned();
        match tokio::time::timeout(self.upstream.connect_timeout, waiting).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) | Err(_) => Err(format!("all {} connections are busy", self.upstream.connections_max)),
        }
    }

    async fn open(&self) -> Result<Sender, String> {
        let mut sender = self.connector.connect().await?;
        match is_ready(&mut sender).await {
            true => Ok(sender),
            false => Err(format!("{} closed the connection at once", self.upstream.target)),
        }
    }

    /// Takes a connection back as soon as it can take another request; never, if it cannot.
    pub(super) fn take_back(
        self: Arc<Self>,
        mut sender: http1::SendRequest<Body>,
        permit: OwnedSemaphorePermit,
        ended: Instant,
    ) {
        if sender.is_ready() {
            return self.keep(sender, ended);
        }
        // The answer has ended and the request may not have: it is still being sent. A runtime that is gone sends nothing.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            if sender.ready().await.is_ok() {
                self.keep(sender, Instant::now());
            }
            drop(permit);
        });
    }

    fn keep(&self, sender: http1::SendRequest<Body>, since: Instant) {
        let mut idle = self.idle();
        // The oldest come first, and the closed ones are found when they are taken.
        let is_old = |other: Instant| since.saturating_duration_since(other) > IDLE_MAX;
        let old = idle.iter().take_while(|(_, other)| is_old(*other)).count();
        idle.drain(..old);
        if idle.len() < IDLE_COUNT_MAX {
            // In order of age, so that the last is the youngest.
            let place = idle.partition_point(|(_, other)| *other <= since);
            idle.insert(place, (Sender::One(sender), since));
        }
    }

    /// The connection that was used last, if it is fresh enough: the others are older still.
    fn take_idle(&self, idle_max: Duration) -> Option<Sender> {
        let mut idle = self.idle();
        let (_, since) = idle.last()?;
        if since.elapsed() > idle_max {
            return None;
        }
        idle.pop().map(|(sender, _)| sender)
    }

    /// The connection that takes many requests, opened by the first who needs it while the others wait. A service that
    /// turns out not to speak HTTP/2 gets a connection for each.
    async fn shared(&self, idle_max: Duration) -> Result<Sender, String> {
        let mut shared = self.shared.lock().await;
        if let Some((sender, lent)) = shared.as_mut()
            && lent.elapsed() <= idle_max
            && !sender.is_closed()
            && sender.ready().await.is_ok()
        {
            *lent = Instant::now();
            return Ok(Sender::Many(sender.clone()));
        }
        *shared = None;
        let sender = self.open().await?;
        if let Sender::Many(sender) = &sender {
            *shared = Some((sender.clone(), Instant::now()));
        }
        Ok(sender)
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<(Sender, Instant)>> {
        // Nothing that holds this lock panics; a list of connections is whole in any case.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn is_ready(sender: &mut Sender) -> bool {
    match sender {
        Sender::One(sender) => sender.ready().await.is_ok(),
        Sender::Many(sender) => sender.ready().await.is_ok(),
    }
}

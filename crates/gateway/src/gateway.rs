//! The gateway as a whole: what is in force now, the swap to something else, and the end in good order.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use axum_core::body::Body;
use http::{Request, Response};
use semel_gate::GateLayer;
use tokio::net::TcpListener;
use tokio::time::Instant;

use crate::GatewayError;
use crate::handle;
use crate::plan::{Current, Plan};
use semel_http::{Acceptor, ConnectionSettings, Cores, Facts, Handler};

/// How long work that was begun under settings that were replaced is waited for.
const REPLACED_MAX: Duration = Duration::from_secs(24 * 3600);

/// A reverse proxy with a gate in it. Cheap to clone; all clones are one gateway.
#[derive(Clone)]
pub struct Gateway(Arc<Inner>);

struct Inner {
    current: RwLock<Arc<Current>>,
    /// Gates that were replaced, while work may still run under them.
    replaced: Mutex<Vec<(u64, GateLayer)>>,
    swaps: AtomicU64,
    acceptor: Acceptor,
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gateway").field("connections", &self.connections()).finish_non_exhaustive()
    }
}

impl Gateway {
    /// A gateway that follows this plan.
    ///
    /// # Errors
    /// A certificate cannot be read.
    pub fn new(plan: Plan) -> Result<Self, GatewayError> {
        let acceptor = Acceptor::new(plan.limits.connections_max);
        Self::behind(acceptor, plan)
    }

    /// The same, with each connection on one of these cores, and what it asks of the service as well.
    ///
    /// # Errors
    /// A certificate cannot be read.
    pub fn on(cores: Cores, plan: Plan) -> Result<Self, GatewayError> {
        let acceptor = Acceptor::new(plan.limits.connections_max).on(cores);
        Self::behind(acceptor, plan)
    }

    fn behind(acceptor: Acceptor, plan: Plan) -> Result<Self, GatewayError> {
        let current = RwLock::new(Arc::new(Current::of(plan)?));
        Ok(Self(Arc::new(Inner { current, replaced: Mutex::default(), swaps: AtomicU64::new(0), acceptor })))
    }

    /// Follows another plan from the next request on, and from the next connection on where it is about connections. How
    /// many connections there may be stays as it was. A request whose body is still on its way is answered by the plan
    /// under which it began, but claims nothing under it: its key may have run under the next plan, in another form.
    ///
    /// # Errors
    /// A certificate cannot be read; then everything stays as it was.
    pub fn swap(&self, plan: Plan) -> Result<(), GatewayError> {
        let next = Arc::new(Current::of(plan)?);
        let gate = {
            let mut current = self.0.current.write().unwrap_or_else(PoisonError::into_inner);
            // Closed before the next one is asked: a claim is seen by the one or given up by the other.
            current.gate.close();
            std::mem::replace(&mut *current, next).gate.clone()
        };
        let number = self.0.swaps.fetch_add(1, Ordering::Relaxed);
        self.0.replaced().push((number, gate.clone()));
        let inner = Arc::clone(&self.0);
        tokio::spawn(async move {
            gate.drain(REPLACED_MAX).await;
            inner.replaced().retain(|(other, _)| *other != number);
        });
        Ok(())
    }

    /// Whether the service behind can be reached now. Nothing is asked of it.
    ///
    /// # Errors
    /// It cannot; says why.
    pub async fn reach_upstream(&self) -> Result<(), GatewayError> {
        let pool = Arc::clone(&self.current().pool);
        Ok(pool.reach().await?)
    }

    /// Serves what connects here, until [`Gateway::shut_down`]. Several listeners may be served at a time.
    ///
    /// # Errors
    /// The listener failed for good.
    pub async fn serve(&self, listener: TcpListener) -> io::Result<()> {
        let settings = || {
            let current = self.current();
            ConnectionSettings { tls: current.tls.clone(), limits: current.limits.clone() }
        };
        self.0.acceptor.accept(listener, settings, self.clone()).await
    }

    /// Connections that are open.
    pub fn connections(&self) -> usize {
        self.0.acceptor.open_connections()
    }

    /// Takes no new connection, answers what was asked, waits for work whose client is gone, and after `within` says of
    /// what is left that its outcome is unknown. Tells how much that was. Then the process may end.
    pub async fn shut_down(&self, within: Duration) -> usize {
        let until = Instant::now() + within;
        self.0.acceptor.close();
        self.0.acceptor.empty(until).await;
        let left = until.saturating_duration_since(Instant::now());
        let gates: Vec<GateLayer> = self
            .0
            .replaced()
            .iter()
            .map(|(_, gate)| gate.clone())
            .chain([self.current().gate.clone()])
            .collect();
        let draining = gates.iter().map(|gate| gate.drain(left));
        let unknown = futures_util::future::join_all(draining).await.into_iter().sum();
        self.current().log.flush().await;
        unknown
    }

    pub(crate) fn current(&self) -> Arc<Current> {
        Arc::clone(&self.0.current.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Inner {
    fn replaced(&self) -> MutexGuard<'_, Vec<(u64, GateLayer)>> {
        self.replaced.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Handler for Gateway {
    fn answer(
        &self,
        request: Request<Body>,
        facts: Facts,
    ) -> impl Future<Output = Response<Body>> + Send + 'static {
        handle::walk(self.current(), request, facts)
    }
}

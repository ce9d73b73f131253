//! Serves a service of this process with the deadlines and limits that clients of the gateway get.

use std::convert::Infallible;
use std::future::Future;
use std::io;

use axum_core::body::Body;
use http::{Request, Response};
use tokio::net::TcpListener;
use tower_service::Service;

use crate::server::{Desk, Doors, Facts, Limits, Terms};

/// Serves a service on a listener, for ever.
///
/// # Errors
/// The listener failed for good.
pub async fn serve<S>(listener: TcpListener, limits: Limits, service: S) -> io::Result<()>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send,
{
    let doors = Doors::new(limits.connections_max);
    let terms = || Terms { tls: None, limits: limits.clone() };
    doors.accept(listener, terms, Counter(service)).await
}

/// A service that answers by itself.
#[derive(Clone)]
struct Counter<S>(S);

impl<S> Desk for Counter<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send,
{
    fn answer(
        &self,
        request: Request<Body>,
        _: Facts,
    ) -> impl Future<Output = Response<Body>> + Send + 'static {
        let mut service = self.0.clone();
        async move {
            match std::future::poll_fn(|cx| service.poll_ready(cx)).await {
                Ok(()) => {}
                Err(never) => match never {},
            }
            match service.call(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            }
        }
    }
}

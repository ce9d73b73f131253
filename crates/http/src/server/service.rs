//! Serves a service of this process with the deadlines and limits that clients of the gateway get.

use std::convert::Infallible;
use std::future::Future;
use std::io;

use axum_core::body::Body;
use http::{Request, Response};
use tokio::net::TcpListener;
use tower_service::Service;

use super::{Acceptor, ConnectionSettings, Facts, Handler, Limits};

/// Serves a service on a listener, for ever.
///
/// # Errors
/// The listener failed for good.
pub async fn serve<S>(listener: TcpListener, limits: Limits, service: S) -> io::Result<()>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send,
{
    let acceptor = Acceptor::new(limits.connections_max);
    let settings = || ConnectionSettings { tls: None, limits: limits.clone() };
    acceptor.accept(listener, settings, ServiceHandler(service)).await
}

/// A service that answers by itself.
#[derive(Clone)]
struct ServiceHandler<S>(S);

impl<S> Handler for ServiceHandler<S>
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

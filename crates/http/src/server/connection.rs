//! One connection, from its first byte to its last: TLS, the protocol, the requests on it, and its end in good order.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use axum_core::body::Body;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use super::Limits;
use super::handler::{Facts, Handler};
use super::liveness::{Liveness, Monitored, Patience, while_alive};
use super::sniff::{Rewound, Spoken, sniff};
use crate::headers::Origin;
use crate::prepare_socket;

/// How often a silent HTTP/2 client is asked whether it is still there.
const PING_EVERY: Duration = Duration::from_secs(20);
/// The shortest buffer that hyper reads into.
const BUFFER_BYTES_MIN: usize = 8192;
/// What hyper takes without being told. It then uses its stack.
const HEADERS_MAX_OF_HYPER: usize = 100;

/// An answer in the making.
type Answering = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// A connection that was accepted.
pub(crate) struct Connection<D> {
    pub(crate) socket: TcpStream,
    pub(crate) peer: SocketAddr,
    pub(crate) tls: Option<Arc<ServerConfig>>,
    pub(crate) limits: Limits,
    pub(crate) handler: D,
    /// Set once: no more requests are taken.
    pub(crate) closing: watch::Receiver<bool>,
}

impl<D: Handler> Connection<D> {
    /// Serves it to its end.
    pub(crate) async fn run(self) {
        prepare_socket(&self.socket);
        let limits = &self.limits;
        let liveness = Liveness::new(Patience {
            head: limits.header_timeout,
            idle: limits.idle_timeout,
            write: limits.write_timeout,
        });
        let peer = self.peer;
        let watched = liveness.clone();
        match while_alive(&watched, self.serve(liveness)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%peer, error, "a connection ended badly"),
            Err(why) => tracing::debug!(%peer, ?why, "a connection was closed for its silence"),
        }
    }

    async fn serve(self, liveness: Liveness) -> Result<(), String> {
        let Self { socket, peer, tls, limits, handler, closing } = self;
        let stream = Monitored::new(socket, liveness.clone());
        let scheme = if tls.is_some() { "https" } else { "http" };
        let facts = Facts { origin: Origin::new(peer.ip(), scheme) };
        let conversation = Conversation { limits, handler, facts, liveness, closing };
        // In boxes, here and for each protocol: a future has room for every way that it may go, and each that wraps it has it once more.
        match tls {
            None => Box::pin(conversation.begin(stream)).await,
            Some(config) => Box::pin(conversation.begin_tls(config, stream)).await,
        }
    }
}

/// What the requests of a connection share.
struct Conversation<D> {
    limits: Limits,
    handler: D,
    facts: Facts,
    liveness: Liveness,
    closing: watch::Receiver<bool>,
}

impl<D: Handler> Conversation<D> {
    async fn begin_tls(self, config: Arc<ServerConfig>, stream: Monitored<TcpStream>) -> Result<(), String> {
        let stream = tokio::select! {
            accepted = TlsAcceptor::from(config).accept(stream) => accepted,
            () = closed(self.closing.clone()) => return Ok(()),
        };
        self.begin(stream.map_err(|error| error.to_string())?).await
    }

    async fn begin<S>(self, stream: S) -> Result<(), String>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let sniffed = tokio::select! {
            sniffed = sniff(stream) => sniffed.map_err(|error| error.to_string())?,
            // Nothing was asked yet: nobody waits for an answer.
            () = closed(self.closing.clone()) => return Ok(()),
        };
        match sniffed {
            (Spoken::Http1, stream) => Box::pin(self.serve_http1(stream)).await,
            (Spoken::Http2, stream) => Box::pin(self.serve_http2(stream)).await,
            (Spoken::Nothing, _) => Ok(()),
        }
    }

    async fn serve_http1<S>(self, stream: Rewound<S>) -> Result<(), String>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let Limits { headers_max, header_bytes_max, .. } = self.limits;
        let closing = self.closing.clone();
        let mut http = http1::Builder::new();
        // A number that is set, even hyper's own, makes it clear room for as many with every request.
        if headers_max != HEADERS_MAX_OF_HYPER {
            http.max_headers(headers_max);
        }
        let connection = http
            .header_read_timeout(None)
            .max_header_size(header_bytes_max)
            .max_buf_size((header_bytes_max + 1024).max(BUFFER_BYTES_MIN))
            .serve_connection(TokioIo::new(stream), service_fn(self.answering()))
            .with_upgrades();
        let mut connection = pin!(connection);
        tokio::select! {
            ended = &mut connection => return ended.map_err(|error| error.to_string()),
            () = closed(closing) => connection.as_mut().graceful_shutdown(),
        }
        connection.await.map_err(|error| error.to_string())
    }

    async fn serve_http2<S>(self, stream: Rewound<S>) -> Result<(), String>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let Limits { header_bytes_max, streams_max, .. } = self.limits;
        let closing = self.closing.clone();
        let connection = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_EVERY)
            .max_concurrent_streams(streams_max)
            .max_header_list_size(u32::try_from(header_bytes_max).unwrap_or(u32::MAX))
            .serve_connection(TokioIo::new(stream), service_fn(self.answering()));
        let mut connection = pin!(connection);
        tokio::select! {
            ended = &mut connection => return ended.map_err(|error| error.to_string()),
            () = closed(closing) => connection.as_mut().graceful_shutdown(),
        }
        connection.await.map_err(|error| error.to_string())
    }

    fn answering(self) -> impl Fn(Request<Incoming>) -> Answering {
        let Self { limits, handler, facts, liveness, .. } = self;
        move |request| {
            let busy = liveness.busy();
            let request = super::bodies::receive(request, limits.body_timeout);
            let answer = handler.answer(request, facts.clone());
            Box::pin(async move { Ok(super::bodies::give_back(answer.await, busy)) })
        }
    }
}

async fn closed(mut closing: watch::Receiver<bool>) {
    // A sender that is gone has closed everything as well.
    let _ = closing.wait_for(|closing| *closing).await;
}

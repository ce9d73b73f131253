//! Opens connections to a service. Every error here means that not a byte of a request was sent.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum_core::body::Body;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{Protocol, Target, Upstream};
use crate::socket;
use crate::trust::client_tls;

/// How often a silent HTTP/2 connection is asked whether it is still there.
const PING_EVERY: Duration = Duration::from_secs(20);

/// A connection that takes requests.
pub(crate) enum Sender {
    /// One at a time.
    One(http1::SendRequest<Body>),
    /// Many at once.
    Many(http2::SendRequest<Body>),
}

/// Something that bytes go through.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Opens connections to one service.
pub(crate) struct Connector {
    target: Target,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    protocol: Protocol,
    patience: Duration,
}

impl Connector {
    /// What connects to a service.
    ///
    /// # Errors
    /// Its certificates cannot be read.
    pub(crate) fn new(upstream: &Upstream) -> Result<Self, String> {
        let target = upstream.target.clone();
        let tls = match target.is_tls() {
            true => Some(tls(&target, upstream.ca.as_deref(), upstream.protocol)?),
            false => None,
        };
        Ok(Self { target, tls, protocol: upstream.protocol, patience: upstream.connect_timeout })
    }

    /// Opens a connection.
    pub(crate) async fn connect(&self) -> Result<Sender, String> {
        let opened = tokio::time::timeout(self.patience, self.open()).await;
        opened.unwrap_or_else(|_| Err(format!("{} could not be reached in time", self.target)))
    }

    async fn open(&self) -> Result<Sender, String> {
        let failed = |what: &str, error: &dyn std::error::Error| {
            format!("{} could not be reached: {what}{error}", self.target)
        };
        let socket = TcpStream::connect((self.target.host(), self.target.port()))
            .await
            .map_err(|error| failed("", &error))?;
        socket::prepare(&socket);
        let (stream, agreed): (Box<dyn Stream>, _) = match &self.tls {
            None => (Box::new(socket), self.protocol),
            Some((connector, name)) => {
                let stream =
                    connector.connect(name.clone(), socket).await.map_err(|error| failed("TLS: ", &error))?;
                let agreed = match stream.get_ref().1.alpn_protocol() {
                    Some(b"h2") => Protocol::Http2,
                    Some(_) | None => Protocol::Http1,
                };
                (Box::new(stream), agreed)
            }
        };
        self.greet(stream, agreed).await.map_err(|error| failed("", &error))
    }

    async fn greet(&self, stream: Box<dyn Stream>, protocol: Protocol) -> hyper::Result<Sender> {
        let io = TokioIo::new(stream);
        match protocol {
            Protocol::Http1 => {
                // At most hyper's hundred header lines in an answer: for any other number it clears room for all of them
                // with every answer, which costs more than the parsing.
                let (sender, connection) = http1::Builder::new().handshake(io).await?;
                tokio::spawn(connection.with_upgrades());
                Ok(Sender::One(sender))
            }
            Protocol::Http2 => {
                let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                    .timer(TokioTimer::new())
                    .keep_alive_interval(PING_EVERY)
                    .handshake(io)
                    .await?;
                tokio::spawn(connection);
                Ok(Sender::Many(sender))
            }
        }
    }
}

fn tls(
    target: &Target,
    ca: Option<&Path>,
    protocol: Protocol,
) -> Result<(TlsConnector, ServerName<'static>), String> {
    let mut config = client_tls(ca)?;
    config.alpn_protocols = match protocol {
        Protocol::Http1 => vec![b"http/1.1".to_vec()],
        Protocol::Http2 => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
    };
    let name = ServerName::try_from(target.host().to_owned())
        .map_err(|_| format!("{:?} is not a name that a certificate could have", target.host()))?;
    Ok((TlsConnector::from(Arc::new(config)), name))
}

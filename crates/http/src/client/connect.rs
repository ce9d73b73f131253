//! Opens connections to a service. Every error here means that not a byte of a request was sent.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::connection::{Connection, Sender, SharedSender};
use super::{Protocol, Upstream};
use crate::HttpError;
use crate::addresses::Addresses;
use crate::first_byte::{FirstByte, GuardedStream};
use crate::prepare_socket;
use crate::target::Target;

/// How often a silent HTTP/2 connection is asked whether it is still there.
const PING_EVERY: Duration = Duration::from_secs(20);

/// Something that bytes go through.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Opens connections to one service.
pub(crate) struct Connector {
    target: Target,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    protocol: Protocol,
    patience: Duration,
    addresses: Addresses,
}

impl Connector {
    /// What connects to a service.
    ///
    /// # Errors
    /// It is reached over TLS, and there are no certificates, or none could have its name.
    pub(crate) fn new(
        upstream: &Upstream,
        config: Result<Arc<ClientConfig>, HttpError>,
    ) -> Result<Self, HttpError> {
        let target = upstream.target.clone();
        let tls = match target.is_tls() {
            true => Some(tls(&target, config?, upstream.protocol)?),
            false => None,
        };
        let (protocol, patience) = (upstream.protocol, upstream.connect_timeout);
        Ok(Self { target, tls, protocol, patience, addresses: upstream.addresses })
    }

    /// Opens a connection.
    pub(crate) async fn connect(&self) -> Result<Connection, String> {
        let opened = tokio::time::timeout(self.patience, self.open()).await;
        opened.unwrap_or_else(|_| Err(format!("{} could not be reached in time", self.target)))
    }

    async fn open(&self) -> Result<Connection, String> {
        let failed = |what: &str, error: &dyn std::error::Error| {
            format!("{} could not be reached: {what}{error}", self.target)
        };
        let socket = self.reach().await.map_err(|error| failed("", &error))?;
        prepare_socket(&socket);
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
        greet(stream, agreed).await.map_err(|error| failed("", &error))
    }

    /// Tries the addresses of the service, those alone that may be reached.
    async fn reach(&self) -> io::Result<TcpStream> {
        let place = (self.target.host(), self.target.port());
        if self.addresses == Addresses::Any {
            return TcpStream::connect(place).await;
        }
        let mut failure = io::Error::new(io::ErrorKind::PermissionDenied, "its address may not be reached");
        for address in tokio::net::lookup_host(place).await? {
            if self.addresses.allows(address.ip()) {
                match TcpStream::connect(address).await {
                    Ok(socket) => return Ok(socket),
                    Err(error) => failure = error,
                }
            }
        }
        Err(failure)
    }
}

/// Begins to speak on a stream.
pub(super) async fn greet(stream: Box<dyn Stream>, protocol: Protocol) -> hyper::Result<Connection> {
    let first_byte = FirstByte::new();
    let guarded = Arc::clone(&first_byte);
    let (sender, driver) = match protocol {
        Protocol::Http1 => {
            let io = TokioIo::new(GuardedStream::http1(stream, guarded));
            // At most hyper's hundred header lines in an answer: for any other number it clears room for all of them
            // with every answer, which costs more than the parsing.
            let (sender, connection) = http1::Builder::new().handshake(io).await?;
            (Sender::Http1(sender), tokio::spawn(async move { drop(connection.with_upgrades().await) }))
        }
        Protocol::Http2 => {
            let io = TokioIo::new(GuardedStream::http2(stream, guarded));
            let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .keep_alive_interval(PING_EVERY)
                .handshake(io)
                .await?;
            let connection = Arc::new(Mutex::new(Box::pin(connection)));
            let asked = Arc::clone(&connection);
            let driver = std::future::poll_fn(move |cx| {
                connection.lock().unwrap_or_else(PoisonError::into_inner).as_mut().poll(cx).map(drop)
            });
            // Asked when it is needed: the driver is not woken when the service changes its mind.
            let streams_max = Arc::new(move || {
                asked.lock().unwrap_or_else(PoisonError::into_inner).current_max_send_streams()
            });
            (Sender::Http2(SharedSender { sender, streams_max }), tokio::spawn(driver))
        }
    };
    Ok(Connection::new(sender, first_byte, driver.abort_handle()))
}

fn tls(
    target: &Target,
    config: Arc<ClientConfig>,
    protocol: Protocol,
) -> Result<(TlsConnector, ServerName<'static>), String> {
    let mut config = Arc::unwrap_or_clone(config);
    config.alpn_protocols = match protocol {
        Protocol::Http1 => vec![b"http/1.1".to_vec()],
        Protocol::Http2 => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
    };
    let name = ServerName::try_from(target.host().to_owned())
        .map_err(|_| format!("{:?} is not a name that a certificate could have", target.host()))?;
    Ok((TlsConnector::from(Arc::new(config)), name))
}

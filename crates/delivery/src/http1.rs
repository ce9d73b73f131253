//! The transport over HTTP/1.1, with TLS by rustls. Follows no redirect and sends each request once: a connection that
//! gives a request back unsent says so.

use std::collections::HashMap;
use std::error::Error;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use crate::limits::ANSWER_BYTES_MAX;
use crate::message::Answer;
use crate::transport::{Outgoing, Sending, Sent, Transport};
use crate::url::Target;

/// A connection that was silent for longer may be on its way to be closed by the server.
const IDLE_MAX: Duration = Duration::from_secs(1);
/// Connections to one origin that are kept.
const KEPT_MAX: usize = 64;
/// How long a connection may take to be made.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);

type Connection = SendRequest<Full<Bytes>>;

/// Sends over HTTP/1.1.
pub struct Http1 {
    tls: TlsConnector,
    idle: Mutex<HashMap<String, Vec<(Instant, Connection)>>>,
}

impl std::fmt::Debug for Http1 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Http1")
    }
}

impl Default for Http1 {
    fn default() -> Self {
        Self::new()
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Http1 {
    /// A transport that trusts the authorities of the web.
    pub fn new() -> Self {
        Self::trusting(RootCertStore::from_iter(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()))
    }

    /// A transport that trusts these authorities.
    pub fn trusting(roots: RootCertStore) -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring knows the default versions of TLS")
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Self { tls: TlsConnector::from(Arc::new(config)), idle: Mutex::default() }
    }

    /// A transport that trusts the authorities in this PEM file, and no others.
    ///
    /// # Errors
    /// The file cannot be read, or holds no certificate.
    pub fn trusting_file(path: &Path) -> Result<Self, String> {
        let unreadable =
            |error: &dyn std::fmt::Display| format!("failed to read {}: {error}", path.display());
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(path).map_err(|error| unreadable(&error))? {
            let certificate = certificate.map_err(|error| unreadable(&error))?;
            roots.add(certificate).map_err(|error| unreadable(&error))?;
        }
        match roots.is_empty() {
            true => Err(unreadable(&"it holds no certificate")),
            false => Ok(Self::trusting(roots)),
        }
    }

    /// A connection that was used a moment ago, if there is one.
    fn kept(&self, origin: &str) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let of_origin = idle.get_mut(origin)?;
        while let Some((since, connection)) = of_origin.pop() {
            if since.elapsed() < IDLE_MAX && connection.is_ready() {
                return Some(connection);
            }
        }
        idle.remove(origin);
        None
    }

    fn keep(&self, origin: &str, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let of_origin = idle.entry(origin.to_owned()).or_default();
        if of_origin.len() < KEPT_MAX {
            of_origin.push((Instant::now(), connection));
        }
    }

    async fn connect(&self, target: &Target) -> Result<Connection, String> {
        let failed =
            |error: &dyn Error| format!("{} could not be reached: {}", target.origin, in_full(error));
        let socket =
            TcpStream::connect((target.host.as_str(), target.port)).await.map_err(|error| failed(&error))?;
        // A socket that refuses the option still works.
        let _ = socket.set_nodelay(true);
        let stream: Box<dyn Stream> = if target.is_tls {
            let name = ServerName::try_from(target.host.clone()).map_err(|error| failed(&error))?;
            Box::new(self.tls.connect(name, socket).await.map_err(|error| failed(&error))?)
        } else {
            Box::new(socket)
        };
        let (connection, driver) =
            http1::Builder::new().handshake(TokioIo::new(stream)).await.map_err(|error| failed(&error))?;
        tokio::spawn(driver);
        Ok(connection)
    }

    async fn send_once(&self, outgoing: Outgoing) -> Sent {
        let Outgoing { method, target, headers, body, timeout } = outgoing;
        let request = http::Request::builder().method(method.as_str()).uri(target.path_and_query());
        let request = headers
            .iter()
            .fold(request.header("host", &target.authority), |request, (name, value)| {
                request.header(name, value)
            })
            .body(Full::new(Bytes::from(body)));
        let request = match request {
            Ok(request) => request,
            Err(error) => return Sent::NotSent(format!("the request cannot be written: {error}")),
        };
        let mut connection = match self.kept(&target.origin) {
            Some(connection) => connection,
            None => match tokio::time::timeout(CONNECT_TIME_MAX.min(timeout), self.connect(&target)).await {
                Ok(Ok(connection)) => connection,
                Ok(Err(why)) => return Sent::NotSent(why),
                Err(_) => return Sent::NotSent(format!("{} could not be reached in time", target.origin)),
            },
        };
        let exchange = async {
            let response = match connection.try_send_request(request).await {
                Ok(response) => response,
                Err(mut error) => {
                    let why = in_full(error.error());
                    return match error.take_message() {
                        Some(_) => Sent::NotSent(why),
                        None => Sent::Broken(why),
                    };
                }
            };
            match read(response).await {
                Ok((answer, is_whole)) => {
                    if is_whole
                        && !answer
                            .header("connection")
                            .is_some_and(|value| value.eq_ignore_ascii_case("close"))
                    {
                        self.keep(&target.origin, connection);
                    }
                    Sent::Answered(answer)
                }
                Err(why) => Sent::Broken(why),
            }
        };
        match tokio::time::timeout(timeout, exchange).await {
            Ok(sent) => sent,
            Err(_) => Sent::TimedOut(format!("{} did not answer within {timeout:?}", target.origin)),
        }
    }
}

impl Transport for Http1 {
    fn send(&self, request: Outgoing) -> Sending<'_> {
        Box::pin(self.send_once(request))
    }
}

/// Reads an answer. The status decides, so a body beyond the limit is cut and not an error.
async fn read(response: http::Response<Incoming>) -> Result<(Answer, bool), String> {
    let (parts, body) = response.into_parts();
    let headers = parts
        .headers
        .iter()
        .map(|(name, value)| {
            (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
        })
        .collect();
    let status = parts.status.as_u16();
    let mut body = std::pin::pin!(Limited::new(body, ANSWER_BYTES_MAX));
    let mut bytes = Vec::new();
    let mut is_whole = true;
    while let Some(frame) = body.as_mut().frame().await {
        match frame {
            Ok(frame) => bytes.extend(frame.into_data().unwrap_or_default()),
            Err(error) if error.is::<http_body_util::LengthLimitError>() => {
                is_whole = false;
                break;
            }
            Err(error) => return Err(in_full(error.as_ref())),
        }
    }
    Ok((Answer { status, headers, body: bytes }, is_whole))
}

/// An error with its causes.
fn in_full(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let part = error.to_string();
        if !text.contains(&part) {
            text = format!("{text}: {part}");
        }
        cause = error.source();
    }
    text
}

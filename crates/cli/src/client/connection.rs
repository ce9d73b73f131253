//! One connection to a server. Owns its socket: whoever drops it hangs up, whatever was under way.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::{ANSWER_BYTES_MAX, Answer, Failure, Target, tls};

/// An open connection.
#[derive(Debug)]
pub(crate) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    driver: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        // The driver owns the socket.
        self.driver.abort();
    }
}

impl Connection {
    /// Opens a connection. Sends nothing.
    pub(crate) async fn open(target: &Target, within: Duration) -> Result<Self, Failure> {
        let opening = async {
            let mut last = "the host has no address".to_owned();
            let not_connected = |error: std::io::Error| Failure::NotConnected(error.to_string());
            for address in target.addresses().await.map_err(not_connected)? {
                match TcpStream::connect(address).await {
                    Ok(stream) => {
                        // Without this a small request may wait for the acknowledgement of the one before. Only speed
                        // is at stake.
                        let _ = stream.set_nodelay(true);
                        return match target.is_tls() {
                            true => {
                                let stream = tls::connect(target.host(), stream).await;
                                Self::speak(stream.map_err(Failure::NotConnected)?).await
                            }
                            false => Self::speak(stream).await,
                        };
                    }
                    Err(error) => last = format!("{address}: {error}"),
                }
            }
            Err(Failure::NotConnected(last))
        };
        timeout(within, opening)
            .await
            .unwrap_or(Err(Failure::NotConnected("no connection in time".to_owned())))
    }

    async fn speak(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Result<Self, Failure> {
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| Failure::NotConnected(error.to_string()))?;
        // How a connection ends is told by the request that was on it.
        let driver = tokio::spawn(async move { drop(connection.await) });
        Ok(Self { sender, driver })
    }

    /// Whether another request can be sent on it, as far as is known.
    pub(crate) fn is_open(&self) -> bool {
        self.sender.is_ready() && !self.sender.is_closed()
    }

    /// Sends a request once and reads its answer. A caller that drops this future should drop the connection too.
    pub(crate) async fn send(
        &mut self,
        target: &Target,
        method: &Method,
        headers: &HeaderMap,
        body: Bytes,
        within: Duration,
    ) -> Result<Answer, Failure> {
        let request = request(target, method, headers, body)?;
        timeout(within, self.exchange(request)).await.unwrap_or(Err(Failure::TimedOut))
    }

    async fn exchange(&mut self, request: Request<Full<Bytes>>) -> Result<Answer, Failure> {
        let broken = |error: &dyn std::fmt::Display| Failure::Broken(error.to_string());
        self.sender.ready().await.map_err(|error| Failure::NotConnected(error.to_string()))?;
        let started = Instant::now();
        let response = self.sender.send_request(request).await.map_err(|error| broken(&error))?;
        let (parts, body) = response.into_parts();
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await.map_err(|error| broken(&error))?;
        Ok(Answer {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body: body.to_bytes(),
            took: started.elapsed(),
        })
    }
}

fn request(
    target: &Target,
    method: &Method,
    headers: &HeaderMap,
    body: Bytes,
) -> Result<Request<Full<Bytes>>, Failure> {
    let host = HeaderValue::try_from(target.authority())
        .map_err(|_| Failure::NotConnected("the host cannot be named in a header".to_owned()))?;
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = method.clone();
    *request.uri_mut() = target.path().clone().into();
    *request.headers_mut() = headers.clone();
    request.headers_mut().entry(header::HOST).or_insert(host);
    Ok(request)
}

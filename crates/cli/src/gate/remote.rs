//! The admin API of another process, over HTTP/1.1. One connection for each call: commands make few.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::exit::{Exit, Stop};

/// How long a call may take. A sweep of a large store is the longest.
const PATIENCE: Duration = Duration::from_secs(120);
/// The largest answer that is read.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Where another process can be asked.
pub(crate) struct Remote {
    host: String,
    port: u16,
    token: Option<HeaderValue>,
}

impl Remote {
    /// A way to this address, with the token of a file.
    pub(crate) fn to(url: &str, token_file: Option<&Path>) -> Result<Self, Stop> {
        let bad = |why: &str| Stop::new(Exit::Usage, format!("the admin address {url}: {why}"));
        let given: Uri = url.parse().map_err(|_| bad("expected something like http://127.0.0.1:7401"))?;
        if given.scheme_str().is_some_and(|scheme| scheme != "http") {
            return Err(bad("only http:// is spoken; reach it through a tunnel, or from its own machine"));
        }
        if !matches!(given.path(), "" | "/") {
            return Err(bad("say it without a path"));
        }
        let host = given.host().ok_or_else(|| bad("expected something like http://127.0.0.1:7401"))?;
        let token = token_file.map(token).transpose()?;
        Ok(Self { host: reachable(host), port: given.port_u16().unwrap_or(7401), token })
    }

    /// Whether somebody listens there.
    pub(crate) async fn answers(&self) -> bool {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        let connected = tokio::time::timeout(Duration::from_secs(2), TcpStream::connect((host, self.port)));
        matches!(connected.await, Ok(Ok(_)))
    }

    /// Makes a call.
    pub(crate) async fn call(
        &self,
        request: http::request::Builder,
        body: String,
    ) -> Result<(StatusCode, Bytes), Stop> {
        let away = |why: String| {
            let address = format!("{}:{}", self.host, self.port);
            Stop::new(Exit::Unreachable, format!("failed to ask the admin address {address}: {why}"))
        };
        let mut request = request.header(header::HOST, format!("{}:{}", self.host, self.port));
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, token);
        }
        let request = request.body(Full::from(body)).map_err(|error| away(error.to_string()))?;
        if request.method() != http::Method::GET {
            // Nothing is sent to somebody who may be something else altogether.
            let asked = Request::get("/healthz").header(header::HOST, format!("{}:{}", self.host, self.port));
            let asked = asked.body(Full::default()).map_err(|error| away(error.to_string()))?;
            self.exchange(asked).await.map_err(away)?;
        }
        match tokio::time::timeout(PATIENCE, self.exchange(request)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(why)) => Err(away(why)),
            Err(_) => Err(away(format!("no answer within {} s", PATIENCE.as_secs()))),
        }
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<(StatusCode, Bytes), String> {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        let stream = TcpStream::connect((host, self.port)).await.map_err(|error| error.to_string())?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| error.to_string())?;
        let driver = tokio::spawn(connection);
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        let (parts, body) = response.into_parts();
        if !parts.headers.contains_key(semel_console::MARK) {
            return Err("what answers there is not an admin address of semel".to_owned());
        }
        let bytes =
            Limited::new(body, ANSWER_BYTES_MAX).collect().await.map_err(|error| error.to_string())?;
        driver.abort();
        Ok((parts.status, bytes.to_bytes()))
    }
}

/// An address that listens everywhere is reached at this machine.
fn reachable(host: &str) -> String {
    let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    match ip {
        Ok(IpAddr::V4(Ipv4Addr::UNSPECIFIED)) => "127.0.0.1".to_owned(),
        Ok(IpAddr::V6(Ipv6Addr::UNSPECIFIED)) => "[::1]".to_owned(),
        _ => host.to_owned(),
    }
}

fn token(path: &Path) -> Result<HeaderValue, Stop> {
    let failed = |why: String| Stop::new(Exit::Io, format!("the token file {}: {why}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    let mut value = HeaderValue::try_from(format!("Bearer {}", text.trim()))
        .map_err(|_| failed("it is not a token".to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_listens_everywhere_is_reached_here() {
        assert_eq!(reachable("0.0.0.0"), "127.0.0.1");
        assert_eq!(reachable("[::]"), "[::1]");
        assert_eq!(reachable("ops.example"), "ops.example");
    }

    #[test]
    fn other_schemes_and_paths_are_refused() {
        assert!(Remote::to("https://ops.example", None).is_err());
        assert!(Remote::to("http://ops.example/admin", None).is_err());
        assert_eq!(Remote::to("http://ops.example", None).map(|it| it.port).ok(), Some(7401));
        assert_eq!(Remote::to("127.0.0.1:9", None).map(|it| it.port).ok(), Some(9));
    }
}

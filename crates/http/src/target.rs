//! The URL of a service, taken apart once. Pure.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Uri};

/// Where a service is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    scheme: Scheme,
    authority: Authority,
    /// Put before every path; without a slash at its end.
    prefix: String,
}

/// The text is not the URL of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadTarget(String);

impl fmt::Display for BadTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadTarget {}

impl Target {
    /// Whether it is reached over TLS.
    pub fn is_tls(&self) -> bool {
        self.scheme == Scheme::HTTPS
    }

    /// Whether it is this very address.
    pub fn is_at(&self, address: SocketAddr) -> bool {
        let is_host = match self.host().parse::<IpAddr>() {
            Ok(ip) => ip == address.ip() || (address.ip().is_unspecified() && ip.is_loopback()),
            Err(_) => {
                self.host() == "localhost" && (address.ip().is_loopback() || address.ip().is_unspecified())
            }
        };
        is_host && self.port() == address.port()
    }

    /// The host, without brackets.
    pub(crate) fn host(&self) -> &str {
        self.authority.host().trim_start_matches('[').trim_end_matches(']')
    }

    /// The port.
    pub(crate) fn port(&self) -> u16 {
        self.authority.port_u16().unwrap_or(if self.is_tls() { 443 } else { 80 })
    }

    /// The value of `Host` for this service.
    pub(crate) fn host_value(&self) -> HeaderValue {
        HeaderValue::from_str(self.authority.as_str()).expect("an authority is printable")
    }

    /// The path that is asked for here when a client asks for `uri`.
    pub(crate) fn path(&self, uri: &Uri) -> Result<PathAndQuery, http::Error> {
        let asked = uri.path_and_query().map_or("/", PathAndQuery::as_str);
        if self.prefix.is_empty() {
            return Ok(asked.parse()?);
        }
        Ok(format!("{}{asked}", self.prefix).parse()?)
    }

    /// The same with scheme and authority, as HTTP/2 wants it.
    pub(crate) fn absolute(&self, path: PathAndQuery, authority: Authority) -> Result<Uri, http::Error> {
        Uri::builder().scheme(self.scheme.clone()).authority(authority).path_and_query(path).build()
    }
}

impl FromStr for Target {
    type Err = BadTarget;

    fn from_str(text: &str) -> Result<Self, BadTarget> {
        let bad = |why: &str| BadTarget(format!("bad upstream {text:?}: {why}"));
        let uri: Uri = text.parse().map_err(|_| bad("expected something like http://127.0.0.1:3000"))?;
        let parts = uri.into_parts();
        let scheme = parts.scheme.filter(|scheme| [Scheme::HTTP, Scheme::HTTPS].contains(scheme));
        let scheme = scheme.ok_or_else(|| bad("it must begin with http:// or https://"))?;
        let authority = parts.authority.ok_or_else(|| bad("the host is missing"))?;
        if authority.as_str().contains('@') {
            return Err(bad("a user name has no place in it"));
        }
        if authority.host().is_empty() || authority.as_str().ends_with(':') {
            return Err(bad("the host or its port is missing"));
        }
        let has_port = authority.as_str().len() > authority.host().len();
        if has_port && authority.port_u16().is_none_or(|port| port == 0) {
            return Err(bad("the port is not one"));
        }
        let path = parts.path_and_query.unwrap_or_else(|| PathAndQuery::from_static("/"));
        if path.query().is_some() {
            return Err(bad("a query has no place in it"));
        }
        Ok(Self { scheme, authority, prefix: path.path().trim_end_matches('/').to_owned() })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        let target: Target = "https://shop.example/api/".parse().unwrap();
        assert!(target.is_tls());
        assert_eq!((target.host(), target.port()), ("shop.example", 443));
        assert_eq!(target.path(&"/orders?a=1".parse().unwrap()).unwrap(), "/api/orders?a=1");
        assert_eq!(target.to_string(), "https://shop.example/api");
        let target: Target = "http://[::1]:3000".parse().unwrap();
        assert_eq!((target.host(), target.port()), ("::1", 3000));
        assert_eq!(target.path(&"/orders".parse().unwrap()).unwrap(), "/orders");
    }

    #[test]
    fn an_address_recognises_itself() {
        let at = |url: &str, address: &str| url.parse::<Target>().unwrap().is_at(address.parse().unwrap());
        assert!(at("http://127.0.0.1:7400", "127.0.0.1:7400") && at("http://localhost:7400", "0.0.0.0:7400"));
        assert!(
            !at("http://127.0.0.1:7401", "127.0.0.1:7400") && !at("http://10.0.0.1:7400", "127.0.0.1:7400")
        );
    }

    #[test]
    fn what_is_no_url_of_a_service_is_refused_with_a_reason() {
        for text in [
            "",
            "127.0.0.1:3000",
            "ftp://x",
            "http://",
            "http://u@x",
            "http://x?a",
            "http://x:",
            "http://x:99999",
        ] {
            let error = text.parse::<Target>().unwrap_err().to_string();
            assert!(error.contains("bad upstream"), "{text:?}: {error}");
        }
    }
}

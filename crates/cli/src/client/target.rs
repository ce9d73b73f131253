//! Where a request goes: a URL, taken apart. Knows `http` and `https`.

use std::net::{IpAddr, SocketAddr};

use http::uri::{PathAndQuery, Scheme};
use http::{HeaderName, HeaderValue, Uri};

/// A URL that can be sent to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    scheme: Scheme,
    host: String,
    port: u16,
    authority: String,
    path: PathAndQuery,
}

impl Target {
    /// Reads `http://HOST[:PORT][/PATH]`, or the same with `https`; without a scheme it is `http`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| format!("{text:?} cannot be used as a URL: {why}");
        let whole = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let uri: Uri = whole.parse().map_err(|_| wrong("expected http://HOST[:PORT]/PATH"))?;
        let (scheme, port) = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => (Scheme::HTTP, 80),
            Some(scheme) if *scheme == Scheme::HTTPS => (Scheme::HTTPS, 443),
            Some(_) | None => return Err(wrong("only http:// and https:// are spoken here")),
        };
        let authority = uri.authority().ok_or_else(|| wrong("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("send credentials by a header, not in the URL"));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() {
            return Err(wrong("it has no host"));
        }
        Ok(Self {
            scheme,
            host,
            port: authority.port_u16().unwrap_or(port),
            authority: authority.as_str().to_owned(),
            path: uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/")),
        })
    }

    /// The same server, another path.
    pub(crate) fn at(&self, path: &str) -> Result<Self, String> {
        let whole = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        let path = whole.parse().map_err(|_| format!("{path:?} cannot be used as a path"))?;
        Ok(Self { path, ..self.clone() })
    }

    /// That path below this one: where a server stands behind a prefix.
    pub(crate) fn below(&self, path: &str) -> Result<Self, String> {
        self.at(&format!("{}{path}", self.path.path().trim_end_matches('/')))
    }

    /// The same, on that port where the URL says none.
    pub(crate) fn or_port(mut self, port: u16) -> Self {
        let says_one = self.authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        if !says_one {
            self.port = port;
            self.authority = format!("{}:{port}", self.authority.trim_end_matches(':'));
        }
        self
    }

    /// An address that listens everywhere is reached at this machine.
    pub(crate) fn reachable(mut self) -> Self {
        let here = match self.host.parse::<IpAddr>() {
            Ok(ip) if ip.is_unspecified() && ip.is_ipv4() => "127.0.0.1",
            Ok(ip) if ip.is_unspecified() => "::1",
            Ok(_) | Err(_) => return self,
        };
        self.host = here.to_owned();
        self.authority = SocketAddr::new(here.parse().expect("it is an address"), self.port).to_string();
        self
    }

    /// This target, or that path where the URL has none of its own.
    pub(crate) fn or_at(self, path: &str) -> Result<Self, String> {
        if self.path.as_str() == "/" { self.at(path) } else { Ok(self) }
    }

    /// The server that is connected to.
    pub(crate) fn service(&self) -> Result<semel_http::Target, semel_http::BadTarget> {
        format!("{}://{}", self.scheme, self.authority).parse()
    }

    /// What belongs into the Host header.
    pub(crate) fn authority(&self) -> &str {
        &self.authority
    }

    pub(crate) fn path(&self) -> &PathAndQuery {
        &self.path
    }

    /// The addresses of the host.
    pub(crate) async fn addresses(&self) -> std::io::Result<Vec<SocketAddr>> {
        if let Ok(ip) = self.host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(ip, self.port)]);
        }
        Ok(tokio::net::lookup_host((self.host.as_str(), self.port)).await?.collect())
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority, self.path)
    }
}

/// Reads a header line, `Name: value`.
pub(crate) fn header_line(line: &str) -> Result<(HeaderName, HeaderValue), String> {
    let wrong = || format!("--header {line:?}: expected 'Name: value'");
    let (name, value) = line.split_once(':').ok_or_else(wrong)?;
    let name = HeaderName::try_from(name.trim()).map_err(|_| wrong())?;
    let value = HeaderValue::try_from(value.trim()).map_err(|_| wrong())?;
    Ok((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_taken_apart() {
        let target = Target::parse("http://[::1]:7400/orders?a=1").unwrap();
        assert_eq!((target.host.as_str(), target.port), ("::1", 7400));
        assert_eq!(target.to_string(), "http://[::1]:7400/orders?a=1");
        let target = Target::parse("https://api.example.com/x").unwrap();
        assert_eq!(
            (target.service().map(|service| service.is_tls()), target.port, target.to_string().as_str()),
            (Ok(true), 443, "https://api.example.com/x")
        );
        assert_eq!(Target::parse("localhost").unwrap().to_string(), "http://localhost/");
        assert_eq!(Target::parse("a:1").unwrap().or_at("/x").unwrap().to_string(), "http://a:1/x");
        assert_eq!(Target::parse("a:1/y").unwrap().or_at("/x").unwrap().to_string(), "http://a:1/y");
    }

    #[test]
    fn what_cannot_be_sent_to_is_refused_with_the_reason() {
        for (text, word) in
            [("ftp://a/", "only http"), ("http://u:p@a/", "credentials"), ("http:///x", "URL")]
        {
            let error = Target::parse(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
        assert!(header_line("no colon").is_err());
        assert!(header_line("a b: c").is_err());
        assert_eq!(header_line("X-A:  b: c ").unwrap().1, "b: c");
    }
}

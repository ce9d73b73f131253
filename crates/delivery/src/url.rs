//! Where a message goes. An address is absolute, or a path under the outbox's upstream; either way it ends as one origin
//! and one path.

use std::fmt;

use http::Uri;
pub use semel_http::percent_encode as encoded;

/// Where a message goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Whether it is reached by TLS.
    pub is_tls: bool,
    /// The host, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Scheme, host and port: what credentials are bound to.
    pub origin: String,
    /// The value of `Host`.
    pub authority: String,
    /// The path, without the query.
    pub path: String,
    /// The query, without its question mark.
    pub query: Option<String>,
}

/// Why an address leads nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadUrl {
    /// It is not an address.
    Malformed(String),
    /// It is a path, and there is no upstream.
    NoUpstream,
    /// It carries a user name or password.
    Credential,
}

impl fmt::Display for BadUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadUrl::Malformed(why) => write!(f, "not an http or https address: {why}"),
            BadUrl::NoUpstream => f.write_str(
                "a path needs an upstream: give an absolute address, or start the outbox with one",
            ),
            BadUrl::Credential => f.write_str("an address must not carry a user name or password"),
        }
    }
}

impl std::error::Error for BadUrl {}

impl Target {
    /// Reads an address.
    pub fn resolve(url: &str, upstream: Option<&Target>) -> Result<Self, BadUrl> {
        if url.starts_with('/') && !url.starts_with("//") {
            let base = upstream.ok_or(BadUrl::NoUpstream)?;
            let joined = format!("{}{}{url}", base.origin, base.path.trim_end_matches('/'));
            return Self::absolute(&joined);
        }
        Self::absolute(url)
    }

    /// Reads an absolute address.
    pub fn absolute(url: &str) -> Result<Self, BadUrl> {
        let malformed = |why: &str| BadUrl::Malformed(why.to_owned());
        let uri: Uri = url.parse().map_err(|error: http::uri::InvalidUri| malformed(&error.to_string()))?;
        let is_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            Some(_) | None => return Err(malformed("it must begin with http:// or https://")),
        };
        let authority = uri.authority().ok_or_else(|| malformed("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(BadUrl::Credential);
        }
        if url.contains('#') {
            return Err(malformed("a fragment is never sent"));
        }
        let bracketed = authority.host().to_ascii_lowercase();
        if bracketed.is_empty() {
            return Err(malformed("it has no host"));
        }
        let usual = if is_tls { 443 } else { 80 };
        let port = match authority.as_str()[authority.host().len()..].strip_prefix(':') {
            Some(port) => port.parse().map_err(|_| malformed("its port is not one"))?,
            None => usual,
        };
        let authority = if port == usual { bracketed.clone() } else { format!("{bracketed}:{port}") };
        Ok(Self {
            is_tls,
            host: bracketed.trim_start_matches('[').trim_end_matches(']').to_owned(),
            port,
            origin: format!("{}://{authority}", if is_tls { "https" } else { "http" }),
            authority,
            path: uri.path().to_owned(),
            query: uri.query().map(str::to_owned),
        })
    }

    /// The path with its query.
    pub fn path_and_query(&self) -> String {
        match &self.query {
            Some(query) => format!("{}?{query}", self.path),
            None => self.path.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_resolved() {
        let base = Target::absolute("http://127.0.0.1:3000/api/").unwrap();
        let under = Target::resolve("/notes?x=1", Some(&base)).unwrap();
        assert_eq!((under.origin.as_str(), under.path.as_str()), ("http://127.0.0.1:3000", "/api/notes"));
        assert_eq!(under.path_and_query(), "/api/notes?x=1");
        let elsewhere = Target::resolve("https://A.example:443/x", Some(&base)).unwrap();
        assert_eq!((elsewhere.origin.as_str(), elsewhere.port), ("https://a.example", 443));
        assert_eq!(Target::absolute("http://[::1]:80/").unwrap().host, "::1");
    }

    #[test]
    fn bad_addresses_are_refused() {
        assert_eq!(Target::resolve("/x", None), Err(BadUrl::NoUpstream));
        assert_eq!(Target::absolute("http://u:p@h/"), Err(BadUrl::Credential));
        for bad in
            ["", "x", "//h/x", "ftp://h/", "http:///x", "http://h:99999/", "http://h/a b", "http://h/#f"]
        {
            assert!(matches!(Target::resolve(bad, None), Err(BadUrl::Malformed(_))), "{bad:?}");
        }
    }
}

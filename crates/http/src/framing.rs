//! Checks what every request must be before anything else looks at it: addressed once, framed once. Pure.

use http::header::{self, HeaderMap, HeaderValue};
use http::request::Parts;
use http::uri::{Authority, PathAndQuery};
use http::{Method, Uri, Version};

/// Why a request is not let in. The connection is closed after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused(pub &'static str);

/// Checks a request and gives it one form: the URI is path and query, `Host` says for whom it is.
///
/// # Errors
/// Two readers could read it differently.
pub fn check_request(parts: &mut Parts) -> Result<(), Refused> {
    if parts.method == Method::CONNECT {
        return Err(Refused("CONNECT is not for a gateway"));
    }
    check_framing(&parts.headers)?;
    if let Some(host) = host(&parts.headers, parts.uri.authority(), parts.version)? {
        parts.headers.insert(header::HOST, host);
    }
    if parts.uri.path() == "*" && parts.method != Method::OPTIONS {
        return Err(Refused("only OPTIONS may be sent to *"));
    }
    if parts.uri.scheme().is_some() || parts.uri.authority().is_some() {
        let path = parts.uri.path_and_query().cloned();
        parts.uri = Uri::from(path.unwrap_or(PathAndQuery::from_static("/")));
    }
    Ok(())
}

/// A length is told once, and a transfer coding is `chunked` or none.
fn check_framing(headers: &HeaderMap) -> Result<(), Refused> {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => {}
        (Some(coding), None) if coding.as_bytes().eq_ignore_ascii_case(b"chunked") => {
            if headers.contains_key(header::CONTENT_LENGTH) {
                return Err(Refused("a message has a Content-Length or a Transfer-Encoding, not both"));
            }
        }
        (Some(_), _) => return Err(Refused("the only Transfer-Encoding that is understood is chunked")),
    }
    if headers.get_all(header::CONTENT_LENGTH).iter().nth(1).is_some() {
        return Err(Refused("Content-Length is given more than once"));
    }
    Ok(())
}

/// The one host that a request is for, where `Host` does not say it: there is exactly one (HTTP/2: or the authority), and
/// both are the same where both are.
fn host(
    headers: &HeaderMap,
    named: Option<&Authority>,
    version: Version,
) -> Result<Option<HeaderValue>, Refused> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let (given, second) = (hosts.next(), hosts.next());
    if second.is_some() {
        return Err(Refused("Host is given more than once"));
    }
    if let Some(given) = given {
        let text = given.to_str().map_err(|_| Refused("Host is not readable"))?;
        if !is_plain(text) {
            text.parse::<Authority>().map_err(|_| Refused("Host is not the name of a host"))?;
        }
        if text.contains('@') {
            return Err(Refused("Host names a user"));
        }
        if named.is_some_and(|named| !named.as_str().eq_ignore_ascii_case(text)) {
            return Err(Refused("Host and the request's target name different hosts"));
        }
        return Ok(None);
    }
    match named {
        Some(named) if version == Version::HTTP_2 && !named.as_str().contains('@') => {
            let host = HeaderValue::from_str(named.as_str());
            host.map(Some).map_err(|_| Refused("the authority is not readable"))
        }
        Some(_) | None => Err(Refused("Host is missing")),
    }
}

/// Whether a text surely names a host, perhaps with a port: most do in these letters, and need no parser.
fn is_plain(text: &str) -> bool {
    let (name, port) = text.split_once(':').unwrap_or((text, "80"));
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'.' || byte == b'-';
    let is_port = (1..=5).contains(&port.len()) && port.bytes().all(|byte| byte.is_ascii_digit());
    !name.is_empty() && name.bytes().all(is_of_name) && is_port
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(version: Version, uri: &str, lines: &[(&str, &str)]) -> Result<(String, String), &'static str> {
        let mut request = http::Request::builder().version(version).method("POST").uri(uri);
        for (name, value) in lines {
            request = request.header(*name, *value);
        }
        let (mut parts, ()) = request.body(()).unwrap().into_parts();
        check_request(&mut parts).map_err(|Refused(why)| why)?;
        Ok((parts.headers[header::HOST].to_str().unwrap().to_owned(), parts.uri.to_string()))
    }

    #[test]
    fn a_request_has_exactly_one_host() {
        let one = Version::HTTP_11;
        assert_eq!(asked(one, "/a?b", &[("host", "x")]), Ok(("x".to_owned(), "/a?b".to_owned())));
        assert!(asked(one, "/", &[]).is_err());
        assert!(asked(one, "/", &[("host", "x"), ("host", "x")]).is_err());
        assert!(asked(one, "/", &[("host", "a b")]).is_err());
        assert!(asked(one, "/", &[("host", "u@x")]).is_err());
        assert!(asked(one, "/", &[("host", "")]).is_err());
        for good in ["x.example:8080", "[::1]:80", "10.0.0.1", "a_b"] {
            assert_eq!(asked(one, "/", &[("host", good)]), Ok((good.to_owned(), "/".to_owned())));
        }
        for bad in ["x:80:81", "x/y", "x?", "[::1", "x y:1"] {
            assert!(asked(one, "/", &[("host", bad)]).is_err(), "{bad}");
        }
    }

    #[test]
    fn target_and_host_agree() {
        let (one, two) = (Version::HTTP_11, Version::HTTP_2);
        assert_eq!(
            asked(one, "http://X:80/a", &[("host", "x:80")]),
            Ok(("x:80".to_owned(), "/a".to_owned()))
        );
        assert!(asked(one, "http://x/a", &[("host", "y")]).is_err());
        assert!(asked(one, "http://x/a", &[]).is_err());
        assert_eq!(asked(two, "http://x/a", &[]), Ok(("x".to_owned(), "/a".to_owned())));
        assert!(asked(two, "http://x/a", &[("host", "y")]).is_err());
    }

    #[test]
    fn a_body_is_framed_once() {
        let bad: [&[(&str, &str)]; 4] = [
            &[("content-length", "1"), ("transfer-encoding", "chunked")],
            &[("content-length", "1"), ("content-length", "1")],
            &[("transfer-encoding", "gzip, chunked")],
            &[("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")],
        ];
        for lines in bad {
            let lines = [&[("host", "x")], lines].concat();
            assert!(asked(Version::HTTP_11, "/", &lines).is_err(), "{lines:?}");
        }
        assert!(asked(Version::HTTP_11, "/", &[("host", "x"), ("transfer-encoding", "Chunked")]).is_ok());
    }
}

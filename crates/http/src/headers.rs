//! What of a message's headers passes through, and what is set anew. Pure: no connection and no clock.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use http::header::{self, HeaderMap, HeaderName, HeaderValue};

/// The fence of the attempt, for an upstream that settles by itself.
pub const FENCE: HeaderName = HeaderName::from_static("semel-fence");
/// The host that counts in the key's scope, for an upstream that enters the key by itself.
pub const HOST: HeaderName = HeaderName::from_static("semel-host");
/// What an upstream says about its own effect.
pub const OUTCOME: HeaderName = HeaderName::from_static("semel-outcome");
/// Which request this is, in every log.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Every header whose name begins so is semel's own.
const OWN: &str = "semel-";
/// The longest request id that is taken over from a client.
const REQUEST_ID_BYTES_MAX: usize = 128;

/// Headers that belong to one connection and never pass.
const HOP_BY_HOP: [HeaderName; 9] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Headers that `Connection` cannot name.
const UNNAMEABLE: [&str; 6] =
    ["authorization", "content-length", "cookie", "host", "idempotency-key", "x-idempotency-key"];
/// What only a gate says of an answer.
const REPLAYED: [&str; 2] = ["idempotency-replayed", "idempotent-replayed"];

/// Headers that say where a request came from. A client's own words about that are not passed on.
const FORWARDING: [&str; 8] = [
    "forwarded",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-prefix",
    "x-forwarded-proto",
    "x-forwarded-server",
    "x-real-ip",
];

/// Where a request came from.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The address of the peer.
    pub peer: IpAddr,
    /// `http` or `https`.
    pub scheme: &'static str,
    told: Arc<Told>,
}

/// What services are told of it, made once for each connection.
#[derive(Debug)]
struct Told {
    address: HeaderValue,
    /// The host that was asked for first, and `Forwarded` for it: mostly the others ask for the same.
    forwarded: OnceLock<(HeaderValue, HeaderValue)>,
}

impl Origin {
    /// A request from this peer.
    pub fn new(peer: IpAddr, scheme: &'static str) -> Self {
        let address = HeaderValue::try_from(peer.to_string()).expect("an address is printable");
        Self { peer, scheme, told: Arc::new(Told { address, forwarded: OnceLock::new() }) }
    }

    /// `Forwarded` for a request to this host.
    fn forwarded(&self, host: &HeaderValue) -> Option<HeaderValue> {
        let known = self.told.forwarded.get().filter(|(known, _)| known == host);
        if let Some((_, forwarded)) = known {
            return Some(forwarded.clone());
        }
        let (before, after) = if self.peer.is_ipv6() { ("for=\"[", "]\"") } else { ("for=", "") };
        // Put together by hand: formatting takes longer than all else that is done to a head.
        let address = self.told.address.to_str().unwrap_or_default();
        let host_text = host.to_str().unwrap_or_default();
        let text = [before, address, after, ";host=\"", host_text, "\";proto=", self.scheme].concat();
        // A host was checked at the door, and addresses are printable: this does not fail.
        let forwarded = HeaderValue::try_from(text).ok()?;
        // A copy: the host itself is a part of the buffer into which its request was read.
        if let Ok(host) = HeaderValue::from_bytes(host.as_bytes()) {
            let _ = self.told.forwarded.set((host, forwarded.clone()));
        }
        Some(forwarded)
    }
}

/// Removes what belongs to one connection: the known headers and those that `Connection` names.
pub fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::try_from(name.trim()).ok())
        // What frames or addresses a message, says who sent it or under which key, is not a client's to remove.
        .filter(|name| !UNNAMEABLE.contains(&name.as_str()))
        .collect();
    for name in named {
        headers.remove(name);
    }
    remove_where(headers, |name| HOP_BY_HOP.contains(name));
}

/// Removes every header of these names. Most messages have none: then they are read once and nothing is changed.
fn remove_where(headers: &mut HeaderMap, goes: impl Fn(&HeaderName) -> bool) {
    while let Some(name) = headers.keys().find(|name| goes(name)).cloned() {
        headers.remove(name);
    }
}

/// Whether a name is this one to a service that reads `_` in names as `-`.
fn reads_as(name: &str, known: &str) -> bool {
    name.len() == known.len() && begins_as(name, known)
}

fn begins_as(name: &str, known: &str) -> bool {
    // Most names differ in their first letter.
    if name.as_bytes().first() != known.as_bytes().first() {
        return false;
    }
    // Some services read every sign in a name as the same one.
    let bytes = name.bytes().map(|byte| if byte.is_ascii_alphanumeric() { byte } else { b'-' });
    name.len() >= known.len() && bytes.zip(known.bytes()).all(|(one, other)| one == other)
}

/// Removes a header that only some peers may set, unless `is_trusted` says that this is one of them; and always what some
/// services would read as that header, which no peer has a reason to send.
pub fn strip_trusted(headers: &mut HeaderMap, trusted: &HeaderName, is_trusted: bool) {
    let is_sign = |sign: char| !sign.is_ascii_alphanumeric();
    let dashed = trusted.as_str().replace(is_sign, "-");
    remove_where(headers, |name| match name == trusted {
        true => !is_trusted,
        false => reads_as(name.as_str(), &dashed),
    });
}

/// Removes what only semel may say: its own headers. `except` is left.
pub fn strip_own(headers: &mut HeaderMap, except: Option<&HeaderName>) {
    remove_where(headers, |name| is_own(name) && Some(name) != except);
}

/// Whether only semel may say this. Some services read `_` in a name as `-`.
fn is_own(name: &HeaderName) -> bool {
    let name = name.as_str();
    begins_as(name, OWN) || REPLAYED.iter().any(|known| reads_as(name, known))
}

/// Says where a request came from, in place of whatever the client said.
pub fn set_forwarding(headers: &mut HeaderMap, origin: &Origin, host: &HeaderValue) {
    remove_where(headers, |name| FORWARDING.iter().any(|known| reads_as(name.as_str(), known)));
    if let Some(forwarded) = origin.forwarded(host) {
        headers.insert(header::FORWARDED, forwarded);
    }
    headers.insert(X_FORWARDED_FOR, origin.told.address.clone());
    headers.insert(X_FORWARDED_HOST, host.clone());
    headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static(origin.scheme));
}

/// Whether a client reads trailers, which some services (gRPC) want to know. Told to an HTTP/2 service only: HTTP/1.1 has
/// other words for it.
pub fn reads_trailers(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::TE).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|coding| coding.trim().eq_ignore_ascii_case("trailers"))
}

/// One line of cookies: HTTP/2 may bring them on several, which HTTP/1.1 does not know.
pub fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(header::COOKIE).iter().nth(1).is_none() {
        return;
    }
    let lines: Vec<&[u8]> = headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if let Ok(joined) = HeaderValue::from_bytes(&lines.join(&b"; "[..])) {
        headers.insert(header::COOKIE, joined);
    }
}

/// The protocol that a request wants to change to, where it asks in due form.
pub fn upgrade_wanted(headers: &HeaderMap) -> Option<HeaderValue> {
    let asked = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|token| token.trim().eq_ignore_ascii_case("upgrade"));
    let mut protocols = headers.get_all(header::UPGRADE).iter();
    match (asked, protocols.next(), protocols.next()) {
        // HTTP/2 by upgrade would take the rest of the connection out of sight.
        (true, Some(protocol), None) if !protocol.as_bytes().eq_ignore_ascii_case(b"h2c") => {
            Some(protocol.clone())
        }
        _ => None,
    }
}

/// The client's request id, where it is one that can stand in logs.
pub fn given_request_id(headers: &HeaderMap) -> Option<&HeaderValue> {
    let mut lines = headers.get_all(REQUEST_ID).iter();
    let (first, second) = (lines.next(), lines.next());
    first.filter(|value| {
        let is_plain = value.as_bytes().iter().all(|byte| byte.is_ascii_graphic());
        second.is_none() && is_plain && (1..=REQUEST_ID_BYTES_MAX).contains(&value.len())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let line = |(name, value): &(&str, &str)| {
            (HeaderName::try_from(*name).unwrap(), HeaderValue::from_str(value).unwrap())
        };
        let mut headers = HeaderMap::new();
        for (name, value) in lines.iter().map(line) {
            headers.append(name, value);
        }
        headers
    }

    #[test]
    fn hop_by_hop_headers_and_those_named_by_connection_go() {
        let mut found = headers(&[
            ("connection", "close, X-Secret"),
            ("connection", "x-other"),
            ("x-secret", "1"),
            ("x-other", "2"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("x-kept", "3"),
        ]);
        strip_hop_by_hop(&mut found);
        assert_eq!(found, headers(&[("x-kept", "3")]));
    }

    #[test]
    fn a_client_cannot_remove_what_frames_or_addresses_its_message() {
        let mut found =
            headers(&[("connection", "host, content-length"), ("host", "a"), ("content-length", "3")]);
        strip_hop_by_hop(&mut found);
        assert_eq!(found, headers(&[("host", "a"), ("content-length", "3")]));
    }

    #[test]
    fn where_a_request_came_from_is_never_the_clients_word() {
        let mut found = headers(&[
            ("x-forwarded-for", "6.6.6.6"),
            ("forwarded", "for=6.6.6.6"),
            ("x-real-ip", "6.6.6.6"),
            ("x-forwarded-proto", "https"),
        ]);
        let origin = Origin::new("::1".parse().unwrap(), "http");
        // The second and the third come over the same connection as the first.
        for host in ["shop.example", "shop.example", "other.example"] {
            set_forwarding(&mut found, &origin, &HeaderValue::from_static(host));
            let forwarded = format!("for=\"[::1]\";host=\"{host}\";proto=http");
            assert_eq!(
                found,
                headers(&[
                    ("forwarded", &forwarded),
                    ("x-forwarded-for", "::1"),
                    ("x-forwarded-host", host),
                    ("x-forwarded-proto", "http"),
                ])
            );
        }
    }

    #[test]
    fn semels_own_headers_come_from_semel_only() {
        let lines = [("semel-fence", "1-2"), ("semel-outcome", "applied"), ("semelina", "x")];
        let mut found = headers(&lines);
        strip_own(&mut found, Some(&OUTCOME));
        assert_eq!(found, headers(&lines[1..]));
        strip_own(&mut found, None);
        assert_eq!(found, headers(&lines[2..]));
        let mut found = headers(&[("semel.host", "a"), ("semel_host", "b"), ("semel!fence", "1-2")]);
        strip_own(&mut found, Some(&OUTCOME));
        assert_eq!(found, headers(&[]), "some services read every sign in a name as the same one");
    }

    #[test]
    fn a_trusted_header_comes_from_trusted_peers_only_however_it_is_spelled() {
        let trusted = HeaderName::from_static("x-user");
        let lines = [("x-user", "a"), ("x_user", "b"), ("x-users", "c")];
        let mut found = headers(&lines);
        strip_trusted(&mut found, &trusted, true);
        assert_eq!(found, headers(&[lines[0], lines[2]]));
        strip_trusted(&mut found, &trusted, false);
        assert_eq!(found, headers(&lines[2..]));
        let mut found = headers(&[("x-user", "a"), ("x_user", "b")]);
        strip_trusted(&mut found, &HeaderName::from_static("x_user"), true);
        assert_eq!(found, headers(&[("x_user", "b")]));
    }

    #[test]
    fn an_upgrade_is_asked_for_in_due_form_only() {
        let asked = [("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")];
        assert_eq!(upgrade_wanted(&headers(&asked)).unwrap(), "websocket");
        assert!(upgrade_wanted(&headers(&asked[1..])).is_none());
        assert!(upgrade_wanted(&headers(&[("connection", "upgrade"), ("upgrade", "h2c")])).is_none());
    }

    #[test]
    fn cookies_are_one_line() {
        let mut found = headers(&[("cookie", "a=1"), ("cookie", "b=2; c=3")]);
        join_cookies(&mut found);
        assert_eq!(found, headers(&[("cookie", "a=1; b=2; c=3")]));
    }

    #[test]
    fn a_request_id_is_one_short_printable_word() {
        assert!(given_request_id(&headers(&[("x-request-id", "abc-1")])).is_some());
        for bad in ["", "a b", "a\tb"] {
            assert!(given_request_id(&headers(&[("x-request-id", bad)])).is_none(), "{bad:?}");
        }
        assert!(given_request_id(&headers(&[("x-request-id", &"a".repeat(129))])).is_none());
        assert!(given_request_id(&headers(&[("x-request-id", "a"), ("x-request-id", "b")])).is_none());
    }
}

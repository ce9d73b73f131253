//! Who may ask. Compares tokens in constant time; refuses what a web page could send.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, Method, StatusCode, Uri, header};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::refusal::Refusal;

/// The header by which a person says who acts; it stands in the audit trail beside the door that let them in.
pub(crate) const ACTOR: &str = "semel-actor";
/// The longest name of an actor.
const ACTOR_CHARS_MAX: usize = 128;
/// The shortest token: less can be guessed.
const TOKEN_CHARS_MIN: usize = 16;
/// What anybody may read: nothing of a store.
const OPEN: &[&str] = &["/", "/healthz", "/readyz", "/openapi.json"];

/// A secret that opens the admin API. Kept as its hash.
#[derive(Clone)]
pub struct Token([u8; 32]);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// A token from its text.
    ///
    /// # Errors
    /// It is shorter than 16 characters, or has spaces.
    pub fn new(text: &str) -> Result<Self, AccessError> {
        let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic());
        if text.len() < TOKEN_CHARS_MIN || !is_plain {
            return Err(AccessError(format!(
                "a token has at least {TOKEN_CHARS_MIN} visible ASCII characters and no spaces; \
                 `openssl rand -hex 32` makes one"
            )));
        }
        Ok(Self(Sha256::digest(text.as_bytes()).into()))
    }

    /// A token from a file, without the white space around it.
    ///
    /// # Errors
    /// The file cannot be read, or is not a token.
    pub fn from_file(path: &Path) -> Result<Self, AccessError> {
        let name = path.display();
        let text = std::fs::read_to_string(path)
            .map_err(|error| AccessError(format!("failed to read the token file {name}: {error}")))?;
        Self::new(text.trim()).map_err(|error| AccessError(format!("{name}: {error}")))
    }

    fn is(&self, text: &str) -> bool {
        let given: [u8; 32] = Sha256::digest(text.as_bytes()).into();
        self.0.ct_eq(&given).into()
    }
}

/// Why an address or a token is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessError(String);

impl fmt::Display for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for AccessError {}

/// What somebody may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Right {
    /// Read.
    Read,
    /// Read and change.
    Change,
}

/// Somebody who was let in.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) right: Right,
    /// Who, for the audit trail.
    pub(crate) actor: String,
}

/// The tokens that are in force.
#[derive(Clone, Debug, Default)]
struct Tokens {
    full: Option<Token>,
    read: Option<Token>,
}

/// Whom an admin API lets in. Clones share their tokens.
#[derive(Clone, Debug)]
pub struct Access {
    tokens: Arc<RwLock<Tokens>>,
    /// Whether the `Host` must be loopback.
    is_loopback: bool,
    /// What the audit trail calls the door that is open without a token.
    open_door: &'static str,
}

impl Access {
    /// The rules for an API that listens on this address. Without a token everybody who reaches it may do everything, so
    /// an address that others reach needs one.
    ///
    /// # Errors
    /// The address is not loopback and there is no token.
    pub fn on(address: SocketAddr, full: Option<Token>, read: Option<Token>) -> Result<Self, AccessError> {
        let is_loopback = address.ip().to_canonical().is_loopback();
        let tokens = Arc::new(RwLock::new(Tokens { full, read }));
        let access = Self { tokens, is_loopback, open_door: "loopback" };
        access.may_follow(&access).map(|()| access)
    }

    /// The rules for calls from within this process, such as those of a command that opened the store itself:
    /// everything is allowed. Never to be served on a socket.
    pub fn within_process() -> Self {
        Self { tokens: Arc::default(), is_loopback: true, open_door: "command line" }
    }

    /// Whether the tokens of `other` would do here.
    ///
    /// # Errors
    /// There are none, and others reach the address.
    pub fn may_follow(&self, other: &Access) -> Result<(), AccessError> {
        let tokens = other.tokens();
        if self.is_loopback || tokens.full.is_some() || tokens.read.is_some() {
            return Ok(());
        }
        let why = "the admin address can be reached by others: set a token, or listen on loopback";
        Err(AccessError(why.to_owned()))
    }

    /// Puts the tokens of `other` in force, here and in every clone. The old ones open nothing any more.
    pub fn follow(&self, other: &Access) {
        let tokens = other.tokens().clone();
        *self.tokens.write().unwrap_or_else(PoisonError::into_inner) = tokens;
    }

    fn tokens(&self) -> RwLockReadGuard<'_, Tokens> {
        // Tokens are put in whole; whoever panicked meanwhile changed nothing.
        self.tokens.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a request in, or says why not.
    pub(crate) fn admit(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<Caller, Refusal> {
        let host = host(uri, headers)?;
        // Probes come with any Host, and there is nothing to be learnt here.
        if OPEN.contains(&uri.path()) {
            return Ok(Caller { right: Right::Read, actor: String::new() });
        }
        self.refuse_foreign(&host, headers)?;
        let (right, door) = self.right(headers)?;
        let needed =
            if method == Method::GET || method == Method::HEAD { Right::Read } else { Right::Change };
        if right < needed {
            let why = "the read-only token changes nothing; use the full token";
            return Err(Refusal::new(StatusCode::FORBIDDEN, "read-only", why));
        }
        Ok(Caller { right, actor: actor(headers, door)? })
    }

    fn right(&self, headers: &HeaderMap) -> Result<(Right, &'static str), Refusal> {
        let tokens = self.tokens();
        if tokens.full.is_none() && tokens.read.is_none() {
            return Ok((Right::Change, self.open_door));
        }
        let mut given = headers.get_all(header::AUTHORIZATION).iter();
        let token = match (given.next(), given.next()) {
            (Some(line), None) => line.to_str().ok().and_then(bearer),
            _ => None,
        };
        let is =
            |known: &Option<Token>| token.zip(known.as_ref()).is_some_and(|(token, known)| known.is(token));
        if is(&tokens.full) {
            return Ok((Right::Change, "full token"));
        }
        if is(&tokens.read) {
            return Ok((Right::Read, "read-only token"));
        }
        let why = match token {
            Some(_) => "this token is not known here",
            None => "say `Authorization: Bearer TOKEN`",
        };
        Err(Refusal::new(StatusCode::UNAUTHORIZED, "token-needed", why))
    }

    /// Refuses what a web page of somebody else could make a browser send.
    fn refuse_foreign(&self, host: &str, headers: &HeaderMap) -> Result<(), Refusal> {
        if self.is_loopback && !is_loopback_host(host) {
            return Err(misdirected(
                "the Host of the admin API on loopback is localhost, 127.0.0.1 or [::1]",
            ));
        }
        let (origin, is_doubled) = only(headers, header::ORIGIN);
        let is_own = |origin: &str| {
            ["http://", "https://"]
                .iter()
                .any(|scheme| origin.strip_prefix(scheme).is_some_and(|of| of.eq_ignore_ascii_case(host)))
        };
        if is_doubled || origin.is_some_and(|origin| !is_own(&origin)) {
            let why = "requests from pages of another origin are refused";
            return Err(Refusal::new(StatusCode::FORBIDDEN, "origin-not-allowed", why));
        }
        Ok(())
    }
}

/// The first value of a header, and whether there are more.
fn only(headers: &HeaderMap, name: header::HeaderName) -> (Option<String>, bool) {
    let mut lines = headers.get_all(name).iter();
    (lines.next().map(|line| line.to_str().unwrap_or("?").to_owned()), lines.next().is_some())
}

/// Whom a request is for. Its target and its `Host`, where it has both, name the same.
fn host(uri: &Uri, headers: &HeaderMap) -> Result<String, Refusal> {
    let (host, is_doubled) = only(headers, header::HOST);
    match (host, uri.authority()) {
        _ if is_doubled => Err(misdirected("a request has one Host")),
        (Some(host), Some(target)) if !target.as_str().eq_ignore_ascii_case(&host) => {
            Err(misdirected("the request's target and its Host name different servers"))
        }
        (Some(host), _) => Ok(host),
        (None, Some(target)) => Ok(target.as_str().to_owned()),
        (None, None) => Ok(String::new()),
    }
}

fn misdirected(why: &'static str) -> Refusal {
    Refusal::new(StatusCode::MISDIRECTED_REQUEST, "host-not-allowed", why)
}

fn bearer(line: &str) -> Option<&str> {
    let (scheme, token) = line.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Whether a `Host` names this machine only, with any port.
fn is_loopback_host(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((name, port)) if port.is_empty() || is_port(port) => name,
            Some(_) | None => return false,
        },
        None => match host.split_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            Some(_) => return false,
            None => host,
        },
    };
    let is_address = name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback());
    is_address || name.eq_ignore_ascii_case("localhost")
}

fn is_port(text: &str) -> bool {
    text.strip_prefix(':').is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()))
}

fn actor(headers: &HeaderMap, door: &str) -> Result<String, Refusal> {
    let Some(named) = headers.get(ACTOR) else { return Ok(door.to_owned()) };
    let name = named.to_str().map(str::trim).ok().filter(|name| {
        (1..=ACTOR_CHARS_MAX).contains(&name.chars().count()) && !name.chars().any(char::is_control)
    });
    let why = || format!("Semel-Actor has at most {ACTOR_CHARS_MAX} visible characters");
    let name = name.ok_or_else(|| Refusal::new(StatusCode::BAD_REQUEST, "bad-actor", why()))?;
    Ok(format!("{name} ({door})"))
}

/// Lets a request in or answers it.
pub(crate) async fn guard(State(access): State<Arc<Access>>, mut request: Request, next: Next) -> Response {
    match access.admit(request.method(), request.uri(), request.headers()) {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(refusal) => {
            let mut response = refusal.into_response();
            if response.status() == StatusCode::UNAUTHORIZED {
                let scheme = http::HeaderValue::from_static("Bearer");
                response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
            }
            response
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_loopback() {
        for host in ["localhost", "LOCALHOST:7401", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:7401"] {
            assert!(is_loopback_host(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example:80",
            "10.0.0.1",
            "[::2]",
            "localhost:80:80",
            "[::1]evil",
            "0.0.0.0",
            "user@localhost",
        ] {
            assert!(!is_loopback_host(host), "{host}");
        }
    }

    #[test]
    fn an_address_that_others_reach_needs_a_token() {
        let open = |address: &str| Access::on(address.parse().unwrap(), None, None);
        assert!(open("127.0.0.1:7401").is_ok() && open("[::1]:7401").is_ok());
        assert!(
            open("0.0.0.0:7401").is_err() && open("10.0.0.1:7401").is_err() && open("[::]:7401").is_err()
        );
        let token = Token::new("0123456789abcdef").unwrap();
        assert!(Access::on("0.0.0.0:7401".parse().unwrap(), None, Some(token)).is_ok());
    }

    #[test]
    fn a_token_that_can_be_guessed_is_refused() {
        assert!(Token::new("short").is_err() && Token::new("with spaces in its middle").is_err());
        let token = Token::new("0123456789abcdef").unwrap();
        assert!(token.is("0123456789abcdef") && !token.is("0123456789abcdeg"));
        assert_eq!(format!("{token:?}"), "Token", "it is never shown");
    }
}

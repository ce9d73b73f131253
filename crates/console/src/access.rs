//! Who may ask: the one rule for the admin addresses of every part. Compares tokens in constant time; refuses what a web
//! page could send; never takes a request that came through a proxy for a local one.

mod session;

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use http::{HeaderMap, Method, StatusCode, Uri, Version, header};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use self::session::Sessions;
pub(crate) use self::session::{LIFETIME, random};
use crate::refusal::Refusal;

/// The header by which a person says who acts; it stands in the audit trail beside the door that let them in.
pub const ACTOR: &str = "semel-actor";
/// The longest name of an actor.
const ACTOR_CHARS_MAX: usize = 128;
/// The same with the door that let them in.
pub(crate) const ACTOR_SHOWN_MAX: usize = ACTOR_CHARS_MAX + 32;
/// What the audit trail calls a command that opened the store itself.
const WITHIN: &str = "command line";
/// The shortest token: less can be guessed.
const TOKEN_CHARS_MIN: usize = 16;
/// What anybody may ask. Probes have no token: an orchestrator asks whether the process lives and whether it may be sent
/// requests, and a stranger is told that and not a word more. The way to sign in has a page and its style.
const OPEN: &[&str] = &["/healthz", "/readyz", "/console.css", "/sign-in"];
/// Headers that a proxy adds. A request that has one was sent by somebody else than the peer of its connection.
const FORWARDING: &[&str] = &[
    "via",
    "x-real-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-amzn-trace-id",
    "true-client-ip",
    "cdn-loop",
];
/// What names of such headers begin with.
const FORWARDING_PREFIXES: &[&str] = &[
    "forwarded",
    "x-forwarded",
    "x-original-",
    "x-envoy-",
    "x-azure-",
    "x-appengine-",
    "cf-",
    "fly-",
    "fastly-",
    "tailscale-",
];

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
pub enum Right {
    /// Read.
    Read,
    /// Read and change.
    Change,
}

/// How somebody came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    /// Without a credential, where none is asked for.
    Open,
    /// A command of the one who has the store itself.
    Within,
    /// With a token in a header.
    Token,
    /// With the cookie of a sign-in, which holds this number.
    Session([u8; 32]),
    /// Named by a proxy of one's own.
    Trusted,
    /// Nobody that is known, who asks for what anybody may ask.
    Stranger,
}

/// Somebody who was let in.
#[derive(Clone, Debug)]
pub struct Caller {
    pub(crate) right: Right,
    /// Who, for the audit trail.
    pub(crate) actor: String,
    pub(crate) door: Door,
}

impl Caller {
    /// Who, for the audit trail.
    pub fn actor(&self) -> &str {
        &self.actor
    }

    /// Whether they may see what only its sender should see: without a credential nobody does, but for a command that has
    /// the store itself.
    pub fn sees_bodies(&self) -> bool {
        let is_known = match self.door {
            Door::Open | Door::Stranger => false,
            Door::Within | Door::Token | Door::Session(_) | Door::Trusted => true,
        };
        is_known && self.right == Right::Change
    }

    /// Whether they may read, or change as well.
    pub fn right(&self) -> Right {
        self.right
    }
}

/// A proxy of one's own that says who asks. It stands on this machine, in front of an admin address on loopback.
#[derive(Clone, Debug)]
struct Trusted {
    header: header::HeaderName,
    /// Who may change something; everybody else that the proxy names reads.
    operators: Vec<String>,
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
    trusted: Option<Arc<Trusted>>,
    /// Names by which a proxy calls an address on loopback.
    hosts: Arc<[String]>,
    sessions: Arc<Sessions>,
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
        let access = Self { tokens, is_loopback, ..Self::bare("loopback") };
        access.may_follow(&access).map(|()| access)
    }

    fn bare(open_door: &'static str) -> Self {
        Self {
            tokens: Arc::default(),
            is_loopback: true,
            open_door,
            trusted: None,
            hosts: Arc::default(),
            sessions: Arc::default(),
        }
    }

    /// Also believes this header of a proxy on the same machine, which names who asks. Those in `operators` may change
    /// something, everybody else reads.
    ///
    /// # Errors
    /// The address is not loopback, so that others could send the header; or the name is not that of a header.
    pub fn trusting(self, header: &str, operators: Vec<String>) -> Result<Self, AccessError> {
        if !self.is_loopback {
            let why = "a header of your proxy is believed on a loopback address only: let the proxy stand before it";
            return Err(AccessError(why.to_owned()));
        }
        let name = header::HeaderName::try_from(header)
            .map_err(|_| AccessError(format!("{header:?} is not the name of a header")))?;
        Ok(Self { trusted: Some(Arc::new(Trusted { header: name, operators })), ..self })
    }

    /// Also answers to these names, where a proxy passes them on in `Host`.
    #[must_use]
    pub fn called(self, hosts: Vec<String>) -> Self {
        Self { hosts: hosts.into(), ..self }
    }

    /// Keeps the sign-ins of `former`, as far as their tokens are still in force.
    #[must_use]
    pub fn with_sessions_of(self, former: &Access) -> Self {
        Self { sessions: Arc::clone(&former.sessions), ..self }
    }

    /// The rules for calls from within this process, such as those of a command that opened the store itself:
    /// everything is allowed. Never to be served on a socket.
    pub fn within_process() -> Self {
        Self::bare(WITHIN)
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
    pub(crate) fn admit(
        &self,
        method: &Method,
        uri: &Uri,
        version: Version,
        headers: &HeaderMap,
    ) -> Result<Caller, Refusal> {
        let host = host(uri, headers)?;
        let known = self.refuse_foreign(&host, headers).and_then(|()| self.right(uri, version, headers));
        let stranger = || Caller { right: Right::Read, actor: String::new(), door: Door::Stranger };
        // Probes come with any Host; a form to sign in comes from a page of ours.
        let is_open = OPEN.contains(&uri.path()) && (method == Method::GET || method == Method::HEAD);
        if is_open && known.is_err() {
            return Ok(stranger());
        }
        self.refuse_foreign(&host, headers)?;
        if uri.path() == "/sign-in" {
            return Ok(stranger());
        }
        let (right, door, name) = known?;
        let needed =
            if method == Method::GET || method == Method::HEAD { Right::Read } else { Right::Change };
        // Whoever may come in may leave.
        if right < needed && uri.path() != "/sign-out" {
            let why = "the read-only role changes nothing; use the full token";
            return Err(Refusal::new(StatusCode::FORBIDDEN, "read-only", why));
        }
        let actor = if door == Door::Trusted { name } else { actor(headers, &name)? };
        Ok(Caller { right, actor, door })
    }

    fn right(
        &self,
        uri: &Uri,
        version: Version,
        headers: &HeaderMap,
    ) -> Result<(Right, Door, String), Refusal> {
        if let Some(found) = self.named_by_proxy(headers)? {
            return Ok(found);
        }
        // Where a proxy names people, whoever it does not name is nobody.
        let is_open = self.trusted.is_none() && !self.asks_for_token();
        if is_open && !is_forwarded(version, headers) {
            let door = if self.open_door == WITHIN { Door::Within } else { Door::Open };
            return Ok((Right::Change, door, self.open_door.to_owned()));
        }
        let mut given = headers.get_all(header::AUTHORIZATION).iter();
        let token = match (given.next(), given.next()) {
            (Some(line), None) => line.to_str().ok().and_then(bearer),
            _ => None,
        };
        if let Some((right, _)) = token.and_then(|token| self.role(token)) {
            return Ok((right, Door::Token, door_of(right).to_owned()));
        }
        // The cookie opens pages only: a program has a token.
        if token.is_none()
            && !is_api(uri.path())
            && let Some((right, id)) = self.session(headers)
        {
            return Ok((right, Door::Session(id), door_of(right).to_owned()));
        }
        let why = match token {
            Some(_) => "this token is not known here",
            None if !self.asks_for_token() && self.trusted.is_some() => {
                "your proxy names nobody, and no token is set: sign in at the proxy"
            }
            None if !self.asks_for_token() => {
                "this came through a proxy, and so from somebody else than its peer: set a token"
            }
            None => "say `Authorization: Bearer TOKEN`",
        };
        Err(Refusal::new(StatusCode::UNAUTHORIZED, "token-needed", why))
    }

    /// Whether a token is set.
    pub(crate) fn asks_for_token(&self) -> bool {
        let tokens = self.tokens();
        tokens.full.is_some() || tokens.read.is_some()
    }

    /// What this token allows, and its hash.
    fn role(&self, text: &str) -> Option<(Right, [u8; 32])> {
        let tokens = self.tokens();
        let is = |known: &Option<Token>| known.as_ref().filter(|known| known.is(text)).map(|known| known.0);
        let full = is(&tokens.full).map(|hash| (Right::Change, hash));
        full.or_else(|| is(&tokens.read).map(|hash| (Right::Read, hash)))
    }

    fn named_by_proxy(&self, headers: &HeaderMap) -> Result<Option<(Right, Door, String)>, Refusal> {
        let Some(trusted) = &self.trusted else { return Ok(None) };
        let (named, is_doubled) = only(headers, trusted.header.clone());
        let Some(name) = named else { return Ok(None) };
        // What is not ASCII would all be read as the same name.
        let is_ascii = headers.get(&trusted.header).is_some_and(|line| line.to_str().is_ok());
        let is_fit =
            (1..=ACTOR_CHARS_MAX).contains(&name.chars().count()) && !name.chars().any(char::is_control);
        if is_doubled || !is_ascii || !is_fit {
            let why = "the proxy names one operator, with visible ASCII characters";
            return Err(Refusal::new(StatusCode::BAD_REQUEST, "bad-actor", why));
        }
        let is_operator = trusted.operators.contains(&name);
        let right = if is_operator { Right::Change } else { Right::Read };
        Ok(Some((right, Door::Trusted, format!("{name} (proxy)"))))
    }

    /// Exchanges a token for the number of a session, to be kept in a cookie.
    pub(crate) fn sign_in(&self, token: &str) -> Option<String> {
        let (right, hash) = self.role(token.trim())?;
        Some(self.sessions.open(right, hash))
    }

    /// Ends a session.
    pub(crate) fn sign_out(&self, caller: &Caller) {
        if let Door::Session(id) = caller.door {
            self.sessions.close(&id);
        }
    }

    fn session(&self, headers: &HeaderMap) -> Option<(Right, [u8; 32])> {
        let name = cookie_name(headers);
        let lines = headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
        let pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
        // Any server of the host may set a cookie of this name; the one that is ours is ours.
        let mut values = pairs.filter(|(of, _)| *of == name).map(|(_, value)| value);
        let (id, right, token) = values.find_map(|value| self.sessions.find(value))?;
        let tokens = self.tokens();
        let is_in_force = |known: &Option<Token>| known.as_ref().is_some_and(|known| known.0 == token);
        match (is_in_force(&tokens.full), is_in_force(&tokens.read)) {
            (true, _) => Some((right, id)),
            // What it allows is what its token allows now.
            (false, true) => Some((Right::Read, id)),
            (false, false) => None,
        }
    }

    /// Refuses what a web page of somebody else could make a browser send.
    fn refuse_foreign(&self, host: &str, headers: &HeaderMap) -> Result<(), Refusal> {
        let is_called = |name: &String| name.eq_ignore_ascii_case(host);
        if self.is_loopback && !is_loopback_host(host) && !self.hosts.iter().any(is_called) {
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

/// Whether a request came through a proxy. One that adds no header can still be told where it speaks HTTP/1.0, as some do
/// by default; any other is taken for a local program, and needs a token to be told.
fn is_forwarded(version: Version, headers: &HeaderMap) -> bool {
    let is_of_proxy = |name: &str| {
        FORWARDING.contains(&name) || FORWARDING_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    };
    version < Version::HTTP_11 || headers.keys().any(|name| is_of_proxy(name.as_str()))
}

fn door_of(right: Right) -> &'static str {
    match right {
        Right::Change => "full token",
        Right::Read => "read-only token",
    }
}

/// Whether a path is a probe's.
pub(crate) fn is_probe(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz")
}

/// Whether a path is for programs.
pub(crate) fn is_api(path: &str) -> bool {
    path.starts_with("/v1/") || path == "/metrics"
}

/// The cookie's name. Cookies know no ports, and several parts may be on one machine.
pub(crate) fn cookie_name(headers: &HeaderMap) -> String {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let port =
        host.rsplit_once(':').map(|(_, port)| port).filter(|port| port.bytes().all(|b| b.is_ascii_digit()));
    format!("semel-session-{}", port.unwrap_or("0"))
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

//! Who may do what: callers by their identity, operators by the loopback or a token.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, Response, StatusCode, header};
use axum::middleware::Next;
use semel_contract::identity::Identity;
use semel_contract::problem::{Kind, Problem};
use semel_gate::Identify;
use semel_gateway::{Callers, Peers};
use sha2::{Digest, Sha256};

use crate::exit::{Exit, Stop};

/// Finds out who calls.
#[derive(Clone)]
pub(crate) struct Identities {
    pub(crate) identity: Identity,
    pub(crate) callers: Callers,
    pub(crate) peers: Peers,
}

impl Identities {
    /// The principal of a request, its tenant in front.
    pub(crate) async fn principal(
        &self,
        peer: SocketAddr,
        request: &http::request::Parts,
    ) -> Result<String, Problem> {
        if let Identity::Trusted(name) = &self.identity
            && !self.peers.contain(peer.ip())
        {
            let why = format!("{name} is believed from trusted peers only, and {} is none", peer.ip());
            return Err(Problem::new(Kind::IdentityMissing, why));
        }
        let verified = self.callers.identify(request).await?;
        let caller = verified.caller();
        if caller.principal.contains('\0')
            || caller.tenant.as_ref().is_some_and(|tenant| tenant.contains('\0'))
        {
            return Err(Problem::new(Kind::IdentityMissing, "nobody's name contains NUL"));
        }
        // Length first, so that no two pairs are one name.
        Ok(match &caller.tenant {
            Some(tenant) => format!("{}:{tenant}:{}", tenant.len(), caller.principal),
            None => caller.principal.clone(),
        })
    }
}

/// What operators must show.
#[derive(Clone, Debug)]
pub(crate) struct Operators {
    token: Option<[u8; 32]>,
}

impl Operators {
    /// The rules for this address: one that others reach needs a token.
    pub(crate) fn on(address: SocketAddr, token_file: Option<&Path>) -> Result<Self, Stop> {
        let token = match token_file {
            Some(path) => {
                let failed = |why: String| {
                    Stop::new(Exit::Config, format!("the token file {}: {why}", path.display()))
                };
                let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
                if text.trim().len() < 16 {
                    return Err(failed("a token has at least 16 characters".to_owned()));
                }
                Some(digest(text.trim()))
            }
            None if address.ip().to_canonical().is_loopback() => None,
            None => {
                let why = format!(
                    "the admin address {address} can be reached by others: give --admin-token-file FILE"
                );
                return Err(Stop::new(Exit::Config, why));
            }
        };
        Ok(Self { token })
    }

    /// The rules for calls from within this process.
    pub(crate) fn within_process() -> Self {
        Self { token: None }
    }

    fn admits(&self, headers: &HeaderMap) -> Result<(), (StatusCode, &'static str)> {
        if headers.contains_key(header::ORIGIN) {
            return Err((StatusCode::FORBIDDEN, "requests from web pages are refused"));
        }
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let name =
            host.rsplit_once(':').filter(|(_, port)| !port.contains(']')).map_or(host, |(name, _)| name);
        let is_loopback = name.eq_ignore_ascii_case("localhost")
            || name.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
        match &self.token {
            None if is_loopback => Ok(()),
            None => {
                Err((StatusCode::MISDIRECTED_REQUEST, "the Host of the admin API on loopback is localhost"))
            }
            Some(known) => {
                let line = headers.get(header::AUTHORIZATION).and_then(|line| line.to_str().ok());
                let given = line.and_then(|line| line.strip_prefix("Bearer "));
                match given {
                    // Digests are compared, so that time tells nothing about the token.
                    Some(token) if digest(token.trim()) == *known => Ok(()),
                    _ => Err((StatusCode::UNAUTHORIZED, "say `Authorization: Bearer TOKEN`")),
                }
            }
        }
    }
}

fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token).into()
}

/// Lets an operator in, or answers.
pub(crate) async fn guard(
    State(operators): State<Arc<Operators>>,
    request: Request,
    next: Next,
) -> Response<Body> {
    let is_open = matches!(request.uri().path(), "/healthz" | "/readyz");
    match operators.admits(request.headers()) {
        Err((status, why)) if !(is_open && status == StatusCode::UNAUTHORIZED) => {
            let code = match status {
                StatusCode::UNAUTHORIZED => "token-needed",
                StatusCode::MISDIRECTED_REQUEST => "host-refused",
                _ => "origin-refused",
            };
            crate::problems::refusal(status, code, why)
        }
        Ok(()) | Err(_) => next.run(request).await,
    }
}

/// The peer of a connection.
pub(crate) type Peer = ConnectInfo<SocketAddr>;

//! Who sends requests, where a header alone does not say: peers that may name their users, tokens that are verified, and
//! services that are asked.

mod check;
mod der;
mod jwt;
mod keys;
mod peers;
mod remote;
mod spec;
mod token;

use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::header;
use http::request::Parts;
use semel_contract::identity::Identity;
use semel_contract::problem::{Kind, Problem};
use semel_gate::{Identified, Identify};

use check::Checker;
use jwt::Verifier;
use semel_http::headers::Origin;
use spec::Spec;

use crate::GatewayError;

pub use peers::Peers;

/// Finds out who sent a request, as an identity says.
#[derive(Clone, Debug)]
pub struct Callers(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    identity: Identity,
    peers: Peers,
    verified: Option<Verified>,
    warned: AtomicBool,
}

/// Who verifies, where a header alone does not say.
#[derive(Debug)]
enum Verified {
    ByToken(Box<Verifier>),
    ByService(Checker),
}

impl Callers {
    /// Callers by this identity; a header that names users is believed from these peers only.
    ///
    /// # Errors
    /// Keys cannot be read.
    pub fn new(identity: &Identity, peers: Peers) -> Result<Self, GatewayError> {
        let verified = match identity {
            Identity::Jwt(spec) => Some(Verified::ByToken(Box::new(Verifier::new(Spec::parse(spec)?)?))),
            Identity::Check(url) => Some(Verified::ByService(Checker::new(url)?)),
            Identity::Authorization | Identity::Cookie(_) | Identity::Trusted(_) | Identity::Shared(_) => {
                None
            }
        };
        let warned = AtomicBool::new(false);
        Ok(Self(Arc::new(Inner { identity: identity.clone(), peers, verified, warned })))
    }

    /// Whether an identity is well-formed, without reading what it names.
    ///
    /// # Errors
    /// It is not; says what was expected.
    pub fn check(identity: &Identity) -> Result<(), GatewayError> {
        match identity {
            Identity::Jwt(spec) => drop(Spec::parse(spec)?),
            Identity::Check(url) => drop(Checker::new(url)?),
            Identity::Authorization | Identity::Cookie(_) | Identity::Trusted(_) | Identity::Shared(_) => {}
        }
        Ok(())
    }
}

impl Identify for Callers {
    fn identify<'a>(&'a self, parts: &'a Parts) -> Identified<'a> {
        let Inner { identity, peers, verified, warned } = &*self.0;
        match verified {
            Some(Verified::ByToken(tokens)) => {
                return Box::pin(async {
                    tokens.caller(&parts.headers).await.map(semel_gate::Verified::new)
                });
            }
            Some(Verified::ByService(service)) => {
                return Box::pin(async { service.caller(parts).await.map(semel_gate::Verified::new) });
            }
            None => {}
        }
        match identity {
            Identity::Authorization => {
                if is_token(parts) && !warned.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        "a JSON Web Token was seen under the identity `authorization`, which changes with every new \
                         token and knows no revocation: verify it with --identity jwt:KEYS"
                    );
                }
                identity.identify(parts)
            }
            Identity::Trusted(name) => {
                let peer = parts.extensions.get::<Origin>().map(|origin| origin.peer);
                match peer {
                    Some(peer) if !peers.contain(peer) => Box::pin(ready(Err(Problem::new(
                        Kind::IdentityMissing,
                        format!("{name} is believed from trusted peers only, and {peer} is none"),
                    )))),
                    Some(_) | None => identity.identify(parts),
                }
            }
            Identity::Cookie(_) | Identity::Shared(_) | Identity::Jwt(_) | Identity::Check(_) => {
                identity.identify(parts)
            }
        }
    }

    /// Which keys verify a token makes no other callers; which of its claims name them does.
    fn describe(&self) -> String {
        match &self.0.identity {
            Identity::Jwt(spec) => match Spec::parse(spec) {
                Ok(Spec { principal, tenant, .. }) => {
                    format!("jwt:principal={principal},tenant={}", tenant.as_deref().unwrap_or_default())
                }
                Err(_) => self.0.identity.to_string(),
            },
            Identity::Authorization
            | Identity::Cookie(_)
            | Identity::Trusted(_)
            | Identity::Check(_)
            | Identity::Shared(_) => self.0.identity.to_string(),
        }
    }
}

/// Whether a request carries what looks like a JSON Web Token.
fn is_token(parts: &Parts) -> bool {
    let value = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    value.and_then(|value| value.split_once(' ')).is_some_and(|(_, token)| {
        token.starts_with("eyJ") && token.bytes().filter(|byte| *byte == b'.').count() == 2
    })
}

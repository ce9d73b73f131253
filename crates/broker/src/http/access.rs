//! Who asks: a member of the mesh in the path, or nobody. Comes before everything else, so that an outsider learns nothing: the
//! same 403 for what is there and what is not.

use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use semel_contract::hex::hex;
use semel_contract::problem::Kind;
use semel_contract::time::Timestamp;
use semel_delivery::Operator;
use sha2::{Digest, Sha256};

use super::Api;
use super::answer::Told;
use super::ticket;
use crate::broker::Broker;
use crate::directory::KnownBy;
use crate::identity::{Caller, Identity, Role};

/// A member that may act in the mesh of the path.
#[derive(Clone, Debug)]
pub(crate) struct Authorized {
    pub(crate) caller: Caller,
    pub(crate) role: Role,
    pub(crate) known_by: KnownBy,
    /// When its credential ends, where it says so.
    pub(crate) expires: Option<Timestamp>,
}

impl Api {
    /// The member that sent a request.
    pub(crate) async fn authorize(&self, parts: &Parts, mesh: &str) -> Result<Authorized, Told> {
        let known_by = self.credential(parts, mesh).await?;
        let expires = match &self.identity {
            Some(Identity::Verified(verifier)) => verifier.expires(parts),
            Some(Identity::Tokens) | None => None,
        };
        self.standing(known_by, mesh, expires).await
    }

    /// The same for a stream, which may show a ticket instead: browsers send no headers with those.
    pub(crate) async fn authorize_stream(
        &self,
        parts: &Parts,
        mesh: &str,
        shown: Option<&str>,
    ) -> Result<Authorized, Told> {
        let Some(text) = shown else { return self.authorize(parts, mesh).await };
        let now = self.broker.time().await;
        let (known_by, expires) =
            ticket::open(&self.broker.0.secret, text, mesh, now).ok_or_else(Told::unknown_caller)?;
        self.standing(known_by, mesh, expires).await
    }

    async fn standing(
        &self,
        known_by: KnownBy,
        mesh: &str,
        expires: Option<Timestamp>,
    ) -> Result<Authorized, Told> {
        let found = self.broker.0.directory.find(&known_by).await?;
        let standing = match (found, &known_by) {
            (Some(standing), _) => standing,
            (None, KnownBy::Token(_)) => return Err(Told::unknown_caller()),
            (None, KnownBy::Name(..)) => return Err(Told::outsider()),
        };
        match standing.caller.mesh == mesh {
            true => Ok(Authorized { caller: standing.caller, role: standing.role, known_by, expires }),
            false => Err(Told::outsider()),
        }
    }

    async fn credential(&self, parts: &Parts, mesh: &str) -> Result<KnownBy, Told> {
        match &self.identity {
            Some(Identity::Tokens) => bearer(parts)
                .map(|token| KnownBy::Token(hex(&Sha256::digest(token.as_bytes()))))
                .ok_or_else(Told::unknown_caller),
            Some(Identity::Verified(verifier)) => match verifier.identify(parts).await {
                Ok(caller) if caller.tenant.as_deref() == Some(mesh) => {
                    Ok(KnownBy::Name(mesh.to_owned(), caller.principal))
                }
                Ok(_) => Err(Told::outsider()),
                Err(problem) if problem.kind == Kind::IdentityRefused => Err(Told::outsider()),
                Err(problem) if problem.kind == Kind::IdentityUnavailable => {
                    let error = semel_delivery::relay::store::sql::StoreError::Failed(problem.to_string());
                    Err(Told::unavailable(&error))
                }
                Err(_) => Err(Told::unknown_caller()),
            },
            None => Err(Told::unknown_caller()),
        }
    }

    /// Lets operators in, and owners of the mesh.
    pub(crate) async fn manage(&self, parts: &Parts, mesh: &str) -> Result<Option<Authorized>, Told> {
        if self.identity.is_none() {
            return Ok(None);
        }
        let authorized = self.authorize(parts, mesh).await?;
        match authorized.role {
            Role::Owner => Ok(Some(authorized)),
            Role::Member => Err(Told::outsider()),
        }
    }
}

/// The header by which the guard of the operators' address, or a command, says who acts.
const ACTOR: &str = "semel-actor";
/// The longest name of somebody.
const NAME_CHARS_MAX: usize = 200;

impl Api {
    /// The broker in the name of whoever asks: an owner by their member's name, an operator as the guard has found them. What
    /// members' own address is told in a header counts for nothing.
    pub(crate) fn acting(
        &self,
        headers: &HeaderMap,
        owner: Option<&Authorized>,
        reason: Option<&str>,
    ) -> Result<Broker, Told> {
        let said = headers.get(ACTOR).and_then(|name| name.to_str().ok()).map(str::trim);
        let said = said.filter(|name| !name.is_empty() && name.len() <= NAME_CHARS_MAX);
        let name = match owner {
            Some(owner) => format!("owner {}", owner.caller.member),
            None => said.unwrap_or("operator").to_owned(),
        };
        let operator = Operator::new(&name, reason).map_err(|why| Told::malformed(&why.to_string()))?;
        Ok(self.broker.by(operator))
    }
}

/// The token of a request. Two credentials are none.
fn bearer(parts: &Parts) -> Option<&str> {
    let mut lines = parts.headers.get_all(header::AUTHORIZATION).iter();
    let (line, None) = (lines.next()?, lines.next()) else { return None };
    let (scheme, token) = line.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

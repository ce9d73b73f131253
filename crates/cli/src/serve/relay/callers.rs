//! Who calls: callers by their identity. Operators are let in by the rule of every admin address, `semel_console::Access`.

use std::net::SocketAddr;

use axum::extract::ConnectInfo;
use semel_contract::identity::Identity;
use semel_contract::problem::{Kind, Problem};
use semel_gate::Identify;
use semel_gateway::{Callers, Peers};

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
            return Err(Problem::new(Kind::IdentityMissing, "a caller's name may not contain a NUL byte"));
        }
        Ok(name_of(caller.tenant.as_deref(), &caller.principal))
    }
}

/// The name of a principal: its tenant in front, length first, so that no two pairs are one name. Whoever has no tenant is called
/// as they are, but for a name that reads like somebody's of a tenant: that gets a colon more.
fn name_of(tenant: Option<&str>, principal: &str) -> String {
    match tenant {
        Some(tenant) => format!("{}:{tenant}:{principal}", tenant.len()),
        None if has_tenant(principal.trim_start_matches(':')) => format!(":{principal}"),
        None => principal.to_owned(),
    }
}

/// Whether a name reads like that of a tenant's principal.
fn has_tenant(name: &str) -> bool {
    let Some((length, rest)) = name.split_once(':') else { return false };
    let is_number = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
    let tenant_ends = length.parse().ok().filter(|_| is_number);
    tenant_ends.is_some_and(|length: usize| rest.as_bytes().get(length) == Some(&b':'))
}

/// The peer of a connection.
pub(crate) type Peer = ConnectInfo<SocketAddr>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_without_a_tenant_is_taken_for_somebody_of_one() {
        let bob = name_of(Some("acme"), "bob");
        assert_eq!(bob, "4:acme:bob");
        let names = ["bob", "4:acme:bob", ":4:acme:bob", "::4:acme:bob", "4:acme", "04:acme:bob", ":bob"];
        let mut seen: Vec<String> = names.iter().map(|name| name_of(None, name)).collect();
        assert!(!seen.contains(&bob), "{seen:?}");
        assert_eq!(
            (&*seen[0], &*seen[4], &*seen[6]),
            ("bob", "4:acme", ":bob"),
            "others are called as they are"
        );
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), names.len(), "no two are one: {seen:?}");
    }
}

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
            return Err(Problem::new(Kind::IdentityMissing, "nobody's name contains NUL"));
        }
        // Length first, so that no two pairs are one name.
        Ok(match &caller.tenant {
            Some(tenant) => format!("{}:{tenant}:{}", tenant.len(), caller.principal),
            None => caller.principal.clone(),
        })
    }
}

/// The peer of a connection.
pub(crate) type Peer = ConnectInfo<SocketAddr>;

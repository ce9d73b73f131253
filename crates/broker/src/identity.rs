//! Who sends a request: a member's token, or a verified identity whose tenant is the mesh. Owns the trait by which other
//! ways of verifying are plugged in.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use http::request::Parts;
use semel_contract::identity::Caller as Verified;
use semel_contract::problem::Problem;
use semel_contract::time::Timestamp;

/// What verifying promises.
pub type Identified<'a> = Pin<Box<dyn Future<Output = Result<Verified, Problem>> + Send + 'a>>;

/// Verifies who sent a request: its tenant is the mesh, its principal the member.
pub trait Identify: Send + Sync + 'static {
    /// Who sent it.
    fn identify<'a>(&'a self, parts: &'a Parts) -> Identified<'a>;

    /// When the credential of a request that was verified ends. Streams that were opened with it end then.
    fn expires(&self, _parts: &Parts) -> Option<Timestamp> {
        None
    }
}

/// By what callers are known.
#[derive(Clone)]
pub enum Identity {
    /// By the tokens that members were made with.
    Tokens,
    /// By something that verifies them.
    Verified(Arc<dyn Identify>),
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Identity::Tokens => "Tokens",
            Identity::Verified(_) => "Verified",
        })
    }
}

/// A member of a mesh, verified.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Caller {
    /// The mesh.
    pub mesh: String,
    /// The member.
    pub member: String,
}

/// What a member may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Manage its mesh.
    Owner,
    /// Publish and receive.
    Member,
}

impl Role {
    /// `owner` or `member`.
    pub fn name(self) -> &'static str {
        match self {
            Role::Owner => "owner",
            Role::Member => "member",
        }
    }

    /// The role of this name.
    pub fn parse(name: &str) -> Option<Self> {
        [Role::Owner, Role::Member].into_iter().find(|role| role.name() == name)
    }
}

//! Who sent a request. The gate is given one [`Identify`]; it refuses every keyed request that has no verified caller.

use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;

use http::request::Parts;
use semel_contract::identity::{Caller, Identity, Reading};
use semel_contract::problem::{Kind, Problem};

use crate::arrival::{Credential, Lines};

/// What an identity answers, in time.
pub type Identified<'a> = Pin<Box<dyn Future<Output = Result<Verified, Problem>> + Send + 'a>>;

/// A caller, and how far its name can be trusted to stay the same.
#[derive(Clone, Debug)]
pub struct Verified {
    pub(crate) caller: Caller,
    pub(crate) credential: Credential,
}

impl Verified {
    /// A caller that somebody verified.
    pub fn new(caller: Caller) -> Self {
        Self { caller, credential: Credential::Verified }
    }

    /// Who it is.
    pub fn caller(&self) -> &Caller {
        &self.caller
    }
}

/// Who identifies the callers of a gate or a route.
#[derive(Clone)]
pub(crate) struct Callers(pub(crate) Arc<dyn Identify>);

impl std::fmt::Debug for Callers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Callers").finish_non_exhaustive()
    }
}

/// Finds out who sent a request.
pub trait Identify: Send + Sync + 'static {
    /// The caller, or why there is none. Comes before everything that could tell something about keys.
    fn identify<'a>(&'a self, parts: &'a Parts) -> Identified<'a>;
}

impl Identify for Identity {
    fn identify<'a>(&'a self, parts: &'a Parts) -> Identified<'a> {
        let credential = match self {
            Identity::Authorization | Identity::Cookie(_) => Credential::Hashed,
            Identity::Trusted(_) | Identity::Jwt(_) | Identity::Check(_) => Credential::Verified,
            Identity::Shared(_) => Credential::Shared,
        };
        let verified = self.read(&Lines(&parts.headers)).and_then(|reading| match reading {
            Reading::Known(caller) => Ok(Verified { caller, credential }),
            Reading::NeedsVerification => Err(Problem::new(
                Kind::IdentityMissing,
                format!("nothing here verifies {self}: give the gate an Identify that does"),
            )),
        });
        Box::pin(ready(verified))
    }
}

/// Takes the [`Caller`] that an authentication layer further out has put into the request's extensions.
#[derive(Clone, Copy, Debug)]
pub struct CallerExtension;

impl Identify for CallerExtension {
    fn identify<'a>(&'a self, parts: &'a Parts) -> Identified<'a> {
        let caller = parts.extensions.get::<Caller>().cloned().map(Verified::new);
        Box::pin(ready(caller.ok_or_else(|| {
            Problem::new(Kind::IdentityMissing, "no layer has put a Caller into the request's extensions")
        })))
    }
}

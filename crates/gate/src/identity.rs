//! Who sent a request. The gate is given one [`Identify`]; it refuses every keyed request that has no verified caller.

use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;

use http::HeaderMap;
use http::request::Parts;
use semel_contract::identity::{Caller, Identity, Reading};
use semel_contract::problem::{Kind, Problem};
use semel_contract::request::Headers;

/// The header lines of a request, as the contract reads them.
pub(crate) struct Lines<'a>(pub(crate) &'a HeaderMap);

impl Headers for Lines<'_> {
    fn values<'a>(&'a self, name: &'a str) -> Box<dyn Iterator<Item = &'a [u8]> + 'a> {
        Box::new(self.0.get_all(name).iter().map(http::HeaderValue::as_bytes))
    }
}

/// What an identity answers, in time.
pub type Identified<'a> = Pin<Box<dyn Future<Output = Result<Verified, Problem>> + Send + 'a>>;

/// What is known of the caller's identity beyond its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Credential {
    /// Verified by somebody: a new credential is still the same principal.
    Verified,
    /// Only hashed: a rotated credential looks like somebody else.
    Hashed,
    /// The same for everybody.
    Shared,
}

impl Credential {
    /// The name in the keys API: whether what is said of a key holds for its owner, or for one credential alone.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Credential::Verified => "verified",
            Credential::Hashed => "hashed",
            Credential::Shared => "shared",
        }
    }
}

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

    /// What it goes by, such as `authorization`. Two that name the same callers alike say the same: after a change of what
    /// is said here, keys are looked up under the former callers too.
    fn describe(&self) -> String {
        "own".to_owned()
    }
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

    fn describe(&self) -> String {
        self.to_string()
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

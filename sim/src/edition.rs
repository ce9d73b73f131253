//! The configurations that a gate has one after another: who identifies callers, what a scope is made of, what endpoints are
//! called, what counts in a fingerprint. Each makes other ids of the same requests; the gate must know them all the same.

use semel_contract::fingerprint::Recipe;
use semel_contract::hex::hex;
use semel_contract::identity::Identity;
use semel_contract::json::Pointer;
use semel_contract::scope::Scope;
use semel_gate::{GateBuilder, Route};
use sha2::{Digest, Sha256};

use crate::rng::Rng;
use crate::routes::Endpoint;

/// The header in which a proxy says who calls.
pub const USER: &str = "x-user";
/// The hosts that stand behind the gate.
pub const HOSTS: [&str; 2] = ["one.example", "two.example"];
/// At most so many configurations follow the first.
const CHANGES_MAX: u64 = 3;
/// The same where one process has its own store: nobody else claims in a former form there, so that each change counts at once.
const OWN_CHANGES_MAX: u64 = 10;

/// How callers are recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recognised {
    /// By a header that a proxy in front has set.
    ByProxy,
    /// By the hash of their credential.
    ByCredential,
}

/// One configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edition {
    /// How callers are recognised.
    pub recognised: Recognised,
    /// Whether an endpoint's keys are its own.
    by_endpoint: bool,
    /// Whether a host's keys are its own.
    by_host: bool,
    /// How often the endpoints were renamed.
    renamed: u32,
    /// Whether the time in a body counts in its fingerprint.
    counts_time: bool,
}

/// What a change of the configuration may be about.
#[derive(Clone, Copy, Debug)]
pub struct May {
    /// There is one host alone: whether hosts count may change without mixing keys up.
    pub change_hosts: bool,
    /// Credentials stay as they are: a caller is told by either.
    pub change_identity: bool,
    /// One process has its own store.
    pub change_often: bool,
}

impl Edition {
    /// The first configuration.
    pub fn first(rng: &mut Rng, hosts: usize) -> Self {
        let recognised = if rng.chance(500) { Recognised::ByProxy } else { Recognised::ByCredential };
        let by_host = hosts > 1 || rng.chance(500);
        Self { recognised, by_endpoint: true, by_host, renamed: 0, counts_time: true }
    }

    /// The configurations of a run whose configuration changes, the first included.
    pub fn draw(first: Self, may: May, rng: &mut Rng) -> Vec<Self> {
        let mut editions = vec![first];
        for _ in 0..rng.between(1, if may.change_often { OWN_CHANGES_MAX } else { CHANGES_MAX }) {
            let mut next = *editions.last().unwrap_or(&first);
            for _ in 0..rng.between(1, 2) {
                next.change(may, rng);
            }
            editions.push(next);
        }
        editions
    }

    fn change(&mut self, may: May, rng: &mut Rng) {
        match rng.below(5) {
            0 => self.by_endpoint = !self.by_endpoint,
            1 => self.counts_time = !self.counts_time,
            2 if may.change_hosts => self.by_host = !self.by_host,
            3 if may.change_identity => {
                self.recognised = match self.recognised {
                    Recognised::ByProxy => Recognised::ByCredential,
                    Recognised::ByCredential => Recognised::ByProxy,
                };
            }
            _ => self.renamed += 1,
        }
    }

    /// Whether one key at two endpoints is one key.
    pub fn shares_endpoints(&self) -> bool {
        !self.by_endpoint
    }

    /// What an endpoint is called.
    pub fn name_of(&self, endpoint: Endpoint) -> String {
        match self.renamed {
            0 => endpoint.name().to_owned(),
            times => format!("{}-{times}", endpoint.name()),
        }
    }

    /// A route as the gate is told about it.
    pub fn route(&self, endpoint: Endpoint, mixed: bool) -> Route {
        let mut profile = endpoint.profile();
        profile.scope.endpoint = self.by_endpoint;
        if let (false, Some(Recipe { exclude, .. })) = (self.counts_time, &mut profile.fingerprint) {
            exclude.push(Pointer::parse("/at").expect("the pointer is one"));
        }
        endpoint.route(mixed).profile(profile).name(self.name_of(endpoint))
    }

    /// Tells a gate who its callers are, and who they were in the configurations before.
    pub fn tell(&self, gate: GateBuilder) -> GateBuilder {
        let by_proxy = || Identity::Trusted(USER.to_owned());
        let gate = match self.recognised {
            Recognised::ByProxy => gate.identity(by_proxy()),
            // What a client shows of itself is read unasked; what a proxy says must be vouched for.
            Recognised::ByCredential => gate.identity(Identity::Authorization).was_identity(by_proxy()),
        };
        if self.by_host { gate.scope_by_host() } else { gate }
    }

    /// The scope of somebody's keys, made here once more from the words of the contract: a gate that mixes callers up must
    /// not be able to mix the checkers up as well.
    pub fn scope(&self, (user, credential): (&str, &str), endpoint: Endpoint, host: usize) -> Scope {
        let principal = match self.recognised {
            Recognised::ByProxy => user.to_owned(),
            Recognised::ByCredential => format!("authorization:{}", hex(&Sha256::digest(credential))),
        };
        let name = self.name_of(endpoint);
        let parts = [
            Some(("", "semel.scope.1")),
            Some(("p", principal.as_str())),
            self.by_endpoint.then_some(("e", name.as_str())),
            self.by_host.then_some(("h", HOSTS[host])),
        ];
        let mut hash = Sha256::new();
        for (letter, part) in parts.into_iter().flatten() {
            hash.update(letter);
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        Scope::from_bytes(hash.finalize().into())
    }
}

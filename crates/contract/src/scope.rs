//! The scope of a key: whose it is and what it is for. Parts are hashed with their lengths, so that no two lists of
//! parts run together.

use std::fmt;
use std::net::IpAddr;

use sha2::{Digest, Sha256};

use crate::hex::hex;
use crate::identity::Caller;
use crate::planted::{self, Bug};

/// The identity under which a key is stored: SHA-256 over length-prefixed parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope([u8; 32]);

/// Which parts a scope is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScopePolicy {
    /// The tenant, where the identity gives one.
    pub tenant: bool,
    /// The principal.
    pub principal: bool,
    /// The endpoint's name.
    pub endpoint: bool,
}

impl ScopePolicy {
    /// The scope of this caller at this endpoint. Where the identity gives no tenant, a scope by tenant alone is one by
    /// principal, so that every scope belongs to somebody.
    pub fn scope(self, caller: &Caller, endpoint: &str) -> Scope {
        self.scope_at(caller, endpoint, None)
    }

    /// The same at one of several hosts that stand behind one gate: a key of one is unknown to the others.
    pub fn scope_at(self, caller: &Caller, endpoint: &str, host: Option<&str>) -> Scope {
        let tenant = caller.tenant.as_deref().filter(|_| self.tenant);
        let by_principal = (self.principal || tenant.is_none()) && !planted::is(Bug::ScopeWithoutPrincipal);
        Scope::at(
            tenant,
            by_principal.then_some(caller.principal.as_str()),
            self.endpoint.then_some(endpoint),
            host.filter(|_| !planted::is(Bug::ScopeWithoutHost)),
        )
    }
}

/// A host as it counts in scopes: its name in lower case, without a port and without a last dot. An address and
/// `localhost` name nobody, and count as an empty host: replicas that are asked by their addresses share their keys.
pub fn host(text: &str) -> String {
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let name = match text.rsplit_once(':') {
        // The colons of a bare IPv6 address are no port's.
        Some((name, port)) if is_port(port) && (!name.contains(':') || name.ends_with(']')) => name,
        Some(_) | None => text,
    };
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    let bare = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(&name);
    if bare == "localhost" || bare.parse::<IpAddr>().is_ok() { String::new() } else { name }
}

impl Scope {
    /// Hashes the parts that are there.
    pub fn of(tenant: Option<&str>, principal: Option<&str>, endpoint: Option<&str>) -> Self {
        Self::at(tenant, principal, endpoint, None)
    }

    /// The same with a host, as [`host`] makes it.
    pub fn at(
        tenant: Option<&str>,
        principal: Option<&str>,
        endpoint: Option<&str>,
        host: Option<&str>,
    ) -> Self {
        let mut hash = Sha256::new();
        length_prefixed(&mut hash, b"semel.scope.1");
        for (letter, part) in [(b"t", tenant), (b"p", principal), (b"e", endpoint), (b"h", host)] {
            if let Some(part) = part {
                hash.update(letter);
                length_prefixed(&mut hash, part.as_bytes());
            }
        }
        Self(hash.finalize().into())
    }

    /// The stored bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// A scope read back from a store.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

fn length_prefixed(hash: &mut Sha256, part: &[u8]) {
    hash.update((part.len() as u64).to_be_bytes());
    hash.update(part);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scope_parts_never_run_together() {
        let parts = [Some(""), Some("a"), Some("ab"), Some("b"), Some("a\0b"), Some("pa"), None];
        let mut seen = std::collections::BTreeSet::new();
        for tenant in parts {
            for principal in parts {
                for endpoint in parts {
                    assert!(
                        seen.insert(Scope::of(tenant, principal, endpoint)),
                        "{tenant:?} {principal:?} {endpoint:?}"
                    );
                }
            }
        }
        assert_eq!(seen.len(), 343);
        for host in parts.into_iter().flatten() {
            assert!(seen.insert(Scope::at(Some("a"), Some("b"), Some("c"), Some(host))), "{host:?}");
        }
    }

    #[test]
    fn a_host_is_the_same_however_it_is_written() {
        for text in ["shop.example", "Shop.Example", "shop.example:8080", "SHOP.example:80", "shop.example."]
        {
            assert_eq!(host(text), "shop.example", "{text}");
        }
        for text in ["", "127.0.0.1:7400", "10.0.0.2", "[::1]:443", "[::1]", "::1", "LocalHost:7400"] {
            assert_eq!(host(text), "", "{text} names nobody");
        }
        assert_ne!(host("a.example"), host("b.example"));
    }

    #[test]
    fn a_scope_always_belongs_to_somebody() {
        let caller = |tenant: Option<&str>| Caller {
            tenant: tenant.map(str::to_owned),
            principal: "alice".to_owned(),
        };
        let by_tenant = ScopePolicy { tenant: true, principal: false, endpoint: true };
        assert_eq!(by_tenant.scope(&caller(None), "x"), Scope::of(None, Some("alice"), Some("x")));
        assert_eq!(by_tenant.scope(&caller(Some("acme")), "x"), Scope::of(Some("acme"), None, Some("x")));
    }
}

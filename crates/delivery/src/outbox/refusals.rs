//! Credentials that servers refused in this run: whose, where, and by which digest another one is told from them. A
//! refusal is forgotten once the store has released its principal, and not before: nothing else would try again.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

/// A refused credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) principal: String,
    pub(crate) origin: String,
    pub(crate) digest: [u8; 32],
}

/// What was refused.
#[derive(Default)]
pub(crate) struct Refusals {
    known: Mutex<Known>,
    /// Told when there is a new one.
    pub(crate) news: Notify,
}

#[derive(Default)]
struct Known {
    last: u64,
    /// By principal and origin: the digest, and the number of the refusal.
    all: BTreeMap<(String, String), ([u8; 32], u64)>,
}

impl Refusals {
    pub(crate) fn add(&self, Refusal { principal, origin, digest }: Refusal) {
        self.with(|known| {
            known.last += 1;
            known.all.insert((principal, origin), (digest, known.last));
        });
        self.news.notify_one();
    }

    pub(crate) fn all(&self) -> Vec<Refusal> {
        let refusal = |((principal, origin), (digest, _)): (&(String, String), &([u8; 32], u64))| Refusal {
            principal: principal.clone(),
            origin: origin.clone(),
            digest: *digest,
        };
        self.with(|known| known.all.iter().map(refusal).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.with(|known| known.all.is_empty())
    }

    /// The number of the last one: those up to it are what a release that begins now is for.
    pub(crate) fn last(&self) -> u64 {
        self.with(|known| known.last)
    }

    /// Whether this very credential was refused there.
    pub(crate) fn is_refused(&self, principal: &str, origin: &str, digest: &[u8; 32]) -> bool {
        let at = (principal.to_owned(), origin.to_owned());
        self.with(|known| known.all.get(&at).is_some_and(|(refused, _)| refused == digest))
    }

    /// A principal was released from its refusals up to this one, at one origin or at all.
    pub(crate) fn forget(&self, principal: &str, origin: Option<&str>, last: u64) {
        let is_meant =
            |(whose, at): &(String, String)| whose == principal && origin.is_none_or(|origin| origin == at);
        self.with(|known| known.all.retain(|of, (_, number)| !is_meant(of) || *number > last));
    }

    fn with<T>(&self, act: impl FnOnce(&mut Known) -> T) -> T {
        act(&mut self.known.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(principal: &str, digest: u8) -> Refusal {
        Refusal { principal: principal.to_owned(), origin: "http://s.test".to_owned(), digest: [digest; 32] }
    }

    #[test]
    fn a_refusal_that_came_during_a_release_outlives_it() {
        let refusals = Refusals::default();
        refusals.add(refusal("ann", 1));
        refusals.add(refusal("bob", 1));
        let last = refusals.last();
        refusals.add(refusal("ann", 1));
        refusals.forget("ann", None, last);
        assert_eq!(refusals.all(), [refusal("ann", 1), refusal("bob", 1)], "the same one, refused again");
        refusals.forget("ann", Some("http://other.test"), refusals.last());
        assert_eq!(refusals.all().len(), 2, "at another origin nothing was refused");
        refusals.forget("ann", None, refusals.last());
        assert_eq!(refusals.all(), [refusal("bob", 1)], "and nobody else's");
    }
}

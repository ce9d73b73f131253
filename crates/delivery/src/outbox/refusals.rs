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

    /// A principal was released from its refusals up to this one.
    pub(crate) fn forget(&self, principal: &str, last: u64) {
        self.with(|known| known.all.retain(|(whose, _), (_, number)| whose != principal || *number > last));
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
        refusals.forget("ann", last);
        assert_eq!(refusals.all(), [refusal("ann", 1), refusal("bob", 1)], "the same one, refused again");
        refusals.forget("ann", refusals.last());
        assert_eq!(refusals.all(), [refusal("bob", 1)], "and nobody else's");
    }
}

//! Credentials that servers refused in this run: whose, where, and by which digest another one is told from them. A
//! refusal is forgotten once the store has released its principal, and not before: nothing else would try again. How often
//! in a row an origin refused a principal is remembered longer, so that a provider with another token each time is not
//! asked without end.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::credentials::wait_after;

/// Principals and origins whose refusals in a row are counted. Beyond this, new ones are tried as if for the first time.
const COUNTED_MAX: usize = 10_000;

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
    /// By principal and origin: refusals in a row, and before when no other credential is tried by itself.
    in_a_row: BTreeMap<(String, String), (u32, Instant)>,
}

impl Known {
    /// Numbers and keeps a refusal. Says whether it was unknown.
    fn keep(&mut self, Refusal { principal, origin, digest }: Refusal) -> bool {
        self.last += 1;
        self.all.insert((principal, origin), (digest, self.last)).is_none()
    }
}

impl Refusals {
    /// A server refused a credential, or there was none to be had.
    pub(crate) fn add(&self, refusal: Refusal) {
        let at = (refusal.principal.clone(), refusal.origin.clone());
        self.with(|known| {
            known.keep(refusal);
            let refusals = known.in_a_row.get(&at).map_or(0, |(refusals, _)| *refusals).saturating_add(1);
            if refusals > 1 || known.in_a_row.len() < COUNTED_MAX {
                known.in_a_row.insert(at, (refusals, Instant::now() + wait_after(refusals)));
            }
        });
        self.news.notify_one();
    }

    /// One more message is held by a refusal. A release that did not see the message forgets the refusal no more.
    pub(crate) fn repeat(&self, refusal: Refusal) {
        if self.with(|known| known.keep(refusal)) {
            self.news.notify_one();
        }
    }

    /// The origin took a credential of this principal.
    pub(crate) fn accept(&self, principal: &str, origin: &str) {
        self.with(|known| {
            if !known.in_a_row.is_empty() {
                known.in_a_row.remove(&(principal.to_owned(), origin.to_owned()));
            }
        });
    }

    pub(crate) fn all(&self) -> Vec<Refusal> {
        self.with(|known| known.all.iter().map(refusal).collect())
    }

    /// Those for which another credential may be tried now.
    pub(crate) fn due(&self) -> Vec<Refusal> {
        let now = Instant::now();
        self.with(|known| {
            let is_due = |(at, _): &(&(String, String), &([u8; 32], u64))| {
                known.in_a_row.get(*at).is_none_or(|(_, until)| *until <= now)
            };
            known.all.iter().filter(is_due).map(refusal).collect()
        })
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

    /// A person releases a principal: whatever was refused before, the next credential is tried at once.
    pub(crate) fn start_over(&self, principal: &str, origin: Option<&str>) {
        self.with(|known| known.in_a_row.retain(|of, _| !is_of(of, principal, origin)));
    }

    /// A principal was released from its refusals up to this one, at one origin or at all.
    pub(crate) fn forget(&self, principal: &str, origin: Option<&str>, last: u64) {
        self.with(|known| {
            known.all.retain(|of, (_, number)| !is_of(of, principal, origin) || *number > last);
        });
    }

    fn with<T>(&self, act: impl FnOnce(&mut Known) -> T) -> T {
        act(&mut self.known.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn is_of((whose, at): &(String, String), principal: &str, origin: Option<&str>) -> bool {
    whose == principal && origin.is_none_or(|origin| origin == at)
}

fn refusal(((principal, origin), (digest, _)): (&(String, String), &([u8; 32], u64))) -> Refusal {
    Refusal { principal: principal.clone(), origin: origin.clone(), digest: *digest }
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

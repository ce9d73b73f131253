//! Wake-ups for those who wait on a key, and about how often records were answered again. Only hints: a wake-up may come for
//! nothing, and it may be lost.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use crate::tally::Tally;

/// Shards, so that requests for different keys do not meet at one lock.
const SHARDS: usize = 64;

type Waiting = HashMap<[u8; 16], (usize, Arc<Notify>)>;

/// The waiters of this process, by the hash of the id they wait for; and what happened to records since it started.
#[derive(Debug)]
pub struct Hints {
    shards: Vec<Mutex<Waiting>>,
    replays: Tally,
    renewals: Tally,
}

impl Default for Hints {
    fn default() -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { shards, replays: Tally::default(), renewals: Tally::default() }
    }
}

impl Hints {
    fn shard(&self, hash: [u8; 16]) -> &Mutex<Waiting> {
        &self.shards[usize::from(hash[0]) % SHARDS]
    }

    /// About how often this process answered from a record.
    pub fn replays(&self) -> &Tally {
        &self.replays
    }

    /// About how often this process renewed the lease of a claim.
    pub fn renewals(&self) -> &Tally {
        &self.renewals
    }

    /// Wakes everybody who waits for this id.
    pub fn wake(&self, hash: [u8; 16]) {
        let shard = self.shard(hash).lock().expect("no waiter panics");
        if let Some((_, notify)) = shard.get(&hash) {
            notify.notify_waiters();
        }
    }

    /// Begins to listen for an id. Every wake-up from now on is noticed, also one that comes before it is awaited.
    pub fn listen(&self, hash: [u8; 16]) -> Listener<'_> {
        let mut shard = self.shard(hash).lock().expect("no waiter panics");
        let (count, notify) = shard.entry(hash).or_default();
        *count += 1;
        Listener { hints: self, hash, notify: Arc::clone(notify) }
    }

    /// How many are waiting for this id.
    pub fn waiting(&self, hash: [u8; 16]) -> usize {
        self.shard(hash).lock().expect("no waiter panics").get(&hash).map_or(0, |(count, _)| *count)
    }
}

/// One who waits for an id.
#[derive(Debug)]
pub struct Listener<'a> {
    hints: &'a Hints,
    hash: [u8; 16],
    notify: Arc<Notify>,
}

impl Listener<'_> {
    /// A future that is done at the next wake-up. Make it before looking, so that no change in between is missed.
    pub fn next(&self) -> tokio::sync::futures::OwnedNotified {
        Arc::clone(&self.notify).notified_owned()
    }
}

impl Drop for Listener<'_> {
    fn drop(&mut self) {
        let mut shard = self.hints.shard(self.hash).lock().expect("no waiter panics");
        if let Some((count, _)) = shard.get_mut(&self.hash) {
            *count -= 1;
            if *count == 0 {
                shard.remove(&self.hash);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_wake_up_between_making_and_awaiting_is_not_lost() {
        let hints = Hints::default();
        let listener = hints.listen([7; 16]);
        let next = listener.next();
        hints.wake([7; 16]);
        next.await;
    }

    #[tokio::test]
    async fn nothing_is_kept_once_nobody_waits() {
        let hints = Hints::default();
        let (one, two) = (hints.listen([7; 16]), hints.listen([7; 16]));
        assert_eq!(hints.waiting([7; 16]), 2);
        drop((one, two));
        assert_eq!(hints.waiting([7; 16]), 0);
        assert!(hints.shard([7; 16]).lock().unwrap().is_empty());
    }
}

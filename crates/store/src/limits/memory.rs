//! The limiter in memory: exact for one process, and the stand-in when a shared one is gone. Owns its bound: it tracks
//! at most so many subjects and ids together, and forgets what has expired. When all of them are live it refuses what
//! it cannot count ([`Why::Crowded`]): new subjects and new ids wait until the earliest one expires, while those it
//! knows go on. The other choice, to forget a live one, would hand out budgets twice to whoever makes up principals.

use std::future::ready;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use semel_contract::profile::{Charge, Rate};
use semel_contract::time::{Timestamp, millis_of};
use sha2::{Digest, Sha256};

use super::shard::{Kind, Room, Shard, Subject};
use super::window::Span;
use super::{Admission, Limiter, Verdict, Why};
use crate::claims::Reply;

/// Subjects and ids that are tracked at most, together. Each takes about a hundred bytes.
pub const TRACKED_MAX: usize = 1_000_000;
/// Shards, so that different principals do not meet at one lock.
const SHARDS: usize = 64;
/// Expired subjects that one call clears away in passing.
const EVICTED_PER_CALL_MAX: usize = 4;

/// A limiter in memory. Its locks are held for a look-up and a count, never across a wait.
#[derive(Debug)]
pub struct MemoryLimiter {
    shards: Vec<Mutex<Shard>>,
    room: Room,
}

impl Default for MemoryLimiter {
    fn default() -> Self {
        Self::with_room_for(TRACKED_MAX)
    }
}

impl MemoryLimiter {
    /// A limiter that tracks at most so many subjects and ids together.
    pub fn with_room_for(tracked_max: usize) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { shards, room: Room { taken: AtomicUsize::new(0), max: tracked_max } }
    }

    /// How many subjects and ids are tracked now.
    pub fn tracked(&self) -> usize {
        self.room.taken.load(Ordering::SeqCst)
    }

    fn shard(&self, who: [u8; 16]) -> MutexGuard<'_, Shard> {
        self.shards[usize::from(who[0]) % SHARDS].lock().expect("no limiter panics")
    }

    /// Clears every expired subject away, one lock at a time, and says when the next one expires.
    fn evict(&self, now: Timestamp) -> Option<Timestamp> {
        let next = self.shards.iter().filter_map(|shard| {
            let mut shard = shard.lock().expect("no limiter panics");
            shard.evict(now, usize::MAX, &self.room);
            shard.by_expiry.first().map(|(at, _)| *at)
        });
        next.min()
    }

    /// Tries within one lock; when there is no room, clears all shards and tries once more.
    fn attempt(
        &self,
        subject: Subject,
        rate: Rate,
        now: Timestamp,
        act: impl Fn(&mut Shard) -> Option<Verdict>,
    ) -> Verdict {
        let try_once = || {
            let mut shard = self.shard(subject.who);
            shard.evict(now, EVICTED_PER_CALL_MAX, &self.room);
            act(&mut shard)
        };
        try_once().unwrap_or_else(|| {
            let next = self.evict(now);
            try_once().unwrap_or_else(|| crowded(rate, next, now))
        })
    }
}

impl Limiter for MemoryLimiter {
    fn request<'a>(&'a self, subject: &'a [u8], rate: Rate, now: Timestamp) -> Reply<'a, Verdict> {
        let subject = Subject::new(who(subject), Kind::Requests, rate);
        let counted = self.attempt(subject, rate, now, |shard| shard.count(subject, rate, now, &self.room));
        Box::pin(ready(Ok(counted)))
    }

    fn admit<'a>(&'a self, admission: Admission<'a>, now: Timestamp) -> Reply<'a, Verdict> {
        let kind = match admission.charge {
            Charge::IdWindow => Kind::Window(Span::at(now, admission.rate.window).bucket),
            Charge::NewKey => Kind::Log,
        };
        let subject = Subject::new(who(admission.principal), kind, admission.rate);
        let charge = |shard: &mut Shard| shard.charge(subject, admission, now, &self.room);
        Box::pin(ready(Ok(self.attempt(subject, admission.rate, now, charge))))
    }
}

/// Sixteen bytes that stand for a subject of any length.
pub(crate) fn who(subject: &[u8]) -> [u8; 16] {
    let digest: [u8; 32] = Sha256::digest(subject).into();
    *digest.first_chunk().expect("a digest has 32 bytes")
}

fn crowded(rate: Rate, next: Option<Timestamp>, now: Timestamp) -> Verdict {
    let millis = next.map_or(millis_of(rate.window), |at| at.millis_since(now)).max(1);
    let retry_after = Duration::from_millis(millis.unsigned_abs());
    Verdict::Denied { retry_after, limit: rate, why: Why::Crowded }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate { count: 5, window: Duration::from_secs(60) };

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    fn admission(principal: &[u8], id: u8, charge: Charge) -> Admission<'_> {
        Admission { principal, id: [id; 16], rate: RATE, charge, attempts_per_id: 10 }
    }

    async fn admit(limiter: &MemoryLimiter, principal: &[u8], id: u8, now: i64) -> Verdict {
        limiter.admit(admission(principal, id, Charge::NewKey), at(now)).await.expect("memory answers")
    }

    #[tokio::test]
    async fn nothing_is_kept_once_all_has_expired() {
        let limiter = MemoryLimiter::default();
        for principal in 0..100u8 {
            limiter.request(&[principal], RATE, at(0)).await.expect("memory answers");
            for charge in [Charge::NewKey, Charge::IdWindow] {
                limiter.admit(admission(&[principal], 1, charge), at(0)).await.expect("memory answers");
            }
        }
        assert_eq!(limiter.tracked(), 100 * 5);
        limiter.evict(at(119));
        assert_eq!(limiter.tracked(), 100 * 5, "a marker lives for two windows");
        limiter.evict(at(120));
        assert_eq!(limiter.tracked(), 100, "and then only the requests are left");
        limiter.evict(at(179));
        assert_eq!(limiter.tracked(), 100);
        assert_eq!(limiter.evict(at(180)), None);
        assert_eq!(limiter.tracked(), 0);
        assert!(limiter.shards.iter().all(|shard| shard.lock().unwrap().subjects.is_empty()));
    }

    #[tokio::test]
    async fn a_full_limiter_refuses_the_new_and_serves_the_known() {
        let limiter = MemoryLimiter::with_room_for(4);
        admit(&limiter, b"alice", 1, 0).await;
        admit(&limiter, b"bob", 1, 50).await;
        assert_eq!(limiter.tracked(), 4);
        for (principal, id) in [(b"carol", 1), (b"alice", 2)] as [(&[u8], u8); 2] {
            let refused = admit(&limiter, principal, id, 50).await;
            let retry_after = Duration::from_secs(70);
            assert_eq!(refused, Verdict::Denied { retry_after, limit: RATE, why: Why::Crowded }, "{id}");
        }
        assert!(matches!(admit(&limiter, b"alice", 1, 50).await, Verdict::Allowed { .. }));
        assert!(matches!(admit(&limiter, b"carol", 1, 120).await, Verdict::Allowed { .. }), "alice expired");
        assert_eq!(limiter.tracked(), 4);
    }

    #[tokio::test]
    async fn a_subject_that_goes_on_is_not_forgotten() {
        let limiter = MemoryLimiter::default();
        for second in (0..600).step_by(30) {
            admit(&limiter, b"alice", (second / 30) as u8, second).await;
            limiter.evict(at(second));
        }
        assert_eq!(limiter.tracked(), 1 + 2, "and what left its window is");
    }

    #[tokio::test]
    async fn refused_ids_take_no_room() {
        let limiter = MemoryLimiter::default();
        for id in 0..200 {
            admit(&limiter, b"alice", id, 1).await;
            limiter.admit(admission(b"bob", id, Charge::IdWindow), at(1)).await.expect("memory answers");
        }
        assert_eq!(limiter.tracked(), 2 * (1 + 5));
    }
}

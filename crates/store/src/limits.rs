//! Limiters: whether a request or a new key still fits its budget. Owns the trait, its verdicts and its backends.
//! Refuses to be a source of truth: a limiter that loses everything lets a little more through and repeats nothing.
//!
//! Two stages, two ways of counting:
//!
//! 1. [`Limiter::request`] counts every request, replays too, in a *sliding-window counter of two buckets*: the current
//!    bucket in full and the previous one by the share of it that the window still covers. Within one aligned window
//!    never more than the limit is let through, and never twice the limit in any other window of that length. What is
//!    refused is not counted, so that whoever waits as told is let in.
//! 2. [`Limiter::admit`] counts ids, each once, as [`Charge`] says. [`Charge::IdWindow`] has aligned windows: one unit
//!    for an id in a window, however often it is tried; in the next window it is new traffic. [`Charge::NewKey`] looks
//!    back from now, exactly: at most so many first sights of an id within any window's length.
//!
//! Checking and consuming are one step: a critical section in memory, one script in Redis, one function in
//! PostgreSQL. What is refused leaves no
//! trace behind, neither a unit nor a marker. Nothing is kept for ever: an id's marker is forgotten two windows after
//! its principal was last charged, counted requests after three.

#[cfg(feature = "conformance")]
pub mod conformance;
mod fallback;
mod fields;
mod log;
mod memory;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "redis")]
mod scripts;
mod shard;
mod verdict;
pub mod window;

use semel_contract::profile::{Charge, Rate};
use semel_contract::time::Timestamp;

use crate::claims::Reply;

pub use fallback::{Fallback, PRIMARY_MILLIS_MAX, PRIMARY_REST_MILLIS};
pub use fields::rate_limit_policy;
#[cfg(any(feature = "redis", feature = "postgres"))]
pub(crate) use memory::who;
pub use memory::{MemoryLimiter, TRACKED_MAX};
#[cfg(feature = "redis")]
pub use redis::{REDIS_MILLIS_MAX, RedisLimiter};
pub use verdict::{Verdict, Why};

/// A wish to spend admission budget on an id.
#[derive(Clone, Copy, Debug)]
pub struct Admission<'a> {
    /// Whose budget it is. Budgets that are to be separate have different bytes here, endpoint included if so wished.
    pub principal: &'a [u8],
    /// The hash of the id, as [`crate::Id::hash`] gives it.
    pub id: [u8; 16],
    /// How many ids in how long.
    pub rate: Rate,
    /// What one unit pays for.
    pub charge: Charge,
    /// How often one id may be tried for its one unit. The first try is paid for in any case.
    pub attempts_per_id: u32,
}

/// Counts, and says whether there is room. Time arrives as an argument; a `now` that goes back is borne and never
/// frees a budget.
pub trait Limiter: Send + Sync + 'static {
    /// Counts a request of this subject, or refuses it. After `Allowed`: it is counted. After `Denied`: nothing was.
    fn request<'a>(&'a self, subject: &'a [u8], rate: Rate, now: Timestamp) -> Reply<'a, Verdict>;

    /// Charges an id once, and counts its attempts. After `Allowed`: the id has its unit, and one attempt more. After
    /// `Denied`: nothing was charged or counted.
    fn admit<'a>(&'a self, admission: Admission<'a>, now: Timestamp) -> Reply<'a, Verdict>;
}

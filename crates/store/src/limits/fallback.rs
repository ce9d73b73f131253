//! Two limiters as one: when the first fails or is slow, the second answers, and it is counted. Never fails a request
//! because a limiter's server is gone; budgets are then counted by each process for itself, so that the whole may let
//! through up to the limit of each.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use semel_contract::profile::Rate;
use semel_contract::time::Timestamp;

use super::{Admission, Limiter, Verdict};
use crate::claims::Reply;

/// How long the primary may take.
pub const PRIMARY_MILLIS_MAX: u64 = 300;
/// How long the primary is left alone after it failed, so that not every request waits for it in vain.
pub const PRIMARY_REST_MILLIS: i64 = 1_000;

/// A limiter with a stand-in.
pub struct Fallback {
    primary: Arc<dyn Limiter>,
    secondary: Arc<dyn Limiter>,
    fallbacks: AtomicU64,
    rests_until: AtomicI64,
}

impl fmt::Debug for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fallback").field("fallbacks", &self.fallbacks()).finish_non_exhaustive()
    }
}

impl Fallback {
    /// Asks `primary`, and `secondary` when it must.
    pub fn new(primary: Arc<dyn Limiter>, secondary: Arc<dyn Limiter>) -> Self {
        let (fallbacks, rests_until) = (AtomicU64::new(0), AtomicI64::new(i64::MIN));
        Self { primary, secondary, fallbacks, rests_until }
    }

    /// How many answers came from the secondary.
    pub fn fallbacks(&self) -> u64 {
        self.fallbacks.load(Ordering::SeqCst)
    }

    /// Whether the primary failed just now. A clock that was set back does not prolong its rest.
    fn rests(&self, now: Timestamp) -> bool {
        let left = self.rests_until.load(Ordering::SeqCst).saturating_sub(now.millis());
        (1..=PRIMARY_REST_MILLIS).contains(&left)
    }

    /// What the primary says, if it is asked and says something. It is called only when it does not rest: a call may
    /// count before it is awaited.
    async fn ask<'a>(
        &'a self,
        now: Timestamp,
        call: impl FnOnce(&'a dyn Limiter) -> Reply<'a, Verdict>,
    ) -> Option<Verdict> {
        if self.rests(now) {
            return None;
        }
        let patience = Duration::from_millis(PRIMARY_MILLIS_MAX);
        match tokio::time::timeout(patience, call(&*self.primary)).await {
            Ok(Ok(verdict)) => Some(verdict),
            Ok(Err(_)) | Err(_) => {
                let until = now.millis().saturating_add(PRIMARY_REST_MILLIS);
                self.rests_until.store(until, Ordering::SeqCst);
                None
            }
        }
    }

    fn counted(&self) -> &dyn Limiter {
        self.fallbacks.fetch_add(1, Ordering::SeqCst);
        &*self.secondary
    }
}

impl Limiter for Fallback {
    fn request<'a>(&'a self, subject: &'a [u8], rate: Rate, now: Timestamp) -> Reply<'a, Verdict> {
        Box::pin(async move {
            match self.ask(now, |primary| primary.request(subject, rate, now)).await {
                Some(verdict) => Ok(verdict),
                None => self.counted().request(subject, rate, now).await,
            }
        })
    }

    fn admit<'a>(&'a self, admission: Admission<'a>, now: Timestamp) -> Reply<'a, Verdict> {
        Box::pin(async move {
            match self.ask(now, |primary| primary.admit(admission, now)).await {
                Some(verdict) => Ok(verdict),
                None => self.counted().admit(admission, now).await,
            }
        })
    }
}

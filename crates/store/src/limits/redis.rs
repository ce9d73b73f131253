//! The limiter that processes share, in Redis. Owns the keys it writes, all under one prefix, each with the subject as
//! its hash tag and with an expiry. Never waits long: what Redis does not answer in time is an error, and
//! [`super::Fallback`] knows what to do with it. Redis may lose everything; then a window begins anew.

use std::fmt;
use std::time::Duration;

use redis::aio::ConnectionManager;
use redis::{Script, ScriptInvocation};
use semel_contract::profile::{Charge, Rate};
use semel_contract::time::Timestamp;

use super::scripts;
use super::who;
use super::window::{
    CLEARED_PER_CALL_MAX, Counted, Pair, Span, Step, WEIGHT_WHOLE, leaves_at, marker_life_millis,
    requests_life_millis, window_end, window_floor, window_millis,
};
use super::{Admission, Limiter, Verdict};
use crate::claims::{Reply, StoreError};
use crate::redis_link;

/// How long Redis may take, connecting included.
pub const REDIS_MILLIS_MAX: u64 = 250;
/// What every key begins with.
const PREFIX: &str = "semel:limit:";

/// A limiter in Redis.
#[derive(Clone)]
pub struct RedisLimiter {
    connection: ConnectionManager,
    patience: Duration,
    request: Script,
    id_window: Script,
    new_key: Script,
}

impl fmt::Debug for RedisLimiter {
    /// Without the connection: its address may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisLimiter").field("patience", &self.patience).finish_non_exhaustive()
    }
}

impl RedisLimiter {
    /// A limiter at `redis://HOST:PORT`. Connects with the first request, so that semel starts also while Redis is
    /// away. Call it within a tokio runtime.
    pub fn at(url: &str) -> Result<Self, StoreError> {
        Self::patient(url, Duration::from_millis(REDIS_MILLIS_MAX))
    }

    /// The same, with another patience.
    pub fn patient(url: &str, patience: Duration) -> Result<Self, StoreError> {
        let (_, connection) = redis_link::open(url, patience)?;
        Ok(Self {
            connection,
            patience,
            request: Script::new(scripts::REQUEST),
            id_window: Script::new(scripts::ID_WINDOW),
            new_key: Script::new(scripts::NEW_KEY),
        })
    }

    async fn run<const N: usize>(&self, call: &ScriptInvocation<'_>) -> Result<[i64; N], StoreError> {
        let mut connection = self.connection.clone();
        redis_link::in_time(self.patience, call.invoke_async(&mut connection)).await
    }

    async fn count(&self, subject: &[u8], rate: Rate, now: Timestamp) -> Result<Verdict, StoreError> {
        let span = Span::at(now, rate.window);
        let mut call = self.request.key(key(subject, "requests", rate));
        call.arg(span.bucket)
            .arg(span.weight())
            .arg(rate.count)
            .arg(requests_life_millis(rate.window))
            .arg(WEIGHT_WHOLE);
        let [counted, bucket, current, previous] = self.run(&call).await?;
        let pair = Pair { bucket, current: as_count(current), previous: as_count(previous) };
        let counted = if counted == 1 { Counted::Yes } else { Counted::No };
        Ok(pair.verdict(counted, rate, now))
    }

    async fn charge_in_window(&self, wish: Admission<'_>, now: Timestamp) -> Result<Verdict, StoreError> {
        let rate = wish.rate;
        let bucket = Span::at(now, rate.window).bucket;
        let mut call = self.id_window.key(format!("{}:{bucket}", key(wish.principal, "ids", rate)));
        call.arg(&wish.id).arg(rate.count).arg(wish.attempts_per_id).arg(marker_life_millis(rate.window));
        let [step, used] = self.run(&call).await?;
        Ok(Step::numbered(step)?.verdict(as_count(used), rate, window_end(now, rate.window), now))
    }

    async fn charge_in_log(&self, wish: Admission<'_>, now: Timestamp) -> Result<Verdict, StoreError> {
        let rate = wish.rate;
        let mut call = self.new_key.key(key(wish.principal, "keys", rate));
        call.key(key(wish.principal, "tries", rate));
        call.arg(&wish.id).arg(rate.count).arg(wish.attempts_per_id).arg(marker_life_millis(rate.window));
        call.arg(now.millis()).arg(window_floor(now, rate.window).millis()).arg(CLEARED_PER_CALL_MAX);
        let [step, used, leaving] = self.run(&call).await?;
        let leaving = if leaving < 0 { now } else { Timestamp::from_millis(leaving) };
        Ok(Step::numbered(step)?.verdict(as_count(used), rate, leaves_at(leaving, rate.window), now))
    }
}

impl Limiter for RedisLimiter {
    fn request<'a>(&'a self, subject: &'a [u8], rate: Rate, now: Timestamp) -> Reply<'a, Verdict> {
        Box::pin(self.count(subject, rate, now))
    }

    fn admit<'a>(&'a self, admission: Admission<'a>, now: Timestamp) -> Reply<'a, Verdict> {
        match admission.charge {
            Charge::IdWindow => Box::pin(self.charge_in_window(admission, now)),
            Charge::NewKey => Box::pin(self.charge_in_log(admission, now)),
        }
    }
}

/// A key whose hash tag is the subject: all keys of one call live on one node of a cluster.
fn key(subject: &[u8], what: &str, rate: Rate) -> String {
    let tag = who(subject).iter().fold(String::with_capacity(32), |tag, byte| tag + &format!("{byte:02x}"));
    format!("{PREFIX}{{{tag}}}:{what}:{}", window_millis(rate.window))
}

fn as_count(count: i64) -> u32 {
    u32::try_from(count.max(0)).unwrap_or(u32::MAX)
}

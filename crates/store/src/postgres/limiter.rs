//! The limiter that processes share, in the store's own database: the stand-in for Redis, and enough without it. Its
//! tables are not logged: after a crash of the server a window begins anew.

use std::sync::Arc;

use semel_contract::profile::{Charge, Rate};
use semel_contract::time::Timestamp;

use super::Core;
use super::link::{PgFailure, Value};
use crate::claims::{Reply, StoreError};
use crate::limits::window::{
    CLEARED_PER_CALL_MAX, Counted, Pair, Span, Step, WEIGHT_WHOLE, leaves_at, marker_life_millis,
    requests_life_millis, window_end, window_floor, window_millis,
};
use crate::limits::{Admission, Limiter, Verdict, who};

const COUNT_REQUEST: &str = "SELECT counted, of_bucket, now_current, now_previous
FROM semel.count_request($1::bytea, $2::bigint, $3::bigint, $4::bigint, $5::bigint, $6::bigint, $7::bigint)";
const CHARGE_IN_WINDOW: &str = "SELECT step, used FROM semel.charge_in_window(
    $1::bytea, $2::bigint, $3::bigint, $4::bytea, $5::bigint, $6::bigint, $7::bigint, $8::bigint)";
const CHARGE_IN_LOG: &str = "SELECT step, used, leaving FROM semel.charge_in_log(
    $1::bytea, $2::bigint, $3::bytea, $4::bigint, $5::bigint, $6::bigint, $7::bigint, $8::bigint, $9::bigint)";

/// A limiter in PostgreSQL.
#[derive(Clone)]
pub struct PostgresLimiter(pub(super) Arc<Core>);

impl std::fmt::Debug for PostgresLimiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresLimiter").finish_non_exhaustive()
    }
}

impl PostgresLimiter {
    async fn ask(&self, sql: &str, values: &[Value<'_>]) -> Result<tokio_postgres::Row, StoreError> {
        let rows = self.0.link.query(sql, values).await.map_err(PgFailure::of_write)?;
        let none = || StoreError::Unavailable("the limiter's function gave nothing".to_owned());
        rows.into_iter().next().ok_or_else(none)
    }

    async fn count(&self, subject: &[u8], rate: Rate, now: Timestamp) -> Result<Verdict, StoreError> {
        let span = Span::at(now, rate.window);
        let (who, allowed) = (who(subject), i64::from(rate.count));
        let weight = i64::try_from(span.weight()).unwrap_or(i64::MAX);
        let whole = i64::try_from(WEIGHT_WHOLE).unwrap_or(i64::MAX);
        let forget_at = now.millis().saturating_add(requests_life_millis(rate.window));
        let values: [Value<'_>; 7] = [
            &who.as_slice(),
            &window_millis(rate.window),
            &span.bucket,
            &weight,
            &whole,
            &allowed,
            &forget_at,
        ];
        let row = self.ask(COUNT_REQUEST, &values).await?;
        let pair = Pair {
            bucket: row.get("of_bucket"),
            current: as_count(row.get("now_current")),
            previous: as_count(row.get("now_previous")),
        };
        let counted = if row.get("counted") { Counted::Yes } else { Counted::No };
        Ok(pair.verdict(counted, rate, now))
    }

    async fn charge_in_window(&self, wish: Admission<'_>, now: Timestamp) -> Result<Verdict, StoreError> {
        let rate = wish.rate;
        let (who, bucket) = (who(wish.principal), Span::at(now, rate.window).bucket);
        let forget_at = now.millis().saturating_add(marker_life_millis(rate.window));
        let values: [Value<'_>; 8] = [
            &who.as_slice(),
            &window_millis(rate.window),
            &bucket,
            &wish.id.as_slice(),
            &i64::from(rate.count),
            &i64::from(wish.attempts_per_id),
            &now.millis(),
            &forget_at,
        ];
        let row = self.ask(CHARGE_IN_WINDOW, &values).await?;
        let step = Step::numbered(i64::from(row.get::<_, i32>("step")))?;
        Ok(step.verdict(as_count(row.get("used")), rate, window_end(now, rate.window), now))
    }

    async fn charge_in_log(&self, wish: Admission<'_>, now: Timestamp) -> Result<Verdict, StoreError> {
        let rate = wish.rate;
        let who = who(wish.principal);
        let forget_at = now.millis().saturating_add(marker_life_millis(rate.window));
        let values: [Value<'_>; 9] = [
            &who.as_slice(),
            &window_millis(rate.window),
            &wish.id.as_slice(),
            &i64::from(rate.count),
            &i64::from(wish.attempts_per_id),
            &now.millis(),
            &window_floor(now, rate.window).millis(),
            &i64::try_from(CLEARED_PER_CALL_MAX).unwrap_or(i64::MAX),
            &forget_at,
        ];
        let row = self.ask(CHARGE_IN_LOG, &values).await?;
        let step = Step::numbered(i64::from(row.get::<_, i32>("step")))?;
        let leaving: i64 = row.get("leaving");
        let leaving = if leaving < 0 { now } else { Timestamp::from_millis(leaving) };
        Ok(step.verdict(as_count(row.get("used")), rate, leaves_at(leaving, rate.window), now))
    }
}

impl Limiter for PostgresLimiter {
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

fn as_count(count: i64) -> u32 {
    u32::try_from(count.max(0)).unwrap_or(u32::MAX)
}

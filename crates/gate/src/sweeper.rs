//! Removes what has expired, in batches, by the store's clock. One sweeper for each store is enough; several do no harm.

use std::sync::Arc;
use std::time::Duration;

use semel_contract::profile::{Sweep, SweepWhen};
use semel_store::admin::sweep_all;
use semel_store::clock::Clock;
use semel_store::{ClaimStore, StoreError, Swept};

use crate::measure;

/// Sweeps until nothing is left to sweep, and says what was done.
///
/// # Errors
/// The store did not answer.
pub async fn sweep_now(store: &dyn ClaimStore, sweep: &Sweep, grace: Duration) -> Result<Swept, StoreError> {
    let total = sweep_all(store, sweep.batch, grace, sweep.log).await?;
    measure::swept(&total);
    tracing::info!(
        removed = total.removed,
        unknown = total.unknown,
        released = total.released,
        "swept expired records"
    );
    Ok(total)
}

/// Sweeps as often as the profile says, until the returned task is aborted.
pub fn sweep_for_ever(
    store: Arc<dyn ClaimStore>,
    clock: Arc<dyn Clock>,
    sweep: Sweep,
    grace: Duration,
) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(until_next(sweep.when, clock.read().wall.millis())).await;
            if let Err(error) = sweep_now(&*store, &sweep, grace).await {
                tracing::warn!(%error, "failed to sweep; it is tried again next time");
            }
        }
    })
}

/// How long until the next run.
#[must_use]
pub fn until_next(when: SweepWhen, now_millis: i64) -> Duration {
    const DAY_MILLIS: i64 = 86_400_000;
    match when {
        SweepWhen::Every(period) => period,
        SweepWhen::DailyAt(time) => {
            let at = i64::try_from(time.as_millis()).unwrap_or(0) % DAY_MILLIS;
            let wait = (at - now_millis.rem_euclid(DAY_MILLIS)).rem_euclid(DAY_MILLIS);
            Duration::from_millis(if wait == 0 { DAY_MILLIS } else { wait } as u64)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daily_sweep_waits_for_its_hour() {
        let three = SweepWhen::DailyAt(Duration::from_secs(3 * 3600));
        let hours = |millis| until_next(three, millis).as_secs() / 3600;
        assert_eq!(hours(0), 3);
        assert_eq!(hours(2 * 3_600_000), 1);
        assert_eq!(hours(3 * 3_600_000), 24);
        assert_eq!(hours(4 * 3_600_000), 23);
        assert_eq!(until_next(SweepWhen::Every(Duration::from_secs(7)), 5), Duration::from_secs(7));
    }
}

//! The end of a gate: what runs is let run, and what does not end in time is said to be unknown.

use std::sync::atomic::Ordering;
use std::time::Duration;

use semel_contract::record::Guarantee;
use semel_store::Settlement;
use tokio::time::Instant;

use crate::held::without_effect;
use crate::layer::GateLayer;

/// How often it is looked whether everything has ended.
const LOOK: Duration = Duration::from_millis(10);
/// How long the last writes may take.
const LAST_WRITES: Duration = Duration::from_secs(5);

impl GateLayer {
    /// Claims nothing from now on: what needs a new claim is told to come again with the same key. Records are still
    /// answered from, and what is held is settled. A claim that is being made at this moment is given up, so that once this
    /// has returned another gate can take over, under other names for the same requests.
    pub fn close(&self) {
        self.0.draining.store(true, Ordering::SeqCst);
    }

    /// Takes no new keyed work, waits for what runs, and after `within` marks what is left: fenced attempts become
    /// unknown, atomic ones are superseded and released, so that they can no longer commit; what follows an unknown attempt
    /// stays unknown. Says how many were left.
    /// Then the process may exit.
    pub async fn drain(&self, within: Duration) -> usize {
        self.close();
        let until = Instant::now() + within;
        while !self.is_idle() && Instant::now() < until {
            tokio::time::sleep(LOOK).await;
        }
        let left = self.0.keeper.held();
        let marking = left.iter().map(|claimed| {
            let profile = &claimed.route.profile;
            let settlement = match profile.guarantee {
                Guarantee::Atomic => without_effect(claimed.how),
                Guarantee::Fenced | Guarantee::None => Settlement::Unknown,
            };
            self.0.store.settle(&claimed.id, claimed.fence, settlement, &profile.lifetime)
        });
        let marked = tokio::time::timeout(LAST_WRITES, futures_util::future::join_all(marking))
            .await
            .unwrap_or_default();
        let failed = left.len() - marked.iter().filter(|result| result.is_ok()).count();
        if failed > 0 {
            tracing::error!(failed, "could not mark what was left; it becomes unknown when its lease lapses");
        }
        left.len()
    }

    fn is_idle(&self) -> bool {
        self.0.in_flight.available_permits() >= self.0.max_in_flight && self.0.keeper.held().is_empty()
    }
}

//! Finds lanes that are due without walking over what is past: it remembers how far it has looked, looks a little behind
//! that for what was committed late, and at a few lanes each time, in a circle, for whatever could still be missed. Nothing
//! here must be right for safety: a lane that is found twice is claimed once.

use std::time::Duration;

use semel_contract::time::millis_of;
use tokio::time::Instant;

use super::store::ready::Place;
use super::store::{RelayStore, StoreError};

/// Lanes of one look.
const AT_ONCE: i64 = 500;
/// Lanes of one step around the circle.
const STEP: i64 = 1000;
/// How often there is a step, and a look far behind.
const STEP_EVERY: Duration = Duration::from_secs(1);
/// How long a transaction takes at most from reading the clock to its commit, usually and nearly always.
const NEAR_MS: i64 = 200;
const FAR_MS: i64 = 5000;

/// How far it has looked.
#[derive(Debug, Default)]
pub(crate) struct Finder {
    /// Everything before this was seen. `None` before the first look.
    seen: Option<Place>,
    /// The last lane of the circle that was looked at. The first time around is made at once.
    around: i64,
    is_around: bool,
    stepped: Option<Instant>,
}

/// What a look found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) lanes: Vec<i64>,
    /// Whether there is more to be found now.
    pub(crate) is_more: bool,
    /// Whether this was a look of the clock, not only of a wake-up.
    pub(crate) is_poll: bool,
    /// In how many milliseconds the next lane is due, where nothing was found and that is soon.
    pub(crate) next: Option<u64>,
}

impl Finder {
    pub(crate) async fn look(&mut self, store: &RelayStore) -> Result<Found, StoreError> {
        let now = store.now().await?;
        let mut found = Found::default();
        let is_time = self.stepped.is_none_or(|stepped| stepped.elapsed() >= STEP_EVERY);
        if is_time || !self.is_around {
            let (due, last) = store.due_among(self.around, now, STEP).await?;
            found.lanes.extend(due);
            self.is_around |= last.is_none();
            self.around = last.unwrap_or(0);
        }
        let seen = self.seen.unwrap_or(Place { due: now - FAR_MS, lane: 0 });
        let next = store.due_after(seen, now, AT_ONCE).await?;
        let is_cut = next.len() as i64 == AT_ONCE;
        found.lanes.extend(next.iter().map(|place| place.lane));
        if !is_cut {
            let back = if is_time { FAR_MS } else { NEAR_MS };
            let behind = store.due_after(Place { due: seen.due - back, lane: 0 }, seen.due, AT_ONCE).await?;
            found.lanes.extend(behind.iter().map(|place| place.lane));
        }
        let whole = Place { due: now, lane: i64::MAX };
        self.seen = Some(if is_cut { next.last().copied().unwrap_or(whole) } else { whole });
        if is_time {
            self.stepped = Some(Instant::now());
        }
        found.is_poll = is_time;
        found.is_more = is_cut || !self.is_around;
        if found.lanes.is_empty() && !found.is_more {
            // Not later than the next look: what others keep of lanes that were due then is not walked over in vain.
            let next = store.next_due(now, now + millis_of(STEP_EVERY)).await?;
            found.next = next.and_then(|due| u64::try_from(due - now).ok());
        }
        Ok(found)
    }
}

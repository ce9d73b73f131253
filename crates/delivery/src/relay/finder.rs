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
    /// The next time at which a lane is due, and until when nothing else was.
    next: Option<i64>,
    known_until: i64,
}

/// What a look found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) lanes: Vec<i64>,
    /// Whether there is more to be found now.
    pub(crate) is_more: bool,
    /// Whether this was a look of the clock, not only of a wake-up.
    pub(crate) is_poll: bool,
    /// How long ago the last step was.
    pub(crate) since_step: Duration,
    /// How long it takes until the next lane is due, where nothing was found and that is soon.
    pub(crate) next: Option<Duration>,
}

impl Found {
    /// How long nobody need look, if nobody is woken: until the next lane is due, and not longer than `poll` after the last
    /// step, however often somebody has looked since.
    pub(crate) fn pause(&self, poll: Duration) -> Duration {
        let rest = if poll < STEP_EVERY { poll } else { poll.saturating_sub(self.since_step) };
        self.next.map_or(rest, |next| next.min(rest))
    }
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
        found.since_step = self.stepped.map_or(Duration::ZERO, |stepped| stepped.elapsed());
        if found.lanes.is_empty() && !found.is_more {
            let left = |due: i64| Duration::from_millis(u64::try_from(due - now).unwrap_or(0));
            found.next = self.next_due(store, now).await?.map(left);
        }
        Ok(found)
    }

    /// When the next lane is due, as far as was known when somebody last looked. Asked for as rarely as that allows, and not
    /// far ahead: a database may have to walk over what it keeps of lanes that were to be due then.
    async fn next_due(&mut self, store: &RelayStore, now: i64) -> Result<Option<i64>, StoreError> {
        if self.known_until <= now || self.next.is_some_and(|next| next <= now) {
            self.known_until = now + millis_of(STEP_EVERY);
            self.next = store.next_due(now, self.known_until).await?;
        }
        Ok(self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_in_between_does_not_put_the_next_step_off() {
        let (ms, poll) = (Duration::from_millis, Duration::from_secs(1));
        let found = |since_step, next: Option<u64>| Found {
            since_step: ms(since_step),
            next: next.map(ms),
            ..Found::default()
        };
        assert_eq!(found(0, None).pause(poll), poll);
        assert_eq!(found(900, None).pause(poll), ms(100));
        assert_eq!(found(0, Some(300)).pause(poll), ms(300));
        assert_eq!(found(900, Some(300)).pause(poll), ms(100));
        assert_eq!(found(900, None).pause(ms(50)), ms(50), "a shorter poll is as long as it is");
    }
}

//! Looking gives way to working: after a list comes a pause, many times as long as the list took, before the next one is read. So
//! whoever opens lists all the time takes a small part of the machine from requests. The first list never waits, and what is looked
//! up by its key never does.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::{Method, Uri};

use super::query_of;
use crate::part::Part;

/// The pause after a list is so many times as long as it took.
const PAUSE_TIMES: u32 = 12;
/// Nobody waits longer.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// When the next list may be read.
pub(super) struct Pace {
    lists: BTreeSet<&'static str>,
    turns: Mutex<Turns>,
}

impl Pace {
    /// For the lists of these parts.
    pub(super) fn of(parts: &[Arc<dyn Part>]) -> Self {
        let views = || parts.iter().flat_map(|part| part.sheet().views);
        let is_list = |view: &&crate::part::View| view.panels.iter().any(|panel| !panel.next.is_empty());
        let panels = views().flat_map(|view| view.panels).filter(|panel| !panel.next.is_empty());
        let pages = views().filter(is_list).map(|view| view.path);
        // The first page has the newest of every list.
        let lists = pages.chain(panels.map(|panel| panel.api)).chain(["/"]).collect();
        Self { lists, turns: Mutex::default() }
    }

    fn is_paced(&self, method: &Method, uri: &Uri) -> bool {
        let is_lookup = || query_of(uri).get("key").is_some_and(|key| !key.is_empty());
        method == Method::GET && self.lists.contains(uri.path()) && !is_lookup()
    }

    fn turns(&self) -> std::sync::MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who may read next, and how long the last list took.
#[derive(Default)]
struct Turns {
    next: Option<Instant>,
    took: Duration,
}

impl Turns {
    /// How long to wait. Those who come meanwhile stand behind.
    fn take(&mut self, now: Instant) -> Duration {
        let turn = self.next.map_or(now, |next| next.clamp(now, now + WAIT_MAX));
        self.next = Some(turn + self.took * PAUSE_TIMES);
        turn - now
    }

    fn has_ended(&mut self, now: Instant, took: Duration) {
        self.took = took.min(WAIT_MAX / PAUSE_TIMES);
        let next = now + self.took * PAUSE_TIMES;
        self.next = Some(self.next.map_or(next, |known| known.max(next)));
    }
}

/// Has lists wait for their turn.
pub(super) async fn give_way(State(pace): State<Arc<Pace>>, request: Request, next: Next) -> Response {
    if !pace.is_paced(request.method(), request.uri()) {
        return next.run(request).await;
    }
    let wait = pace.turns().take(Instant::now());
    if !wait.is_zero() {
        tokio::time::sleep(wait).await;
    }
    let began = Instant::now();
    let response = next.run(request).await;
    pace.turns().has_ended(Instant::now(), began.elapsed());
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_first_list_does_not_wait_and_the_next_ones_pause() {
        let (mut turns, now) = (Turns::default(), Instant::now());
        assert_eq!(turns.take(now), Duration::ZERO);
        turns.has_ended(now + 2 * MS, 2 * MS);
        assert_eq!(turns.take(now + 2 * MS), 2 * MS * PAUSE_TIMES);
        // Whoever comes at the same time stands behind.
        assert_eq!(turns.take(now + 2 * MS), 4 * MS * PAUSE_TIMES);
        assert_eq!(turns.take(now + 3600 * 1000 * MS), Duration::ZERO);
    }

    #[test]
    fn nobody_waits_longer_than_a_second() {
        let (mut turns, now) = (Turns::default(), Instant::now());
        turns.has_ended(now, 3600 * 1000 * MS);
        for _ in 0..100 {
            assert!(turns.take(now) <= WAIT_MAX);
        }
    }

    #[test]
    fn lists_are_paced_and_lookups_are_not() {
        let pace = Pace { lists: ["/requests", "/v1/records"].into(), turns: Mutex::default() };
        let is_paced = |method: Method, uri: &'static str| pace.is_paced(&method, &Uri::from_static(uri));
        assert!(is_paced(Method::GET, "/requests") && is_paced(Method::GET, "/v1/records?limit=9&key="));
        assert!(
            !is_paced(Method::GET, "/v1/records?limit=9&key=a") && !is_paced(Method::GET, "/v1/records/7")
        );
        assert!(!is_paced(Method::POST, "/requests") && !is_paced(Method::GET, "/readyz"));
    }
}

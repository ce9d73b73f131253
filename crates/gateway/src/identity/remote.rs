//! Keys behind a URL: fetched when they are first needed, again when they are old or one is missing, and never often.
//! Old keys are used while new ones are fetched, and as long as they cannot be.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::HeaderMap;
use tokio::time::Instant;

use super::keys::{self, Key};
use semel_http::Fetcher;

/// How long fetching keys may take.
pub(crate) const FETCH_TIME_MAX: Duration = Duration::from_secs(5);
/// After how long keys are fetched again.
const FRESH_FOR: Duration = Duration::from_secs(600);
/// How often keys are fetched at most, whatever tokens say.
const FETCH_PAUSE: Duration = Duration::from_secs(10);

/// Keys behind a URL.
#[derive(Debug)]
pub(crate) struct Remote {
    fetcher: Fetcher,
    path: String,
    seen: Mutex<Seen>,
    /// Held by whoever fetches.
    fetching: tokio::sync::Mutex<()>,
}

/// The keys that were fetched last.
#[derive(Debug, Default)]
struct Seen {
    keys: Option<Arc<Vec<Key>>>,
    fetched: Option<Instant>,
    /// When they were last asked for because they were old, and because one was missing.
    tried: [Option<Instant>; 2],
}

/// Why keys are fetched. Each reason has its own pause, so that a key that was added right after a fetch is found.
#[derive(Clone, Copy, Debug)]
enum Reason {
    Old = 0,
    Missing = 1,
}

impl Remote {
    pub(crate) fn new(fetcher: Fetcher, path: String) -> Arc<Self> {
        Arc::new(Self { fetcher, path, seen: Mutex::default(), fetching: tokio::sync::Mutex::default() })
    }

    /// The keys that are known, waited for only where there are none yet.
    pub(crate) async fn keys(self: &Arc<Self>) -> Option<Arc<Vec<Key>>> {
        let (known, is_fresh) = {
            let seen = self.seen();
            (seen.keys.clone(), within(seen.fetched, FRESH_FOR))
        };
        match known {
            Some(keys) if is_fresh => Some(keys),
            Some(keys) => {
                if !within(self.seen().tried[Reason::Old as usize], FETCH_PAUSE) {
                    let remote = Arc::clone(self);
                    tokio::spawn(async move { remote.fetch(Reason::Old).await });
                }
                Some(keys)
            }
            None => {
                self.fetch(Reason::Old).await;
                self.seen().keys.clone()
            }
        }
    }

    /// The keys after another look because one was missing, where the last such look was not just now.
    pub(crate) async fn newer(&self) -> Option<Arc<Vec<Key>>> {
        self.fetch(Reason::Missing).await;
        self.seen().keys.clone()
    }

    async fn fetch(&self, reason: Reason) {
        let _alone = self.fetching.lock().await;
        {
            let mut seen = self.seen();
            let tried = &mut seen.tried[reason as usize];
            if within(*tried, FETCH_PAUSE) {
                return;
            }
            *tried = Some(Instant::now());
        }
        match self.ask().await {
            Ok(keys) => {
                let mut seen = self.seen();
                seen.keys = Some(Arc::new(keys));
                seen.fetched = Some(Instant::now());
            }
            Err(why) => tracing::warn!(why, "failed to fetch the keys of tokens"),
        }
    }

    async fn ask(&self) -> Result<Vec<Key>, String> {
        let answer = self.fetcher.ask(&self.path, HeaderMap::new()).await?;
        match answer.status.is_success() {
            true => keys::of_set(&answer.body),
            false => Err(format!("the answer was {}", answer.status)),
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        // Nothing that holds this lock panics.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn within(since: Option<Instant>, time: Duration) -> bool {
    since.is_some_and(|since| since.elapsed() < time)
}

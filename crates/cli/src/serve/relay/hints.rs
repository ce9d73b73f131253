//! Hints between replicas, by Redis: a word on a channel when something may be due, and a key for each lane that somebody
//! works on. Nothing rests on them: while Redis is away, everything is as without it.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_delivery::relay::hints::{Hinted, Hints, Taken};
use semel_delivery::relay::target::LEASE;
use semel_delivery::relay::{RelayStore, Target};
use semel_store::StoreError;
use semel_store::signals::RedisSignals;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::wording::Wording;

/// Where replicas tell each other that something may be due.
const CHANNEL: &str = "semel:relay:wake";
/// How long Redis is left alone after it failed, so that not every lane waits for it in vain.
const REST: Duration = Duration::from_secs(1);
/// Between two words on the channel.
const PAUSE: Duration = Duration::from_millis(10);
/// Lanes whose names are remembered.
const NAMES_MAX: usize = 100_000;

/// A lane's target, group and name.
type Name = Arc<(String, String, String)>;

/// Hints by Redis.
#[derive(Debug)]
pub(crate) struct RedisHints {
    signals: RedisSignals,
    store: RelayStore,
    /// This replica.
    owner: String,
    /// How the targets speak of their lanes, by their names.
    wordings: Mutex<HashMap<String, Wording>>,
    names: Mutex<HashMap<i64, Name>>,
    rests_until: Mutex<Option<Instant>>,
    is_away: AtomicBool,
    told: Notify,
}

/// What runs for them until it is dropped.
pub(crate) struct Tasks(Vec<AbortHandle>);

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(AbortHandle::abort);
    }
}

impl RedisHints {
    /// Hints at this address, of this replica.
    pub(crate) fn at(url: &str, store: RelayStore, owner: &str) -> Result<Arc<Self>, StoreError> {
        Ok(Arc::new(Self {
            signals: RedisSignals::at(url)?,
            store,
            owner: owner.to_owned(),
            wordings: Mutex::default(),
            names: Mutex::default(),
            rests_until: Mutex::default(),
            is_away: AtomicBool::new(false),
            told: Notify::new(),
        }))
    }

    /// Begins to tell and to hear; `woken` is called when another replica says that something may be due.
    pub(crate) fn start(self: &Arc<Self>, woken: impl Fn() + Send + Sync + 'static) -> Tasks {
        let (telling, hearing) = (Arc::clone(self), Arc::clone(self));
        let tells = tokio::spawn(async move {
            loop {
                telling.told.notified().await;
                if telling.is_asked() {
                    let said = telling.signals.say(CHANNEL, &telling.owner).await;
                    telling.noted(said);
                }
                tokio::time::sleep(PAUSE).await;
            }
        });
        let hears = tokio::spawn(async move {
            let heard = |by: &str| {
                if by != hearing.owner {
                    woken();
                }
            };
            hearing.signals.listen(CHANNEL, heard).await;
        });
        Tasks(vec![tells.abort_handle(), hears.abort_handle()])
    }

    /// The targets in force.
    pub(crate) fn speak_of(&self, targets: &BTreeMap<String, Arc<Target>>) {
        let wordings = targets.values().map(|target| (target.name.clone(), Wording::of(&target.profile)));
        *locked(&self.wordings) = wordings.collect();
    }

    /// Writes down for whoever looks that changes of a lane wait for company.
    pub(crate) async fn debounces(&self, target: &str, group: &str, lane: &str, quiet: Duration) {
        if self.is_asked() && !quiet.is_zero() {
            let marked =
                self.signals.mark(&self.key(target, group, lane, "debounce"), &self.owner, quiet).await;
            self.noted(marked);
        }
    }

    fn key(&self, target: &str, group: &str, lane: &str, what: &str) -> String {
        let wording = locked(&self.wordings).get(target).copied().unwrap_or(Wording::Lanes);
        wording.redis_key(target, group, lane, what)
    }

    async fn lock_of(&self, lane: i64) -> Option<String> {
        let known = locked(&self.names).get(&lane).cloned();
        let name = match known {
            Some(name) => name,
            None => {
                let found = self.store.list(None, lane - 1, 1).await.ok()?;
                let found = found.into_iter().next().filter(|found| found.id == lane)?;
                let name = Arc::new((found.target, found.group, found.name));
                let mut names = locked(&self.names);
                if names.len() >= NAMES_MAX {
                    names.clear();
                }
                names.insert(lane, Arc::clone(&name));
                name
            }
        };
        Some(self.key(&name.0, &name.1, &name.2, "sync_lock"))
    }

    /// Whether Redis is worth a question now.
    fn is_asked(&self) -> bool {
        locked(&self.rests_until).is_none_or(|until| Instant::now() >= until)
    }

    /// What Redis said, or nothing where it failed; then it is left alone for a moment.
    fn noted<T>(&self, said: Result<T, StoreError>) -> Option<T> {
        match said {
            Ok(said) => {
                if self.is_away.swap(false, Ordering::Relaxed) {
                    tracing::info!("Redis is back: replicas wake each other");
                }
                Some(said)
            }
            Err(error) => {
                *locked(&self.rests_until) = Some(Instant::now() + REST);
                if !self.is_away.swap(true, Ordering::Relaxed) {
                    tracing::warn!(%error, "Redis is away: replicas look at the store instead");
                }
                None
            }
        }
    }

    async fn taken(&self, lane: i64) -> Taken {
        if !self.is_asked() {
            return Taken::Ours;
        }
        let Some(key) = self.lock_of(lane).await else { return Taken::Ours };
        match self.noted(self.signals.lock(&key, &self.owner, LEASE).await) {
            // A holder may be gone, or may never have been: the store knows, and where it does not say, the claim decides.
            Some(false) if self.store.is_held(lane).await.unwrap_or(false) => Taken::Elsewhere,
            Some(_) | None => Taken::Ours,
        }
    }

    async fn given(&self, lane: i64) {
        if self.is_asked()
            && let Some(key) = self.lock_of(lane).await
        {
            self.noted(self.signals.unlock(&key, &self.owner).await);
        }
    }
}

impl Hints for RedisHints {
    fn wake(&self) {
        self.told.notify_one();
    }

    fn take(&self, lane: i64) -> Hinted<'_, Taken> {
        Box::pin(self.taken(lane))
    }

    fn give(&self, lane: i64) -> Hinted<'_, ()> {
        Box::pin(self.given(lane))
    }
}

fn locked<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

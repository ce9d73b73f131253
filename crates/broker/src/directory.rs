//! Who belongs to a mesh, kept in memory for as long as nobody has changed it. A change anywhere moves one number in the
//! database; every broker looks at it a few times a second, forgets what it kept, and tells its streams. While that number
//! cannot be read, nothing that is kept counts.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_delivery::relay::store::sql::StoreError;
use tokio::time::Instant;

use crate::news::{News, Subscriber};
use crate::store::Store;
use crate::store::people::Standing;

/// Members that are kept.
const KEPT_MAX: usize = 100_000;
/// For how long what is kept counts after the last look.
const FRESH_FOR: Duration = Duration::from_millis(600);

/// By what a member is looked up.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum KnownBy {
    /// The SHA-256 of its token.
    Token(String),
    /// Its mesh and name, verified elsewhere.
    Name(String, String),
}

/// Who belongs to what.
pub(crate) struct Directory {
    store: Store,
    kept: Mutex<Kept>,
    version: Arc<News<i64>>,
    epoch: Arc<News<i64>>,
}

#[derive(Default)]
struct Kept {
    standings: HashMap<KnownBy, Standing>,
    looked: Option<Instant>,
}

impl Directory {
    pub(crate) async fn open(store: Store) -> Result<Self, StoreError> {
        let (epoch, version) = (store.number("epoch").await?, store.number("directory").await?);
        let (epoch, version) = (News::new(epoch), News::new(version));
        Ok(Self { store, kept: Mutex::default(), version, epoch })
    }

    /// The epoch of event ids.
    pub(crate) fn epoch(&self) -> i64 {
        self.epoch.get()
    }

    /// The number of the last change that is known here.
    pub(crate) fn version(&self) -> i64 {
        self.version.get()
    }

    /// Changes whenever who belongs to what may have changed.
    pub(crate) fn watch(&self) -> Subscriber<i64> {
        self.version.subscribe()
    }

    /// Changes when the store was restored.
    pub(crate) fn watch_epoch(&self) -> Subscriber<i64> {
        self.epoch.subscribe()
    }

    /// The member that is known by this.
    pub(crate) async fn find(&self, by: &KnownBy) -> Result<Option<Standing>, StoreError> {
        let version = self.version.get();
        {
            let kept = self.kept();
            let is_fresh = kept.looked.is_some_and(|looked| looked.elapsed() < FRESH_FOR);
            if let Some(standing) = kept.standings.get(by).filter(|_| is_fresh) {
                return Ok(Some(standing.clone()));
            }
        }
        let found = match by {
            KnownBy::Token(sha256) => self.store.by_token(sha256).await?,
            KnownBy::Name(mesh, member) => self.store.by_name(mesh, member).await?,
        };
        if let Some(standing) = &found {
            let mut kept = self.kept();
            // What was read before a change that is known by now may be the state before it.
            if self.version.get() == version && kept.standings.len() < KEPT_MAX {
                kept.standings.insert(by.clone(), standing.clone());
            }
        }
        Ok(found)
    }

    /// Looks whether anything has changed.
    pub(crate) async fn refresh(&self) -> Result<(), StoreError> {
        let before = Instant::now();
        let (epoch, version) = (self.store.number("epoch").await?, self.store.number("directory").await?);
        let mut kept = self.kept();
        if self.version.get() != version {
            kept.standings.clear();
            self.version.update(|_| version);
        }
        kept.looked = Some(before);
        drop(kept);
        if self.epoch.get() != epoch {
            self.epoch.update(|_| epoch);
        }
        Ok(())
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

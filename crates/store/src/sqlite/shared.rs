//! Where the handles, the writer and the other threads of the claim store meet: the engine's part, and what is kept in
//! memory beside the rows.

use std::sync::{Arc, Mutex, MutexGuard};

use rusqlite::Connection;
use semel_contract::restore::Restore;
use semel_contract::time::Timestamp;

use super::engine::{EngineError, Shared};
use super::key_index::KeyIndex;
use super::open_claims::OpenClaims;
use super::recent::Recent;
use crate::claims::StoreError;
use crate::hints::Hints;

/// What they all use.
pub(super) struct StoreShared {
    pub(super) engine: Arc<Shared>,
    pub(super) hints: Hints,
    open_claims: Mutex<OpenClaims>,
    /// Where rows are.
    pub(super) index: KeyIndex,
    /// Records that were read lately.
    pub(super) recent: Recent,
    /// Restores from backups, as they are written.
    pub(super) restores: Mutex<Vec<Restore>>,
}

impl StoreShared {
    pub(super) fn new(engine: Arc<Shared>, restores: Vec<Restore>) -> Self {
        Self {
            engine,
            hints: Hints::default(),
            open_claims: Mutex::default(),
            index: KeyIndex::default(),
            recent: Recent::default(),
            restores: Mutex::new(restores),
        }
    }

    /// The store's time.
    pub(super) fn now(&self) -> Timestamp {
        self.engine.time.now()
    }

    /// Whether the store may answer.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        Ok(self.engine.health.check()?)
    }

    /// Looks something up. It sees everything that was committed when it was called.
    pub(super) fn look<T>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        Ok(self.engine.look(read)?)
    }

    /// Reads on the connection for lists.
    pub(super) fn list<T>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        Ok(self.engine.list(read)?)
    }

    /// Reads a little, beside lists and in no hurry.
    pub(super) fn read_aside<T>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        Ok(self.engine.read_aside(read)?)
    }

    /// The claims that are held; never keep them locked across I/O.
    pub(super) fn open_claims(&self) -> MutexGuard<'_, OpenClaims> {
        self.open_claims.lock().expect("nothing panics while it changes what is held")
    }
}

impl From<EngineError> for StoreError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Full(why) => StoreError::Full(why),
            EngineError::Unavailable(why) => StoreError::Unavailable(why),
            EngineError::Unknown(why) => StoreError::Unknown(why),
        }
    }
}

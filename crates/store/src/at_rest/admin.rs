//! What operators ask of a store whose answers are protected: found answers are opened, the rest is the store's beneath.

use semel_contract::profile::Lifetime;
use semel_contract::restore::{Restore, Undated};
use semel_contract::time::Timestamp;

use super::AtRest;
use crate::admin::{
    AdminStore, Audited, Cleanup, ClockState, KeyReach, Note, Sought, StaleCount, StalePlace, Trail,
};
use crate::claims::{About, Entry, Id, Reply, Sealed};

impl<S: AdminStore + ?Sized> AdminStore for AtRest<S> {
    fn find<'a>(&'a self, sought: &'a Sought, limit: u32) -> Reply<'a, Vec<Entry>> {
        Box::pin(async move {
            let entries = self.inner.find(sought, limit).await?;
            entries.into_iter().map(|entry| self.open(entry)).collect()
        })
    }

    fn key_reach(&self) -> Reply<'_, KeyReach> {
        self.inner.key_reach()
    }

    fn trail<'a>(&'a self, trail: &'a Trail) -> Reply<'a, Vec<Audited>> {
        self.inner.trail(trail)
    }

    fn note<'a>(&'a self, note: &'a Note) -> Reply<'a, ()> {
        self.inner.note(note)
    }

    fn seal_by<'a>(
        &'a self,
        id: &'a Id,
        about: &'a About,
        lifetime: &'a Lifetime,
        by: &'a str,
        reason: &'a str,
    ) -> Reply<'a, Sealed> {
        Box::pin(async move {
            Ok(match self.inner.seal_by(id, about, lifetime, by, reason).await? {
                Sealed::Known(entry) => Sealed::Known(Box::new(self.open(*entry)?)),
                Sealed::Done => Sealed::Done,
            })
        })
    }

    fn cleanups(&self, before: Option<u64>, limit: u32) -> Reply<'_, Vec<Cleanup>> {
        self.inner.cleanups(before, limit)
    }

    fn stale_after<'a>(
        &'a self,
        principal: Option<&'a str>,
        after: Option<StalePlace>,
        limit: u32,
    ) -> Reply<'a, Vec<StaleCount>> {
        self.inner.stale_after(principal, after, limit)
    }

    fn restored<'a>(
        &'a self,
        backup_at: Timestamp,
        undated: Undated,
        by: &'a str,
        reason: &'a str,
    ) -> Reply<'a, Restore> {
        self.inner.restored(backup_at, undated, by, reason)
    }

    fn clock(&self) -> Reply<'_, ClockState> {
        self.inner.clock()
    }

    fn confirm_jump<'a>(&'a self, by: &'a str, reason: &'a str) -> Reply<'a, ()> {
        self.inner.confirm_jump(by, reason)
    }
}

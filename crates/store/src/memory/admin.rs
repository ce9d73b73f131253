//! What operators ask of the store in memory.

use std::future::ready;
use std::time::Duration;

use semel_contract::profile::Lifetime;
use semel_contract::record::Fence;
use semel_contract::restore::{Restore, Undated};
use semel_contract::time::Timestamp;

use super::{MemoryStore, Rows};
use crate::admin::{
    AdminStore, Audited, CLEANUPS_KEPT_MAX, Cleanup, ClockState, Note, STALE_KEPT, Sought, StaleCount,
    StalePlace, Trail, action,
};
use crate::claims::{About, ClaimStore, Entry, Id, Reply, Sealed, Swept};

impl Rows {
    /// Adds a row to the trail.
    pub(super) fn note(&mut self, at: Timestamp, by: &str, action: &str, reason: &str, count: u64) {
        self.audit.push(Audited {
            number: self.audit.len() as u64 + 1,
            at,
            actor: by.to_owned(),
            action: action.to_owned(),
            hash: None,
            fence: None,
            reason: reason.to_owned(),
            count,
        });
    }

    /// Says what the row that was just added was done to.
    pub(super) fn note_is_about(&mut self, id: &Id, fence: Option<Fence>) {
        if let Some(row) = self.audit.last_mut() {
            row.hash = Some(id.hash());
            row.fence = fence.map(|fence| fence.to_string());
        }
    }

    pub(super) fn log_sweep(&mut self, at: Timestamp, swept: Swept, took: Duration) {
        let number = self.cleanups.last().map_or(1, |row| row.number + 1);
        self.cleanups.push(Cleanup { number, at, took, swept });
        let too_many = self.cleanups.len().saturating_sub(CLEANUPS_KEPT_MAX as usize);
        self.cleanups.drain(..too_many);
        self.stale.retain(|_, row| row.last_at.plus(STALE_KEPT) > at);
    }

    pub(super) fn count_stale(&mut self, tenant: Option<&str>, principal: &str, now: Timestamp) {
        let (tenant, principal) = (tenant.map(str::to_owned), principal.to_owned());
        let first = || StaleCount {
            tenant: tenant.clone(),
            principal: principal.clone(),
            count: 0,
            first_at: now,
            last_at: now,
        };
        let row = self.stale.entry((principal.clone(), tenant.clone())).or_insert_with(first);
        row.count += 1;
        row.last_at = now;
    }

    /// The entry that a number belongs to now, also where a resolution gave it another.
    fn numbered(&self, number: u64) -> Option<&Entry> {
        let current = self.entries.values().find(|entry| entry.record.fence.number == number);
        current.or_else(|| {
            let was = format!("{number}-");
            let is_it = |row: &&Audited| row.fence.as_ref().is_some_and(|fence| fence.starts_with(&was));
            let hash = self.audit.iter().rev().find(is_it)?.hash?;
            self.entries.values().find(|entry| entry.id.hash() == hash)
        })
    }

    fn find(&self, sought: &Sought) -> Vec<Entry> {
        let mut found: Vec<Entry> = match sought {
            Sought::Record(number) => self.numbered(*number).cloned().into_iter().collect(),
            Sought::RequestId(id) => {
                self.entries.values().filter(|entry| entry.about.request_id == *id).cloned().collect()
            }
            Sought::Key(key) => {
                self.entries.values().filter(|entry| entry.id.key.as_str() == key).cloned().collect()
            }
        };
        found.sort_by_key(|entry| entry.record.fence.number);
        found
    }
}

impl AdminStore for MemoryStore {
    fn find<'a>(&'a self, sought: &'a Sought, limit: u32) -> Reply<'a, Vec<Entry>> {
        let mut found = self.rows().find(sought);
        found.truncate(limit as usize);
        Box::pin(ready(Ok(found)))
    }

    fn trail<'a>(&'a self, trail: &'a Trail) -> Reply<'a, Vec<Audited>> {
        let rows = self.rows();
        let shown = |row: &&Audited| {
            trail.hash.is_none_or(|hash| row.hash == Some(hash))
                && trail.before.is_none_or(|before| row.number < before)
        };
        let found = rows.audit.iter().rev().filter(shown).take(trail.limit as usize).cloned().collect();
        Box::pin(ready(Ok(found)))
    }

    fn note<'a>(&'a self, note: &'a Note) -> Reply<'a, ()> {
        let now = self.now();
        self.rows().note(now, &note.actor, note.action, &note.reason, note.count);
        Box::pin(ready(Ok(())))
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
            let before = self.rows().entries.get(id).map(|entry| entry.record.fence);
            let sealed = self.seal(id, about, lifetime).await?;
            if matches!(sealed, Sealed::Done) {
                let now = self.now();
                let mut rows = self.rows();
                rows.note(now, by, action::SEAL, reason, 1);
                rows.note_is_about(id, before);
            }
            Ok(sealed)
        })
    }

    fn cleanups(&self, before: Option<u64>, limit: u32) -> Reply<'_, Vec<Cleanup>> {
        let rows = self.rows();
        let shown = |row: &&Cleanup| before.is_none_or(|before| row.number < before);
        let found = rows.cleanups.iter().rev().filter(shown).take(limit as usize).copied().collect();
        Box::pin(ready(Ok(found)))
    }

    fn stale_after<'a>(
        &'a self,
        principal: Option<&'a str>,
        after: Option<StalePlace>,
        limit: u32,
    ) -> Reply<'a, Vec<StaleCount>> {
        let rows = self.rows();
        let is_behind = |row: &StaleCount| after.as_ref().is_none_or(|place| place.is_before(row));
        let shown = |row: &&StaleCount| principal.is_none_or(|one| row.principal == one) && is_behind(row);
        let mut found: Vec<StaleCount> = rows.stale.values().filter(shown).cloned().collect();
        found.sort_by_cached_key(|row| {
            let StalePlace { count, principal, tenant } = StalePlace::of(row);
            (std::cmp::Reverse(count), principal, tenant)
        });
        found.truncate(limit as usize);
        Box::pin(ready(Ok(found)))
    }

    fn restored<'a>(
        &'a self,
        backup_at: Timestamp,
        undated: Undated,
        by: &'a str,
        reason: &'a str,
    ) -> Reply<'a, Restore> {
        let now = self.now();
        let mut rows = self.rows();
        let known = rows.restores.iter().position(|restore| restore.backup_at == backup_at);
        let at = known.unwrap_or_else(|| {
            rows.restores.push(Restore { backup_at, restored_at: now, undated });
            rows.restores.len() - 1
        });
        rows.restores[at].undated = undated;
        let restore = rows.restores[at];
        rows.note(now, by, action::RESTORED, reason, 1);
        Box::pin(ready(Ok(restore)))
    }

    fn clock(&self) -> Reply<'_, ClockState> {
        let now = self.now();
        Box::pin(ready(Ok(ClockState { now, jump_millis: self.time.frozen() })))
    }

    fn confirm_jump<'a>(&'a self, by: &'a str, reason: &'a str) -> Reply<'a, ()> {
        self.time.confirm(self.clock.read());
        let now = self.now();
        self.rows().note(now, by, action::CONFIRM_CLOCK, reason, 0);
        Box::pin(ready(Ok(())))
    }
}

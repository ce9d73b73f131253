//! What operators ask of the store on SQLite: reads go to the thread that lists, writes to the writer.

use std::time::Duration;

use semel_contract::profile::Lifetime;
use semel_contract::restore::{Restore, Undated};
use semel_contract::time::Timestamp;
use tokio::sync::oneshot;

use super::SqliteStore;
use super::row::{Hash, StoredEntry};
use super::shared::StoreShared;
use super::{admin_rows, statements, transitions};
use crate::admin::{
    AdminStore, Audited, Cleanup, ClockState, KeyReach, Note, Sought, StaleCount, StalePlace, Trail, action,
};
use crate::claims::{About, Entry, Id, Reply, Sealed, StoreError, Swept};
use crate::forms::{Form, Forms};

/// Numbers that are looked through in one go for what is not indexed.
const NUMBERS_AT_ONCE: i64 = 50_000;

impl SqliteStore {
    /// Asks the thread that lists.
    pub(super) fn ask<T, F>(&self, read: F) -> Reply<'static, T>
    where
        T: Send + 'static,
        F: FnOnce(&StoreShared) -> Result<T, StoreError> + Send + 'static,
    {
        if let Err(error) = self.shared.check() {
            return Box::pin(std::future::ready(Err(error)));
        }
        let (caller, answer) = oneshot::channel();
        let task = move |shared: &StoreShared| {
            // Nobody may be listening any more.
            let _ = caller.send(read(shared));
        };
        match self.lister.ask(Box::new(task)) {
            Ok(()) => Box::pin(async move {
                let stopped = || StoreError::Unavailable("the reading was not finished".to_owned());
                answer.await.unwrap_or_else(|_| Err(stopped()))
            }),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }

    /// Reads everything, some numbers at a time: other lists come in between.
    async fn find_request(&self, id: String, limit: u32) -> Result<Vec<Entry>, StoreError> {
        let sought = id.clone();
        let begin = move |shared: &StoreShared| {
            let held = held(shared, |kept| kept.entry.about.request_id == sought);
            Ok((held, shared.list(admin_rows::last_number)?))
        };
        let (held, last) = self.ask(begin).await?;
        let (mut written, mut above) = (Vec::new(), 0);
        while above < last && written.len() < limit as usize {
            let (id, numbers) = (id.clone(), (above, above + NUMBERS_AT_ONCE));
            let read = move |shared: &StoreShared| {
                shared.list(|db| admin_rows::by_request_id(db, &id, numbers, limit))
            };
            written.extend(self.ask(read).await?);
            above += NUMBERS_AT_ONCE;
        }
        Ok(merged(held, written, limit))
    }

    /// A search soon after a start waits a little until the keys of the file are read.
    fn wait_for_keys(&self) -> Option<oneshot::Receiver<()>> {
        let read = self.shared.index.keys.wait()?;
        self.key_reader.hurry();
        Some(read)
    }

    pub(super) fn log_one_sweep(&self, swept: Swept, took: Duration) -> Reply<'static, ()> {
        self.submit(0, move |tx| {
            let now = tx.now();
            Ok(admin_rows::log_sweep(tx.connection(), now, swept, took)?)
        })
    }

    pub(super) fn register_all_forms(&self, gate: &str, forms: &[Form]) -> Reply<'static, Forms> {
        let (gate, forms) = (gate.to_owned(), forms.to_vec());
        self.submit(0, move |tx| {
            let now = tx.now();
            admin_rows::forget_forms(tx.connection(), now, &|hash| tx.rows_of(hash))?;
            Ok(admin_rows::register_forms(tx.connection(), &gate, &forms, now)?)
        })
    }

    pub(super) fn count_one_stale(&self, tenant: Option<&str>, principal: &str) -> Reply<'static, ()> {
        let (tenant, principal) = (tenant.map(str::to_owned), principal.to_owned());
        self.submit(0, move |tx| {
            let now = tx.now();
            Ok(admin_rows::count_stale(tx.connection(), tenant.as_deref(), &principal, now)?)
        })
    }
}

/// What was done to no key in particular.
fn row(at: Timestamp, by: &str, action: &str, reason: &str, count: u64) -> Audited {
    Audited {
        number: 0,
        at,
        actor: by.to_owned(),
        action: action.to_owned(),
        hash: None,
        fence: None,
        reason: reason.to_owned(),
        count,
    }
}

fn find_number(shared: &StoreShared, number: u64, limit: u32) -> Result<Vec<Entry>, StoreError> {
    let held = held(shared, |kept| kept.entry.record.fence.number == number);
    Ok(merged(held, numbered(shared, number)?, limit))
}

fn find_key(shared: &StoreShared, key: &str, limit: u32) -> Result<Vec<Entry>, StoreError> {
    let held = held(shared, |kept| kept.entry.id.key.as_str() == key);
    let written = shared.list(|db| shared.index.keys.find(db, key, limit))?;
    Ok(merged(held, written, limit))
}

/// What is held counts before what is written.
fn merged(held: Vec<StoredEntry>, written: Vec<StoredEntry>, limit: u32) -> Vec<Entry> {
    let mut found = held;
    for kept in written {
        match found.iter_mut().find(|other| other.hash == kept.hash) {
            Some(other) if other.entry.record.fence < kept.entry.record.fence => *other = kept,
            Some(_) => {}
            None => found.push(kept),
        }
    }
    found.sort_by_key(|kept| kept.entry.record.fence.number);
    found.truncate(limit as usize);
    found.into_iter().map(|kept| kept.entry).collect()
}

fn held(shared: &StoreShared, is_it: impl Fn(&StoredEntry) -> bool) -> Vec<StoredEntry> {
    shared.open_claims().all().filter(|kept| is_it(kept)).cloned().collect()
}

/// The rows that a number belongs to now, also where a resolution gave the record another.
fn numbered(shared: &StoreShared, number: u64) -> Result<Vec<StoredEntry>, StoreError> {
    let Ok(number) = i64::try_from(number) else { return Ok(Vec::new()) };
    let found = shared.list(|db| admin_rows::by_number(db, number))?;
    if !found.is_empty() {
        return Ok(found);
    }
    let hash: Option<Hash> = shared.list(|db| admin_rows::hash_of_number(db, number))?;
    match hash {
        Some(hash) => {
            let held = held(shared, |kept| kept.hash == hash);
            if !held.is_empty() {
                return Ok(held);
            }
            let rows = |db: &rusqlite::Connection| {
                let numbers = shared.index.of(hash);
                numbers
                    .into_iter()
                    .filter_map(|number| statements::at(db, number, hash).transpose())
                    .collect()
            };
            shared.list(rows)
        }
        None => Ok(Vec::new()),
    }
}

impl AdminStore for SqliteStore {
    fn find<'a>(&'a self, sought: &'a Sought, limit: u32) -> Reply<'a, Vec<Entry>> {
        match sought {
            Sought::Record(number) => {
                let number = *number;
                self.ask(move |shared| find_number(shared, number, limit))
            }
            Sought::RequestId(id) => Box::pin(self.find_request(id.clone(), limit)),
            Sought::Key(key) => {
                let (key, keys_read) = (key.clone(), self.wait_for_keys());
                Box::pin(async move {
                    if let Some(read) = keys_read {
                        // It ends without a word.
                        let _ = read.await;
                    }
                    self.ask(move |shared| find_key(shared, &key, limit)).await
                })
            }
        }
    }

    fn key_reach(&self) -> Reply<'_, KeyReach> {
        let keys_read = self.wait_for_keys();
        Box::pin(async move {
            if let Some(read) = keys_read {
                let _ = read.await;
            }
            Ok(self.shared.index.keys.reach())
        })
    }

    fn trail<'a>(&'a self, trail: &'a Trail) -> Reply<'a, Vec<Audited>> {
        let trail = *trail;
        self.ask(move |shared| shared.list(|db| admin_rows::trail(db, &trail)))
    }

    fn note<'a>(&'a self, note: &'a Note) -> Reply<'a, ()> {
        let note = note.clone();
        self.submit(0, move |tx| {
            let row = row(tx.now(), &note.actor, note.action, &note.reason, note.count);
            Ok(admin_rows::note(tx.connection(), &row)?)
        })
    }

    fn seal_by<'a>(
        &'a self,
        id: &'a Id,
        about: &'a About,
        lifetime: &'a Lifetime,
        by: &'a str,
        reason: &'a str,
    ) -> Reply<'a, Sealed> {
        let (id, about, lifetime) = (id.clone(), about.clone(), lifetime.clone());
        let (by, reason) = (by.to_owned(), reason.to_owned());
        self.submit(0, move |tx| {
            let before = tx.find(&id, id.hash())?.map(|kept| kept.entry.record.fence);
            let sealed = transitions::seal(tx, &id, &about, &lifetime)?;
            if matches!(sealed, Sealed::Done) {
                let mut row = row(tx.now(), &by, action::SEAL, &reason, 1);
                row.hash = Some(id.hash());
                row.fence = before.map(|fence| fence.to_string());
                admin_rows::note(tx.connection(), &row)?;
            }
            Ok(sealed)
        })
    }

    fn cleanups(&self, before: Option<u64>, limit: u32) -> Reply<'_, Vec<Cleanup>> {
        self.ask(move |shared| shared.list(|db| admin_rows::cleanups(db, before, limit)))
    }

    fn stale_after<'a>(
        &'a self,
        principal: Option<&'a str>,
        after: Option<StalePlace>,
        limit: u32,
    ) -> Reply<'a, Vec<StaleCount>> {
        let principal = principal.map(str::to_owned);
        self.ask(move |shared| {
            shared.list(|db| admin_rows::stale(db, principal.as_deref(), after.as_ref(), limit))
        })
    }

    fn restored<'a>(
        &'a self,
        backup_at: Timestamp,
        undated: Undated,
        by: &'a str,
        reason: &'a str,
    ) -> Reply<'a, Restore> {
        let (by, reason) = (by.to_owned(), reason.to_owned());
        let written = self.submit(0, move |tx| {
            let now = tx.now();
            admin_rows::add_restore(tx.connection(), &Restore { backup_at, restored_at: now, undated })?;
            admin_rows::note(tx.connection(), &row(now, &by, action::RESTORED, &reason, 1))?;
            Ok(admin_rows::restores(tx.connection())?)
        });
        Box::pin(async move {
            let restores = written.await?;
            let restore = restores.iter().find(|restore| restore.backup_at == backup_at).copied();
            *self.shared.restores.lock().expect("a list is only copied") = restores;
            restore.ok_or_else(|| StoreError::Unavailable("the restore was not kept".to_owned()))
        })
    }

    fn clock(&self) -> Reply<'_, ClockState> {
        let now = self.shared.now();
        let state = ClockState { now, jump_millis: self.shared.engine.time.jump() };
        Box::pin(std::future::ready(self.shared.check().map(|()| state)))
    }

    fn confirm_jump<'a>(&'a self, by: &'a str, reason: &'a str) -> Reply<'a, ()> {
        let (by, reason) = (by.to_owned(), reason.to_owned());
        // On the trail first: a jump that is believed and was confirmed by nobody would be worse than the reverse.
        let noted = self.submit(0, move |tx| {
            let row = row(tx.now(), &by, action::CONFIRM_CLOCK, &reason, 0);
            Ok(admin_rows::note(tx.connection(), &row)?)
        });
        Box::pin(async move {
            noted.await?;
            self.confirm_clock();
            Ok(())
        })
    }
}

//! After a commit of which nobody can say whether it happened. When a sync fails, the operating system may keep pages
//! in memory that never reached the disk, so nothing that is read then is evidence. Recovery closes every connection
//! (the next one reads the log anew, by its checksums), copies the log into the file, syncs the whole file, and only
//! then lets anybody read.

use std::time::Duration;

use rusqlite::Connection;
use semel_contract::record::Guarantee;

use super::checkpoint::{Reached, checkpoint};
use super::connect;
use super::error::OpenError;
use super::hub::Hub;
use super::live::Live;
use super::table;
use super::writer::Writer;
use crate::claims::StoreError;

/// The first pause between two tries.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
/// The longest pause between two tries.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Recovers, however long it takes. `None`: the store was closed meanwhile.
pub(super) fn recover(writer: &mut Writer, why: &str) -> Option<Connection> {
    let hub = std::sync::Arc::clone(&writer.hub);
    hub.health.fail(format!("a commit has an unknown result, and the file is being recovered: {why}"));
    let mut pause = PAUSE_FIRST;
    loop {
        refuse_waiting(&hub, why);
        match reopen(writer, &hub) {
            Ok(connection) => {
                hub.health.restore();
                return Some(connection);
            }
            Err(error) => hub.health.fail(format!("the file could not be recovered: {error}")),
        }
        if hub.queue.is_closed() {
            refuse_waiting(&hub, why);
            return None;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Those who came in between are told that nothing of theirs was written.
fn refuse_waiting(hub: &Hub, why: &str) {
    for member in hub.queue.drain() {
        member.answer(Err(StoreError::Unavailable(format!("the file is being recovered: {why}"))));
    }
}

fn reopen(writer: &mut Writer, hub: &Hub) -> Result<Connection, OpenError> {
    if !hub.faults.recovers() {
        return Err(OpenError::Sqlite("recovery is held up".to_owned()));
    }
    // Also what an earlier try has opened: the file is synced while nothing of this store has it open.
    hub.readers.close();
    hub.checkpointer.close();
    let connection = connect::for_writing(&hub.path)?;
    if checkpoint(&connection, "TRUNCATE")? == Reached::Part {
        return Err(OpenError::Sqlite("a reader stands in the way of a checkpoint".to_owned()));
    }
    drop(connection);
    connect::sync(&hub.database, &hub.path)?;
    let mut connection = connect::for_writing(&hub.path)?;
    hub.readers.open(&hub.path)?;
    hub.checkpointer.open(&hub.path)?;
    // What was removed by the commit in doubt may be gone.
    hub.recent.clear();
    writer.fences.reload(&connection)?;
    let reconciled = reconcile(&connection, &hub.live())?;
    *hub.live() = reconciled;
    hub.guard.install(&mut connection)?;
    Ok(connection)
}

/// What is held, after the file has told what was committed. Leases keep their renewals.
fn reconcile(connection: &Connection, before: &Live) -> rusqlite::Result<Live> {
    let mut after = Live::default();
    for kept in before.all() {
        match kept.entry.record.guarantee {
            // A reservation stands unless its settlement was committed.
            Guarantee::Atomic | Guarantee::None
                if !table::is_written(connection, kept.entry.record.fence)? =>
            {
                after.apply((kept.hash, Some(kept.clone())));
            }
            Guarantee::Atomic | Guarantee::Fenced | Guarantee::None => {}
        }
    }
    for written in table::open_claims(connection)? {
        let known = before.get(written.hash).filter(|it| it.entry.record.fence == written.entry.record.fence);
        after.apply((written.hash, Some(known.cloned().unwrap_or(written))));
    }
    Ok(after)
}

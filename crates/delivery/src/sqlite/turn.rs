//! What a member of a batch works on: the connection, and the counts that would be slow to ask for each time. Counts are
//! copied before a member runs and put back when it fails.

use rusqlite::Connection;

use super::schema;
use crate::store::StoreError;

/// Counts that the writer keeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    /// Messages that wait.
    pub(super) rows: u64,
    /// Bytes of their bodies.
    pub(super) bytes: u64,
    /// The last fence number that was given.
    pub(super) fence: i64,
    /// The last event.
    pub(super) last_event: i64,
    /// Whether some id may be another name of a message: where none is, nobody looks for one.
    pub(super) has_aliases: bool,
}

/// Why a member did not succeed. Nothing of it was written.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// It refuses.
    Refused(StoreError),
    /// The file has no room.
    DiskFull(String),
    /// Anything else.
    Sqlite(String),
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(rusqlite::ErrorCode::DiskFull) => Fault::DiskFull(error.to_string()),
            Some(_) | None => Fault::Sqlite(error.to_string()),
        }
    }
}

impl From<Fault> for StoreError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Refused(error) => error,
            Fault::DiskFull(why) => StoreError::DiskFull(why),
            Fault::Sqlite(why) => StoreError::Failed(why),
        }
    }
}

/// The name under which the last fence is kept.
const FENCE: &str = "fence";
/// Fence numbers are reserved on disk so many at a time: a restart skips the rest, and none is given twice.
const FENCES_RESERVED: i64 = 1000;

impl Turn {
    /// Counts what is there.
    pub(super) fn start(connection: &Connection) -> rusqlite::Result<Self> {
        let sql = concat!(
            "SELECT count(*), coalesce(sum(payload_bytes), 0) FROM outbox INDEXED BY outbox_live WHERE ",
            live!()
        );
        let (rows, bytes) = connection.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let fence = schema::meta(connection, FENCE)?.unwrap_or(0);
        let last_event =
            connection
                .query_row("SELECT coalesce(max(number), 0) FROM outbox_events", [], |row| row.get(0))?;
        let has_aliases = connection.prepare("SELECT 1 FROM outbox_aliases LIMIT 1")?.exists([])?;
        Ok(Self { rows, bytes, fence, last_event, has_aliases })
    }

    /// A number that was never given before.
    pub(super) fn next_fence(&mut self, connection: &Connection) -> rusqlite::Result<i64> {
        if self.fence % FENCES_RESERVED == 0 {
            schema::set_meta(connection, FENCE, self.fence + FENCES_RESERVED)?;
        }
        self.fence += 1;
        Ok(self.fence)
    }

    /// A message waits no longer.
    pub(super) fn leave(&mut self, bytes: u64) {
        self.rows = self.rows.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

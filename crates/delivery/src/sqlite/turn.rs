//! What a job works on: the connection, and the counts that would be slow to ask for each time. They follow the commits:
//! what a batch changed counts only once it is durable.

use rusqlite::Connection;
use semel_store::sqlite::engine::{self, BatchState, EngineError};
use tokio::sync::watch;

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
    /// Whether some id may be another name of a message: where none is, none is looked for.
    pub(super) has_aliases: bool,
}

/// Why a job did not succeed. Nothing of it was written.
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

impl From<Fault> for engine::Fault {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Refused(error) => engine::Fault::Failed(error.to_string()),
            Fault::DiskFull(why) => engine::Fault::Full(why),
            Fault::Sqlite(why) => engine::Fault::Failed(why),
        }
    }
}

impl From<EngineError> for StoreError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Full(why) => StoreError::DiskFull(why),
            EngineError::Unavailable(why) => StoreError::Failed(why),
            EngineError::Unknown(why) => StoreError::Unknown(why),
        }
    }
}

/// The counts as the jobs of a batch see them, and as they are on disk.
#[derive(Debug)]
pub(super) struct Counts {
    pub(super) turn: Turn,
    durable: Turn,
    /// Where the last event is told.
    told: watch::Sender<i64>,
}

impl Counts {
    pub(super) fn new(turn: Turn, told: watch::Sender<i64>) -> Self {
        Self { turn, durable: turn, told }
    }
}

impl BatchState for Counts {
    fn begin(&mut self, _: &Connection) -> rusqlite::Result<()> {
        Ok(())
    }

    fn publish(&mut self) {
        self.durable = self.turn;
        self.told.send_if_modified(|last| {
            let is_new = *last != self.turn.last_event;
            *last = self.turn.last_event;
            is_new
        });
    }

    fn take_back(&mut self) {
        self.turn = self.durable;
    }

    /// A fence that may have been given is not given again.
    fn rebuild(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        // The next one then reserves as many as if all of the last ones were given.
        let given = (self.turn.fence + FENCES_RESERVED - 1) / FENCES_RESERVED * FENCES_RESERVED;
        self.turn = Turn::start(connection)?;
        self.turn.fence = self.turn.fence.max(given);
        self.publish();
        Ok(())
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

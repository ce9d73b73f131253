//! A store's time, also across restarts: keeps the mark from which the next process goes on, see
//! [`crate::clock::time_at_start`].

use std::sync::Arc;

use rusqlite::Connection;
use semel_contract::time::Timestamp;

use super::schema::{Schema, TimeRows};
use crate::clock::{Ahead, Clock, Mark, StoreClock};

/// A store's time.
pub struct StoreTime {
    clock: Arc<dyn Clock>,
    time: StoreClock,
}

impl std::fmt::Debug for StoreTime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreTime").field("time", &self.time).finish_non_exhaustive()
    }
}

/// Whether it is known how long no process was here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    /// The ticking clock tells, or the store is new.
    Known,
    /// The machine was started since.
    Unknown,
}

impl StoreTime {
    /// The time, from where it was.
    pub(super) fn resume(
        connection: &Connection,
        schema: &Schema,
        clock: Arc<dyn Clock>,
    ) -> rusqlite::Result<(Self, Absence)> {
        let mark = schema.time.map_or(Ok(None), |rows| kept(connection, schema, rows))?;
        let is_of_this_run = |mark: &Mark| mark.boot != 0 && mark.boot == clock.boot();
        let absence =
            if mark.as_ref().is_none_or(is_of_this_run) { Absence::Known } else { Absence::Unknown };
        let time = StoreClock::open(mark, &*clock);
        Ok((Self { clock, time }, absence))
    }

    /// The time now.
    pub fn now(&self) -> Timestamp {
        self.time.now(self.clock.read())
    }

    /// By how many milliseconds the wall clock has jumped ahead, while nobody has confirmed it.
    pub fn jump(&self) -> Option<i64> {
        self.time.frozen()
    }

    /// An operator confirms that the wall clock is right.
    pub fn confirm(&self) {
        self.time.confirm(self.clock.read());
    }

    /// Writes down what the next process goes on from.
    pub(super) fn write(&self, connection: &Connection, schema: &Schema) -> rusqlite::Result<()> {
        let Some(rows) = schema.time else { return Ok(()) };
        let mark = self.time.mark(&*self.clock);
        schema.set_number(connection, rows.high_water, mark.time.millis())?;
        schema.set_number(connection, rows.ticks, mark.ticks)?;
        schema.set_number(connection, rows.boot, mark.boot.cast_signed())?;
        schema.set_number(connection, rows.jump, mark.ahead.number())
    }
}

/// The mark that the process before has kept.
fn kept(connection: &Connection, schema: &Schema, rows: TimeRows) -> rusqlite::Result<Option<Mark>> {
    let number = |name| schema.number(connection, name);
    Ok(match number(rows.high_water)? {
        None | Some(0) => None,
        Some(time) => Some(Mark {
            time: Timestamp::from_millis(time),
            ticks: number(rows.ticks)?.unwrap_or(0),
            boot: number(rows.boot)?.unwrap_or(0).cast_unsigned(),
            ahead: Ahead::from_number(number(rows.jump)?.unwrap_or(0)),
        }),
    })
}

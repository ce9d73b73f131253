//! Keeps the mark of the store's time, from which the next process goes on: see [`crate::clock::time_at_start`].

use rusqlite::Connection;
use semel_contract::time::Timestamp;

use super::table;
use crate::clock::{Ahead, Clock, Mark, StoreClock};

/// The latest time that was given.
const HIGH_WATER: &str = "time_high_water";
/// The ticking clock at that moment, in milliseconds, and the run of the machine that it counts.
const TICKS: &str = "time_ticks";
const BOOT: &str = "time_boot";
/// Whether the wall clock was ahead then, unbelieved.
const JUMP: &str = "time_jump";

/// The clock, from where it was.
pub(super) fn resume(connection: &Connection, clock: &dyn Clock) -> rusqlite::Result<StoreClock> {
    let number = |name| table::meta_if_any(connection, name);
    let mark = match number(HIGH_WATER)? {
        None | Some(0) => None,
        Some(time) => Some(Mark {
            time: Timestamp::from_millis(time),
            ticks: number(TICKS)?.unwrap_or(0),
            boot: number(BOOT)?.unwrap_or(0).cast_unsigned(),
            ahead: Ahead::from_number(number(JUMP)?.unwrap_or(0)),
        }),
    };
    Ok(StoreClock::open(mark, clock))
}

/// Writes down what the next process goes on from.
pub(super) fn write(connection: &Connection, mark: Mark) -> rusqlite::Result<()> {
    table::set_meta(connection, HIGH_WATER, mark.time.millis())?;
    table::set_meta(connection, TICKS, mark.ticks)?;
    table::set_meta(connection, BOOT, mark.boot.cast_signed())?;
    table::set_meta(connection, JUMP, mark.ahead.number())
}

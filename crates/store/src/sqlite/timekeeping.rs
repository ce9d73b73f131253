//! The store's time across restarts. Within one run of the machine the ticking clock goes on while no process is here, so
//! that a wall clock that was set meanwhile is found out; after a start of the machine the wall clock is believed, unless a
//! jump of it was not confirmed yet.

use rusqlite::Connection;
use semel_contract::time::{Timestamp, millis_of};

use super::table;
use crate::clock::{Clock, Mark, Reading, StoreClock};

/// The latest time that was given.
const HIGH_WATER: &str = "time_high_water";
/// The ticking clock at that moment, in milliseconds, and the run of the machine that it counts.
const TICKS: &str = "time_ticks";
const BOOT: &str = "time_boot";
/// By how much the wall clock was ahead then, unbelieved.
const JUMP: &str = "time_jump";

/// The clock, from where it was.
pub(super) fn resume(connection: &Connection, clock: &dyn Clock) -> rusqlite::Result<StoreClock> {
    let number = |name| table::meta_if_any(connection, name);
    let high_water = Timestamp::from_millis(number(HIGH_WATER)?.unwrap_or(0));
    let mark = number(TICKS)?.zip(number(BOOT)?);
    let mark = mark.map(|(ticks, boot)| Mark { time: high_water, ticks, boot: boot.cast_unsigned() });
    Ok(match (mark.and_then(|mark| StoreClock::resuming(mark, clock)), number(JUMP)?.unwrap_or(0)) {
        (Some(resumed), _) => resumed,
        // Nobody has confirmed the jump: time stands where it was until somebody does.
        (None, jump) if jump > 0 => StoreClock::starting_at(high_water, clock.read()),
        (None, _) => StoreClock::new(clock.read(), Some(high_water)),
    })
}

/// Writes down what the next process goes on from.
pub(super) fn write(
    connection: &Connection,
    clock: &dyn Clock,
    reading: Reading,
    now: Timestamp,
    jump: Option<i64>,
) -> rusqlite::Result<()> {
    table::set_meta(connection, HIGH_WATER, now.millis())?;
    table::set_meta(connection, TICKS, millis_of(reading.ticks))?;
    table::set_meta(connection, BOOT, clock.boot().cast_signed())?;
    table::set_meta(connection, JUMP, jump.unwrap_or(0))
}

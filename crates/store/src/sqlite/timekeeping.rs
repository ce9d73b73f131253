//! The store's time across restarts. Within one run of the machine the ticking clock goes on while no process is here, so
//! that a wall clock that was set meanwhile is found out; after a start of the machine the wall clock is believed, unless a
//! jump of it was not confirmed yet.

use std::time::Duration;

use rusqlite::Connection;
use semel_contract::time::{Timestamp, millis_of};

use super::table;
use crate::clock::{Clock, Reading, StoreClock};

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
    let (reading, boot) = (clock.read(), clock.boot().cast_signed());
    let ticked = number(TICKS)?.filter(|_| boot != 0).zip(number(BOOT)?).filter(|(_, of)| *of == boot);
    Ok(match (ticked, number(JUMP)?.unwrap_or(0)) {
        (Some((ticks, _)), _) => {
            let passed = Duration::from_millis(u64::try_from(millis_of(reading.ticks) - ticks).unwrap_or(0));
            StoreClock::starting_at(high_water.plus(passed), reading)
        }
        // Nobody has confirmed the jump: time stands where it was until somebody does.
        (None, jump) if jump > 0 => StoreClock::starting_at(high_water, reading),
        (None, _) => StoreClock::new(reading, Some(high_water)),
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

//! The time of a relay's own file across restarts. Within one run of the machine the ticking clock goes on while no process
//! is here, so that a wall clock that was set meanwhile changes nothing. After a start of the machine the wall clock is
//! believed; how long nobody was here is then not known, and what may still be applied late has its whole window again.

use rusqlite::{Connection, OptionalExtension};
use semel_contract::time::Timestamp;
use semel_store::clock::{Ahead, Clock, Mark, StoreClock};

/// The latest time that was given, and the clocks at that moment.
const HIGH_WATER: &str = "high_water";
const TICKS: &str = "ticks";
const BOOT: &str = "boot";

/// The clock, from where it was.
///
/// After: what may have been sent before has an end of its late window that is not too early. Crash: the next start does
/// the same.
pub(super) fn resume(connection: &mut Connection, clock: &dyn Clock) -> rusqlite::Result<StoreClock> {
    let transaction = connection.transaction()?;
    let high_water = number(&transaction, HIGH_WATER)?.map(Timestamp::from_millis);
    let mark = high_water.zip(number(&transaction, TICKS)?).zip(number(&transaction, BOOT)?);
    let mark = mark.map(|((time, ticks), boot)| {
        let ahead = Ahead::No;
        Mark { time, ticks, boot: boot.cast_unsigned(), ahead }
    });
    let of_this_run = mark.filter(|mark| mark.boot != 0 && mark.boot == clock.boot());
    let is_known = of_this_run.is_some();
    let time = match of_this_run {
        Some(mark) => StoreClock::open(Some(mark), clock),
        None => StoreClock::new(clock.read(), high_water),
    };
    let mark = time.mark(clock);
    if !is_known {
        let sql = "UPDATE relay_intent SET last_ms = max(last_ms, ?1)";
        transaction.execute(sql, [mark.time.millis()])?;
    }
    write(&transaction, mark)?;
    transaction.commit()?;
    if let Some(ahead) = time.frozen() {
        tracing::warn!(ahead, "the wall clock was set forward by so many milliseconds: nothing is swept");
    }
    Ok(time)
}

/// Writes down what the next process goes on from.
pub(super) fn write(connection: &Connection, mark: Mark) -> rusqlite::Result<()> {
    let sql = "INSERT INTO relay_meta (name, value) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = excluded.value";
    let mut keep = connection.prepare_cached(sql)?;
    let boot = mark.boot.cast_signed();
    for (name, value) in [(HIGH_WATER, mark.time.millis()), (TICKS, mark.ticks), (BOOT, boot)] {
        keep.execute((name, value))?;
    }
    Ok(())
}

fn number(connection: &Connection, name: &str) -> rusqlite::Result<Option<i64>> {
    let sql = "SELECT value FROM relay_meta WHERE name = ?1";
    connection.query_row(sql, [name], |row| row.get(0)).optional()
}

//! The rows in which the outbox's time is kept for the next process. The release before keeps the latest time alone; where
//! that is later than ours, it has run since, and its ticks are not known.

use rusqlite::Connection;
use semel_contract::time::Timestamp;
use semel_store::clock::{Ahead, Mark};

use super::schema::{meta, set_meta};
use crate::store::KeptTime;

/// The latest time, as every release keeps it.
const HIGH_WATER: &str = "high_water";
const TIME: &str = "time";
const TICKS: &str = "time_ticks";
const BOOT: &str = "time_boot";
const AHEAD: &str = "time_ahead";
const BOOT_EPOCH: &str = "time_boot_epoch";

pub(super) fn kept(connection: &Connection) -> rusqlite::Result<Option<KeptTime>> {
    let sql = "SELECT max(at) FROM (SELECT at FROM outbox_events ORDER BY number DESC LIMIT 1)";
    let last_event: Option<i64> = connection.query_row(sql, [], |row| row.get(0))?;
    let (high_water, time) = (meta(connection, HIGH_WATER)?, meta(connection, TIME)?);
    let Some(latest) = high_water.max(time).or(last_event) else { return Ok(None) };
    let is_ours = time == Some(latest);
    let number = |name| Ok::<i64, rusqlite::Error>(meta(connection, name)?.unwrap_or(0));
    let mark = Mark {
        time: Timestamp::from_millis(latest),
        ticks: if is_ours { number(TICKS)? } else { 0 },
        boot: if is_ours { number(BOOT)?.cast_unsigned() } else { 0 },
        ahead: Ahead::from_number(number(AHEAD)?),
    };
    let last_event = last_event.map(Timestamp::from_millis);
    Ok(Some(KeptTime { mark, last_event, boot_epoch: number(BOOT_EPOCH)? }))
}

pub(super) fn keep(connection: &Connection, mark: Mark) -> rusqlite::Result<()> {
    // Where it is not known which run of the machine this is, each run of the process counts as one.
    if mark.boot == 0 || meta(connection, BOOT)? != Some(mark.boot.cast_signed()) {
        let sql = "SELECT coalesce(max(epoch), 0) FROM outbox_epochs";
        set_meta(connection, BOOT_EPOCH, connection.query_row(sql, [], |row| row.get(0))?)?;
    }
    let numbers = [
        (HIGH_WATER, mark.time.millis()),
        (TIME, mark.time.millis()),
        (TICKS, mark.ticks),
        (BOOT, mark.boot.cast_signed()),
        (AHEAD, mark.ahead.number()),
    ];
    numbers.into_iter().try_for_each(|(name, value)| set_meta(connection, name, value))
}

//! The statements on the tables that operators read. Each runs inside whatever transaction is open; none decides anything.

use std::time::Duration;

use rusqlite::{Connection, Row, named_params, params};
use semel_contract::restore::{Restore, Undated};
use semel_contract::time::{Timestamp, millis_of};

use super::row::{self, Hash, StoredEntry, claim_columns, no_record_columns, record_columns};
use crate::admin::{Audited, CLEANUPS_KEPT_MAX, Cleanup, STALE_KEPT, StaleCount, StalePlace, Trail};
use crate::claims::Swept;
use crate::forms::{FORM_MARGIN, FORM_PAUSE, Form, Forms, KnownForm};

/// Rows of both tables, where a condition holds.
macro_rules! rows_where {
    ($condition:literal) => {
        concat!(
            "SELECT ",
            claim_columns!(),
            ", ",
            no_record_columns!(),
            " FROM semel_claim WHERE ",
            $condition,
            " UNION ALL SELECT ",
            claim_columns!(),
            ", ",
            record_columns!(),
            " FROM semel_record WHERE ",
            $condition,
            " ORDER BY fence LIMIT ?2",
        )
    };
}

const BY_NUMBER: &str = rows_where!("fence = ?1");
const BY_REQUEST_ID: &str = rows_where!("request_id = ?1 AND fence > ?3 AND fence <= ?4");
const LAST_NUMBER: &str = "SELECT max(coalesce((SELECT max(fence) FROM semel_claim), 0), \
     coalesce((SELECT max(fence) FROM semel_record), 0))";

/// The hash of the key that a fence with this number was resolved or sealed under. Texts between `7-` and `7.` are
/// those that begin with `7-`.
const HASH_OF_NUMBER: &str = "SELECT hash FROM semel_audit WHERE fence >= ?1 || '-' AND fence < ?1 || '.' \
     AND hash IS NOT NULL ORDER BY number DESC LIMIT 1";

const TRAIL: &str = "SELECT number, at, actor, action, hash, fence, reason, count FROM semel_audit \
     WHERE (:before IS NULL OR number < :before) ORDER BY number DESC LIMIT :limit";
const TRAIL_OF_KEY: &str = "SELECT number, at, actor, action, hash, fence, reason, count FROM semel_audit \
     WHERE hash = :hash AND (:before IS NULL OR number < :before) ORDER BY number DESC LIMIT :limit";

const STALE: &str = "SELECT tenant, principal, count, first_at, last_at FROM semel_stale \
     WHERE (?1 IS NULL OR principal = ?1) \
     AND (?3 IS NULL OR count < ?3 OR (count = ?3 AND (principal, tenant) > (?4, ?5))) \
     ORDER BY count DESC, principal, tenant LIMIT ?2";

const COUNT_STALE: &str = "INSERT INTO semel_stale (principal, tenant, count, first_at, last_at) \
     VALUES (?1, ?2, 1, ?3, ?3) ON CONFLICT (principal, tenant) DO UPDATE SET count = count + 1, last_at = ?3";

fn kept(
    connection: &Connection,
    sql: &str,
    values: impl rusqlite::Params,
) -> rusqlite::Result<Vec<StoredEntry>> {
    connection.prepare_cached(sql)?.query_map(values, row::read)?.collect()
}

/// The row with this number.
pub(super) fn by_number(connection: &Connection, number: i64) -> rusqlite::Result<Vec<StoredEntry>> {
    kept(connection, BY_NUMBER, params![number, 1])
}

/// The rows of this request among those numbered above one number and up to another; reads them all.
pub(super) fn by_request_id(
    connection: &Connection,
    id: &str,
    (above, upto): (i64, i64),
    limit: u32,
) -> rusqlite::Result<Vec<StoredEntry>> {
    kept(connection, BY_REQUEST_ID, params![id, limit, above, upto])
}

/// The highest number of a row.
pub(super) fn last_number(connection: &Connection) -> rusqlite::Result<i64> {
    connection.query_row(LAST_NUMBER, [], |row| row.get(0))
}

/// Whose number this was, as far as the trail tells.
pub(super) fn hash_of_number(connection: &Connection, number: i64) -> rusqlite::Result<Option<Hash>> {
    let mut statement = connection.prepare(HASH_OF_NUMBER)?;
    let mut rows = statement.query([number.to_string()])?;
    rows.next()?.map(|row| row.get(0)).transpose()
}

/// Rows of the trail, the latest first.
pub(super) fn trail(connection: &Connection, trail: &Trail) -> rusqlite::Result<Vec<Audited>> {
    let before = trail.before.map(|before| i64::try_from(before).unwrap_or(i64::MAX));
    match trail.hash {
        Some(hash) => connection
            .prepare(TRAIL_OF_KEY)?
            .query_map(named_params! {":hash": hash, ":before": before, ":limit": trail.limit}, audited)?
            .collect(),
        None => connection
            .prepare(TRAIL)?
            .query_map(named_params! {":before": before, ":limit": trail.limit}, audited)?
            .collect(),
    }
}

fn audited(row: &Row<'_>) -> rusqlite::Result<Audited> {
    Ok(Audited {
        number: row.get::<_, i64>(0)?.cast_unsigned(),
        at: Timestamp::from_millis(row.get(1)?),
        actor: row.get(2)?,
        action: row.get(3)?,
        hash: row.get(4)?,
        fence: row.get(5)?,
        reason: row.get(6)?,
        count: row.get::<_, i64>(7)?.cast_unsigned(),
    })
}

const DUE_FORMS: &str = "SELECT gate, form, last_at FROM semel_form WHERE last_at + kept_ms + ?1 <= ?2";
const FORGET_FORM: &str = "DELETE FROM semel_form WHERE gate = ?1 AND form = ?2";
const KEEP_FORM: &str = "UPDATE semel_form SET kept_ms = ?3 - last_at WHERE gate = ?1 AND form = ?2";
const OPEN_SINCE: &str = "SELECT EXISTS (SELECT 1 FROM semel_claim WHERE created_at <= ?1)";
const APPLIED_SINCE: &str = "SELECT DISTINCT hash FROM semel_audit \
     WHERE action = 'resolve-applied' AND at >= ?1 AND hash IS NOT NULL";
const LIVES_SINCE: &str = "SELECT EXISTS (SELECT 1 FROM semel_record \
     WHERE fence = ?1 AND created_at <= ?2 AND expires_at > ?3 AND state <> 'released')";
const REGISTER_FORM: &str = "INSERT INTO semel_form (gate, form, kept_ms, first_at, since, last_at) \
     VALUES (?1, ?2, ?3, ?4, ?4, ?4 + ?5) ON CONFLICT (gate, form) DO UPDATE SET \
     since = iif(last_at + ?6 < ?4, ?4, since), last_at = max(last_at, ?4 + ?5), kept_ms = max(kept_ms, ?3)";
const FORMS: &str = "SELECT form, kept_ms, first_at, since, last_at FROM semel_form WHERE gate = ?1 \
     ORDER BY first_at, form";

/// Forgets the forms whose records have expired. `rows_of` tells under which numbers a key may have a row.
pub(super) fn forget_forms(
    connection: &Connection,
    now: Timestamp,
    rows_of: &dyn Fn(Hash) -> Vec<u64>,
) -> rusqlite::Result<()> {
    let due = |row: &Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get::<_, i64>(2)?));
    let due: Vec<_> = connection
        .prepare_cached(DUE_FORMS)?
        .query_map(params![millis_of(FORM_MARGIN), now.millis()], due)?
        .collect::<Result<_, _>>()?;
    for (gate, form, last_at) in due {
        match is_needed(connection, last_at + millis_of(FORM_PAUSE), now, rows_of)? {
            true => {
                connection.prepare_cached(KEEP_FORM)?.execute(params![gate, form, now.millis()])?;
            }
            false => {
                connection.prepare_cached(FORGET_FORM)?.execute(params![gate, form])?;
            }
        }
    }
    Ok(())
}

/// Whether a record lives that was claimed by then and should have expired: its outcome is unknown, or was until lately.
fn is_needed(
    connection: &Connection,
    by: i64,
    now: Timestamp,
    rows_of: &dyn Fn(Hash) -> Vec<u64>,
) -> rusqlite::Result<bool> {
    if connection.prepare_cached(OPEN_SINCE)?.query_row([by], |row| row.get(0))? {
        return Ok(true);
    }
    let applied: Vec<Hash> = connection
        .prepare_cached(APPLIED_SINCE)?
        .query_map([by], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    for number in applied.into_iter().flat_map(rows_of) {
        let values = params![number.cast_signed(), by, now.millis()];
        if connection.prepare_cached(LIVES_SINCE)?.query_row(values, |row| row.get(0))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Registers the forms of a gate, and tells what is known of this gate's.
pub(super) fn register_forms(
    connection: &Connection,
    gate: &str,
    forms: &[Form],
    now: Timestamp,
) -> rusqlite::Result<Forms> {
    for form in forms {
        connection.prepare_cached(REGISTER_FORM)?.execute(params![
            gate,
            form.text,
            millis_of(form.kept),
            now.millis(),
            millis_of(form.ahead),
            millis_of(FORM_PAUSE)
        ])?;
    }
    let known = |row: &Row<'_>| {
        Ok(KnownForm {
            text: row.get(0)?,
            kept: Duration::from_millis(row.get::<_, i64>(1)?.cast_unsigned()),
            first_at: Timestamp::from_millis(row.get(2)?),
            since: Timestamp::from_millis(row.get(3)?),
            last_at: Timestamp::from_millis(row.get(4)?),
        })
    };
    let known = connection.prepare_cached(FORMS)?.query_map([gate], known)?.collect::<Result<_, _>>()?;
    Ok(Forms { known, now })
}

/// Adds a row to the trail; its own number is not looked at.
pub(super) fn note(connection: &Connection, row: &Audited) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO semel_audit (at, actor, action, hash, fence, reason, count) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?
        .execute(params![
            row.at.millis(),
            row.actor,
            row.action,
            row.hash,
            row.fence,
            row.reason,
            row.count.cast_signed()
        ])
        .map(drop)
}

/// Adds a run of the sweeper, and drops what is too old of the log and of the counts.
pub(super) fn log_sweep(
    connection: &Connection,
    now: Timestamp,
    swept: Swept,
    took: Duration,
) -> rusqlite::Result<()> {
    connection.execute(
        "INSERT INTO semel_cleanup (at, took_ms, removed, unknown, released) VALUES (?1, ?2, ?3, ?4, ?5)",
        params![
            now.millis(),
            millis_of(took),
            swept.removed.cast_signed(),
            swept.unknown.cast_signed(),
            swept.released.cast_signed()
        ],
    )?;
    let oldest = connection.last_insert_rowid() - i64::from(CLEANUPS_KEPT_MAX);
    connection.execute("DELETE FROM semel_cleanup WHERE number <= ?1", [oldest])?;
    connection.execute("DELETE FROM semel_stale WHERE last_at <= ?1", [now.minus(STALE_KEPT).millis()])?;
    Ok(())
}

/// Runs of the sweeper, the latest first.
pub(super) fn cleanups(
    connection: &Connection,
    before: Option<u64>,
    limit: u32,
) -> rusqlite::Result<Vec<Cleanup>> {
    let sql = "SELECT number, at, took_ms, removed, unknown, released FROM semel_cleanup \
               WHERE number < ?1 ORDER BY number DESC LIMIT ?2";
    let before = before.and_then(|before| i64::try_from(before).ok()).unwrap_or(i64::MAX);
    let count = |row: &Row<'_>, at| row.get::<_, i64>(at).map(i64::cast_unsigned);
    connection
        .prepare(sql)?
        .query_map(params![before, limit], |row| {
            Ok(Cleanup {
                number: count(row, 0)?,
                at: Timestamp::from_millis(row.get(1)?),
                took: Duration::from_millis(count(row, 2)?),
                swept: Swept { removed: count(row, 3)?, unknown: count(row, 4)?, released: count(row, 5)? },
            })
        })?
        .collect()
}

/// Counts a stale action.
pub(super) fn count_stale(
    connection: &Connection,
    tenant: Option<&str>,
    principal: &str,
    now: Timestamp,
) -> rusqlite::Result<()> {
    let values = params![principal, tenant.unwrap_or(""), now.millis()];
    connection.prepare_cached(COUNT_STALE)?.execute(values).map(drop)
}

/// The counts of stale actions, the highest first.
pub(super) fn stale(
    connection: &Connection,
    principal: Option<&str>,
    after: Option<&StalePlace>,
    limit: u32,
) -> rusqlite::Result<Vec<StaleCount>> {
    let count = after.map(|place| place.count.cast_signed());
    let (whose, tenant) =
        (after.map(|place| place.principal.as_str()), after.map(|place| place.tenant.as_str()));
    connection
        .prepare(STALE)?
        .query_map(params![principal, limit, count, whose, tenant], |row| {
            let tenant: String = row.get(0)?;
            Ok(StaleCount {
                tenant: Some(tenant).filter(|tenant| !tenant.is_empty()),
                principal: row.get(1)?,
                count: row.get::<_, i64>(2)?.cast_unsigned(),
                first_at: Timestamp::from_millis(row.get(3)?),
                last_at: Timestamp::from_millis(row.get(4)?),
            })
        })?
        .collect()
}

/// Forgets the counts of a principal.
pub(super) fn forget_stale(
    connection: &Connection,
    tenant: Option<&str>,
    principal: &str,
) -> rusqlite::Result<()> {
    let sql = "DELETE FROM semel_stale WHERE principal = ?1 AND tenant = ?2";
    connection.execute(sql, (principal, tenant.unwrap_or(""))).map(drop)
}

/// Every restore.
pub(super) fn restores(connection: &Connection) -> rusqlite::Result<Vec<Restore>> {
    let sql = "SELECT backup_at, restored_at, trust_undated FROM semel_restore ORDER BY restored_at";
    connection
        .prepare(sql)?
        .query_map([], |row| {
            Ok(Restore {
                backup_at: Timestamp::from_millis(row.get(0)?),
                restored_at: Timestamp::from_millis(row.get(1)?),
                undated: if row.get(2)? { Undated::Trusted } else { Undated::Unknown },
            })
        })?
        .collect()
}

/// Writes a restore down; the same backup again keeps the time of the first call.
pub(super) fn add_restore(connection: &Connection, restore: &Restore) -> rusqlite::Result<()> {
    connection
        .execute(
            "INSERT INTO semel_restore (backup_at, restored_at, trust_undated) VALUES (?1, ?2, ?3) \
             ON CONFLICT (backup_at) DO UPDATE SET trust_undated = ?3",
            params![
                restore.backup_at.millis(),
                restore.restored_at.millis(),
                restore.undated == Undated::Trusted
            ],
        )
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_and_the_trail_of_a_key_are_found_by_index() {
        let mut connection = Connection::open_in_memory().expect("a database in memory");
        super::super::schema::SCHEMA.migrate(&mut connection).expect("the schema is well formed");
        for (sql, wanted) in [
            (BY_NUMBER, "SEARCH semel_record USING INTEGER PRIMARY KEY"),
            (BY_REQUEST_ID, "SEARCH semel_record USING INTEGER PRIMARY KEY"),
            (LAST_NUMBER, "SEARCH semel_record"),
            (HASH_OF_NUMBER, "semel_audit_fence"),
            (TRAIL_OF_KEY, "semel_audit_hash"),
        ] {
            let mut statement =
                connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).expect("it is valid");
            let lines = statement.raw_query().mapped(|row| row.get::<_, String>(3));
            let plan = lines.collect::<Result<Vec<_>, _>>().expect("a plan has a text").join("\n");
            assert!(plan.contains(wanted) && !plan.contains("SCAN semel"), "{sql}:\n{plan}");
        }
    }
}

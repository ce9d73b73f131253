//! The statements on the store's own tables. Each runs inside whatever transaction is open; none decides anything.

use std::ops::RangeInclusive;

use rusqlite::{Connection, OptionalExtension, Row, named_params, params};
use semel_contract::record::{Fence, State};
use semel_contract::time::Timestamp;

use super::fence_table::{Who, who};
use super::row::{
    self, Hash, Rotation, StoredEntry, claim_columns, digest, no_record_columns, number, record_columns,
    write_claim, write_record,
};
use crate::claims::{Filter, Id, Order};

const CLAIM_AT: &str = concat!(
    "SELECT ",
    claim_columns!(),
    ", ",
    no_record_columns!(),
    " FROM semel_claim WHERE fence = ?1 AND hash = ?2",
);

const RECORD_AT: &str = concat!(
    "SELECT ",
    claim_columns!(),
    ", ",
    record_columns!(),
    " FROM semel_record WHERE fence = ?1 AND hash = ?2",
);

const CLAIM_NUMBERED: &str =
    concat!("SELECT ", claim_columns!(), ", ", no_record_columns!(), " FROM semel_claim WHERE fence = ?1",);

const RECORD_NUMBERED: &str =
    concat!("SELECT ", claim_columns!(), ", ", record_columns!(), " FROM semel_record WHERE fence = ?1",);

const OPEN_CLAIMS: &str = concat!(
    "SELECT ",
    claim_columns!(),
    ", ",
    no_record_columns!(),
    " FROM semel_claim WHERE state = 'claimed'",
);

const INSERT_CLAIM: &str = concat!(
    "INSERT INTO semel_claim (",
    claim_columns!(),
    ", who) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, \
     ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21)",
);

const INSERT_RECORD: &str = concat!(
    "INSERT INTO semel_record (",
    claim_columns!(),
    ", ",
    record_columns!(),
    ", who) VALUES (?1, ?2, ?3, ?4, ?5, \
     ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26, ?27)",
);

/// Everything that has to be known of a record, in the order of the index that holds it.
const WRITTEN_RECORDS: &str = "SELECT fence, hash, rotation, who FROM semel_record INDEXED BY semel_record_brief \
     WHERE expires_at BETWEEN ?1 AND ?2";
const WRITTEN_CLAIMS: &str = "SELECT fence, hash, rotation, who FROM semel_claim";

const LIVING_ROTATION: &str = "SELECT 1 FROM semel_claim WHERE fence = ?1 AND rotation = ?2 AND hash <> ?3 UNION ALL \
     SELECT 1 FROM semel_record WHERE fence = ?1 AND rotation = ?2 AND hash <> ?3 AND expires_at > ?4";

const ERASE_CLAIM: &str = "DELETE FROM semel_claim WHERE fence = ?1 AND hash = ?2 RETURNING rotation, key";
const ERASE_RECORD: &str = "DELETE FROM semel_record WHERE fence = ?1 AND hash = ?2 RETURNING rotation, key";

const SWEEP: &str = "DELETE FROM semel_record WHERE fence IN (SELECT fence FROM semel_record \
     WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2) RETURNING fence, hash, rotation, key";

/// A list beyond a number, in one order.
macro_rules! list {
    ($beyond:literal, $order:literal) => {
        concat!(
            "SELECT ",
            claim_columns!(),
            ", ",
            no_record_columns!(),
            " FROM semel_claim WHERE state = 'unknown' AND fence ",
            $beyond,
            " :after AND (:state IS NULL OR state = :state) ",
            "AND (:endpoint IS NULL OR endpoint = :endpoint) AND (:before IS NULL OR created_at < :before) ",
            "UNION ALL SELECT ",
            claim_columns!(),
            ", ",
            record_columns!(),
            // Claims and unknown outcomes are never among the records, of which there may be millions: SQLite looks at what
            // speaks of no column first, and reads none of them.
            " FROM semel_record WHERE (:state IS NULL OR :state NOT IN ('claimed', 'unknown')) AND fence ",
            $beyond,
            " :after AND (:state IS NULL OR state = :state) ",
            "AND (:endpoint IS NULL OR endpoint = :endpoint) AND (:before IS NULL OR created_at < :before) ",
            "ORDER BY fence",
            $order,
            " LIMIT :limit",
        )
    };
}

const LIST: &str = list!(">", "");
const LIST_NEWEST_FIRST: &str = list!("<", " DESC");

/// A row of the audit trail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRow {
    /// When, by the store's time.
    pub at: Timestamp,
    /// Who.
    pub actor: String,
    /// What was done.
    pub action: String,
    /// Under which fence, where it was done to one key.
    pub fence: Option<String>,
    /// Why, in the actor's words.
    pub reason: String,
}

/// A row and what it is known by.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowRef {
    /// Its number.
    pub(super) number: u64,
    /// The hash of its id.
    pub(super) hash: Hash,
    /// Its rotation.
    pub(super) rotation: Option<Rotation>,
    /// What its key is found by.
    pub(super) key: Hash,
}

/// What the index of records tells of a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct BriefRow {
    /// Its number.
    pub(super) number: u64,
    /// The hash of its id.
    pub(super) hash: Hash,
    /// Its rotation.
    pub(super) rotation: Option<Rotation>,
    /// Whose it is.
    pub(super) who: Who,
}

/// What the tables say of an id, where its rows can only have these numbers, the highest first. An id whose hash another
/// one already has is refused.
pub(super) fn find(
    connection: &Connection,
    numbers: &[u64],
    hash: Hash,
    id: &Id,
) -> rusqlite::Result<Option<StoredEntry>> {
    for number in numbers {
        match at(connection, *number, hash)? {
            Some(kept) if kept.entry.id == *id => return Ok(Some(kept)),
            Some(_) => {
                return Err(rusqlite::Error::ToSqlConversionFailure("another key has the same hash".into()));
            }
            None => {}
        }
    }
    Ok(None)
}

/// The row with this number, if it is one of this hash.
pub(super) fn at(connection: &Connection, number: u64, hash: Hash) -> rusqlite::Result<Option<StoredEntry>> {
    for sql in [RECORD_AT, CLAIM_AT] {
        let mut statement = connection.prepare_cached(sql)?;
        let mut rows = statement.query(params![number.cast_signed(), hash])?;
        if let Some(row) = rows.next()? {
            return row::read(row).map(Some);
        }
    }
    Ok(None)
}

/// Every claim that was open when it was last written.
pub(super) fn open_claims(connection: &Connection) -> rusqlite::Result<Vec<StoredEntry>> {
    connection.prepare(OPEN_CLAIMS)?.query_map([], row::read)?.collect()
}

/// Whether a row of either table has this fence.
pub(super) fn is_written(connection: &Connection, fence: Fence) -> rusqlite::Result<bool> {
    let sql =
        "SELECT 1 FROM semel_claim WHERE fence = ?1 UNION ALL SELECT 1 FROM semel_record WHERE fence = ?1";
    connection.prepare(sql)?.exists([number(fence)])
}

/// Removes the row with this number, if there is one of this hash.
pub(super) fn erase(connection: &Connection, number: u64, hash: Hash) -> rusqlite::Result<Option<RowRef>> {
    for sql in [ERASE_CLAIM, ERASE_RECORD] {
        let mut statement = connection.prepare_cached(sql)?;
        let read = |row: &Row<'_>| {
            Ok(RowRef { number, hash, rotation: row.get(0)?, key: digest(row.get_ref(1)?.as_bytes()?) })
        };
        if let Some(erased) = statement.query_row(params![number.cast_signed(), hash], read).optional()? {
            return Ok(Some(erased));
        }
    }
    Ok(None)
}

/// Removes the claim with this number.
pub(super) fn erase_claim(connection: &Connection, number: u64) -> rusqlite::Result<()> {
    let sql = "DELETE FROM semel_claim WHERE fence = ?1";
    connection.prepare_cached(sql)?.execute([number.cast_signed()]).map(drop)
}

/// Writes a claim or an unknown outcome.
pub(super) fn insert_claim(connection: &Connection, kept: &StoredEntry) -> rusqlite::Result<()> {
    write_claim(&mut connection.prepare_cached(INSERT_CLAIM)?, kept).map(drop)
}

/// Writes a finished record.
pub(super) fn insert_record(connection: &Connection, kept: &StoredEntry) -> rusqlite::Result<()> {
    write_record(&mut connection.prepare_cached(INSERT_RECORD)?, kept).map(drop)
}

/// Whether the row with this number is of another id, has this rotation and is not expired.
pub(super) fn rotation_lives(
    connection: &Connection,
    number: u64,
    rotation: Rotation,
    hash: Hash,
    now: Timestamp,
) -> rusqlite::Result<bool> {
    let values = params![number.cast_signed(), rotation, hash, now.millis()];
    connection.prepare_cached(LIVING_ROTATION)?.exists(values)
}

/// A time before which about half of the records expire, if they are spread evenly.
pub(super) fn middle_expiry(connection: &Connection) -> rusqlite::Result<i64> {
    let first = "SELECT min(expires_at) FROM semel_record";
    let last = "SELECT max(expires_at) FROM semel_record";
    let edge = |sql| connection.query_row(sql, [], |row| row.get::<_, Option<i64>>(0));
    Ok(edge(first)?.zip(edge(last)?).map_or(0, |(first, last)| first.midpoint(last)))
}

/// Tells of every claim and unknown outcome: what it is known by, and whose it is.
pub(super) fn each_claim(connection: &Connection, tell: impl FnMut(BriefRow)) -> rusqlite::Result<()> {
    each(connection, WRITTEN_CLAIMS, "SELECT principal FROM semel_claim WHERE fence = ?1", [], tell)
}

/// Tells of every record that expires in this range of time.
pub(super) fn each_record(
    connection: &Connection,
    expires: RangeInclusive<i64>,
    tell: impl FnMut(BriefRow),
) -> rusqlite::Result<()> {
    let principal = "SELECT principal FROM semel_record WHERE fence = ?1";
    each(connection, WRITTEN_RECORDS, principal, [*expires.start(), *expires.end()], tell)
}

fn each(
    connection: &Connection,
    sql: &str,
    principal: &str,
    values: impl rusqlite::Params,
    mut tell: impl FnMut(BriefRow),
) -> rusqlite::Result<()> {
    let (mut statement, mut principal) = (connection.prepare(sql)?, connection.prepare(principal)?);
    let mut rows = statement.query(values)?;
    while let Some(row) = rows.next()? {
        let number: i64 = row.get(0)?;
        let who = match row.get::<_, Option<Who>>(3)? {
            Some(who) => who,
            // An older release wrote it.
            None => principal
                .query_row([number], |row| row.get::<_, String>(0))
                .map(|principal| who(&principal))?,
        };
        tell(BriefRow { number: number.cast_unsigned(), hash: row.get(1)?, rotation: row.get(2)?, who });
    }
    Ok(())
}

/// Claims that outlived their process are unknown outcomes.
pub(super) fn orphan(connection: &Connection, now: Timestamp) -> rusqlite::Result<usize> {
    connection.execute(
        "UPDATE semel_claim SET state = 'unknown', lease_until = min(lease_until, ?1) WHERE state = 'claimed'",
        [now.millis()],
    )
}

/// Removes records that expired by then, and says which.
pub(super) fn sweep(connection: &Connection, by: Timestamp, limit: u32) -> rusqlite::Result<Vec<RowRef>> {
    connection.prepare_cached(SWEEP)?.query_map(params![by.millis(), limit], gone)?.collect()
}

fn gone(row: &Row<'_>) -> rusqlite::Result<RowRef> {
    let number = row.get::<_, i64>(0)?.cast_unsigned();
    Ok(RowRef { number, hash: row.get(1)?, rotation: row.get(2)?, key: digest(row.get_ref(3)?.as_bytes()?) })
}

/// Lists unknown outcomes and records by fence number, of every principal.
pub(super) fn list(connection: &Connection, filter: &Filter) -> rusqlite::Result<Vec<StoredEntry>> {
    let (sql, first) = match filter.order {
        Order::OldestFirst => (LIST, 0),
        Order::NewestFirst => (LIST_NEWEST_FIRST, i64::MAX),
    };
    let after = filter.after.map_or(first, |after| i64::try_from(after).unwrap_or(i64::MAX));
    connection
        .prepare_cached(sql)?
        .query_map(
            named_params! {
                ":after": after,
                ":state": filter.state.map(|state| state.name()),
                ":endpoint": filter.endpoint,
                ":before": filter.created_before.map(Timestamp::millis),
                ":limit": filter.limit,
            },
            row::read,
        )?
        .collect()
}

/// Lists those of these rows that are unknown outcomes or records and that the filter shows.
pub(super) fn list_at(
    connection: &Connection,
    filter: &Filter,
    numbers: &[u64],
) -> rusqlite::Result<Vec<StoredEntry>> {
    let mut found = Vec::new();
    for number in numbers {
        let shown = |kept: &StoredEntry| kept.entry.record.state != State::Claimed && kept.is_shown(filter);
        found.extend(by_number(connection, *number)?.filter(shown));
        if found.len() == filter.limit as usize {
            break;
        }
    }
    Ok(found)
}

/// The row with this number.
fn by_number(connection: &Connection, number: u64) -> rusqlite::Result<Option<StoredEntry>> {
    for sql in [RECORD_NUMBERED, CLAIM_NUMBERED] {
        let mut statement = connection.prepare_cached(sql)?;
        let mut rows = statement.query([number.cast_signed()])?;
        if let Some(row) = rows.next()? {
            return row::read(row).map(Some);
        }
    }
    Ok(None)
}

/// Adds to the audit trail.
pub(super) fn audit(connection: &Connection, row: &AuditRow, hash: Option<Hash>) -> rusqlite::Result<()> {
    connection.execute(
        "INSERT INTO semel_audit (at, actor, action, hash, fence, reason) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        params![row.at.millis(), row.actor, row.action, hash, row.fence, row.reason],
    )?;
    Ok(())
}

/// The latest rows of the audit trail, oldest first.
pub(super) fn audited(connection: &Connection, limit: u32) -> rusqlite::Result<Vec<AuditRow>> {
    let sql = "SELECT at, actor, action, fence, reason FROM (SELECT * FROM semel_audit ORDER BY number DESC \
               LIMIT ?1) ORDER BY number";
    connection
        .prepare(sql)?
        .query_map([limit], |row| {
            Ok(AuditRow {
                at: Timestamp::from_millis(row.get(0)?),
                actor: row.get(1)?,
                action: row.get(2)?,
                fence: row.get(3)?,
                reason: row.get(4)?,
            })
        })?
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the planner is told of a table with a million records.
    const A_MILLION: &str = "ANALYZE; INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
        ('semel_record', 'semel_record_brief', '1000000 10 1 1 1'); ANALYZE sqlite_schema";

    fn plan(sql: &str) -> String {
        let mut connection = Connection::open_in_memory().expect("a database in memory");
        super::super::schema::SCHEMA.migrate(&mut connection).expect("the schema is well formed");
        let without = explained(&connection, sql);
        connection.execute_batch(A_MILLION).expect("statistics can be written");
        assert_eq!(explained(&connection, sql), without, "statistics do not change the plan");
        without
    }

    fn explained(connection: &Connection, sql: &str) -> String {
        let mut statement =
            connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).expect("the statement is well formed");
        let lines = statement.raw_query().mapped(|row| row.get::<_, String>(3));
        lines.collect::<Result<Vec<_>, _>>().expect("a plan has a text").join("\n")
    }

    fn assert_uses(sql: &str, indexes: &[&str]) {
        let plan = plan(sql);
        for index in indexes {
            assert!(
                plan.contains(&format!("USING INDEX {index}"))
                    || plan.contains(&format!("USING COVERING INDEX {index}")),
                "{index} is not used:\n{plan}"
            );
        }
        assert!(!plan.contains("TEMP B-TREE"), "too much is read:\n{plan}");
    }

    #[test]
    fn look_ups_sweeps_and_lists_use_their_indexes() {
        assert_uses(SWEEP, &["semel_record_brief"]);
        assert_uses(WRITTEN_RECORDS, &["semel_record_brief"]);
        for sql in [RECORD_AT, RECORD_NUMBERED, LIVING_ROTATION, ERASE_RECORD, LIST] {
            let plan = plan(sql);
            assert!(plan.contains("SEARCH semel_record USING INTEGER PRIMARY KEY"), "{sql}:\n{plan}");
            assert!(!plan.contains("SCAN") && !plan.contains("TEMP B-TREE"), "too much is read:\n{plan}");
        }
    }
}

//! The statements on the store's own tables. Each runs inside whatever transaction is open; none decides anything.

use rusqlite::{Connection, OptionalExtension, named_params, params};
use semel_contract::record::Fence;
use semel_contract::time::Timestamp;

use super::row::{
    self, Hash, Kept, Rotation, claim_columns, no_record_columns, number, record_columns, write_claim,
    write_record,
};
use crate::claims::{Filter, Id};

const FIND: &str = concat!(
    "SELECT ",
    claim_columns!(),
    ", ",
    no_record_columns!(),
    " FROM semel_claim WHERE hash = ?1 UNION ALL ",
    "SELECT ",
    claim_columns!(),
    ", ",
    record_columns!(),
    " FROM semel_record WHERE hash = ?1",
);

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
    ") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, \
     ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20)",
);

const INSERT_RECORD: &str = concat!(
    "INSERT INTO semel_record (",
    claim_columns!(),
    ", ",
    record_columns!(),
    ") VALUES (?1, ?2, ?3, ?4, ?5, \
     ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26)",
);

const LIVING_ROTATION: &str = "SELECT 1 FROM semel_claim WHERE rotation = ?1 AND hash <> ?2 UNION ALL \
     SELECT 1 FROM semel_record WHERE rotation = ?1 AND hash <> ?2 AND expires_at > ?3";

const SWEEP: &str = "DELETE FROM semel_record WHERE fence IN (SELECT fence FROM semel_record \
     WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2) RETURNING hash";

const FORGET: &str = "DELETE FROM semel_record WHERE fence IN (SELECT fence FROM semel_record \
     WHERE principal = ?1 AND tenant IS ?3 ORDER BY fence LIMIT ?2) RETURNING hash";

macro_rules! list {
    ($by_principal:literal) => {
        concat!(
            "SELECT ",
            claim_columns!(),
            ", ",
            no_record_columns!(),
            " FROM semel_claim WHERE state = 'unknown' ",
            "AND fence > :after ",
            $by_principal,
            " AND (:state IS NULL OR state = :state) ",
            "AND (:endpoint IS NULL OR endpoint = :endpoint) AND (:before IS NULL OR created_at < :before) ",
            "UNION ALL SELECT ",
            claim_columns!(),
            ", ",
            record_columns!(),
            " FROM semel_record ",
            "WHERE fence > :after ",
            $by_principal,
            " AND (:state IS NULL OR state = :state) ",
            "AND (:endpoint IS NULL OR endpoint = :endpoint) AND (:before IS NULL OR created_at < :before) ",
            "ORDER BY fence LIMIT :limit",
        )
    };
}
const LIST: &str = list!("AND :principal IS NULL");
const LIST_BY_PRINCIPAL: &str = list!("AND principal = :principal");

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

/// What the tables say of an id. An id whose hash another one already has is refused.
pub(super) fn find(connection: &Connection, hash: Hash, id: &Id) -> rusqlite::Result<Option<Kept>> {
    let mut statement = connection.prepare_cached(FIND)?;
    let mut rows = statement.query_map([hash], row::read)?;
    let mut found: Option<Kept> = None;
    while let Some(kept) = rows.next().transpose()? {
        if kept.entry.id != *id {
            return Err(rusqlite::Error::ToSqlConversionFailure("another key has the same hash".into()));
        }
        // Of two rows the later one counts; they never stay side by side.
        if found.as_ref().is_none_or(|other| other.entry.record.fence < kept.entry.record.fence) {
            found = Some(kept);
        }
    }
    Ok(found)
}

/// Every claim that was open when it was last written.
pub(super) fn open_claims(connection: &Connection) -> rusqlite::Result<Vec<Kept>> {
    connection.prepare(OPEN_CLAIMS)?.query_map([], row::read)?.collect()
}

/// Whether a row of either table has this fence.
pub(super) fn is_written(connection: &Connection, fence: Fence) -> rusqlite::Result<bool> {
    let sql =
        "SELECT 1 FROM semel_claim WHERE fence = ?1 UNION ALL SELECT 1 FROM semel_record WHERE fence = ?1";
    connection.prepare(sql)?.exists([number(fence)])
}

/// Removes what both tables know of an id.
pub(super) fn erase(connection: &Connection, hash: Hash) -> rusqlite::Result<()> {
    connection.prepare_cached("DELETE FROM semel_claim WHERE hash = ?1")?.execute([hash])?;
    connection.prepare_cached("DELETE FROM semel_record WHERE hash = ?1")?.execute([hash])?;
    Ok(())
}

/// Writes a claim or an unknown outcome.
pub(super) fn insert_claim(connection: &Connection, kept: &Kept) -> rusqlite::Result<()> {
    write_claim(&mut connection.prepare_cached(INSERT_CLAIM)?, kept).map(drop)
}

/// Writes a finished record. An expired one of another id gives its rotation up.
pub(super) fn insert_record(connection: &Connection, kept: &Kept) -> rusqlite::Result<()> {
    if let Some(rotation) = kept.rotation {
        connection
            .prepare_cached("UPDATE semel_record SET rotation = NULL WHERE rotation = ?1")?
            .execute([rotation])?;
    }
    write_record(&mut connection.prepare_cached(INSERT_RECORD)?, kept).map(drop)
}

/// Whether a row of another id has this rotation and is not expired.
pub(super) fn rotation_lives(
    connection: &Connection,
    rotation: Rotation,
    hash: Hash,
    now: Timestamp,
) -> rusqlite::Result<bool> {
    connection.prepare_cached(LIVING_ROTATION)?.exists(params![rotation, hash, now.millis()])
}

/// Claims that outlived their process are unknown outcomes.
pub(super) fn orphan(connection: &Connection, now: Timestamp) -> rusqlite::Result<usize> {
    connection.execute(
        "UPDATE semel_claim SET state = 'unknown', lease_until = min(lease_until, ?1) WHERE state = 'claimed'",
        [now.millis()],
    )
}

/// Removes records that expired by then, and says which.
pub(super) fn sweep(connection: &Connection, by: Timestamp, limit: u32) -> rusqlite::Result<Vec<Hash>> {
    connection.prepare_cached(SWEEP)?.query_map(params![by.millis(), limit], |row| row.get(0))?.collect()
}

/// Removes records of a principal, and says which.
pub(super) fn forget(
    connection: &Connection,
    tenant: Option<&str>,
    principal: &str,
    limit: u32,
) -> rusqlite::Result<Vec<Hash>> {
    connection
        .prepare_cached(FORGET)?
        .query_map(params![principal, limit, tenant], |row| row.get(0))?
        .collect()
}

/// Lists unknown outcomes and records by fence number.
pub(super) fn list(connection: &Connection, filter: &Filter) -> rusqlite::Result<Vec<Kept>> {
    let sql = if filter.principal.is_some() { LIST_BY_PRINCIPAL } else { LIST };
    let after = filter.after.map_or(0, |after| i64::try_from(after).unwrap_or(i64::MAX));
    connection
        .prepare_cached(sql)?
        .query_map(
            named_params! {
                ":after": after,
                ":principal": filter.principal,
                ":state": filter.state.map(|state| state.name()),
                ":endpoint": filter.endpoint,
                ":before": filter.created_before.map(Timestamp::millis),
                ":limit": filter.limit,
            },
            row::read,
        )?
        .collect()
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

/// A number that outlives the process.
pub(super) fn meta(connection: &Connection, name: &str) -> rusqlite::Result<i64> {
    meta_if_any(connection, name)?.ok_or(rusqlite::Error::QueryReturnedNoRows)
}

/// The same, where it may not have been written yet.
pub(super) fn meta_if_any(connection: &Connection, name: &str) -> rusqlite::Result<Option<i64>> {
    let sql = "SELECT value FROM semel_meta WHERE name = ?1";
    connection.query_row(sql, [name], |row| row.get(0)).optional()
}

/// Writes a number that outlives the process.
pub(super) fn set_meta(connection: &Connection, name: &str, value: i64) -> rusqlite::Result<()> {
    let sql = "INSERT INTO semel_meta (name, value) VALUES (?1, ?2)
        ON CONFLICT (name) DO UPDATE SET value = excluded.value";
    connection.prepare_cached(sql)?.execute(params![name, value]).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the planner is told of a table with a million records, of a thousand principals.
    const A_MILLION: &str = "ANALYZE; INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
        ('semel_record', 'semel_record_hash', '1000000 1'), ('semel_record', 'semel_record_rotation', '1000000 1'),
        ('semel_record', 'semel_record_expiry', '1000000 10'),
        ('semel_record', 'semel_record_principal', '1000000 1000'),
        ('semel_claim', 'semel_claim_hash', '100 1'), ('semel_claim', 'semel_claim_rotation', '100 1');
        ANALYZE sqlite_schema";

    fn plan(sql: &str) -> String {
        let mut connection = Connection::open_in_memory().expect("a database in memory");
        super::super::migrate::migrate(&mut connection).expect("the schema is well formed");
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
        assert!(
            !plan.contains("SCAN semel_record") && !plan.contains("TEMP B-TREE"),
            "too much is read:\n{plan}"
        );
    }

    #[test]
    fn look_ups_sweeps_and_lists_use_their_indexes() {
        assert_uses(FIND, &["semel_claim_hash", "semel_record_hash"]);
        assert_uses(SWEEP, &["semel_record_expiry"]);
        assert_uses(FORGET, &["semel_record_principal"]);
        assert_uses(LIST_BY_PRINCIPAL, &["semel_record_principal"]);
        assert_uses(LIVING_ROTATION, &["semel_claim_rotation", "semel_record_rotation"]);
        assert_uses("DELETE FROM semel_record WHERE hash = ?1", &["semel_record_hash"]);
        assert!(
            plan(LIST).contains("SEARCH semel_record USING INTEGER PRIMARY KEY"),
            "pages go by fence number"
        );
    }
}

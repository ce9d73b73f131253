//! What operators ask of the store in PostgreSQL. Statements of their own; none of them runs for a request, except the
//! look at the restores, which is remembered for a second.

use std::sync::Mutex;
use std::time::Duration;

use semel_contract::profile::Lifetime;
use semel_contract::restore::{Restore, Undated};
use semel_contract::time::{Timestamp, millis_of};
use tokio_postgres::Row;

use super::link::{PgFailure, Value};
use super::rows::span;
use super::sql::{self, found, timed};
use super::{Core, PostgresStore, replace, rows};
use crate::admin::{
    AdminStore, Audited, CLEANUPS_KEPT_MAX, Cleanup, ClockState, Note, STALE_KEPT, Sought, StaleCount,
    StalePlace, Trail, action,
};
use crate::claims::{About, Entry, Id, KnownAmong, Reply, Sealed, StoreError, Swept};
use crate::clock::boot_time;
use crate::forms::{FORM_MARGIN, FORM_PAUSE, Form, Forms, KnownForm};

/// How long a look at the restores holds.
const RESTORES_FRESH: Duration = Duration::from_secs(1);
/// How long a request waits for whoever looks, and how long a look may take.
const RESTORES_WAIT_MAX: Duration = Duration::from_secs(3);

const BY_REQUEST_ID: &str = found!("r.request_id = $5::text");

const TRAIL: &str = "
SELECT number, at, actor, action, hash, fence, reason, count FROM semel.audit
WHERE number < $1::bigint ORDER BY number DESC LIMIT $2::bigint";
const TRAIL_OF_KEY: &str = "
SELECT number, at, actor, action, hash, fence, reason, count FROM semel.audit
WHERE hash IS NOT NULL AND hash = $3::bytea AND number < $1::bigint ORDER BY number DESC LIMIT $2::bigint";

const NOTE: &str = timed!(
    ", noted AS (
    INSERT INTO semel.audit (at, action, actor, reason, count)
    SELECT now, $4::text, $5::text, $6::text, $7::bigint FROM t
)
SELECT now, wall, revision FROM t"
);

const LOG_SWEEP: &str = timed!(
    ", logged AS (
    INSERT INTO semel.cleanup (at, took_ms, removed, unknown, released)
    SELECT now, $4::bigint, $5::bigint, $6::bigint, $7::bigint FROM t RETURNING number
), outgrown AS (
    DELETE FROM semel.cleanup WHERE number <= (SELECT number FROM logged) - $8::bigint
), forgotten AS (
    DELETE FROM semel.stale WHERE last_at <= (SELECT now FROM t) - $9::bigint
)
SELECT now, wall, revision FROM t"
);
const CLEANUPS: &str = "
SELECT number, at, took_ms, removed, unknown, released FROM semel.cleanup
WHERE number < $1::bigint ORDER BY number DESC LIMIT $2::bigint";

const COUNT_STALE: &str = timed!(
    ", counted AS (
    INSERT INTO semel.stale AS s (principal, tenant, count, first_at, last_at)
    SELECT $4::text, $5::text, 1, now, now FROM t
    ON CONFLICT (principal, tenant) DO UPDATE SET count = s.count + 1, last_at = excluded.last_at
)
SELECT now, wall, revision FROM t"
);
const STALE: &str = "
SELECT tenant, principal, count, first_at, last_at FROM semel.stale
WHERE ($1::text IS NULL OR principal = $1::text)
    AND ($3::bigint IS NULL OR count < $3::bigint OR (count = $3::bigint AND (principal, tenant) > ($4::text, $5::text)))
ORDER BY count DESC, principal, tenant LIMIT $2::bigint";

const REGISTER_FORMS: &str = timed!(
    ", due AS MATERIALIZED (
    SELECT f.gate, f.form, EXISTS (
        SELECT FROM semel.record r
        WHERE r.created_at + coalesce(r.lifetime_ms, 0) <= f.last_at + f.kept_ms + $6::bigint
            AND r.created_at <= f.last_at + $6::bigint
            AND r.state <> 4 AND (r.expires_at IS NULL OR r.expires_at > t.now)
    ) OR EXISTS (
        SELECT FROM semel.audit a JOIN semel.record r ON r.hash = a.hash
        WHERE a.action = 'resolve-applied' AND a.at >= f.last_at AND r.created_at <= f.last_at + $6::bigint
            AND r.state <> 4 AND (r.expires_at IS NULL OR r.expires_at > t.now)
    ) AS is_needed
    FROM semel.form f, t WHERE f.last_at + f.kept_ms + $5::bigint <= t.now
        AND NOT (f.gate = $4::text AND f.form = ANY ($7::text[]))
), forgotten AS (
    DELETE FROM semel.form f USING due WHERE f.gate = due.gate AND f.form = due.form AND NOT due.is_needed
), kept AS (
    UPDATE semel.form f SET kept_ms = t.now - f.last_at FROM t, due
    WHERE f.gate = due.gate AND f.form = due.form AND due.is_needed
), registered AS (
    INSERT INTO semel.form AS f (gate, form, kept_ms, first_at, since, last_at)
    SELECT $4::text, w.form, w.kept_ms, t.now, t.now, t.now + w.ahead_ms
    FROM t, unnest($7::text[], $8::bigint[], $9::bigint[]) AS w (form, kept_ms, ahead_ms)
    ORDER BY w.form
    ON CONFLICT (gate, form) DO UPDATE SET
        since = CASE WHEN f.last_at + $6::bigint < excluded.first_at THEN excluded.first_at ELSE f.since END,
        last_at = greatest(f.last_at, excluded.last_at), kept_ms = greatest(f.kept_ms, excluded.kept_ms)
)
SELECT now, wall, revision FROM t"
);
const FORMS: &str = timed!(
    "\nSELECT t.now, t.wall, t.revision, f.form, f.kept_ms, f.first_at, f.since, f.last_at
FROM t LEFT JOIN semel.form f ON f.gate = $4::text ORDER BY f.first_at, f.form"
);
const MARKED: &str = timed!(
    "\nSELECT t.now, t.wall, t.revision, EXISTS (
    SELECT FROM semel.record r WHERE r.rotation = $4::bytea AND r.hash <> $5::bytea
        AND NOT (r.state IN (2, 3, 4, 6) AND r.expires_at <= t.now)
) AS is_marked FROM t"
);

/// Rows of these keys ($4 by hash) and of these marks ($5) that have not expired.
const KNOWN_AMONG: &str = timed!(
    "\nSELECT t.now, t.wall, t.revision, r.hash, r.scope, r.key, r.rotation, r.state = 4 AS is_released
FROM t LEFT JOIN semel.record r ON (r.hash = ANY ($4::bytea[]) OR r.rotation = ANY ($5::bytea[]))
    AND NOT (r.state IN (2, 3, 4, 6) AND r.expires_at <= t.now)"
);

const RESTORES: &str = "SELECT backup_at, restored_at, trust_undated FROM semel.restore ORDER BY restored_at";
const RESTORED: &str = timed!(
    ", restored AS (
    INSERT INTO semel.restore (backup_at, restored_at, trust_undated) SELECT $4::bigint, now, $5::boolean FROM t
    ON CONFLICT (backup_at) DO UPDATE SET trust_undated = excluded.trust_undated
    RETURNING backup_at, restored_at, trust_undated
), noted AS (
    INSERT INTO semel.audit (at, action, actor, reason, count)
    SELECT now, 'restored', $6::text, $7::text, 1 FROM t
)
SELECT t.now, t.wall, t.revision, restored.* FROM t, restored"
);

const JUMP: &str = "SELECT jump_ms FROM semel.clock WHERE frozen";
const CONFIRM: &str = timed!(
    ", noted AS (
    INSERT INTO semel.audit (at, action, actor, reason, count)
    SELECT now, 'confirm-clock', $4::text, $5::text, 0 FROM t
), confirmed AS (
    SELECT semel.confirm_clock()
)
SELECT t.now, t.wall, t.revision FROM t, confirmed"
);

/// What a look at the restores came to.
type Found = Result<Vec<Restore>, StoreError>;

/// The restores as they were last seen, and when.
#[derive(Debug, Default)]
pub(super) struct Restores {
    seen: Mutex<Option<(Duration, Found)>>,
    /// Held by whoever looks, so that the others wait for one look instead of each making its own.
    looking: tokio::sync::Mutex<()>,
}

impl Restores {
    /// What was found out at most a second ago.
    fn fresh(&self) -> Option<Vec<Restore>> {
        let seen = self.seen.lock().expect("a list is only copied");
        let (at, found) = seen.as_ref()?;
        let is_fresh = boot_time().saturating_sub(*at) < RESTORES_FRESH;
        found.as_ref().ok().filter(|_| is_fresh).cloned()
    }

    /// What somebody found out who began to look after this moment, be it an error.
    fn since(&self, arrived: Duration) -> Option<Found> {
        let seen = self.seen.lock().expect("a list is only copied");
        seen.as_ref().filter(|(at, _)| *at >= arrived).map(|(_, found)| found.clone())
    }

    fn set(&self, asked: Duration, found: Found) {
        *self.seen.lock().expect("a list is only copied") = Some((asked, found));
    }
}

/// The restores, at most a second old. One looks for all who wait.
pub(super) async fn restores(core: &Core) -> Result<Vec<Restore>, StoreError> {
    if let Some(restores) = core.restores.fresh() {
        return Ok(restores);
    }
    let arrived = boot_time();
    let Ok(_looking) = tokio::time::timeout(RESTORES_WAIT_MAX, core.restores.looking.lock()).await else {
        return Err(StoreError::Unavailable("the restores could not be read in time".to_owned()));
    };
    if let Some(found) = core.restores.since(arrived) {
        return found;
    }
    // Read before asking: what is answered was true then, at the latest.
    let asked = boot_time();
    let rows = tokio::time::timeout(RESTORES_WAIT_MAX, core.link.query(RESTORES, &[])).await;
    let found = match rows {
        Ok(rows) => rows.map_err(PgFailure::of_read).map(|rows| rows.iter().map(restore).collect::<Vec<_>>()),
        Err(_) => Err(StoreError::Unavailable("the restores could not be read in time".to_owned())),
    };
    core.restores.set(asked, found.clone());
    found
}

fn restore(row: &Row) -> Restore {
    Restore {
        backup_at: time(row, "backup_at"),
        restored_at: time(row, "restored_at"),
        undated: if row.get("trust_undated") { Undated::Trusted } else { Undated::Unknown },
    }
}

fn time(row: &Row, column: &str) -> Timestamp {
    Timestamp::from_millis(row.get(column))
}

fn count(row: &Row, column: &str) -> u64 {
    row.get::<_, i64>(column).cast_unsigned()
}

fn stored(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// The first number that is not shown.
fn end(before: Option<u64>) -> i64 {
    before.map_or(i64::MAX, stored)
}

/// Writes one run of the sweeper down.
pub(super) async fn log_sweep(core: &Core, swept: Swept, took: Duration) -> Result<(), StoreError> {
    let values: [Value<'_>; 6] = [
        &span(took),
        &stored(swept.removed),
        &stored(swept.unknown),
        &stored(swept.released),
        &i64::from(CLEANUPS_KEPT_MAX),
        &millis_of(STALE_KEPT),
    ];
    core.link.run(LOG_SWEEP, &values).await.map(drop).map_err(PgFailure::of_write)
}

/// Counts a stale action.
pub(super) async fn count_stale(
    core: &Core,
    tenant: Option<&str>,
    principal: &str,
) -> Result<(), StoreError> {
    let values: [Value<'_>; 2] = [&principal, &tenant.unwrap_or("")];
    core.link.run(COUNT_STALE, &values).await.map(drop).map_err(PgFailure::of_write)
}

/// Registers the forms of a gate, and tells what is known of this gate's.
pub(super) async fn register_forms(core: &Core, gate: &str, forms: &[Form]) -> Result<Forms, StoreError> {
    let texts: Vec<&str> = forms.iter().map(|form| form.text.as_str()).collect();
    let kept: Vec<i64> = forms.iter().map(|form| millis_of(form.kept)).collect();
    let ahead: Vec<i64> = forms.iter().map(|form| millis_of(form.ahead)).collect();
    let values: [Value<'_>; 6] =
        [&gate, &millis_of(FORM_MARGIN), &millis_of(FORM_PAUSE), &texts, &kept, &ahead];
    core.link.run(REGISTER_FORMS, &values).await.map_err(PgFailure::of_write)?;
    // In a statement of its own: this one sees what others have committed meanwhile.
    let answer = core.link.read(FORMS, &[&gate]).await?;
    let known = answer.rows.iter().filter_map(|row| {
        Some(KnownForm {
            text: row.get::<_, Option<String>>("form")?,
            kept: Duration::from_millis(row.get::<_, i64>("kept_ms").cast_unsigned()),
            first_at: time(row, "first_at"),
            since: time(row, "since"),
            last_at: time(row, "last_at"),
        })
    });
    Ok(Forms { known: known.collect(), now: answer.now })
}

/// Whether another key's record lives that was claimed with this mark.
pub(super) async fn is_marked(core: &Core, rotation: [u8; 16], other_than: &Id) -> Result<bool, StoreError> {
    let answer = core.link.read(MARKED, &[&rotation.as_slice(), &other_than.hash().as_slice()]).await?;
    Ok(answer.rows.first().is_some_and(|row| row.get("is_marked")))
}

/// Which of these keys have a record that stands, and which marks another's record has: in one statement.
pub(super) async fn known_among(
    core: &Core,
    ids: &[Id],
    marks: &[([u8; 16], Id)],
) -> Result<KnownAmong, StoreError> {
    let hashes: Vec<[u8; 16]> = ids.iter().map(Id::hash).collect();
    let hashes: Vec<&[u8]> = hashes.iter().map(<[u8; 16]>::as_slice).collect();
    let rotations: Vec<&[u8]> = marks.iter().map(|(mark, _)| mark.as_slice()).collect();
    let answer = core.link.read(KNOWN_AMONG, &[&hashes, &rotations]).await?;
    let rows: Vec<&Row> =
        answer.rows.iter().filter(|row| row.get::<_, Option<&[u8]>>("hash").is_some()).collect();
    let is_id = |row: &Row, id: &Id| {
        row.get::<_, &[u8]>("scope") == id.scope.as_bytes() && row.get::<_, &str>("key") == id.key.as_str()
    };
    let stands = |row: &Row| !row.get::<_, bool>("is_released");
    let is_marked = |row: &Row, (mark, other_than): &([u8; 16], Id)| {
        row.get::<_, Option<&[u8]>>("rotation") == Some(mark)
            && row.get::<_, &[u8]>("hash") != other_than.hash()
    };
    Ok(KnownAmong {
        ids: ids.iter().map(|id| rows.iter().any(|row| is_id(row, id) && stands(row))).collect(),
        marks: marks.iter().map(|mark| rows.iter().any(|row| is_marked(row, mark))).collect(),
    })
}

async fn find(core: &Core, sought: &Sought, limit: u32) -> Result<Vec<Entry>, StoreError> {
    let limit = i64::from(limit);
    let answer = match sought {
        Sought::Record(number) => match i64::try_from(*number) {
            Ok(number) => core.link.read(sql::FIND, &[&limit, &number]).await?,
            Err(_) => return Ok(Vec::new()),
        },
        Sought::RequestId(id) => core.link.read(BY_REQUEST_ID, &[&limit, id]).await?,
        Sought::Key(key) => core.link.read(sql::FIND_KEY, &[&limit, key]).await?,
    };
    answer.rows.iter().filter_map(|row| rows::entry(row).transpose()).collect()
}

async fn trail(core: &Core, trail: &Trail) -> Result<Vec<Audited>, StoreError> {
    let (before, limit) = (end(trail.before), i64::from(trail.limit));
    let rows = match trail.hash {
        Some(hash) => core.link.run_untimed(TRAIL_OF_KEY, &[&before, &limit, &hash.as_slice()]).await,
        None => core.link.run_untimed(TRAIL, &[&before, &limit]).await,
    };
    let audited = |row: &Row| Audited {
        number: count(row, "number"),
        at: time(row, "at"),
        actor: row.get("actor"),
        action: row.get("action"),
        hash: row.get::<_, Option<&[u8]>>("hash").and_then(|hash| hash.try_into().ok()),
        fence: row.get("fence"),
        reason: row.get("reason"),
        count: count(row, "count"),
    };
    Ok(rows.map_err(PgFailure::of_read)?.iter().map(audited).collect())
}

impl AdminStore for PostgresStore {
    fn find<'a>(&'a self, sought: &'a Sought, limit: u32) -> Reply<'a, Vec<Entry>> {
        Box::pin(find(&self.core, sought, limit))
    }

    fn trail<'a>(&'a self, of: &'a Trail) -> Reply<'a, Vec<Audited>> {
        Box::pin(trail(&self.core, of))
    }

    fn note<'a>(&'a self, note: &'a Note) -> Reply<'a, ()> {
        Box::pin(async move {
            let count = stored(note.count);
            let values: [Value<'_>; 4] = [&note.action, &note.actor, &note.reason, &count];
            self.core.link.run(NOTE, &values).await.map(drop).map_err(PgFailure::of_write)
        })
    }

    fn seal_by<'a>(
        &'a self,
        id: &'a Id,
        about: &'a About,
        lifetime: &'a Lifetime,
        by: &'a str,
        reason: &'a str,
    ) -> Reply<'a, Sealed> {
        Box::pin(async move {
            let sealed = replace::seal(&self.core, id, about, lifetime, Some((by, reason))).await;
            sealed.map_err(PgFailure::of_write)
        })
    }

    fn cleanups(&self, before: Option<u64>, limit: u32) -> Reply<'_, Vec<Cleanup>> {
        Box::pin(async move {
            let rows = self.core.link.run_untimed(CLEANUPS, &[&end(before), &i64::from(limit)]).await;
            let cleanup = |row: &Row| Cleanup {
                number: count(row, "number"),
                at: time(row, "at"),
                took: Duration::from_millis(count(row, "took_ms")),
                swept: Swept {
                    removed: count(row, "removed"),
                    unknown: count(row, "unknown"),
                    released: count(row, "released"),
                },
            };
            Ok(rows.map_err(PgFailure::of_read)?.iter().map(cleanup).collect())
        })
    }

    fn stale_after<'a>(
        &'a self,
        principal: Option<&'a str>,
        after: Option<StalePlace>,
        limit: u32,
    ) -> Reply<'a, Vec<StaleCount>> {
        Box::pin(async move {
            let most = after.as_ref().map(|place| place.count.cast_signed());
            let whose = after.as_ref().map(|place| place.principal.as_str());
            let tenant = after.as_ref().map(|place| place.tenant.as_str());
            let link = &self.core.link;
            let rows =
                link.run_untimed(STALE, &[&principal, &i64::from(limit), &most, &whose, &tenant]).await;
            let stale = |row: &Row| StaleCount {
                tenant: Some(row.get("tenant")).filter(|tenant: &String| !tenant.is_empty()),
                principal: row.get("principal"),
                count: count(row, "count"),
                first_at: time(row, "first_at"),
                last_at: time(row, "last_at"),
            };
            Ok(rows.map_err(PgFailure::of_read)?.iter().map(stale).collect())
        })
    }

    fn restored<'a>(
        &'a self,
        backup_at: Timestamp,
        undated: Undated,
        by: &'a str,
        reason: &'a str,
    ) -> Reply<'a, Restore> {
        Box::pin(async move {
            let trusted = undated == Undated::Trusted;
            let values: [Value<'_>; 4] = [&backup_at.millis(), &trusted, &by, &reason];
            let answer = self.core.link.run(RESTORED, &values).await.map_err(PgFailure::of_write)?;
            *self.core.restores.seen.lock().expect("a list is only copied") = None;
            let written = answer.rows.first().map(restore);
            written.ok_or_else(|| StoreError::Unavailable("the restore was not kept".to_owned()))
        })
    }

    fn clock(&self) -> Reply<'_, ClockState> {
        Box::pin(async move {
            // The time first: it is what notices a jump.
            let now = self.core.link.read(sql::TIME, &[]).await?.now;
            let rows = self.core.link.run_untimed(JUMP, &[]).await.map_err(PgFailure::of_read)?;
            Ok(ClockState { now, jump_millis: rows.first().map(|row| row.get(0)) })
        })
    }

    fn confirm_jump<'a>(&'a self, by: &'a str, reason: &'a str) -> Reply<'a, ()> {
        Box::pin(async move {
            self.core.link.run(CONFIRM, &[&by, &reason]).await.map(drop).map_err(PgFailure::of_write)
        })
    }
}

// The words of the trail that stand in the statements above and in those of resolutions.
const _: () = {
    assert!(matches!(action::RESTORED.as_bytes(), b"restored"));
    assert!(matches!(action::CONFIRM_CLOCK.as_bytes(), b"confirm-clock"));
};

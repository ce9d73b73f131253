//! The statements that run often, as text: for reading, for `EXPLAIN`, and for users of other drivers. The first three
//! parameters of each are what the caller believes of the time: the time as it ticked on since the server was last
//! heard (less what the store's time was moved on purpose), the latest time of the store seen, and how far from the first
//! the server's clock is believed. The first columns of each answer are `now`, `wall` and `revision`, on at least one row.
//!
//! A settlement must not change what is indexed, so that its row stays in its page and no index is written.

/// The server's clock in milliseconds.
macro_rules! server_ms {
    () => {
        "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
    };
}

/// The time of a statement, as the CTE `t`. The server's clock is believed as far as the caller's ticks agree with it: a
/// step of it that nobody meant is not, whatever its size. `semel.now_ms()` corrects the clock in the same way.
macro_rules! clock {
    () => {
        concat!(
            "server AS MATERIALIZED (
    SELECT ",
            $crate::postgres::sql::server_ms!(),
            " AS ms, offset_ms, jump_ms, jump_at_ms, moved_ms, high_water_ms, revision, frozen FROM semel.clock
), corrected AS MATERIALIZED (
    SELECT ms + offset_ms - moved_ms + CASE WHEN abs(jump_ms) > 60000 THEN 0 ELSE
            greatest(-(greatest(ms - jump_at_ms, 0) / 64), least(jump_ms, greatest(ms - jump_at_ms, 0) / 64)) END AS wall,
        ms, moved_ms, high_water_ms, revision, frozen
    FROM server
), t AS MATERIALIZED (
    SELECT greatest(greatest($1::bigint - $3::bigint, least(wall, $1::bigint + $3::bigint)) + moved_ms,
            $2::bigint, high_water_ms) AS now,
        wall, ms, revision, frozen
    FROM corrected
)"
        )
    };
}

/// The time at which one row of a batch is written: the statement's time and what has passed since it was read.
macro_rules! at_row {
    () => {
        concat!("greatest(t.now, t.now - t.ms + ", server_ms!(), ")")
    };
}

/// Everything that an entry is made of, from `r` (the record) and `l` (its lease).
macro_rules! entry {
    () => {
        "r.fence, r.nonce, r.hash, r.scope, r.key, r.endpoint, r.tenant, r.principal, r.state, r.guarantee,
    r.fingerprint, r.fingerprint_version, r.payload_hash, r.rotation, r.created_at, r.late_until, r.settled_at,
    r.expires_at, r.status, r.headers, r.body, r.outcome_unknown, r.client_generated_at, r.request_headers,
    r.request_id, coalesce(l.lease_until, r.first_lease_until) AS lease_until"
    };
}

/// A statement that begins with the time.
macro_rules! timed {
    ($($text:expr),+ $(,)?) => { concat!("WITH ", $crate::postgres::sql::clock!(), $($text),+) };
}

/// Records where a condition holds, the oldest first; at most $4.
macro_rules! found {
    ($condition:literal) => {
        $crate::postgres::sql::timed!(
            "\nSELECT t.now, t.wall, t.revision, found.* FROM t LEFT JOIN (
    SELECT ",
            $crate::postgres::sql::entry!(),
            "
    FROM semel.record r LEFT JOIN semel.lease l ON l.fence = r.fence
    WHERE ",
            $condition,
            "
    ORDER BY r.fence LIMIT $4::bigint
) found ON true"
        )
    };
}

pub(super) use {clock, entry, found, server_ms, timed};

/// The store's time, nothing else.
pub const TIME: &str = timed!("\nSELECT now, wall, revision FROM t");

/// What a process begins with: the time, the last mark of any process, and that of this run ($4) of this machine.
pub(super) const BEGIN: &str = timed!(
    "\nSELECT t.now, t.wall, t.revision, c.moved_ms, nullif(c.high_water_ms, 0) - c.moved_ms AS high_water,
    t.ms + c.offset_ms + c.jump_ms AS uncorrected, m.time_ms, m.ticks_ms
FROM t CROSS JOIN semel.clock c LEFT JOIN semel.clock_mark m ON m.boot = $4::bigint"
);

/// Takes what the server's clock did by itself ($1) out of the store's time, unless somebody else did ($2 is the revision at
/// which it was seen; $3: nothing contradicts it).
pub(super) const CORRECT: &str = concat!(
    "
UPDATE semel.clock AS c SET offset_ms = c.offset_ms + s.made_up - $1::bigint,
    jump_ms = c.jump_ms - s.made_up + $1::bigint, jump_at_ms = s.ms, revision = c.revision + 1,
    is_unexplained = $3::boolean OR c.is_unexplained
FROM (
    SELECT ms, semel.made_up_ms(jump_ms, jump_at_ms, ms) AS made_up
    FROM semel.clock, (SELECT ",
    server_ms!(),
    " AS ms) AS server
) AS s
WHERE c.revision = $2::bigint"
);

/// Keeps what this run ($1) of this machine counted ($2) at these ticks ($3), and from time to time the latest time.
pub(super) const MARK: &str = "
WITH kept AS (
    INSERT INTO semel.clock_mark AS m (boot, time_ms, ticks_ms) SELECT $1::bigint, $2::bigint, $3::bigint
    WHERE $1::bigint <> 0
    ON CONFLICT (boot) DO UPDATE
        SET time_ms = excluded.time_ms, ticks_ms = excluded.ticks_ms, marked_at = clock_timestamp()
), gone AS (
    DELETE FROM semel.clock_mark WHERE marked_at < clock_timestamp() - interval '90 days' AND boot <> $1::bigint
)
UPDATE semel.clock SET high_water_ms = $2::bigint + moved_ms WHERE high_water_ms < $2::bigint + moved_ms - 5000";

/// After a start that nothing explained: believes a clock that is ahead, where this machine's clock ($1), for which a time
/// service vouches, shows the same. The service is heard once, also where it finds nothing ahead.
pub(super) const VOUCH: &str = concat!(
    "
WITH vouched AS (
    SELECT frozen FROM semel.clock WHERE is_unexplained AND abs(",
    server_ms!(),
    " + offset_ms + jump_ms - $1::bigint) <= 60000
), heard AS (
    UPDATE semel.clock SET is_unexplained = false FROM vouched WHERE NOT vouched.frozen
)
SELECT semel.confirm_clock() FROM vouched WHERE frozen"
);

/// One key, by its hash and by itself ($4 to $6).
pub const LOOK_UP: &str = timed!(
    "\nSELECT t.now, t.wall, t.revision, ",
    entry!(),
    "
FROM t LEFT JOIN (semel.record r LEFT JOIN semel.lease l ON l.fence = r.fence)
    ON r.hash = $4::bytea AND r.scope = $5::bytea AND r.key = $6::text"
);

/// The records that stand in the way of claims, by hash ($4) or rotation ($5).
pub const KNOWN: &str = timed!(
    "\nSELECT t.now, t.wall, t.revision, ",
    entry!(),
    "
FROM t LEFT JOIN (semel.record r LEFT JOIN semel.lease l ON l.fence = r.fence)
    ON r.hash = ANY ($4::bytea[]) OR r.rotation = ANY ($5::bytea[])"
);

/// Claims absent keys, many at once. Known keys are filtered first, since the insert alone would wait for a settlement
/// that is not yet committed; so are keys that a handler's transaction has entered, by the lock that it holds. A row is `late` when higher numbers may have been given while it waited for its place.
macro_rules! claim {
    ($conflict:literal) => {
        timed!(
    ", wish AS MATERIALIZED (
    SELECT w.*, pg_try_advisory_xact_lock(w.place) AS is_free FROM unnest($4::bytea[], $5::bytea[], $6::text[], $7::bigint[], $8::bigint[], $9::bigint[],
        $10::smallint[], $11::bytea[], $12::smallint[], $13::bytea[], $14::bytea[], $15::text[], $16::text[],
        $17::text[], $18::bigint[], $19::bytea[], $20::text[], $21::bigint[], $22::smallint[], $23::integer[], $24::bigint[])
    AS w (hash, scope, key, nonce, lease_ms, late_ms, guarantee, fingerprint, fingerprint_version, payload_hash,
        rotation, endpoint, tenant, principal, client_generated_at, request_headers, request_id, lifetime_ms, anchor,
        max_response_bytes, place)
), won AS (
    INSERT INTO semel.record (fence, nonce, hash, scope, key, endpoint, tenant, principal, state, guarantee,
        fingerprint, fingerprint_version, payload_hash, rotation, created_at, first_lease_until, late_until,
        client_generated_at, request_headers, request_id, lifetime_ms, anchor, max_response_bytes)
    SELECT nextval('semel.fence'), w.nonce, w.hash, w.scope, w.key, w.endpoint, w.tenant, w.principal, 1, w.guarantee,
        w.fingerprint, w.fingerprint_version, w.payload_hash, w.rotation, ",
    at_row!(),
    ", w.lease_ms + ",
    at_row!(),
    ", w.lease_ms + w.late_ms + ",
    at_row!(),
    ",
        w.client_generated_at, w.request_headers, w.request_id, w.lifetime_ms, w.anchor, w.max_response_bytes
    FROM wish w, t
    WHERE w.is_free AND NOT EXISTS (SELECT FROM semel.record k WHERE k.hash = w.hash)
        AND NOT EXISTS (SELECT FROM semel.record k WHERE k.rotation = w.rotation)
    ",
            $conflict,
            "
    RETURNING fence, hash, first_lease_until, ",
    server_ms!(),
    " - (SELECT ms - now FROM t) - created_at > 1 AS late
), opened AS (
    INSERT INTO semel.opened (first, lease_until, fences)
    SELECT min(fence), min(first_lease_until), array_agg(fence) FROM won GROUP BY first_lease_until / 1000
)
SELECT t.now, t.wall, t.revision, told.fence, told.hash, told.late FROM t LEFT JOIN (
    SELECT fence, hash, late FROM won UNION ALL SELECT NULL, hash, false FROM wish WHERE NOT is_free
) told ON true"
        )
    };
}

/// Claims absent keys. One that another claims at the same moment fails them all: it is rare, and what finds out about it
/// beforehand costs every claim.
pub const CLAIM: &str = claim!("");

/// Claims absent keys, and leaves out those that another claims at the same moment.
pub const CLAIM_CONTESTED: &str = claim!("ON CONFLICT DO NOTHING");

/// Gives a late claim a number that is higher than any given before ($4 and $5 are its fence).
pub const RENUMBER: &str = timed!(
    ", moved AS (
    UPDATE semel.record SET fence = nextval('semel.fence') WHERE fence = $4::bigint AND nonce = $5::bigint AND state = 1
    RETURNING fence, first_lease_until
), opened AS (
    INSERT INTO semel.opened (first, lease_until, fences) SELECT fence, first_lease_until, ARRAY[fence] FROM moved
)
SELECT t.now, t.wall, t.revision, moved.fence FROM t LEFT JOIN moved ON true"
);

/// Ends attempts, many at once.
macro_rules! settle {
    ($lock:literal) => {
        timed!(
            ", ending AS (
    SELECT * FROM unnest($4::bigint[], $5::bigint[], $6::bytea[], $7::smallint[], $8::integer[], $9::bytea[],
        $10::bytea[], $11::boolean[], $12::bigint[], $13::boolean[], $14::boolean[])
    AS e (fence, nonce, hash, state, status, headers, body, outcome_unknown, keep_ms, from_created, remove)
), mine AS MATERIALIZED (
    SELECT e.* FROM ending e
    JOIN semel.record r ON r.fence = e.fence AND r.nonce = e.nonce AND r.hash = e.hash AND r.state IN (1, 5)
    FOR UPDATE OF r ",
            $lock,
            "
), kept AS (
    UPDATE semel.record r SET state = m.state, status = m.status, headers = m.headers, body = m.body,
        outcome_unknown = m.outcome_unknown,
        settled_at = CASE m.state WHEN 5 THEN NULL ELSE t.now END,
        expires_at = CASE WHEN m.from_created AND r.state = 1 AND r.created_at + m.keep_ms > t.now
            THEN r.created_at ELSE t.now END + m.keep_ms,
        lifetime_ms = CASE WHEN m.state = 4 THEN t.now - r.created_at + m.keep_ms ELSE r.lifetime_ms END
    FROM mine m, t WHERE r.fence = m.fence AND r.state IN (1, 5) AND NOT m.remove
    RETURNING r.fence
), removed AS (
    DELETE FROM semel.record r USING mine m WHERE r.fence = m.fence AND r.state IN (1, 5) AND m.remove
    RETURNING r.fence
), done AS (
    SELECT fence FROM kept UNION ALL SELECT fence FROM removed
)
SELECT t.now, t.wall, t.revision, done.fence FROM t LEFT JOIN done ON true"
        )
    };
}

/// Ends attempts, many at once. A row that somebody else is writing is left out, so that one slow handler does not hold
/// up the others; whoever is left out is settled by [`SETTLE_WAITING`].
pub const SETTLE: &str = settle!("SKIP LOCKED");

/// Ends attempts, waiting for whoever is writing the same row.
pub const SETTLE_WAITING: &str = settle!("");

/// Extends leases. Only the lease is written; the record is only read. The first renewal of a claim makes its lease: whoever
/// means to end the claim makes it as well, so that one of the two waits for the other.
macro_rules! renew {
    ($lock:literal) => {
        timed!(
            ", held AS MATERIALIZED (
    SELECT r.fence, r.nonce, r.hash, r.first_lease_until
    FROM unnest($4::bigint[], $5::bigint[], $6::bytea[]) AS h (fence, nonce, hash)
    JOIN semel.record r ON r.fence = h.fence AND r.nonce = h.nonce AND r.hash = h.hash AND r.state = 1
), leased AS MATERIALIZED (
    SELECT l.fence, held.nonce, held.hash FROM held
    JOIN semel.lease l ON l.fence = held.fence AND l.lease_until > (SELECT now FROM t) AND NOT l.ended
    FOR UPDATE OF l ",
            $lock,
            "
), again AS (
    UPDATE semel.lease l SET lease_until = t.now + $7::bigint FROM leased, t WHERE l.fence = leased.fence
    RETURNING l.fence, leased.nonce, leased.hash
), first AS (
    INSERT INTO semel.lease (fence, lease_until) SELECT held.fence, t.now + $7::bigint FROM held, t
    WHERE held.first_lease_until > t.now AND NOT EXISTS (SELECT FROM semel.lease l WHERE l.fence = held.fence)
    ORDER BY held.fence
    ON CONFLICT DO NOTHING
    RETURNING fence
), renewed AS (
    SELECT fence, nonce, hash FROM again
    UNION ALL SELECT r.fence, r.nonce, r.hash FROM first JOIN semel.record r ON r.fence = first.fence
)
SELECT t.now, t.wall, t.revision, renewed.fence, renewed.nonce, renewed.hash FROM t LEFT JOIN renewed ON true"
        )
    };
}

/// Extends leases ($4 to $6) by $7 milliseconds, except those that somebody else is writing.
pub const RENEW: &str = renew!("SKIP LOCKED");

/// Extends leases, waiting for whoever is writing them.
pub const RENEW_WAITING: &str = renew!("");

/// Removes finished records that have been expired for $4 milliseconds, at most $5, and none while the clock is frozen.
pub const SWEEP_EXPIRED: &str = timed!(
    ", gone AS (
    DELETE FROM semel.record WHERE fence IN (
        SELECT r.fence FROM semel.record r
        WHERE r.created_at + coalesce(r.lifetime_ms, 0) <= (SELECT now - $4::bigint FROM t)
            AND r.expires_at <= (SELECT now - $4::bigint FROM t)
            AND r.state IN (2, 3, 4, 6) AND NOT (SELECT frozen FROM t)
        ORDER BY r.created_at + coalesce(r.lifetime_ms, 0) LIMIT $5::bigint FOR UPDATE OF r SKIP LOCKED
    ) RETURNING hash
)
SELECT t.now, t.wall, t.revision, gone.hash FROM t LEFT JOIN gone ON true"
);

/// Gives claims whose first lease has lapsed that lease, where no renewal was faster, and forgets statements, at most $4, of
/// which no claim can lapse any more without having one. Ends nothing itself.
pub const SWEEP_OPENED: &str = timed!(
    ", due AS MATERIALIZED (
    SELECT o.first, o.fences FROM semel.opened o WHERE o.lease_until <= (SELECT now FROM t)
    ORDER BY o.lease_until LIMIT $4::bigint FOR UPDATE SKIP LOCKED
), open AS MATERIALIZED (
    SELECT due.first, r.fence, r.first_lease_until FROM due CROSS JOIN LATERAL (
        SELECT fence, first_lease_until FROM semel.record WHERE fence = ANY (due.fences) AND state = 1 OFFSET 0
    ) r
), lapsed AS (
    -- A lease that is there is not touched: whoever renews it may wait for one of these.
    INSERT INTO semel.lease (fence, lease_until)
    SELECT fence, first_lease_until FROM open
    WHERE first_lease_until <= (SELECT now FROM t)
        AND NOT EXISTS (SELECT FROM semel.lease l WHERE l.fence = open.fence)
    ORDER BY fence
    ON CONFLICT DO NOTHING
), unlapsed AS MATERIALIZED (
    SELECT DISTINCT first FROM open WHERE first_lease_until > (SELECT now FROM t)
), gone AS (
    DELETE FROM semel.opened o USING due
    WHERE o.first = due.first AND NOT EXISTS (SELECT FROM unlapsed WHERE unlapsed.first = due.first)
    RETURNING o.first
)
SELECT t.now, t.wall, t.revision, (SELECT count(*) FROM gone) AS gone FROM t"
);

/// Marks lapsed fenced claims unknown and frees abandoned atomic ones, at most $4. A row that a handler is settling at
/// this moment is locked by it, and left alone. The lease stays a while: a renewal that comes late finds it ended.
pub const SWEEP_LAPSED: &str = timed!(
    ", lapsed AS MATERIALIZED (
    SELECT r.fence, r.guarantee FROM semel.lease l JOIN semel.record r ON r.fence = l.fence
    WHERE l.lease_until <= (SELECT now FROM t) AND r.state = 1
    LIMIT $4::bigint FOR UPDATE OF r, l SKIP LOCKED
), marked AS (
    UPDATE semel.record r SET state = 5 FROM lapsed
    WHERE r.fence = lapsed.fence AND r.state = 1 AND lapsed.guarantee = 2 RETURNING r.hash
), freed AS (
    DELETE FROM semel.record r USING lapsed
    WHERE r.fence = lapsed.fence AND r.state = 1 AND lapsed.guarantee <> 2 RETURNING r.hash
), ended AS (
    UPDATE semel.lease l SET ended = true FROM lapsed WHERE l.fence = lapsed.fence
), touched AS (
    SELECT hash, false AS freed FROM marked UNION ALL SELECT hash, true FROM freed
)
SELECT t.now, t.wall, t.revision, touched.hash, touched.freed FROM t LEFT JOIN touched ON true"
);

/// Removes leases of claims that have ended, once they have been lapsed for longer than any statement runs ($5 milliseconds).
pub const SWEEP_LEASES: &str = timed!(
    ", gone AS (
    DELETE FROM semel.lease WHERE fence IN (
        SELECT l.fence FROM semel.lease l
        WHERE l.lease_until <= (SELECT now - $5::bigint FROM t)
            AND NOT EXISTS (SELECT FROM semel.record r WHERE r.fence = l.fence AND r.state = 1)
        LIMIT $4::bigint FOR UPDATE OF l SKIP LOCKED
    ) RETURNING fence
)
SELECT t.now, t.wall, t.revision, (SELECT count(*) FROM gone) AS gone FROM t"
);

/// Entries by fence number. `by` is what is read in that order.
macro_rules! list {
    ($from:literal, $by:literal, $which:literal) => {
        [list!($from, $by, $which, " > ", ""), list!($from, $by, $which, " < ", " DESC")]
    };
    ($from:literal, $by:literal, $which:literal, $beyond:literal, $order:literal) => {
        timed!(
            "\nSELECT t.now, t.wall, t.revision, found.* FROM t LEFT JOIN (
    SELECT ",
            entry!(),
            "
    FROM ",
            $from,
            "
    WHERE ",
            $by,
            $beyond,
            "$4::bigint AND ($5::smallint IS NULL OR r.state = $5::smallint)
        AND ($6::text IS NULL OR r.endpoint = $6::text)
        AND ($7::bigint IS NULL OR r.created_at < $7::bigint) ",
            $which,
            "
    ORDER BY ",
            $by,
            $order,
            " LIMIT $8::bigint
) found ON true"
        )
    };
}

/// All entries beyond a fence number ($4), by state ($5), endpoint ($6) and time ($7); at most $8. The oldest first, and the
/// newest first.
pub const LIST: [&str; 2] =
    list!("semel.record r LEFT JOIN semel.lease l ON l.fence = r.fence", "r.fence", "");

/// The same of open claims, which are found by the statements that made them and by their leases.
pub const LIST_CLAIMED: [&str; 2] = list!(
    "(
            SELECT given.fence FROM semel.opened, LATERAL (
                SELECT fence FROM semel.record WHERE fence = ANY (opened.fences) AND state = 1 OFFSET 0
            ) given
            UNION SELECT fence FROM semel.lease
        ) o
        CROSS JOIN LATERAL (SELECT * FROM semel.record WHERE fence = o.fence OFFSET 0) r
        LEFT JOIN semel.lease l ON l.fence = r.fence",
    "o.fence",
    "AND r.state = 1"
);

/// The same of unknown outcomes, which are found by their own list.
pub const LIST_UNKNOWN: [&str; 2] = list!(
    "semel.unknown u JOIN semel.record r ON r.fence = u.fence LEFT JOIN semel.lease l ON l.fence = r.fence",
    "u.fence",
    "AND r.state = 5"
);

/// Those of one principal ($9).
pub const LIST_OF_PRINCIPAL: [&str; 2] = list!(
    "semel.record r LEFT JOIN semel.lease l ON l.fence = r.fence",
    "r.fence",
    "AND r.principal = $9::text"
);

/// Erases finished records of a principal ($4) of a tenant ($7, or of none), at most $5, and says so in the audit trail, in the name of $6.
pub const FORGET: &str = timed!(
    ", theirs AS MATERIALIZED (
    SELECT r.fence, r.state <> 4 AND coalesce(r.expires_at > (SELECT now FROM t), false) AS stays FROM semel.record r
    WHERE r.principal = $4::text AND r.principal <> '' AND r.tenant IS NOT DISTINCT FROM $7::text
        AND r.state IN (2, 3, 4, 6)
    ORDER BY r.fence LIMIT $5::bigint FOR UPDATE OF r
), erased AS (
    DELETE FROM semel.record r USING theirs WHERE r.fence = theirs.fence AND NOT theirs.stays RETURNING r.hash
), bared AS (
    UPDATE semel.record r SET state = CASE r.state WHEN 6 THEN 6 ELSE 3 END, endpoint = '', tenant = NULL, principal = '',
        fingerprint = NULL, fingerprint_version = NULL, payload_hash = NULL,
        status = CASE WHEN r.state = 6 THEN NULL WHEN r.status >= 400 THEN r.status ELSE 0 END, headers = NULL, body = NULL,
        outcome_unknown = r.state <> 6 AND (coalesce(r.outcome_unknown, false) OR coalesce(r.status >= 500, false)),
        client_generated_at = NULL, request_headers = ''::bytea, request_id = ''
    FROM theirs WHERE r.fence = theirs.fence AND theirs.stays RETURNING r.hash
), gone AS (
    SELECT hash FROM erased UNION ALL SELECT hash FROM bared
), counts AS (
    DELETE FROM semel.stale WHERE principal = $4::text AND tenant = coalesce($7::text, '')
), audited AS (
    INSERT INTO semel.audit (at, action, actor, reason, count)
    SELECT t.now, 'forget', $6::text, 'erasure of a principal', (SELECT count(*) FROM gone) FROM t
)
SELECT t.now, t.wall, t.revision, gone.hash FROM t LEFT JOIN gone ON true"
);

/// The record with this number ($5), also where a resolution gave it another.
pub const FIND: &str = found!(
    "r.fence = $5::bigint OR r.hash = (
        SELECT a.hash FROM semel.audit a
        WHERE a.fence IS NOT NULL AND split_part(a.fence, '-', 1) = ($5::bigint)::text AND a.hash IS NOT NULL
        ORDER BY a.number DESC LIMIT 1)"
);

/// The records of a key ($5), at most $4.
pub const FIND_KEY: &str =
    found!("ARRAY[hashtext(r.key)] @> ARRAY[hashtext($5::text COLLATE \"C\")] AND r.key = $5::text");

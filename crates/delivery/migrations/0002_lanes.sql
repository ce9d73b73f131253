-- Lanes, principals, holds, requeues, aliases, the log of attempts and the events. The table of messages is rebuilt,
-- because its states grow; every row is kept, in its order.

CREATE TABLE outbox_2 (
    id                  INTEGER PRIMARY KEY AUTOINCREMENT,
    client_message_id   TEXT NOT NULL UNIQUE,
    client_tx_id        TEXT NOT NULL,
    request_fingerprint BLOB NOT NULL CHECK (length(request_fingerprint) = 32),
    principal           TEXT NOT NULL,
    lane                TEXT NOT NULL,
    logical_key         TEXT,
    profile             TEXT NOT NULL,
    method              TEXT NOT NULL,
    url                 TEXT NOT NULL,
    headers             TEXT NOT NULL,
    -- NULL once it was purged.
    payload             BLOB,
    payload_bytes       INTEGER NOT NULL,
    client_generated_at INTEGER NOT NULL,
    enqueued_at         INTEGER NOT NULL,
    -- The run of the process that stamped `enqueued_at`.
    epoch               INTEGER NOT NULL,
    attempts            INTEGER NOT NULL DEFAULT 0,
    -- Attempts that count in the schedule, those of this burst, and when it began.
    failures            INTEGER NOT NULL DEFAULT 0,
    burst_failures      INTEGER NOT NULL DEFAULT 0,
    burst_started_at    INTEGER,
    -- The answer that was tried again, and how often.
    same_answer         TEXT,
    same_answer_count   INTEGER NOT NULL DEFAULT 0,
    next_attempt_at     INTEGER NOT NULL,
    first_attempt_at    INTEGER,
    status              TEXT NOT NULL
                        CHECK (status IN ('pending', 'inflight', 'held', 'done', 'dead', 'aborted')),
    held_for            TEXT CHECK (held_for IN ('auth', 'rebuild')),
    fence_number        INTEGER,
    fence_nonce         INTEGER,
    lease_until         INTEGER,
    last_error          TEXT,
    -- Some attempt may have taken effect although nobody knows.
    ambiguous           INTEGER NOT NULL DEFAULT 0 CHECK (ambiguous IN (0, 1)),
    -- The server showed that it knows the key again.
    deduplicated        INTEGER NOT NULL DEFAULT 0 CHECK (deduplicated IN (0, 1)),
    delivered_at        INTEGER,
    response_status     INTEGER,
    response_headers    TEXT,
    response_body       BLOB,
    broker_message_id   TEXT,
    history_id          TEXT,
    ids                 TEXT,
    aborted_at          INTEGER,
    aborted_by          TEXT CHECK (aborted_by IN ('operator', 'auto')),
    superseded_by       INTEGER,
    supersedes          INTEGER,
    CHECK ((status = 'aborted') = (aborted_at IS NOT NULL)),
    CHECK ((status = 'held') = (held_for IS NOT NULL)),
    CHECK ((status = 'inflight') = (fence_number IS NOT NULL))
) STRICT;

-- A row without an id takes the key inside its payload, if no other row has it, and else a fresh version 4 UUID.
WITH named AS (
    SELECT *,
        coalesce(client_message_id,
            CASE WHEN json_valid(CAST(payload AS TEXT))
                 THEN json_extract(CAST(payload AS TEXT), '$.idempotencyKey') END) AS wanted
    FROM outbox
), ranked AS (
    SELECT *,
        row_number() OVER (PARTITION BY wanted ORDER BY client_message_id IS NULL, id) AS place
    FROM named
)
INSERT INTO outbox_2 (id, client_message_id, client_tx_id, request_fingerprint, principal, lane, profile, method, url,
    headers, payload, payload_bytes, client_generated_at, enqueued_at, epoch, attempts, failures, next_attempt_at,
    first_attempt_at, status, ambiguous, last_error, delivered_at, broker_message_id)
SELECT id,
    CASE WHEN typeof(wanted) = 'text' AND length(wanted) BETWEEN 1 AND 255 AND place = 1 THEN wanted
         ELSE lower(printf('%s-%s-4%s-%s%s-%s', hex(randomblob(4)), hex(randomblob(2)),
              substr(hex(randomblob(2)), 2), substr('89ab', 1 + abs(random() % 4), 1),
              substr(hex(randomblob(2)), 2), hex(randomblob(6)))) END,
    lower(printf('%s-%s-4%s-%s%s-%s', hex(randomblob(4)), hex(randomblob(2)),
              substr(hex(randomblob(2)), 2), substr('89ab', 1 + abs(random() % 4), 1),
              substr(hex(randomblob(2)), 2), hex(randomblob(6)))),
    request_fingerprint, 'default', 'default', '', method, url, headers, payload, length(payload),
    enqueued_at, enqueued_at, 0, attempts, attempts, next_attempt_at,
    CASE WHEN attempts > 0 THEN enqueued_at END,
    -- The process that had it in flight is gone; the same key is sent again.
    CASE status WHEN 'inflight' THEN 'pending' ELSE status END,
    status = 'inflight', last_error, delivered_at, broker_message_id
FROM ranked ORDER BY id;

DROP TABLE outbox;
ALTER TABLE outbox_2 RENAME TO outbox;

CREATE INDEX outbox_due ON outbox (status, next_attempt_at);
CREATE INDEX outbox_aborted ON outbox (aborted_at) WHERE status = 'aborted';
-- The head of a lane is its first entry here. A row enters once and leaves once.
CREATE INDEX outbox_live ON outbox (lane, id, principal, payload_bytes)
    WHERE status IN ('pending', 'inflight', 'held');
CREATE UNIQUE INDEX outbox_logical ON outbox (principal, logical_key)
    WHERE logical_key IS NOT NULL AND status IN ('pending', 'inflight', 'held');
CREATE INDEX outbox_purge ON outbox (id)
    WHERE payload IS NOT NULL AND status IN ('done', 'aborted');

-- Ids of callers whose logical action was queued already.
CREATE TABLE outbox_aliases (
    client_message_id   TEXT PRIMARY KEY NOT NULL,
    request_fingerprint BLOB NOT NULL CHECK (length(request_fingerprint) = 32),
    row_id              INTEGER NOT NULL,
    created_at          INTEGER NOT NULL
) STRICT;

CREATE TABLE outbox_attempts (
    row_id     INTEGER NOT NULL,
    number     INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    ended_at   INTEGER,
    -- NULL while it runs, and for ever when the process was killed meanwhile.
    outcome    TEXT,
    status     INTEGER,
    error      TEXT,
    PRIMARY KEY (row_id, number)
) STRICT, WITHOUT ROWID;

-- Lanes that somebody paused, or that a dead head blocks.
CREATE TABLE outbox_lanes (
    lane       TEXT PRIMARY KEY NOT NULL,
    paused     INTEGER NOT NULL DEFAULT 0 CHECK (paused IN (0, 1)),
    blocked_by INTEGER
) STRICT;

-- Principals whose credential was refused.
CREATE TABLE outbox_holds (
    principal TEXT PRIMARY KEY NOT NULL,
    since     INTEGER NOT NULL
) STRICT;

-- Runs of the process, and how far the servers' clocks were ahead in each.
CREATE TABLE outbox_epochs (
    epoch      INTEGER PRIMARY KEY AUTOINCREMENT,
    started_at INTEGER NOT NULL,
    ahead      INTEGER
) STRICT;

-- What servers announced.
CREATE TABLE outbox_origins (
    origin    TEXT PRIMARY KEY NOT NULL,
    retention INTEGER NOT NULL,
    seen_at   INTEGER NOT NULL
) STRICT;

CREATE TABLE outbox_events (
    number            INTEGER PRIMARY KEY AUTOINCREMENT,
    at                INTEGER NOT NULL,
    kind              TEXT NOT NULL,
    row_id            INTEGER,
    client_message_id TEXT,
    lane              TEXT,
    detail            TEXT
) STRICT;

-- What others sent to us.
CREATE TABLE outbox_inbox (
    number      INTEGER PRIMARY KEY AUTOINCREMENT,
    sender      TEXT NOT NULL,
    message_id  TEXT NOT NULL,
    supersedes  TEXT,
    received_at INTEGER NOT NULL,
    acked_at    INTEGER,
    -- NULL once it was acknowledged and purged.
    payload     BLOB,
    UNIQUE (sender, message_id)
) STRICT;

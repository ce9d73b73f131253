-- SQLite builds a table in memory for each list behind IN that has more than two members, whenever a statement runs that
-- checks it: for every message that is accepted, claimed or settled, several times. Conditions that are written out cost
-- next to nothing. Nothing else changes of the table of messages; every row is kept, in its order.

CREATE TABLE outbox_3 (
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
                        CHECK (status = 'pending' OR status = 'inflight' OR status = 'held' OR status = 'done'
                            OR status = 'dead' OR status = 'aborted'),
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

INSERT INTO outbox_3 SELECT * FROM outbox ORDER BY id;

DROP TABLE outbox;
ALTER TABLE outbox_3 RENAME TO outbox;

CREATE INDEX outbox_due ON outbox (status, next_attempt_at);
CREATE INDEX outbox_aborted ON outbox (aborted_at) WHERE status = 'aborted';
-- The head of a lane is its first entry here. A row enters once and leaves once.
CREATE INDEX outbox_live ON outbox (lane, id, principal, payload_bytes)
    WHERE (status = 'pending' OR status = 'inflight' OR status = 'held');
CREATE UNIQUE INDEX outbox_logical ON outbox (principal, logical_key)
    WHERE logical_key IS NOT NULL AND (status = 'pending' OR status = 'inflight' OR status = 'held');
-- Purging finds what finished long ago by when it finished, and does not look at all that finished since.
CREATE INDEX outbox_purge ON outbox (coalesce(delivered_at, aborted_at))
    WHERE payload IS NOT NULL AND status IN ('done', 'aborted');

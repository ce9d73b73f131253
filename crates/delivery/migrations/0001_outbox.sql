CREATE TABLE outbox_meta (
    name  TEXT PRIMARY KEY NOT NULL,
    value INTEGER NOT NULL
) STRICT;

CREATE TABLE outbox (
    id                  INTEGER PRIMARY KEY AUTOINCREMENT,
    client_message_id   TEXT UNIQUE,
    request_fingerprint BLOB NOT NULL CHECK (length(request_fingerprint) = 32),
    method              TEXT NOT NULL,
    url                 TEXT NOT NULL,
    headers             TEXT NOT NULL,
    payload             BLOB NOT NULL,
    enqueued_at         INTEGER NOT NULL,
    attempts            INTEGER NOT NULL DEFAULT 0,
    next_attempt_at     INTEGER NOT NULL,
    status              TEXT NOT NULL CHECK (status IN ('pending', 'inflight', 'done', 'dead')),
    last_error          TEXT,
    delivered_at        INTEGER,
    broker_message_id   TEXT
) STRICT;

CREATE INDEX outbox_due ON outbox (status, next_attempt_at);

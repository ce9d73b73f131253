-- What is received comes from lines of meshes. A sender's name counts within its mesh, so the mesh is part of what a message
-- is known by; what an application handed in itself has none. Every row is kept, in its order.

CREATE TABLE outbox_inbox_4 (
    number            INTEGER PRIMARY KEY AUTOINCREMENT,
    mesh              TEXT NOT NULL DEFAULT '',
    sender            TEXT NOT NULL,
    message_id        TEXT NOT NULL,
    supersedes        TEXT,
    received_at       INTEGER NOT NULL,
    acked_at          INTEGER,
    -- NULL once it was acknowledged.
    payload           BLOB,
    -- What a broker says of it; NULL where none does.
    line              TEXT,
    event_id          TEXT,
    broker_message_id TEXT,
    client_tx_id      TEXT,
    content_type      TEXT,
    created_at        TEXT,
    body_kind         TEXT,
    UNIQUE (mesh, sender, message_id)
) STRICT;
INSERT INTO outbox_inbox_4 (number, sender, message_id, supersedes, received_at, acked_at, payload)
    SELECT number, sender, message_id, supersedes, received_at, acked_at, payload FROM outbox_inbox ORDER BY number;
DROP TABLE outbox_inbox;
ALTER TABLE outbox_inbox_4 RENAME TO outbox_inbox;
CREATE INDEX outbox_inbox_waiting ON outbox_inbox (number) WHERE acked_at IS NULL;
CREATE INDEX outbox_inbox_superseded ON outbox_inbox (mesh, sender, supersedes) WHERE supersedes IS NOT NULL;

-- How far each line has come. Written with the messages that it speaks of, or not at all.
CREATE TABLE outbox_inbox_lines (
    mesh       TEXT NOT NULL,
    line       TEXT NOT NULL,
    cursor     TEXT NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (mesh, line)
) STRICT, WITHOUT ROWID;

-- What a broker said cannot be had any more.
CREATE TABLE outbox_inbox_gaps (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    at     INTEGER NOT NULL,
    mesh   TEXT NOT NULL,
    line   TEXT NOT NULL,
    since  TEXT NOT NULL,
    oldest TEXT NOT NULL,
    reason TEXT NOT NULL
) STRICT;

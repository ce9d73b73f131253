-- Groups of members. A mesh that was removed keeps its row, so that what it kept can be told apart from nothing.
CREATE TABLE mesh (
    id          TEXT PRIMARY KEY,
    created_at  INTEGER NOT NULL,
    deleted_at  INTEGER,
    bytes_max   INTEGER,
    search      INTEGER NOT NULL DEFAULT 1
) STRICT;

-- Who belongs to a mesh.
CREATE TABLE member (
    mesh_id     TEXT NOT NULL,
    member      TEXT NOT NULL,
    role        TEXT NOT NULL CHECK (role IN ('owner', 'member')),
    joined_at   INTEGER NOT NULL,
    left_at     INTEGER,
    PRIMARY KEY (mesh_id, member)
) STRICT;

-- By which tokens a member is known: their SHA-256, never themselves.
CREATE TABLE member_token (
    token_sha256 TEXT PRIMARY KEY,
    mesh_id     TEXT NOT NULL,
    member      TEXT NOT NULL
) STRICT;
CREATE INDEX member_token_member ON member_token (mesh_id, member);

-- A line is a topic, or the direct messages of one member. Numbers are given under the lock of this row.
CREATE TABLE line (
    line        INTEGER PRIMARY KEY AUTOINCREMENT,
    mesh_id     TEXT NOT NULL,
    kind        TEXT NOT NULL CHECK (kind IN ('topic', 'member')),
    ref         TEXT NOT NULL,
    publish     TEXT NOT NULL DEFAULT 'subscribers' CHECK (publish IN ('subscribers', 'members')),
    next_number INTEGER NOT NULL DEFAULT 1,
    bytes       INTEGER NOT NULL DEFAULT 0,
    webhooks    INTEGER NOT NULL DEFAULT 0,
    created_at  INTEGER NOT NULL,
    deleted_at  INTEGER,
    UNIQUE (mesh_id, kind, ref)
) STRICT;

-- Whose messages a line's numbers are: from `since` up to, and without, `until`. Written under the line's lock.
CREATE TABLE topic_subscription (
    line        INTEGER NOT NULL,
    member      TEXT NOT NULL,
    since       INTEGER NOT NULL,
    until       INTEGER,
    PRIMARY KEY (line, member, since)
) STRICT, WITHOUT ROWID;

-- The authority on ids: a row of kind `committed` is there exactly when the message is.
CREATE TABLE client_message_dedupe (
    mesh_id             TEXT NOT NULL,
    client_message_id   TEXT NOT NULL,
    kind                TEXT NOT NULL CHECK (kind IN ('committed', 'sealed')),
    broker_message_id   TEXT NOT NULL,
    request_fingerprint BLOB NOT NULL CHECK (length(request_fingerprint) = 32),
    fingerprint_version INTEGER NOT NULL,
    sender              TEXT NOT NULL,
    destination_kind    TEXT NOT NULL,
    destination_ref     TEXT NOT NULL,
    line                INTEGER NOT NULL,
    number              INTEGER NOT NULL,
    epoch               INTEGER NOT NULL,
    history_available   INTEGER NOT NULL DEFAULT 1,
    first_seen_at       INTEGER NOT NULL,
    expires_at          INTEGER NOT NULL,
    PRIMARY KEY (mesh_id, client_message_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX client_message_dedupe_expires ON client_message_dedupe (expires_at);

-- Bodies of messages to topics, and to single members.
CREATE TABLE topic_message (
    id                TEXT PRIMARY KEY,
    mesh_id           TEXT NOT NULL,
    client_message_id TEXT NOT NULL,
    topic             TEXT NOT NULL,
    sender            TEXT NOT NULL,
    body              BLOB NOT NULL,
    body_kind         TEXT NOT NULL CHECK (body_kind IN ('json', 'bytes')),
    content_type      TEXT,
    client_tx_id      TEXT,
    supersedes        TEXT,
    mentions          INTEGER NOT NULL,
    webhooks          INTEGER NOT NULL,
    created_at        INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE message_queue (
    id                TEXT PRIMARY KEY,
    mesh_id           TEXT NOT NULL,
    client_message_id TEXT NOT NULL,
    recipient         TEXT NOT NULL,
    sender            TEXT NOT NULL,
    body              BLOB NOT NULL,
    body_kind         TEXT NOT NULL CHECK (body_kind IN ('json', 'bytes')),
    content_type      TEXT,
    client_tx_id      TEXT,
    supersedes        TEXT,
    mentions          INTEGER NOT NULL,
    webhooks          INTEGER NOT NULL,
    created_at        INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The order of every line, for readers.
CREATE TABLE message_history (
    line              INTEGER NOT NULL,
    number            INTEGER NOT NULL,
    broker_message_id TEXT NOT NULL,
    mesh_id           TEXT NOT NULL,
    destination_kind  TEXT NOT NULL,
    destination_ref   TEXT NOT NULL,
    sender            TEXT NOT NULL,
    created_at        INTEGER NOT NULL,
    moderated_at      INTEGER,
    moderated_why     TEXT,
    PRIMARY KEY (line, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE mention_index (
    broker_message_id TEXT NOT NULL,
    mentioned         TEXT NOT NULL,
    mesh_id           TEXT NOT NULL,
    line              INTEGER NOT NULL,
    number            INTEGER NOT NULL,
    created_at        INTEGER NOT NULL,
    PRIMARY KEY (broker_message_id, mentioned)
) STRICT, WITHOUT ROWID;
CREATE INDEX mention_index_member ON mention_index (mesh_id, mentioned, broker_message_id);

-- How far a member has acknowledged a line; each of its consumers for itself.
CREATE TABLE ack_cursor (
    line        INTEGER NOT NULL,
    member      TEXT NOT NULL,
    consumer    TEXT NOT NULL,
    acked       INTEGER NOT NULL DEFAULT 0,
    stream      INTEGER NOT NULL DEFAULT 0,
    updated_at  INTEGER NOT NULL,
    PRIMARY KEY (line, member, consumer)
) STRICT, WITHOUT ROWID;

CREATE TABLE webhook (
    webhook     INTEGER PRIMARY KEY AUTOINCREMENT,
    mesh_id     TEXT NOT NULL,
    name        TEXT NOT NULL,
    url         TEXT NOT NULL,
    line        INTEGER NOT NULL,
    secrets     TEXT NOT NULL,
    ordered     INTEGER NOT NULL,
    created_at  INTEGER NOT NULL,
    deleted_at  INTEGER,
    fence       INTEGER NOT NULL DEFAULT 0,
    lease_until INTEGER NOT NULL DEFAULT 0,
    UNIQUE (mesh_id, name)
) STRICT;
CREATE INDEX webhook_line ON webhook (line);

-- What is sent to webhooks. What waits stands in a table of its own.
CREATE TABLE delivery_queue (
    line              INTEGER NOT NULL,
    number            INTEGER NOT NULL,
    webhook           INTEGER NOT NULL,
    broker_message_id TEXT NOT NULL,
    mesh_id           TEXT NOT NULL,
    status            TEXT NOT NULL CHECK (status IN ('pending', 'delivered', 'dead')),
    attempts          INTEGER NOT NULL DEFAULT 0,
    created_at        INTEGER NOT NULL,
    delivered_at      INTEGER,
    last_error        TEXT,
    PRIMARY KEY (line, number, webhook)
) STRICT, WITHOUT ROWID;
CREATE TABLE delivery_waiting (
    webhook     INTEGER NOT NULL,
    line        INTEGER NOT NULL,
    number      INTEGER NOT NULL,
    due_at      INTEGER NOT NULL,
    PRIMARY KEY (webhook, line, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX delivery_waiting_due ON delivery_waiting (due_at, webhook);
CREATE INDEX delivery_queue_dead ON delivery_queue (webhook, status, line, number);

-- What follows the commits and can be made again from them: search, audit, telemetry, and how far each line was followed.
CREATE TABLE followed (
    line        INTEGER PRIMARY KEY,
    number      INTEGER NOT NULL
) STRICT;
CREATE TABLE search_word (
    mesh_id     TEXT NOT NULL,
    word        TEXT NOT NULL,
    broker_message_id TEXT NOT NULL,
    line        INTEGER NOT NULL,
    number      INTEGER NOT NULL,
    PRIMARY KEY (mesh_id, word, broker_message_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX search_word_message ON search_word (line, number);
CREATE TABLE audit_log (
    line        INTEGER NOT NULL,
    number      INTEGER NOT NULL,
    event       TEXT NOT NULL,
    broker_message_id TEXT NOT NULL,
    mesh_id     TEXT NOT NULL,
    sender      TEXT NOT NULL,
    at          INTEGER NOT NULL,
    PRIMARY KEY (line, number, event)
) STRICT, WITHOUT ROWID;
CREATE TABLE rate_telemetry (
    mesh_id     TEXT NOT NULL,
    bucket      INTEGER NOT NULL,
    count       INTEGER NOT NULL,
    PRIMARY KEY (mesh_id, bucket)
) STRICT, WITHOUT ROWID;

-- Secrets of the broker itself, such as the one that tickets are signed with.
CREATE TABLE broker_secret (
    name        TEXT PRIMARY KEY,
    value       BLOB NOT NULL
) STRICT;
INSERT INTO broker_meta (name, value) VALUES ('epoch', 1), ('directory', 1);

-- What is kept of every key. Times are milliseconds since 1970 by the store's own clock; numbers of fences are rowids,
-- so that rows are written nearly in order and a page holds what was written together.

-- Small numbers that outlive the process.
CREATE TABLE semel_meta (
    name  TEXT PRIMARY KEY NOT NULL,
    value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO semel_meta (name, value) VALUES ('fence_ceiling', 1), ('time_high_water', 0);

-- Open claims and unknown outcomes: few, and never expired.
CREATE TABLE semel_claim (
    fence               INTEGER PRIMARY KEY NOT NULL,
    nonce               INTEGER NOT NULL,
    hash                BLOB NOT NULL CHECK (length(hash) = 16),
    scope               BLOB NOT NULL CHECK (length(scope) = 32),
    key                 TEXT NOT NULL,
    endpoint            TEXT NOT NULL,
    tenant              TEXT,
    principal           TEXT NOT NULL,
    state               TEXT NOT NULL CHECK (state IN ('claimed', 'unknown')),
    guarantee           TEXT NOT NULL CHECK (guarantee IN ('atomic', 'fenced', 'none')),
    fingerprint_version INTEGER,
    fingerprint         BLOB,
    payload_hash        BLOB,
    rotation            BLOB,
    created_at          INTEGER NOT NULL,
    lease_until         INTEGER NOT NULL,
    late_until          INTEGER NOT NULL,
    client_generated_at INTEGER,
    request_headers     BLOB NOT NULL,
    request_id          TEXT NOT NULL
) STRICT;

CREATE UNIQUE INDEX semel_claim_hash ON semel_claim (hash);
CREATE UNIQUE INDEX semel_claim_rotation ON semel_claim (rotation) WHERE rotation IS NOT NULL;

-- What is finished: settled, unkept, released, sealed.
CREATE TABLE semel_record (
    fence               INTEGER PRIMARY KEY NOT NULL,
    nonce               INTEGER NOT NULL,
    hash                BLOB NOT NULL CHECK (length(hash) = 16),
    scope               BLOB NOT NULL CHECK (length(scope) = 32),
    key                 TEXT NOT NULL,
    endpoint            TEXT NOT NULL,
    tenant              TEXT,
    principal           TEXT NOT NULL,
    state               TEXT NOT NULL CHECK (state IN ('settled', 'unkept', 'released', 'sealed')),
    guarantee           TEXT NOT NULL CHECK (guarantee IN ('atomic', 'fenced', 'none')),
    fingerprint_version INTEGER,
    fingerprint         BLOB,
    payload_hash        BLOB,
    rotation            BLOB,
    created_at          INTEGER NOT NULL,
    lease_until         INTEGER NOT NULL,
    late_until          INTEGER NOT NULL,
    client_generated_at INTEGER,
    request_headers     BLOB NOT NULL,
    request_id          TEXT NOT NULL,
    settled_at          INTEGER NOT NULL,
    expires_at          INTEGER NOT NULL,
    status              INTEGER,
    headers             BLOB,
    outcome_unknown     INTEGER,
    body                BLOB
) STRICT;

CREATE UNIQUE INDEX semel_record_hash ON semel_record (hash);
CREATE UNIQUE INDEX semel_record_rotation ON semel_record (rotation) WHERE rotation IS NOT NULL;
CREATE INDEX semel_record_expiry ON semel_record (expires_at);
-- An index ends in the rowid, so this one also pages through a principal's records in order.
CREATE INDEX semel_record_principal ON semel_record (principal);

-- Who changed what by hand. Nothing in it is ever changed or removed.
CREATE TABLE semel_audit (
    number INTEGER PRIMARY KEY NOT NULL,
    at     INTEGER NOT NULL,
    actor  TEXT NOT NULL,
    action TEXT NOT NULL,
    hash   BLOB,
    fence  TEXT,
    reason TEXT NOT NULL
) STRICT;

CREATE TRIGGER semel_audit_stays BEFORE UPDATE ON semel_audit
BEGIN
    SELECT RAISE(ABORT, 'the audit trail is append-only');
END;

CREATE TRIGGER semel_audit_remains BEFORE DELETE ON semel_audit
BEGIN
    SELECT RAISE(ABORT, 'the audit trail is append-only');
END;

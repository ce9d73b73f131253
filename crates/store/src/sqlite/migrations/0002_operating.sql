-- What operators read: how many records an action touched, runs of the sweeper, counts of stale actions, restores.

ALTER TABLE semel_audit ADD COLUMN count INTEGER NOT NULL DEFAULT 1;
CREATE INDEX semel_audit_hash ON semel_audit (hash) WHERE hash IS NOT NULL;
CREATE INDEX semel_audit_fence ON semel_audit (fence) WHERE fence IS NOT NULL;

-- One row for each run of the sweeper.
CREATE TABLE semel_cleanup (
    number   INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    at       INTEGER NOT NULL,
    took_ms  INTEGER NOT NULL,
    removed  INTEGER NOT NULL,
    unknown  INTEGER NOT NULL,
    released INTEGER NOT NULL
) STRICT;

-- How many stale actions of a principal were put on record. A tenant is '' where there is none.
CREATE TABLE semel_stale (
    principal TEXT NOT NULL,
    tenant    TEXT NOT NULL,
    count     INTEGER NOT NULL,
    first_at  INTEGER NOT NULL,
    last_at   INTEGER NOT NULL,
    PRIMARY KEY (principal, tenant)
) STRICT, WITHOUT ROWID;

-- Restores from backups: records that were written between the two times may be missing.
CREATE TABLE semel_restore (
    backup_at     INTEGER PRIMARY KEY NOT NULL,
    restored_at   INTEGER NOT NULL,
    trust_undated INTEGER NOT NULL CHECK (trust_undated IN (0, 1))
) STRICT;

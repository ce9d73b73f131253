-- What was asked, by whom, under which key. The one row of these tables that says whether a request is done.
CREATE TABLE relay_request (
    id          INTEGER PRIMARY KEY,
    target      TEXT NOT NULL,
    principal   TEXT NOT NULL,
    key         TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    mode        TEXT NOT NULL,
    items       INTEGER NOT NULL,
    open        INTEGER NOT NULL,
    dead        INTEGER NOT NULL DEFAULT 0,
    created_ms  INTEGER NOT NULL,
    done_ms     INTEGER,
    UNIQUE (principal, key)
) STRICT;
CREATE INDEX relay_request_done ON relay_request (done_ms) WHERE done_ms IS NOT NULL;

CREATE TABLE relay_lane (
    id          INTEGER PRIMARY KEY,
    target      TEXT NOT NULL,
    grp         TEXT NOT NULL,
    name        TEXT NOT NULL,
    label       TEXT,
    next_seq    INTEGER NOT NULL DEFAULT 1,
    watermark   INTEGER NOT NULL DEFAULT 0,
    applied     INTEGER,
    applied_ms  INTEGER,
    fence       INTEGER NOT NULL DEFAULT 0,
    owner       TEXT NOT NULL DEFAULT '',
    lease_until INTEGER NOT NULL DEFAULT 0,
    attempts    INTEGER NOT NULL DEFAULT 0,
    state       TEXT NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'blocked', 'in-doubt')),
    waits_for   TEXT,
    last_error  TEXT,
    UNIQUE (target, grp, name),
    CHECK (watermark < next_seq)
) STRICT;

-- Every original, as it came. A lane and a number; numbers are given under the lane's lock.
CREATE TABLE relay_item (
    lane       INTEGER NOT NULL,
    seq        INTEGER NOT NULL,
    request    INTEGER NOT NULL,
    pos        INTEGER NOT NULL,
    principal  TEXT NOT NULL,
    value      INTEGER NOT NULL,
    session    TEXT,
    created_ms INTEGER NOT NULL,
    PRIMARY KEY (lane, seq)
) STRICT;
CREATE INDEX relay_item_request ON relay_item (request, pos);
CREATE TRIGGER relay_item_stays BEFORE UPDATE ON relay_item BEGIN SELECT RAISE(ABORT, 'entries are append-only'); END;
CREATE TRIGGER relay_item_after_watermark BEFORE INSERT ON relay_item
    WHEN NEW.seq <= (SELECT watermark FROM relay_lane WHERE id = NEW.lane)
    BEGIN SELECT RAISE(ABORT, 'an entry below the watermark'); END;

-- What was taken out of its lane: parked until there is a credential, or given up. A row stays when it is released.
CREATE TABLE relay_held (
    lane      INTEGER NOT NULL,
    seq       INTEGER NOT NULL,
    request   INTEGER NOT NULL,
    pos       INTEGER NOT NULL,
    target    TEXT NOT NULL,
    principal TEXT NOT NULL,
    value     INTEGER NOT NULL,
    session   TEXT,
    state     TEXT NOT NULL CHECK (state IN ('parked', 'dead', 'released', 'purged')),
    error     TEXT NOT NULL,
    since_ms  INTEGER NOT NULL,
    PRIMARY KEY (lane, seq)
) STRICT;
CREATE INDEX relay_held_waiting ON relay_held (target, principal) WHERE state IN ('parked', 'dead');
CREATE INDEX relay_held_request ON relay_held (request);

-- The batch of a lane that is being written, or may have been.
CREATE TABLE relay_intent (
    lane       INTEGER PRIMARY KEY,
    fence      INTEGER NOT NULL,
    principal  TEXT NOT NULL,
    lo         INTEGER NOT NULL,
    hi         INTEGER NOT NULL,
    before     INTEGER,
    after      INTEGER,
    version    TEXT,
    key        TEXT NOT NULL,
    request    TEXT NOT NULL,
    tries      INTEGER NOT NULL,
    first_ms   INTEGER NOT NULL,
    last_ms    INTEGER NOT NULL,
    evidence   TEXT NOT NULL,
    CHECK (lo <= hi)
) STRICT;

-- Lanes with work that may be done now or later. Parked lanes are not in it.
CREATE TABLE relay_ready (
    lane     INTEGER PRIMARY KEY,
    since_ms INTEGER NOT NULL,
    due_ms   INTEGER NOT NULL
) STRICT;
CREATE INDEX relay_ready_due ON relay_ready (due_ms);

CREATE TABLE relay_pause (
    scope    TEXT PRIMARY KEY,
    until_ms INTEGER NOT NULL,
    why      TEXT NOT NULL
) STRICT;

-- Which credential of a principal was refused, by its digest. Never a credential.
CREATE TABLE relay_credential (
    target    TEXT NOT NULL,
    principal TEXT NOT NULL,
    epoch     INTEGER NOT NULL,
    refused   TEXT,
    since_ms  INTEGER NOT NULL,
    PRIMARY KEY (target, principal)
) STRICT;

CREATE TABLE relay_audit (
    id        INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms     INTEGER NOT NULL,
    event     TEXT NOT NULL,
    target    TEXT NOT NULL,
    grp       TEXT NOT NULL,
    lane      TEXT NOT NULL,
    seq       INTEGER,
    request   INTEGER,
    pos       INTEGER,
    principal TEXT NOT NULL,
    sender    TEXT,
    value     INTEGER,
    before    INTEGER,
    after     INTEGER,
    batch     TEXT,
    detail    TEXT NOT NULL
) STRICT;
CREATE INDEX relay_audit_lane ON relay_audit (target, grp, lane, id);
CREATE TRIGGER relay_audit_no_update BEFORE UPDATE ON relay_audit
    BEGIN SELECT RAISE(ABORT, 'the audit trail is append-only'); END;
CREATE TRIGGER relay_audit_no_delete BEFORE DELETE ON relay_audit
    BEGIN SELECT RAISE(ABORT, 'the audit trail is append-only'); END;
-- REPLACE removes without a trigger for it.
CREATE TRIGGER relay_audit_no_replace BEFORE INSERT ON relay_audit
    WHEN EXISTS (SELECT 1 FROM relay_audit WHERE id = NEW.id)
    BEGIN SELECT RAISE(ABORT, 'the audit trail is append-only'); END;

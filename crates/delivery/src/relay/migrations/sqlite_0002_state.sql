-- What changes of a lane, in a table of its own; the same as on PostgreSQL, where old versions may stay for hours.
CREATE TABLE relay_state (
    lane        INTEGER NOT NULL,
    version     INTEGER NOT NULL,
    label       TEXT,
    last_seq    INTEGER NOT NULL,
    watermark   INTEGER NOT NULL,
    applied     INTEGER,
    applied_ms  INTEGER,
    fence       INTEGER NOT NULL,
    ended       INTEGER NOT NULL,
    owner       TEXT NOT NULL,
    lease_until INTEGER NOT NULL,
    attempts    INTEGER NOT NULL,
    state       TEXT NOT NULL CHECK (state IN ('open', 'blocked', 'in-doubt')),
    waits_for   TEXT,
    last_error  TEXT,
    since_ms    INTEGER,
    due_ms      INTEGER,
    PRIMARY KEY (lane, version),
    CHECK (watermark <= last_seq),
    CHECK (ended <= fence)
) STRICT;

INSERT INTO relay_state
    SELECT l.id, 1, l.label, l.next_seq - 1, l.watermark, l.applied, l.applied_ms, l.fence, 0, l.owner, l.lease_until,
        l.attempts, l.state, l.waits_for, l.last_error, r.since_ms, r.due_ms
    FROM relay_lane l LEFT JOIN relay_ready r ON r.lane = l.id;

-- Lanes with work that may be done now or later. Parked lanes are not in it.
CREATE INDEX relay_state_due ON relay_state (due_ms, lane) WHERE due_ms IS NOT NULL;
CREATE INDEX relay_state_stopped ON relay_state (state) WHERE state <> 'open';

DROP TRIGGER relay_item_after_watermark;
DROP TABLE relay_ready;

-- The lane's own row never changes again.
CREATE TABLE relay_lane_2 (
    id     INTEGER PRIMARY KEY,
    target TEXT NOT NULL,
    grp    TEXT NOT NULL,
    name   TEXT NOT NULL,
    UNIQUE (target, grp, name)
) STRICT;
INSERT INTO relay_lane_2 SELECT id, target, grp, name FROM relay_lane;
DROP TABLE relay_lane;
ALTER TABLE relay_lane_2 RENAME TO relay_lane;

-- A batch is found by its lane and a fence above that of the last one that ended.
CREATE TABLE relay_intent_2 (
    lane       INTEGER NOT NULL,
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
    PRIMARY KEY (lane, fence),
    CHECK (lo <= hi)
) STRICT;
INSERT INTO relay_intent_2 SELECT lane, fence, principal, lo, hi, before, after, version, key, request, tries, first_ms,
    last_ms, evidence FROM relay_intent;
DROP TABLE relay_intent;
ALTER TABLE relay_intent_2 RENAME TO relay_intent;

-- A pause is added, never changed: the latest end counts.
CREATE TABLE relay_pause_2 (
    scope    TEXT NOT NULL,
    until_ms INTEGER NOT NULL,
    why      TEXT NOT NULL,
    PRIMARY KEY (scope, until_ms)
) STRICT;
INSERT INTO relay_pause_2 SELECT scope, until_ms, why FROM relay_pause;
DROP TABLE relay_pause;
ALTER TABLE relay_pause_2 RENAME TO relay_pause;

-- What waits of a principal is found by the requests that are not done.
CREATE INDEX relay_request_open ON relay_request (principal) WHERE done_ms IS NULL;

-- Every lane as it is now.
CREATE VIEW relay_now AS
    SELECT l.id, l.target, l.grp, l.name, s.label, s.watermark, s.applied, s.attempts, s.state, s.last_error, s.ended,
        s.owner, s.due_ms
    FROM relay_lane l JOIN relay_state s
        ON s.lane = l.id AND s.version = (SELECT n.version FROM relay_state n WHERE n.lane = l.id
            ORDER BY n.version DESC LIMIT 1);

CREATE TRIGGER relay_item_after_watermark BEFORE INSERT ON relay_item
    WHEN NEW.seq <= (SELECT s.watermark FROM relay_state s WHERE s.lane = NEW.lane ORDER BY s.version DESC LIMIT 1)
    BEGIN SELECT RAISE(ABORT, 'an entry below the watermark'); END;

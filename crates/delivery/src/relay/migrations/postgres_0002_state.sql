-- What changes of a lane, in a table of its own. Every change moves the row to a higher version, which is part of its key, so
-- that a look-up finds the newest first and never walks over those before it, which another transaction may keep for hours.
-- The lane's own row never changes again: it is the lock.
CREATE TABLE relay_state (
    lane        bigint NOT NULL,
    version     bigint NOT NULL,
    label       text,
    last_seq    bigint NOT NULL,
    watermark   bigint NOT NULL,
    applied     bigint,
    applied_ms  bigint,
    fence       bigint NOT NULL,
    ended       bigint NOT NULL,
    owner       text NOT NULL,
    lease_until bigint NOT NULL,
    attempts    bigint NOT NULL,
    state       text NOT NULL CHECK (state IN ('open', 'blocked', 'in-doubt')),
    waits_for   text,
    last_error  text,
    since_ms    bigint,
    due_ms      bigint,
    PRIMARY KEY (lane, version),
    CHECK (watermark <= last_seq),
    CHECK (ended <= fence)
);

INSERT INTO relay_state
    SELECT l.id, 1, l.label, l.next_seq - 1, l.watermark, l.applied, l.applied_ms, l.fence, 0, l.owner, l.lease_until,
        l.attempts, l.state, l.waits_for, l.last_error, r.since_ms, r.due_ms
    FROM relay_lane l LEFT JOIN relay_ready r ON r.lane = l.id;

-- Lanes with work that may be done now or later. Parked lanes are not in it.
CREATE INDEX relay_state_due ON relay_state (due_ms, lane) WHERE due_ms IS NOT NULL;
CREATE INDEX relay_state_stopped ON relay_state (state) WHERE state <> 'open';
ALTER TABLE relay_state SET (autovacuum_vacuum_scale_factor = 0.01);

DROP TRIGGER relay_item_after_watermark ON relay_item;
DROP FUNCTION relay_after_watermark();
DROP TABLE relay_ready;
ALTER TABLE relay_lane
    DROP COLUMN label, DROP COLUMN next_seq, DROP COLUMN watermark, DROP COLUMN applied, DROP COLUMN applied_ms,
    DROP COLUMN fence, DROP COLUMN owner, DROP COLUMN lease_until, DROP COLUMN attempts, DROP COLUMN state,
    DROP COLUMN waits_for, DROP COLUMN last_error;

-- A batch is found by its lane and a fence above that of the last one that ended.
ALTER TABLE relay_intent DROP CONSTRAINT relay_intent_pkey, ADD PRIMARY KEY (lane, fence);
-- A pause is added, never changed: the latest end counts.
ALTER TABLE relay_pause DROP CONSTRAINT relay_pause_pkey, ADD PRIMARY KEY (scope, until_ms);
-- What waits of a principal is found by the requests that are not done.
CREATE INDEX relay_request_open ON relay_request (principal) WHERE done_ms IS NULL;

-- Every lane as it is now.
CREATE VIEW relay_now AS
    SELECT l.id, l.target, l.grp, l.name, s.label, s.watermark, s.applied, s.attempts, s.state, s.last_error, s.ended,
        s.owner, s.due_ms
    FROM relay_lane l JOIN relay_state s
        ON s.lane = l.id AND s.version = (SELECT n.version FROM relay_state n WHERE n.lane = l.id
            ORDER BY n.version DESC LIMIT 1);

CREATE FUNCTION relay_after_watermark() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM (SELECT lane, min(seq) AS seq FROM entries GROUP BY lane) e
        WHERE e.seq <= (SELECT s.watermark FROM relay_state s WHERE s.lane = e.lane ORDER BY s.version DESC LIMIT 1)
    ) THEN
        RAISE EXCEPTION 'an entry below the watermark' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER relay_item_after_watermark AFTER INSERT ON relay_item
    REFERENCING NEW TABLE AS entries FOR EACH STATEMENT EXECUTE FUNCTION relay_after_watermark();

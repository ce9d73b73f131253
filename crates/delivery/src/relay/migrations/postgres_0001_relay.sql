-- What was asked, by whom, under which key. The one row of these tables that says whether a request is done.
CREATE TABLE relay_request (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    target      text NOT NULL,
    principal   text NOT NULL,
    key         text NOT NULL,
    fingerprint text NOT NULL,
    mode        text NOT NULL,
    items       bigint NOT NULL,
    open        bigint NOT NULL,
    dead        bigint NOT NULL DEFAULT 0,
    created_ms  bigint NOT NULL,
    done_ms     bigint,
    UNIQUE (principal, key)
);
CREATE INDEX relay_request_done ON relay_request (done_ms) WHERE done_ms IS NOT NULL;

CREATE TABLE relay_lane (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    target      text NOT NULL,
    grp         text NOT NULL,
    name        text NOT NULL,
    label       text,
    next_seq    bigint NOT NULL DEFAULT 1,
    watermark   bigint NOT NULL DEFAULT 0,
    applied     bigint,
    applied_ms  bigint,
    fence       bigint NOT NULL DEFAULT 0,
    owner       text NOT NULL DEFAULT '',
    lease_until bigint NOT NULL DEFAULT 0,
    attempts    bigint NOT NULL DEFAULT 0,
    state       text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'blocked', 'in-doubt')),
    waits_for   text,
    last_error  text,
    UNIQUE (target, grp, name),
    CHECK (watermark < next_seq)
);

-- Every original, as it came. A lane and a number; numbers are given under the lane's lock.
CREATE TABLE relay_item (
    lane       bigint NOT NULL,
    seq        bigint NOT NULL,
    request    bigint NOT NULL,
    pos        bigint NOT NULL,
    principal  text NOT NULL,
    value      bigint NOT NULL,
    session    text,
    created_ms bigint NOT NULL,
    PRIMARY KEY (lane, seq)
);
CREATE INDEX relay_item_request ON relay_item (request, pos);

-- What was taken out of its lane: parked until there is a credential, or given up. A row stays when it is released.
CREATE TABLE relay_held (
    lane      bigint NOT NULL,
    seq       bigint NOT NULL,
    request   bigint NOT NULL,
    pos       bigint NOT NULL,
    target    text NOT NULL,
    principal text NOT NULL,
    value     bigint NOT NULL,
    session   text,
    state     text NOT NULL CHECK (state IN ('parked', 'dead', 'released', 'purged')),
    error     text NOT NULL,
    since_ms  bigint NOT NULL,
    PRIMARY KEY (lane, seq)
);
CREATE INDEX relay_held_waiting ON relay_held (target, principal) WHERE state IN ('parked', 'dead');
CREATE INDEX relay_held_request ON relay_held (request);

-- The batch of a lane that is being written, or may have been.
CREATE TABLE relay_intent (
    lane       bigint PRIMARY KEY,
    fence      bigint NOT NULL,
    principal  text NOT NULL,
    lo         bigint NOT NULL,
    hi         bigint NOT NULL,
    before     bigint,
    after      bigint,
    version    text,
    key        text NOT NULL,
    request    text NOT NULL,
    tries      bigint NOT NULL,
    first_ms   bigint NOT NULL,
    last_ms    bigint NOT NULL,
    evidence   text NOT NULL,
    CHECK (lo <= hi)
);

-- Lanes with work that may be done now or later. Parked lanes are not in it.
CREATE TABLE relay_ready (
    lane     bigint PRIMARY KEY,
    since_ms bigint NOT NULL,
    due_ms   bigint NOT NULL
);
CREATE INDEX relay_ready_due ON relay_ready (due_ms);

CREATE TABLE relay_pause (
    scope    text PRIMARY KEY,
    until_ms bigint NOT NULL,
    why      text NOT NULL
);

-- Which credential of a principal was refused, by its digest. Never a credential.
CREATE TABLE relay_credential (
    target    text NOT NULL,
    principal text NOT NULL,
    epoch     bigint NOT NULL,
    refused   text,
    since_ms  bigint NOT NULL,
    PRIMARY KEY (target, principal)
);

CREATE TABLE relay_audit (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at_ms     bigint NOT NULL,
    event     text NOT NULL,
    target    text NOT NULL,
    grp       text NOT NULL,
    lane      text NOT NULL,
    seq       bigint,
    request   bigint,
    pos       bigint,
    principal text NOT NULL,
    sender    text,
    value     bigint,
    before    bigint,
    after     bigint,
    batch     text,
    detail    text NOT NULL
);
CREATE INDEX relay_audit_lane ON relay_audit (target, grp, lane, id);

ALTER TABLE relay_lane SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01);
ALTER TABLE relay_ready SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01);

CREATE FUNCTION relay_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER relay_audit_stays BEFORE UPDATE OR DELETE ON relay_audit
    FOR EACH ROW EXECUTE FUNCTION relay_refuse();
CREATE TRIGGER relay_audit_is_whole BEFORE TRUNCATE ON relay_audit
    FOR EACH STATEMENT EXECUTE FUNCTION relay_refuse();
CREATE TRIGGER relay_item_stays BEFORE UPDATE ON relay_item FOR EACH ROW EXECUTE FUNCTION relay_refuse();

CREATE FUNCTION relay_after_watermark() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.seq <= (SELECT watermark FROM relay_lane WHERE id = NEW.lane) THEN
        RAISE EXCEPTION 'an entry below the watermark' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER relay_item_after_watermark BEFORE INSERT ON relay_item
    FOR EACH ROW EXECUTE FUNCTION relay_after_watermark();

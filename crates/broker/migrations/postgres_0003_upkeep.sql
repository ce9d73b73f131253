-- The clock by which things expire: one row. What the server's clock does by itself is taken out of the time as soon as a process
-- notices, and made up by a 64th of the time that passes, or not at all beyond a minute. offset_ms is added to the server's clock;
-- jump_ms is what is not believed at present, and jump_at_ms the server's time when that was found. Every change that is meant
-- counts the revision up: a jump of the time without one is not believed. is_unexplained: nothing contradicts the jump, only no
-- process ran that could have counted; a time service may vouch for it.
CREATE TABLE semel_broker.clock (
    one            boolean PRIMARY KEY DEFAULT true CHECK (one),
    offset_ms      bigint  NOT NULL DEFAULT 0,
    jump_ms        bigint  NOT NULL DEFAULT 0,
    frozen         boolean GENERATED ALWAYS AS (jump_ms > 60000) STORED,
    high_water_ms  bigint  NOT NULL DEFAULT 0,
    revision       bigint  NOT NULL DEFAULT 1,
    jump_at_ms     bigint  NOT NULL DEFAULT 0,
    moved_ms       bigint  NOT NULL DEFAULT 0,
    is_unexplained boolean NOT NULL DEFAULT false
) WITH (fillfactor = 10);
INSERT INTO semel_broker.clock DEFAULT VALUES;

-- What each run of each machine counted last, and its ticks at that moment. A process that starts on the same run knows from it
-- how much time has passed, whatever the server's clock shows.
CREATE TABLE semel_broker.clock_mark (
    boot      bigint PRIMARY KEY,
    time_ms   bigint NOT NULL,
    ticks_ms  bigint NOT NULL,
    marked_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
) WITH (fillfactor = 10);

-- How much of jump_ms is made up at this time of the server.
CREATE FUNCTION semel_broker.made_up_ms(jump_ms bigint, jump_at_ms bigint, server_ms bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN abs(jump_ms) > 60000 THEN 0 ELSE
        greatest(-(greatest(server_ms - jump_at_ms, 0) / 64), least(jump_ms, greatest(server_ms - jump_at_ms, 0) / 64)) END
$$;

-- An operator confirms that the server's clock is right: what was not believed is believed from now on. Only a jump ahead is
-- confirmed; after one back, time goes on from where it was, since it never goes back.
CREATE FUNCTION semel_broker.confirm_clock() RETURNS void LANGUAGE sql VOLATILE AS $$
    UPDATE semel_broker.clock SET offset_ms = offset_ms + jump_ms,
        moved_ms = moved_ms + jump_ms - semel_broker.made_up_ms(jump_ms, jump_at_ms,
            floor(extract(epoch FROM pg_catalog.clock_timestamp()) * 1000)::bigint),
        jump_ms = 0, is_unexplained = false, revision = revision + 1
    WHERE jump_ms > 0
$$;
-- Why something was done, where people say so.
ALTER TABLE semel_broker.audit_log ADD COLUMN detail text;
-- How many rows belong to another one, counted when they are made: a row that is removed by hand is missed.
ALTER TABLE semel_broker.mesh ADD COLUMN members bigint NOT NULL DEFAULT 0;
ALTER TABLE semel_broker.mesh ADD COLUMN lines bigint NOT NULL DEFAULT 0;
ALTER TABLE semel_broker.mesh ADD COLUMN webhooks bigint NOT NULL DEFAULT 0;
ALTER TABLE semel_broker.mesh ADD COLUMN sealed bigint NOT NULL DEFAULT 0;
ALTER TABLE semel_broker.member ADD COLUMN tokens bigint NOT NULL DEFAULT 0;
ALTER TABLE semel_broker.line ADD COLUMN intervals bigint NOT NULL DEFAULT 0;
ALTER TABLE semel_broker.line ADD COLUMN cursors bigint NOT NULL DEFAULT 0;
CREATE INDEX client_message_dedupe_sealed ON semel_broker.client_message_dedupe (mesh_id) WHERE kind = 'sealed';
INSERT INTO semel_broker.broker_meta (name, value) SELECT 'meshes', count(*) FROM semel_broker.mesh;
UPDATE semel_broker.mesh SET members = (SELECT count(*) FROM semel_broker.member m WHERE m.mesh_id = mesh.id),
    lines = (SELECT count(*) FROM semel_broker.line l WHERE l.mesh_id = mesh.id),
    webhooks = (SELECT count(*) FROM semel_broker.webhook w WHERE w.mesh_id = mesh.id),
    sealed = (SELECT count(*) FROM semel_broker.client_message_dedupe d WHERE d.mesh_id = mesh.id AND d.kind = 'sealed');
UPDATE semel_broker.member SET tokens = (SELECT count(*) FROM semel_broker.member_token t WHERE t.mesh_id = member.mesh_id AND t.member = member.member);
UPDATE semel_broker.line SET intervals = (SELECT count(*) FROM semel_broker.topic_subscription s WHERE s.line = line.line),
    cursors = (SELECT count(*) FROM semel_broker.ack_cursor c WHERE c.line = line.line);
SELECT semel_broker.grant_rights();

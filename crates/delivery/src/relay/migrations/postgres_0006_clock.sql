-- The clock by which things expire: one row. What the server's clock does by itself is taken out of the time as soon as a process
-- notices, and made up by a 64th of the time that passes, or not at all beyond a minute. offset_ms is added to the server's clock;
-- jump_ms is what is not believed at present, and jump_at_ms the server's time when that was found. Every change that is meant
-- counts the revision up: a jump of the time without one is not believed. is_unexplained: nothing contradicts the jump, only no
-- process ran that could have counted; a time service may vouch for it.
CREATE TABLE semel_relay.clock (
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
INSERT INTO semel_relay.clock DEFAULT VALUES;

-- What each run of each machine counted last, and its ticks at that moment. A process that starts on the same run knows from it
-- how much time has passed, whatever the server's clock shows.
CREATE TABLE semel_relay.clock_mark (
    boot      bigint PRIMARY KEY,
    time_ms   bigint NOT NULL,
    ticks_ms  bigint NOT NULL,
    marked_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
) WITH (fillfactor = 10);

-- How much of jump_ms is made up at this time of the server.
CREATE FUNCTION semel_relay.made_up_ms(jump_ms bigint, jump_at_ms bigint, server_ms bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN abs(jump_ms) > 60000 THEN 0 ELSE
        greatest(-(greatest(server_ms - jump_at_ms, 0) / 64), least(jump_ms, greatest(server_ms - jump_at_ms, 0) / 64)) END
$$;

-- An operator confirms that the server's clock is right: what was not believed is believed from now on. Only a jump ahead is
-- confirmed; after one back, time goes on from where it was, since it never goes back.
CREATE FUNCTION semel_relay.confirm_clock() RETURNS void LANGUAGE sql VOLATILE AS $$
    UPDATE semel_relay.clock SET offset_ms = offset_ms + jump_ms,
        moved_ms = moved_ms + jump_ms - semel_relay.made_up_ms(jump_ms, jump_at_ms,
            floor(extract(epoch FROM pg_catalog.clock_timestamp()) * 1000)::bigint),
        jump_ms = 0, is_unexplained = false, revision = revision + 1
    WHERE jump_ms > 0
$$;
SELECT semel_relay.grant_rights();

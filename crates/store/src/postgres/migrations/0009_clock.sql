-- The clock is counted as on an embedded store: what the server's clock does by itself is taken out of the store's time as
-- soon as a process notices, and made up by a 64th of the time that passes, or not at all beyond a minute.

-- jump_ms is how far the server's clock is ahead of the store's time, and jump_at_ms the server's time when that was found.
-- moved_ms is by how much the store's time was moved on purpose, in all. is_unexplained: nothing contradicts the jump, only
-- no process ran that could have counted; a time service may vouch for it.
ALTER TABLE semel.clock
    ADD COLUMN jump_at_ms     bigint  NOT NULL DEFAULT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint,
    ADD COLUMN moved_ms       bigint  NOT NULL DEFAULT 0,
    ADD COLUMN is_unexplained boolean NOT NULL DEFAULT false;

-- What each run of each machine counted last: the time less moved_ms, and its ticks at that moment. A process that starts
-- on the same run knows from it how much time has passed, whatever the server's clock shows.
CREATE TABLE semel.clock_mark (
    boot      bigint PRIMARY KEY,
    time_ms   bigint NOT NULL,
    ticks_ms  bigint NOT NULL,
    marked_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 10);

-- How much of jump_ms is made up at this time of the server.
CREATE FUNCTION semel.made_up_ms(jump_ms bigint, jump_at_ms bigint, server_ms bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN abs(jump_ms) > 60000 THEN 0 ELSE
        greatest(-(greatest(server_ms - jump_at_ms, 0) / 64), least(jump_ms, greatest(server_ms - jump_at_ms, 0) / 64)) END
$$;

-- The store's time. It does not go back behind the last mark that was kept.
CREATE OR REPLACE FUNCTION semel.now_ms() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT greatest(server.ms + clock.offset_ms
        + CASE WHEN abs(clock.jump_ms) > 60000 THEN 0 ELSE
            greatest(-(greatest(server.ms - clock.jump_at_ms, 0) / 64),
                least(clock.jump_ms, greatest(server.ms - clock.jump_at_ms, 0) / 64)) END,
        clock.high_water_ms)
    FROM semel.clock, LATERAL (
        SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS ms
    ) AS server
$$;

-- Moves the store's clock on purpose: for tests, and for operators who know better than the server.
CREATE OR REPLACE FUNCTION semel.shift_clock(by_ms bigint) RETURNS void LANGUAGE sql VOLATILE AS $$
    UPDATE semel.clock SET offset_ms = offset_ms + by_ms, moved_ms = moved_ms + by_ms, revision = revision + 1
$$;

-- An operator confirms that the server's clock is right: what was not believed is believed from now on. Only a jump
-- ahead is confirmed; after one back, time goes on from where it was, since it never goes back.
CREATE OR REPLACE FUNCTION semel.confirm_clock() RETURNS void LANGUAGE sql VOLATILE AS $$
    UPDATE semel.clock SET offset_ms = offset_ms + jump_ms,
        moved_ms = moved_ms + jump_ms - semel.made_up_ms(jump_ms, jump_at_ms,
            floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint),
        jump_ms = 0, is_unexplained = false, revision = revision + 1
    WHERE jump_ms > 0
$$;

CREATE OR REPLACE FUNCTION semel.grant_rights() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'semel_service') THEN
        GRANT USAGE ON SCHEMA semel TO semel_service;
        GRANT SELECT, INSERT, UPDATE, DELETE ON semel.record, semel.lease, semel.opened, semel.budget, semel.budget_id
            TO semel_service;
        GRANT SELECT, UPDATE ON semel.clock TO semel_service;
        GRANT SELECT, INSERT, UPDATE, DELETE ON semel.clock_mark TO semel_service;
        GRANT SELECT, INSERT ON semel.audit TO semel_service;
        GRANT SELECT ON semel.migration, semel.unknown TO semel_service;
        GRANT SELECT, INSERT, DELETE ON semel.cleanup TO semel_service;
        GRANT SELECT, INSERT, UPDATE, DELETE ON semel.stale TO semel_service;
        GRANT SELECT, INSERT, UPDATE ON semel.restore TO semel_service;
        GRANT USAGE, SELECT ON SEQUENCE semel.fence TO semel_service;
        GRANT EXECUTE ON FUNCTION semel.now_ms(), semel.state(text), semel.settle(text, integer, jsonb, bytea),
            semel.confirm_clock(), semel.made_up_ms(bigint, bigint, bigint),
            semel.lock_budget(bytea, bigint, smallint, bigint),
            semel.count_request(bytea, bigint, bigint, bigint, bigint, bigint, bigint),
            semel.charge_in_window(bytea, bigint, bigint, bytea, bigint, bigint, bigint, bigint),
            semel.charge_in_log(bytea, bigint, bytea, bigint, bigint, bigint, bigint, bigint, bigint),
            semel.forget_budgets(bigint, bigint) TO semel_service;
    END IF;
    IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'semel_handler') THEN
        GRANT USAGE ON SCHEMA semel TO semel_handler;
        GRANT EXECUTE ON FUNCTION semel.settle(text, integer, jsonb, bytea) TO semel_handler;
    END IF;
END
$$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA semel FROM PUBLIC;
SELECT semel.grant_rights();

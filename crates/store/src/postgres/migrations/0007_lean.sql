-- What a claim and its settlement cost. A settlement changes nothing that is indexed, so that it stays within its page and
-- writes no index; and nothing is read and compiled anew for every statement.

-- Nobody makes an outcome unknown between the list's beginning and its trigger, and nobody waits in a circle.
LOCK TABLE semel.record IN ACCESS EXCLUSIVE MODE;

-- Records whose outcome is unknown, for operators: few among many. Kept by a trigger, whoever writes the record.
CREATE TABLE semel.unknown (
    fence bigint PRIMARY KEY
);
INSERT INTO semel.unknown (fence) SELECT fence FROM semel.record WHERE state = 5;

CREATE FUNCTION semel.keep_unknown() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF OLD.state = 5 THEN
        DELETE FROM semel.unknown AS u WHERE u.fence = OLD.fence;
    END IF;
    IF TG_OP = 'UPDATE' AND NEW.state = 5 THEN
        INSERT INTO semel.unknown (fence) VALUES (NEW.fence) ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER record_is_unknown AFTER UPDATE ON semel.record FOR EACH ROW
    WHEN (OLD.state = 5 OR NEW.state = 5) EXECUTE FUNCTION semel.keep_unknown();
CREATE TRIGGER record_was_unknown AFTER DELETE ON semel.record FOR EACH ROW
    WHEN (OLD.state = 5) EXECUTE FUNCTION semel.keep_unknown();

-- Open claims are found by their leases.
DROP INDEX semel.record_open;

-- When a record may expire at the earliest: a settlement does not change it, unless it shortens the lifetime.
DROP INDEX semel.record_expires_at;
CREATE INDEX record_lifetime ON semel.record ((created_at + coalesce(lifetime_ms, 0)));

-- Room in its page for the settlement of every claim.
ALTER TABLE semel.record SET (fillfactor = 40);

-- Checks are read from the catalog and compiled for every statement, which took longer than the rows of a batch. The store
-- writes these columns itself, nobody else may, and it refuses to read a row in which they are not so.
ALTER TABLE semel.record
    DROP CONSTRAINT record_hash_check,
    DROP CONSTRAINT record_scope_check,
    DROP CONSTRAINT record_state_check,
    DROP CONSTRAINT record_guarantee_check,
    DROP CONSTRAINT record_fingerprint_check,
    DROP CONSTRAINT record_check,
    DROP CONSTRAINT record_payload_hash_check,
    DROP CONSTRAINT record_rotation_check,
    DROP CONSTRAINT record_lifetime_ms_check,
    DROP CONSTRAINT record_anchor_check,
    DROP CONSTRAINT record_max_response_bytes_check,
    DROP CONSTRAINT record_check1;

CREATE OR REPLACE FUNCTION semel.grant_rights() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'semel_service') THEN
        GRANT USAGE ON SCHEMA semel TO semel_service;
        GRANT SELECT, INSERT, UPDATE, DELETE ON semel.record, semel.lease, semel.budget, semel.budget_id
            TO semel_service;
        GRANT SELECT, UPDATE ON semel.clock TO semel_service;
        GRANT SELECT, INSERT ON semel.audit TO semel_service;
        GRANT SELECT ON semel.migration, semel.unknown TO semel_service;
        GRANT SELECT, INSERT, DELETE ON semel.cleanup TO semel_service;
        GRANT SELECT, INSERT, UPDATE, DELETE ON semel.stale TO semel_service;
        GRANT SELECT, INSERT, UPDATE ON semel.restore TO semel_service;
        GRANT USAGE, SELECT ON SEQUENCE semel.fence TO semel_service;
        GRANT EXECUTE ON FUNCTION semel.now_ms(), semel.state(text), semel.settle(text, integer, jsonb, bytea),
            semel.confirm_clock(), semel.lock_budget(bytea, bigint, smallint, bigint),
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

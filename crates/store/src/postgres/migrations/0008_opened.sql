-- A claim costs no lease of its own: the first stands in its record, and only a renewal writes one. Open claims are found by
-- the statements that made them.

-- One row for each statement that claimed, and for each second in which its leases end: the numbers that it gave, and when
-- the first of their leases lapses. It goes once none of them can lapse unnoticed any more.
CREATE TABLE semel.opened (
    first       bigint   PRIMARY KEY,
    lease_until bigint   NOT NULL,
    fences      bigint[] NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
CREATE INDEX opened_lease_until ON semel.opened (lease_until);

-- A lease that was ended stays for a while, so that a renewal which comes late finds that it was.
ALTER TABLE semel.lease ADD COLUMN ended boolean NOT NULL DEFAULT false;

CREATE OR REPLACE FUNCTION semel.grant_rights() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'semel_service') THEN
        GRANT USAGE ON SCHEMA semel TO semel_service;
        GRANT SELECT, INSERT, UPDATE, DELETE ON semel.record, semel.lease, semel.opened, semel.budget, semel.budget_id
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

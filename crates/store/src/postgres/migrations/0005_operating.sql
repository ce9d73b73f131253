-- What operators read: whose key an action was done to, runs of the sweeper, counts of stale actions, restores; and an
-- index of what is open, since a list of unknown outcomes must not read everything that is settled.

ALTER TABLE semel.audit ADD COLUMN hash bytea CHECK (octet_length(hash) = 16);
CREATE INDEX audit_hash ON semel.audit (hash) WHERE hash IS NOT NULL;
CREATE INDEX audit_fence ON semel.audit (split_part(fence, '-', 1)) WHERE fence IS NOT NULL;

-- Claims and unknown outcomes. A settlement changes indexed columns anyway, so this costs it nothing.
CREATE INDEX record_open ON semel.record (fence) WHERE state IN (1, 5);

-- One row for each run of the sweeper.
CREATE TABLE semel.cleanup (
    number   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at       bigint NOT NULL,
    took_ms  bigint NOT NULL,
    removed  bigint NOT NULL,
    unknown  bigint NOT NULL,
    released bigint NOT NULL
);

-- How many stale actions of a principal were put on record. A tenant is '' where there is none.
CREATE TABLE semel.stale (
    principal text   COLLATE "C" NOT NULL,
    tenant    text   COLLATE "C" NOT NULL,
    count     bigint NOT NULL,
    first_at  bigint NOT NULL,
    last_at   bigint NOT NULL,
    PRIMARY KEY (principal, tenant)
);

-- Restores from backups: records that were written between the two times may be missing.
CREATE TABLE semel.restore (
    backup_at     bigint  PRIMARY KEY,
    restored_at   bigint  NOT NULL,
    trust_undated boolean NOT NULL
);

CREATE OR REPLACE FUNCTION semel.grant_rights() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'semel_service') THEN
        GRANT USAGE ON SCHEMA semel TO semel_service;
        GRANT SELECT, INSERT, UPDATE, DELETE ON semel.record, semel.lease, semel.budget, semel.budget_id
            TO semel_service;
        GRANT SELECT, UPDATE ON semel.clock TO semel_service;
        GRANT SELECT, INSERT ON semel.audit TO semel_service;
        GRANT SELECT ON semel.migration TO semel_service;
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

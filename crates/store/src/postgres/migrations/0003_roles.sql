-- The two roles. semel_service is what the store connects as; semel_handler is what a service's own code connects as:
-- it can settle by a fence that it was given, and can neither forge nor read nor delete records.

-- Gives the roles their rights, those of them that exist. To be called again by whoever creates them later.
CREATE FUNCTION semel.grant_rights() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'semel_service') THEN
        GRANT USAGE ON SCHEMA semel TO semel_service;
        GRANT SELECT, INSERT, UPDATE, DELETE ON semel.record, semel.lease TO semel_service;
        GRANT SELECT, UPDATE ON semel.clock TO semel_service;
        GRANT SELECT, INSERT ON semel.audit TO semel_service;
        GRANT SELECT ON semel.migration TO semel_service;
        GRANT USAGE, SELECT ON SEQUENCE semel.fence TO semel_service;
        GRANT EXECUTE ON FUNCTION semel.now_ms(), semel.state(text), semel.settle(text, integer, jsonb, bytea),
            semel.confirm_clock() TO semel_service;
    END IF;
    IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'semel_handler') THEN
        GRANT USAGE ON SCHEMA semel TO semel_handler;
        GRANT EXECUTE ON FUNCTION semel.settle(text, integer, jsonb, bytea) TO semel_handler;
    END IF;
END
$$;
REVOKE ALL ON FUNCTION semel.grant_rights() FROM PUBLIC;

DO $$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['semel_service', 'semel_handler'] LOOP
        CONTINUE WHEN EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = wanted);
        BEGIN
            EXECUTE format('CREATE ROLE %I NOLOGIN', wanted);
        EXCEPTION
            -- Roles belong to the whole server: another database may be migrated at the same time.
            WHEN duplicate_object OR unique_violation THEN NULL;
            WHEN insufficient_privilege THEN
                RAISE NOTICE 'role % was not created: % may not; create it and call semel.grant_rights()',
                    wanted, current_user;
        END;
    END LOOP;
    PERFORM semel.grant_rights();
END
$$;

-- semel_service is what a broker connects as where it may not change the schema: it can write what a broker writes, and can
-- not change what is in the audit trail. To be called again by whoever creates the role later.
CREATE OR REPLACE FUNCTION semel_broker.grant_rights() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'semel_service') THEN
        GRANT USAGE ON SCHEMA semel_broker TO semel_service;
        GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA semel_broker TO semel_service;
        GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA semel_broker TO semel_service;
        REVOKE UPDATE ON semel_broker.audit_log FROM semel_service;
        REVOKE INSERT, UPDATE, DELETE ON semel_broker.migration FROM semel_service;
    END IF;
END
$$;
REVOKE ALL ON FUNCTION semel_broker.grant_rights() FROM PUBLIC;

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'semel_service') THEN
        BEGIN
            CREATE ROLE semel_service NOLOGIN;
        EXCEPTION
            -- Roles belong to the whole server: another database may be migrated at the same time.
            WHEN duplicate_object OR unique_violation THEN NULL;
            WHEN insufficient_privilege THEN
                RAISE NOTICE 'role semel_service was not created: % may not; create it and call semel_broker.grant_rights()',
                    current_user;
        END;
    END IF;
    PERFORM semel_broker.grant_rights();
END
$$;

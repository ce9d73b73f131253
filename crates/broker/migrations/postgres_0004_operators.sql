-- What operators and owners did by hand: written with what it tells of, and never changed. A broker of an earlier release
-- goes on beside this one, and writes nothing here.
CREATE TABLE semel_broker.operator_audit (
    number  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at      bigint NOT NULL,
    actor   text NOT NULL,
    action  text NOT NULL,
    mesh    text NOT NULL,
    subject text NOT NULL,
    detail  text NOT NULL,
    reason  text NOT NULL
);
CREATE FUNCTION semel_broker.operator_audit_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit trail is append-only';
END
$$;
CREATE TRIGGER operator_audit_is_kept BEFORE UPDATE OR DELETE ON semel_broker.operator_audit
    FOR EACH ROW EXECUTE FUNCTION semel_broker.operator_audit_is_kept();
CREATE TRIGGER operator_audit_is_whole BEFORE TRUNCATE ON semel_broker.operator_audit
    FOR EACH STATEMENT EXECUTE FUNCTION semel_broker.operator_audit_is_kept();

CREATE OR REPLACE FUNCTION semel_broker.grant_rights() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'semel_service') THEN
        GRANT USAGE ON SCHEMA semel_broker TO semel_service;
        GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA semel_broker TO semel_service;
        GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA semel_broker TO semel_service;
        REVOKE UPDATE ON semel_broker.audit_log FROM semel_service;
        REVOKE UPDATE, DELETE ON semel_broker.operator_audit FROM semel_service;
        REVOKE INSERT, UPDATE, DELETE ON semel_broker.migration FROM semel_service;
    END IF;
END
$$;
REVOKE ALL ON FUNCTION semel_broker.grant_rights() FROM PUBLIC;
SELECT semel_broker.grant_rights();

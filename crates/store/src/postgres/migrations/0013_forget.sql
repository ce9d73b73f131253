-- Erasure with its owner: when a service deletes the row of a person, that person's keys go in the same transaction.
--   CREATE TRIGGER forget_keys AFTER DELETE ON person FOR EACH ROW EXECUTE FUNCTION semel.forget_deleted('id');
-- The arguments name the column that holds the principal and, where there are tenants, the column of the tenant.

-- Does what erasure by hand does: a key that might still be tried stays known as used, without anything else. Claims that are
-- open, and unknown outcomes, stay until they are settled.
CREATE FUNCTION semel.forget_deleted() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    now_ms bigint := semel.now_ms();
    whose  text;
    group_ text;
    gone   bigint;
BEGIN
    IF TG_OP <> 'DELETE' OR TG_LEVEL <> 'ROW' OR TG_NARGS NOT IN (1, 2) OR NOT to_jsonb(OLD) ?& TG_ARGV THEN
        RAISE EXCEPTION 'semel.forget_deleted is for AFTER DELETE, FOR EACH ROW, and is given columns of its table'
            USING ERRCODE = 'SM003';
    END IF;
    whose := to_jsonb(OLD) ->> TG_ARGV[0];
    group_ := CASE WHEN TG_NARGS = 2 THEN to_jsonb(OLD) ->> TG_ARGV[1] END;
    IF coalesce(whose, '') = '' THEN
        RETURN NULL;
    END IF;
    WITH theirs AS MATERIALIZED (
        SELECT r.fence, r.state <> 4 AND coalesce(r.expires_at > now_ms, false) AS stays FROM semel.record r
        WHERE r.principal = whose AND r.tenant IS NOT DISTINCT FROM group_ AND r.state IN (2, 3, 4, 6)
        ORDER BY r.fence FOR UPDATE OF r
    ), erased AS (
        DELETE FROM semel.record r USING theirs WHERE r.fence = theirs.fence AND NOT theirs.stays
    ), bared AS (
        UPDATE semel.record r SET state = CASE r.state WHEN 6 THEN 6 ELSE 3 END, endpoint = '', tenant = NULL,
            principal = '', fingerprint = NULL, fingerprint_version = NULL, payload_hash = NULL,
            status = CASE r.state WHEN 6 THEN NULL ELSE 0 END, headers = NULL, body = NULL, outcome_unknown = false,
            client_generated_at = NULL, request_headers = ''::bytea, request_id = ''
        FROM theirs WHERE r.fence = theirs.fence AND theirs.stays
    ), counts AS (
        DELETE FROM semel.stale WHERE principal = whose AND tenant = coalesce(group_, '')
    )
    SELECT count(*) INTO gone FROM theirs;
    INSERT INTO semel.audit (at, action, actor, reason, count)
    VALUES (now_ms, 'forget', session_user, format('a row of %s was deleted', TG_RELID::regclass), gone);
    RETURN NULL;
END
$$;

-- Whoever has it may erase the keys of anybody: only those who own the tables that it watches.
REVOKE ALL ON FUNCTION semel.forget_deleted() FROM PUBLIC;

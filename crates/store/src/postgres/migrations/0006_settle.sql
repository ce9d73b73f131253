-- A settlement counts from now where the outcome was unknown, and an interim status is no answer.

-- Settles a claim in the transaction that carries its effect, so that both are committed or neither. Raises SM001 when
-- somebody else holds the key by now, SM002 when the answer is too large to be kept. The same settlement again is
-- success. It never touches the lease, so that a renewal cannot make a REPEATABLE READ transaction fail.
CREATE OR REPLACE FUNCTION semel.settle(fence text, status integer, headers jsonb, body bytea) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    default_lifetime_ms        CONSTANT bigint  := 90600000; -- 25 h 10 min
    default_max_response_bytes CONSTANT integer := 1048576;
    max_headers_bytes          CONSTANT integer := 65536;
    parts   text[] := regexp_match(settle.fence, '^([1-9][0-9]{0,18})-([0-9a-f]{16})$');
    given   bigint;
    secret  bigint;
    kept    bytea := semel.kept_headers(settle.headers);
    content bytea := coalesce(settle.body, ''::bytea);
    now_ms  bigint;
    known   semel.record%ROWTYPE;
BEGIN
    IF parts IS NULL THEN
        RAISE EXCEPTION 'not a fence; expected the value of Semel-Fence, such as 42-00c0ffee00c0ffee'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF settle.status IS NULL OR settle.status NOT BETWEEN 200 AND 599 THEN
        RAISE EXCEPTION 'the status must be between 200 and 599' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    given := parts[1]::bigint;
    secret := ('x' || parts[2])::bit(64)::bigint;
    SELECT r.* INTO known FROM semel.record AS r WHERE r.fence = given AND r.nonce = secret;
    IF octet_length(content) > coalesce(known.max_response_bytes, default_max_response_bytes)
        OR octet_length(kept) > max_headers_bytes THEN
        RAISE EXCEPTION 'the answer is too large to be kept' USING ERRCODE = 'SM002',
            HINT = 'Roll back and answer with less, or raise the limit of the route.';
    END IF;
    -- A settlement that is acknowledged must survive a crash, whatever the session prefers.
    PERFORM set_config('synchronous_commit', 'on', true);
    now_ms := semel.now_ms();
    UPDATE semel.record AS r
    SET state = 2, status = settle.status, headers = kept, body = content, outcome_unknown = false,
        settled_at = now_ms,
        -- A lifetime counts from the claim only where the claim was settled in time.
        expires_at = coalesce(r.lifetime_ms, default_lifetime_ms)
            + CASE WHEN r.anchor = 1 AND r.state = 1
                AND r.created_at + coalesce(r.lifetime_ms, default_lifetime_ms) > now_ms
                THEN r.created_at ELSE now_ms END
    WHERE r.fence = given AND r.nonce = secret AND r.state IN (1, 5) AND r.guarantee IN (1, 2);
    IF FOUND THEN
        RETURN;
    END IF;
    SELECT r.* INTO known FROM semel.record AS r
    WHERE r.fence = given AND r.nonce = secret AND r.state = 2
        AND r.status = settle.status AND r.headers = kept AND r.body = content;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the fence % no longer holds its key', settle.fence USING ERRCODE = 'SM001',
            HINT = 'Roll back this transaction: another attempt holds the key, or its outcome was already recorded.';
    END IF;
END
$$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA semel FROM PUBLIC;
SELECT semel.grant_rights();

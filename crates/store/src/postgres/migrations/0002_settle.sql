-- What a handler calls inside its own transaction, in any language.

-- The headers that are kept of an answer, as the store keeps them: for each the length of the name (2 bytes), the
-- name in lower case, the length of the value (4 bytes), the value. Takes an object of names to a text or a list of
-- texts, or a list of pairs, which alone has an order.
CREATE FUNCTION semel.kept_headers(headers jsonb) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    pairs jsonb;
    pair  jsonb;
    name  text;
    value bytea;
    kept  bytea := ''::bytea;
BEGIN
    CASE coalesce(jsonb_typeof(kept_headers.headers), 'null')
        WHEN 'null' THEN
            RETURN kept;
        WHEN 'array' THEN
            pairs := kept_headers.headers;
        WHEN 'object' THEN
            SELECT coalesce(jsonb_agg(jsonb_build_array(member.key, item.value) ORDER BY member.key, item.place), '[]')
            INTO pairs
            FROM jsonb_each(kept_headers.headers) AS member,
                LATERAL jsonb_array_elements(
                    CASE jsonb_typeof(member.value) WHEN 'array' THEN member.value ELSE jsonb_build_array(member.value) END
                ) WITH ORDINALITY AS item (value, place);
        ELSE
            RAISE EXCEPTION 'headers must be an object or a list of pairs' USING ERRCODE = 'invalid_parameter_value';
    END CASE;
    FOR pair IN SELECT item FROM jsonb_array_elements(pairs) AS item LOOP
        IF jsonb_typeof(pair) IS DISTINCT FROM 'array' OR jsonb_array_length(pair) <> 2
            OR jsonb_typeof(pair -> 0) <> 'string' OR jsonb_typeof(pair -> 1) <> 'string' THEN
            RAISE EXCEPTION 'a header is a name and a text, not %', pair USING ERRCODE = 'invalid_parameter_value';
        END IF;
        name := lower(pair ->> 0);
        value := convert_to(pair ->> 1, 'UTF8');
        IF name !~ '^[!#$%&''*+.^_`|~0-9a-z-]{1,255}$' OR pair ->> 1 ~ E'[\\x01-\\x08\\x0a-\\x1f\\x7f]' THEN
            RAISE EXCEPTION 'the header % cannot be sent', to_jsonb(name) USING ERRCODE = 'invalid_parameter_value';
        END IF;
        -- Never kept: what belongs to one exchange, to one connection, or to one caller's credentials.
        CONTINUE WHEN name IN (
            'set-cookie', 'set-cookie2', 'date', 'authorization', 'www-authenticate', 'authentication-info',
            'connection', 'keep-alive', 'te', 'trailer', 'transfer-encoding', 'upgrade', 'traceparent', 'tracestate'
        ) OR name LIKE 'proxy-%';
        kept := kept || int2send(octet_length(name)::smallint) || convert_to(name, 'UTF8')
            || int4send(octet_length(value)) || value;
    END LOOP;
    RETURN kept;
END
$$;

-- Settles a claim in the transaction that carries its effect, so that both are committed or neither. Raises SM001 when
-- somebody else holds the key by now, SM002 when the answer is too large to be kept. The same settlement again is
-- success. It never touches the lease, so that a renewal cannot make a REPEATABLE READ transaction fail.
CREATE FUNCTION semel.settle(fence text, status integer, headers jsonb, body bytea) RETURNS void
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
    IF settle.status IS NULL OR settle.status NOT BETWEEN 100 AND 599 THEN
        RAISE EXCEPTION 'the status must be between 100 and 599' USING ERRCODE = 'invalid_parameter_value';
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
        expires_at = CASE r.anchor WHEN 1 THEN r.created_at ELSE now_ms END
            + coalesce(r.lifetime_ms, default_lifetime_ms)
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

-- What became of a fence: the state of its record, or gone. Waits for a settlement in flight, so that after a commit
-- whose result was lost the answer is final.
CREATE FUNCTION semel.state(fence text) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    parts text[] := regexp_match(state.fence, '^([1-9][0-9]{0,18})-([0-9a-f]{16})$');
    found smallint;
BEGIN
    IF parts IS NULL THEN
        RAISE EXCEPTION 'not a fence; expected the value of Semel-Fence, such as 42-00c0ffee00c0ffee'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT r.state INTO found FROM semel.record AS r
    WHERE r.fence = parts[1]::bigint AND r.nonce = ('x' || parts[2])::bit(64)::bigint
    FOR SHARE;
    RETURN coalesce((ARRAY['claimed', 'settled', 'unkept', 'released', 'unknown', 'sealed'])[found], 'gone');
END
$$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA semel FROM PUBLIC;

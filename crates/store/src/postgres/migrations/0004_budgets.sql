-- Budgets of limiters, shared by all processes; and one more kind of header that is never kept.

-- What may be lost without harm: a limiter that forgets lets a little more through. Hence not written to the log.
CREATE UNLOGGED TABLE semel.budget (
    who       bytea   NOT NULL CHECK (octet_length(who) = 16),
    window_ms bigint  NOT NULL,
    kind      smallint NOT NULL, -- 1 requests, 2 ids of aligned windows, 3 ids of the last window
    bucket    bigint  NOT NULL DEFAULT 0,
    current   bigint  NOT NULL DEFAULT 0,
    previous  bigint  NOT NULL DEFAULT 0,
    forget_at bigint  NOT NULL,
    PRIMARY KEY (who, window_ms, kind)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);

-- The ids that were charged, each once.
CREATE UNLOGGED TABLE semel.budget_id (
    who       bytea    NOT NULL,
    window_ms bigint   NOT NULL,
    kind      smallint NOT NULL,
    bucket    bigint   NOT NULL, -- of kind 3 always 0
    id        bytea    NOT NULL CHECK (octet_length(id) = 16),
    at        bigint   NOT NULL,
    tries     bigint   NOT NULL,
    forget_at bigint   NOT NULL,
    PRIMARY KEY (who, window_ms, kind, bucket, id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);

CREATE INDEX budget_forget_at ON semel.budget (forget_at);
CREATE INDEX budget_id_forget_at ON semel.budget_id (forget_at);
CREATE INDEX budget_id_at ON semel.budget_id (who, window_ms, kind, bucket, at);

-- Locks a budget: checking and consuming are one step.
CREATE FUNCTION semel.lock_budget(who bytea, window_ms bigint, kind smallint, forget_at bigint)
RETURNS semel.budget LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    known semel.budget;
BEGIN
    LOOP
        SELECT b.* INTO known FROM semel.budget AS b
        WHERE b.who = lock_budget.who AND b.window_ms = lock_budget.window_ms AND b.kind = lock_budget.kind
        FOR UPDATE;
        IF FOUND THEN
            RETURN known;
        END IF;
        INSERT INTO semel.budget (who, window_ms, kind, bucket, forget_at)
        VALUES (lock_budget.who, lock_budget.window_ms, lock_budget.kind, -1, lock_budget.forget_at)
        ON CONFLICT DO NOTHING;
    END LOOP;
END
$$;

-- Counts a request, or refuses it, in two buckets: weight is the share of the previous one that still counts, of whole.
CREATE FUNCTION semel.count_request(
    who bytea, window_ms bigint, bucket bigint, weight bigint, whole bigint, allowed bigint, forget_at bigint,
    OUT counted boolean, OUT of_bucket bigint, OUT now_current bigint, OUT now_previous bigint
) LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    known semel.budget := semel.lock_budget(who, window_ms, 1::smallint, forget_at);
    share bigint := weight;
BEGIN
    of_bucket := bucket;
    now_current := 0;
    now_previous := 0;
    IF known.bucket >= 0 THEN
        IF bucket <= known.bucket THEN
            -- Another process's clock was ahead: its bucket counts, from its beginning.
            IF bucket < known.bucket THEN
                share := whole;
            END IF;
            of_bucket := known.bucket;
            now_current := known.current;
            now_previous := known.previous;
        ELSIF bucket = known.bucket + 1 THEN
            now_previous := known.current;
        END IF;
    END IF;
    counted := now_current + (now_previous * share + whole - 1) / whole < allowed;
    IF counted THEN
        now_current := now_current + 1;
        UPDATE semel.budget AS b
        SET bucket = of_bucket, current = now_current, previous = now_previous,
            forget_at = greatest(b.forget_at, count_request.forget_at)
        WHERE b.who = count_request.who AND b.window_ms = count_request.window_ms AND b.kind = 1;
    END IF;
END
$$;

-- Charges an id in an aligned window. step: 0 first, 1 again, 2 over the limit, 3 too often.
CREATE FUNCTION semel.charge_in_window(
    who bytea, window_ms bigint, bucket bigint, id bytea, allowed bigint, tries_max bigint, now_ms bigint,
    forget_at bigint, OUT step integer, OUT used bigint
) LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    tried bigint;
BEGIN
    PERFORM semel.lock_budget(who, window_ms, 2::smallint, forget_at);
    SELECT count(*) INTO used FROM semel.budget_id AS b
    WHERE b.who = charge_in_window.who AND b.window_ms = charge_in_window.window_ms AND b.kind = 2
        AND b.bucket = charge_in_window.bucket;
    SELECT b.tries INTO tried FROM semel.budget_id AS b
    WHERE b.who = charge_in_window.who AND b.window_ms = charge_in_window.window_ms AND b.kind = 2
        AND b.bucket = charge_in_window.bucket AND b.id = charge_in_window.id;
    IF FOUND AND tried >= tries_max THEN
        step := 3;
    ELSIF FOUND THEN
        step := 1;
        UPDATE semel.budget_id AS b SET tries = b.tries + 1
        WHERE b.who = charge_in_window.who AND b.window_ms = charge_in_window.window_ms AND b.kind = 2
            AND b.bucket = charge_in_window.bucket AND b.id = charge_in_window.id;
    ELSIF used >= allowed THEN
        step := 2;
    ELSE
        step := 0;
        used := used + 1;
        INSERT INTO semel.budget_id VALUES (who, window_ms, 2, bucket, id, now_ms, 1, forget_at);
        UPDATE semel.budget AS b SET forget_at = greatest(b.forget_at, charge_in_window.forget_at)
        WHERE b.who = charge_in_window.who AND b.window_ms = charge_in_window.window_ms AND b.kind = 2;
    END IF;
END
$$;

-- Charges an id within the last window, which begins after floor_ms. leaving: the time of the id whose leaving helps,
-- -1 where there is none.
CREATE FUNCTION semel.charge_in_log(
    who bytea, window_ms bigint, id bytea, allowed bigint, tries_max bigint, now_ms bigint, floor_ms bigint,
    cleared_max bigint, forget_at bigint, OUT step integer, OUT used bigint, OUT leaving bigint
) LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    known semel.budget_id;
    place bigint := 0;
BEGIN
    PERFORM semel.lock_budget(who, window_ms, 3::smallint, forget_at);
    DELETE FROM semel.budget_id AS b
    WHERE b.who = charge_in_log.who AND b.window_ms = charge_in_log.window_ms AND b.kind = 3 AND b.bucket = 0
        AND b.id IN (
            SELECT o.id FROM semel.budget_id AS o
            WHERE o.who = charge_in_log.who AND o.window_ms = charge_in_log.window_ms AND o.kind = 3 AND o.bucket = 0
                AND o.at <= floor_ms
            ORDER BY o.at LIMIT cleared_max);
    SELECT count(*) INTO used FROM semel.budget_id AS b
    WHERE b.who = charge_in_log.who AND b.window_ms = charge_in_log.window_ms AND b.kind = 3 AND b.bucket = 0
        AND b.at > floor_ms;
    SELECT b.* INTO known FROM semel.budget_id AS b
    WHERE b.who = charge_in_log.who AND b.window_ms = charge_in_log.window_ms AND b.kind = 3 AND b.bucket = 0
        AND b.id = charge_in_log.id AND b.at > floor_ms;
    IF FOUND AND known.tries >= tries_max THEN
        step := 3;
        leaving := known.at;
        RETURN;
    ELSIF FOUND THEN
        step := 1;
        UPDATE semel.budget_id AS b SET tries = b.tries + 1
        WHERE b.who = charge_in_log.who AND b.window_ms = charge_in_log.window_ms AND b.kind = 3 AND b.bucket = 0
            AND b.id = charge_in_log.id;
    ELSIF used >= allowed THEN
        step := 2;
        place := used - allowed;
    ELSE
        step := 0;
        used := used + 1;
        INSERT INTO semel.budget_id AS b VALUES (who, window_ms, 3, 0, id, now_ms, 1, forget_at)
        ON CONFLICT ON CONSTRAINT budget_id_pkey DO UPDATE
        SET at = excluded.at, tries = 1, forget_at = excluded.forget_at;
        UPDATE semel.budget AS b SET forget_at = greatest(b.forget_at, charge_in_log.forget_at)
        WHERE b.who = charge_in_log.who AND b.window_ms = charge_in_log.window_ms AND b.kind = 3;
    END IF;
    SELECT b.at INTO leaving FROM semel.budget_id AS b
    WHERE b.who = charge_in_log.who AND b.window_ms = charge_in_log.window_ms AND b.kind = 3 AND b.bucket = 0
        AND b.at > floor_ms
    ORDER BY b.at, b.id OFFSET place LIMIT 1;
    leaving := coalesce(leaving, -1);
END
$$;

-- Forgets what no longer counts, at most so many rows of each table.
CREATE FUNCTION semel.forget_budgets(now_ms bigint, at_most bigint) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    DELETE FROM semel.budget_id WHERE ctid = ANY (ARRAY(
        SELECT b.ctid FROM semel.budget_id AS b WHERE b.forget_at <= now_ms
        ORDER BY b.forget_at LIMIT at_most FOR UPDATE SKIP LOCKED));
    DELETE FROM semel.budget WHERE ctid = ANY (ARRAY(
        SELECT b.ctid FROM semel.budget AS b WHERE b.forget_at <= now_ms
        ORDER BY b.forget_at LIMIT at_most FOR UPDATE SKIP LOCKED));
$$;

-- As before, and now as the layer does: no length, which the body gives, and no header of semel's own.
CREATE OR REPLACE FUNCTION semel.kept_headers(headers jsonb) RETURNS bytea
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
            'connection', 'content-length', 'keep-alive', 'te', 'trailer', 'transfer-encoding', 'upgrade',
            'traceparent', 'tracestate'
        ) OR name LIKE 'proxy-%' OR name LIKE 'semel-%';
        kept := kept || int2send(octet_length(name)::smallint) || convert_to(name, 'UTF8')
            || int4send(octet_length(value)) || value;
    END LOOP;
    RETURN kept;
END
$$;

CREATE OR REPLACE FUNCTION semel.grant_rights() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'semel_service') THEN
        GRANT USAGE ON SCHEMA semel TO semel_service;
        GRANT SELECT, INSERT, UPDATE, DELETE ON semel.record, semel.lease, semel.budget, semel.budget_id
            TO semel_service;
        GRANT SELECT, UPDATE ON semel.clock TO semel_service;
        GRANT SELECT, INSERT ON semel.audit TO semel_service;
        GRANT SELECT ON semel.migration TO semel_service;
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

-- Whoever enters inside a savepoint is refused, whatever the verdict; and the watch over enter_new costs half of what it did.

-- Rolling back to a savepoint undoes what was set inside it. A transaction that entered a known key there was told not to write, and
-- after that could write all the same. So the marker row, whose number tells a savepoint, is made before every verdict; where the
-- verdict is not execute it goes again at once.

-- Enters a key: the first write of the caller's transaction. After `execute` the transaction holds the key until it ends
-- and must leave it; after any other verdict it can write nothing.
CREATE OR REPLACE FUNCTION semel.enter(
    id bytea, scope bytea, key text, fingerprints bytea[], about jsonb, options jsonb,
    OUT verdict text, OUT status integer, OUT headers bytea, OUT body bytea, OUT fence text, OUT outcome_unknown boolean,
    OUT guarantee text, OUT fingerprint bytea, OUT created_at bigint, OUT expires_at bigint, OUT now bigint,
    OUT payload_hash bytea
) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off AS $$
DECLARE
    server_ms bigint;
    known     bigint;
    mark      bytea;
    is_held   boolean;
    is_first  boolean;
    marker    tid;
    told      semel.judgement;
    done      text;
BEGIN
    IF (octet_length(enter.scope) = 32 AND char_length(enter.key) BETWEEN 1 AND 255
        AND enter.id = substring(sha256(enter.scope || convert_to(enter.key, 'UTF8')) FROM 1 FOR 16)
        AND coalesce(octet_length(enter.fingerprints[1]), 33) = 33
        AND enter.about ->> 'endpoint' IS NOT NULL AND enter.about ->> 'principal' IS NOT NULL
        AND coalesce(current_setting('semel.entered', true), '') = '' AND pg_current_xact_id_if_assigned() IS NULL
    ) IS NOT TRUE THEN
        PERFORM semel.refuse_entry(enter.id, enter.scope, enter.key, enter.fingerprints, enter.about);
    END IF;
    IF (enter.options ->> 'owned') IS DISTINCT FROM 'true' THEN
        -- Whatever is told below is told of the whole transaction. Inside a savepoint, rolling back to it would forget that the key
        -- was entered, and would make a transaction that is told not to write able to write.
        INSERT INTO semel.entered AS e (id) VALUES (enter.id)
        RETURNING e.xmin = pg_current_xact_id()::xid, e.ctid INTO is_first, marker;
        IF NOT is_first THEN
            RAISE EXCEPTION 'semel.enter inside a savepoint is refused' USING ERRCODE = 'SM003',
                HINT = 'Rolling back to the savepoint would forget that the key was entered: enter before it.';
        END IF;
    END IF;
    -- The lock first, then the look-up, in a statement of its own: it sees what whoever held the lock has committed. A number
    -- of its own for this transaction: on a standby that fails, so that no stale copy is ever believed.
    is_held := pg_current_xact_id() IS NOT NULL AND pg_try_advisory_xact_lock(
        ('x' || encode(substring(enter.id FROM 1 FOR 8), 'hex'))::bit(64)::bigint);
    mark := decode(enter.options ->> 'rotation', 'hex');
    IF mark IS NOT NULL AND is_held THEN
        -- The same request under another credential is another id: the mark is what both have.
        is_held := pg_try_advisory_xact_lock(semel.lock_of(mark));
    END IF;
    server_ms := floor(date_part('epoch', clock_timestamp()) * 1000)::bigint;
    SELECT greatest(server_ms + c.offset_ms
            + CASE WHEN c.jump_ms = 0 OR abs(c.jump_ms) > 60000 THEN 0 ELSE
                greatest(-(greatest(server_ms - c.jump_at_ms, 0) / 64),
                    least(c.jump_ms, greatest(server_ms - c.jump_at_ms, 0) / 64)) END,
            c.high_water_ms),
        coalesce(r.fence, CASE WHEN mark IS NOT NULL
            THEN (SELECT o.fence FROM semel.record AS o WHERE o.rotation = mark) END)
    INTO enter.now, known
    FROM semel.clock AS c LEFT JOIN semel.record AS r ON r.hash = enter.id
    WHERE c.one;
    enter.verdict := 'execute';
    IF known IS NOT NULL OR NOT is_held OR enter.options ?| '{fence,formers,first_sent}' THEN
        told := semel.judge_all(enter.id, enter.scope, enter.key, enter.fingerprints, enter.options, is_held, true);
        enter.verdict := told.verdict;
        enter.now := told.now;
    END IF;
    IF enter.verdict = 'execute' THEN
        -- A holder that died or froze gives its key back, and can commit no more.
        done := set_config('semel.entered', ROW(enter.id, enter.scope, enter.key, enter.fingerprints[1], enter.about,
                coalesce(enter.options, '{}'),
                CASE coalesce(told.standing, 'absent') WHEN 'absent' THEN 1 WHEN 'given' THEN 3 ELSE 2 END::smallint,
                told.fence, told.nonce, coalesce(told.state, CASE WHEN known IS NOT NULL THEN 0 END), enter.now, marker)::semel.entering::text, true)
            || set_config('idle_in_transaction_session_timeout', coalesce(enter.options ->> 'hold_ms', '30000'), true);
        RETURN;
    END IF;
    -- Whoever ignores the verdict finds that nothing can be written; there is nothing to leave.
    IF marker IS NOT NULL THEN
        DELETE FROM semel.entered AS e WHERE e.ctid = marker;
    END IF;
    done := set_config('semel.entered', 'left', true) || set_config('transaction_read_only', 'on', true);
    enter.status := told.status;
    enter.headers := told.headers;
    enter.body := told.body;
    enter.fence := semel.fence_text(told.fence, told.nonce);
    enter.outcome_unknown := told.outcome_unknown;
    enter.guarantee := (ARRAY['atomic', 'fenced', 'none'])[told.guarantee];
    enter.fingerprint := told.fingerprint;
    enter.created_at := told.created_at;
    enter.expires_at := told.expires_at;
    enter.payload_hash := told.payload_hash;
END
$$;

-- The watch over semel.enter_new: its marker refers to a row that never is. The server checks that at COMMIT in its own code, and
-- only where the marker is still there; where a function of ours looks, it is made ready in every transaction. Whoever did not
-- leave is told 23503 at COMMIT, by the constraint key_is_left.
CREATE TABLE semel.never (
    id bytea PRIMARY KEY CHECK (false)
);
CREATE UNLOGGED TABLE semel.unleft (
    id bytea NOT NULL CONSTRAINT key_is_left REFERENCES semel.never (id) DEFERRABLE INITIALLY DEFERRED
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- Enters a key that nobody knows: the first write of the caller's transaction, as of semel.enter. True: the transaction holds
-- the key until it ends, and leaves it by semel.leave_new. False: somebody holds it, or it is known, and nothing can be
-- written; semel.enter says in another transaction what there is. COMMIT fails unless semel.leave_new ran.
--
-- A search_path of its own would be read anew at every call. It has none, and so names every type, function and operator in
-- full: whatever the caller's path is, nothing of the caller's is found.
CREATE OR REPLACE FUNCTION semel.enter_new(id bytea, rotation bytea, hold_ms text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET enable_seqscan = off AS $$
DECLARE
    is_first boolean;
    marker   pg_catalog.tid;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        RAISE EXCEPTION 'semel.enter_new must be the first write of its transaction' USING ERRCODE = 'SM003',
            HINT = 'Roll back and call it before any statement that writes or locks rows.';
    END IF;
    -- The lock first, then the look-up, in a statement of its own: it sees what whoever held the lock has committed. The same
    -- request under another credential is another id: the mark is what both have.
    IF pg_catalog.pg_try_advisory_xact_lock(('x' OPERATOR(pg_catalog.||) pg_catalog.encode(
            pg_catalog.substring(enter_new.id, 1, 8), 'hex'))::bit(64)::bigint)
        AND (enter_new.rotation IS NULL OR pg_catalog.pg_try_advisory_xact_lock(('x' OPERATOR(pg_catalog.||) pg_catalog.encode(
            pg_catalog.substring(enter_new.rotation, 1, 8), 'hex'))::bit(64)::bigint)) THEN
        -- It also gives the transaction a number of its own: on a standby that fails, so that no stale copy is ever believed.
        INSERT INTO semel.unleft AS u (id) SELECT enter_new.id
        WHERE NOT EXISTS (SELECT FROM semel.record AS r WHERE r.hash OPERATOR(pg_catalog.=) enter_new.id)
        RETURNING u.xmin OPERATOR(pg_catalog.=) pg_catalog.pg_current_xact_id()::pg_catalog.xid, u.ctid INTO is_first, marker;
        IF is_first THEN
            -- A holder that died or froze gives its key back, and can commit no more.
            RETURN (pg_catalog.set_config('idle_in_transaction_session_timeout', enter_new.hold_ms, true)
                OPERATOR(pg_catalog.||) pg_catalog.set_config('semel.entered', 'new' OPERATOR(pg_catalog.||) pg_catalog.encode(
                    enter_new.id, 'hex') OPERATOR(pg_catalog.||) (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp())
                    OPERATOR(pg_catalog.*) 1000)::bigint::pg_catalog.text OPERATOR(pg_catalog.||) marker::pg_catalog.text, true)
                ) IS NOT NULL;
        END IF;
    END IF;
    IF marker IS NULL THEN
        INSERT INTO semel.unleft AS u (id) VALUES (enter_new.id)
        RETURNING u.xmin OPERATOR(pg_catalog.=) pg_catalog.pg_current_xact_id()::pg_catalog.xid, u.ctid INTO is_first, marker;
    END IF;
    IF NOT is_first THEN
        RAISE EXCEPTION 'semel.enter_new inside a savepoint is refused' USING ERRCODE = 'SM003',
            HINT = 'Rolling back to the savepoint would forget that the key was entered: enter before it.';
    END IF;
    DELETE FROM semel.unleft AS u WHERE u.ctid OPERATOR(pg_catalog.=) marker;
    RETURN (pg_catalog.set_config('semel.entered', 'left', true)
        OPERATOR(pg_catalog.||) pg_catalog.set_config('transaction_read_only', 'on', true)) IS NULL;
END
$$;

-- Leaves a key that semel.enter_new entered: writes the settled record. True: the answer is kept; false: it was too large,
-- and a tombstone stands for it. Which statuses free a key is the library's to know; 5xx always do. Where somebody else has the key
-- or its mark by now, the index says so (23505): begin again with semel.enter.
CREATE OR REPLACE FUNCTION semel.leave_new(
    id bytea, scope bytea, key text, fingerprint bytea, endpoint text, tenant text, principal text, request_id text,
    client_generated_at bigint, payload_hash bytea, request_headers bytea, rotation bytea, nonce bigint, lifetime_ms bigint,
    is_from_creation boolean, max_response_bytes integer, status integer, headers bytea, body bytea
) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
    state    pg_catalog.text := pg_catalog.current_setting('semel.entered', true);
    now_ms   bigint := pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000;
    -- How long ago it was entered.
    held_ms  bigint := CASE WHEN (
        pg_catalog.substr(state, 1, 35) OPERATOR(pg_catalog.=)
            ('new' OPERATOR(pg_catalog.||) pg_catalog.encode(leave_new.id, 'hex'))
        AND pg_catalog.octet_length(leave_new.scope) OPERATOR(pg_catalog.=) 32
        AND leave_new.id OPERATOR(pg_catalog.=) pg_catalog.substring(pg_catalog.sha256(
            leave_new.scope OPERATOR(pg_catalog.||) pg_catalog.convert_to(leave_new.key, 'UTF8')), 1, 16)
        AND coalesce(pg_catalog.octet_length(leave_new.fingerprint), 33) OPERATOR(pg_catalog.=) 33
        AND leave_new.status OPERATOR(pg_catalog.>=) 200 AND leave_new.status OPERATOR(pg_catalog.<) 500
    ) IS TRUE THEN greatest(now_ms OPERATOR(pg_catalog.-) pg_catalog.substr(state, 36, 13)::bigint, 0)
    ELSE semel.refuse_departure(leave_new.id, leave_new.scope, leave_new.key, leave_new.fingerprint, leave_new.status,
        leave_new.headers, leave_new.body, leave_new.max_response_bytes) END;
    is_kept  boolean := (pg_catalog.octet_length(leave_new.body) OPERATOR(pg_catalog.<=) leave_new.max_response_bytes
        AND pg_catalog.octet_length(leave_new.headers) OPERATOR(pg_catalog.<=) 65536) IS TRUE;
    -- Behind the time, which has thirteen digits until the year 2286; nothing where the transaction entered before this release.
    marker   pg_catalog.tid := CASE WHEN pg_catalog.octet_length(state) OPERATOR(pg_catalog.>) 48
        THEN pg_catalog.substr(state, 49) END;
    begun_ms bigint;
    is_first boolean;
    done     pg_catalog.text;
BEGIN
    IF NOT is_kept THEN
        -- What is too large is not kept; that it took effect is.
        leave_new.headers := CASE WHEN pg_catalog.octet_length(leave_new.headers) OPERATOR(pg_catalog.<=) 65536
            THEN leave_new.headers ELSE '' END;
        leave_new.body := '';
    END IF;
    -- In a statement of its own: as a part of the INSERT it would make it one of rows that are looked up.
    SELECT CASE WHEN c.jump_ms OPERATOR(pg_catalog.=) 0
        THEN greatest(now_ms OPERATOR(pg_catalog.+) c.offset_ms, c.high_water_ms) ELSE semel.time_now() END
    INTO now_ms FROM semel.clock AS c;
    begun_ms := now_ms OPERATOR(pg_catalog.-) held_ms;
    INSERT INTO semel.record AS r (fence, nonce, hash, scope, key, endpoint, tenant, principal, state, guarantee,
        fingerprint, fingerprint_version, payload_hash, rotation, created_at, first_lease_until, late_until,
        settled_at, expires_at, lifetime_ms, status, headers, body, client_generated_at, request_headers, request_id)
    VALUES (pg_catalog.nextval('semel.fence'), leave_new.nonce, leave_new.id, leave_new.scope, leave_new.key,
        leave_new.endpoint, leave_new.tenant, leave_new.principal, CASE WHEN is_kept THEN 2 ELSE 3 END, 1,
        pg_catalog.substring(leave_new.fingerprint, 2), pg_catalog.get_byte(leave_new.fingerprint, 0),
        leave_new.payload_hash, leave_new.rotation, begun_ms, begun_ms, begun_ms, now_ms,
        leave_new.lifetime_ms OPERATOR(pg_catalog.+) CASE WHEN leave_new.is_from_creation
            AND leave_new.lifetime_ms OPERATOR(pg_catalog.>) held_ms THEN begun_ms ELSE now_ms END,
        leave_new.lifetime_ms, leave_new.status, leave_new.headers, leave_new.body, leave_new.client_generated_at,
        leave_new.request_headers, leave_new.request_id)
    RETURNING r.xmin OPERATOR(pg_catalog.=) pg_catalog.pg_current_xact_id()::pg_catalog.xid INTO is_first;
    IF NOT is_first THEN
        RAISE EXCEPTION 'semel.leave_new inside a savepoint is refused' USING ERRCODE = 'SM003',
            HINT = 'Rolling back to the savepoint would take the record back and leave the effect: leave after it.';
    END IF;
    IF marker IS NOT NULL THEN
        DELETE FROM semel.unleft AS u WHERE u.ctid OPERATOR(pg_catalog.=) marker;
    END IF;
    -- An answer that is given must survive a crash, whatever the session prefers.
    done := pg_catalog.set_config('semel.entered', 'left', true) OPERATOR(pg_catalog.||) CASE
        WHEN pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) 'on' THEN ''
        WHEN pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) 'remote_apply' THEN ''
        ELSE pg_catalog.set_config('synchronous_commit', 'on', true) END;
    RETURN is_kept;
END
$$;

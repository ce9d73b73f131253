-- COMMIT of a transaction that semel.enter_new entered is watched as that of semel.enter: it fails unless semel.leave_new ran. A
-- library may send BEGIN and COMMIT itself; its handler still has a connection on which to say COMMIT. The watch costs the
-- server a tenth of what the pair does.

-- COMMIT fails unless the key was left: an effect without a record is the one thing that must not be. Whatever the caller's path
-- is, nothing of the caller's is found.
CREATE OR REPLACE FUNCTION semel.refuse_unleft() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (pg_catalog.current_setting('semel.entered', true) OPERATOR(pg_catalog.=) 'left') IS NOT TRUE THEN
        RAISE EXCEPTION 'this transaction entered a key and did not leave it: nothing is committed'
            USING ERRCODE = 'SM004',
                HINT = 'Call semel.leave in the same transaction, at its top level, before COMMIT; autocommit does not work.';
    END IF;
    RETURN NULL;
END
$$;

-- Enters a key that nobody knows: the first write of the caller's transaction, as of semel.enter. True: the transaction holds
-- the key until it ends, and leaves it by semel.leave_new. False: somebody holds it, or it is known, and nothing can be
-- written; semel.enter says in another transaction what there is. COMMIT fails unless semel.leave_new ran.
--
-- A search_path of its own would be read anew at every call. It has none, and so names every type, function and operator in
-- full: whatever the caller's path is, nothing of the caller's is found.
CREATE OR REPLACE FUNCTION semel.enter_new(id bytea, rotation bytea, hold_ms text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET enable_seqscan = off AS $$
DECLARE
    is_free  boolean;
    is_first boolean;
    marker   pg_catalog.tid;
    done     pg_catalog.text;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        RAISE EXCEPTION 'semel.enter_new must be the first write of its transaction' USING ERRCODE = 'SM003',
            HINT = 'Roll back and call it before any statement that writes or locks rows.';
    END IF;
    -- The lock first, then the look-up, in a statement of its own: it sees what whoever held the lock has committed. A number
    -- of its own for this transaction: on a standby that fails, so that no stale copy is ever believed. The same request under
    -- another credential is another id: the mark is what both have.
    is_free := pg_catalog.pg_current_xact_id() IS NOT NULL
        AND pg_catalog.pg_try_advisory_xact_lock(('x' OPERATOR(pg_catalog.||) pg_catalog.encode(
            pg_catalog.substring(enter_new.id, 1, 8), 'hex'))::bit(64)::bigint)
        AND (enter_new.rotation IS NULL OR pg_catalog.pg_try_advisory_xact_lock(('x' OPERATOR(pg_catalog.||) pg_catalog.encode(
            pg_catalog.substring(enter_new.rotation, 1, 8), 'hex'))::bit(64)::bigint));
    IF is_free THEN
        PERFORM FROM semel.record AS r WHERE r.hash OPERATOR(pg_catalog.=) enter_new.id;
        IF NOT FOUND THEN
            INSERT INTO semel.entered AS e (id) VALUES (enter_new.id)
            RETURNING e.xmin OPERATOR(pg_catalog.=) pg_catalog.pg_current_xact_id()::pg_catalog.xid, e.ctid INTO is_first, marker;
            IF NOT is_first THEN
                RAISE EXCEPTION 'semel.enter_new inside a savepoint is refused' USING ERRCODE = 'SM003',
                    HINT = 'Rolling back to the savepoint would forget that the key was entered: enter before it.';
            END IF;
            -- A holder that died or froze gives its key back, and can commit no more.
            done := pg_catalog.set_config('idle_in_transaction_session_timeout', enter_new.hold_ms, true)
                OPERATOR(pg_catalog.||) pg_catalog.set_config('semel.entered', 'new' OPERATOR(pg_catalog.||) pg_catalog.encode(
                    enter_new.id, 'hex') OPERATOR(pg_catalog.||) (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp())
                    OPERATOR(pg_catalog.*) 1000)::bigint::pg_catalog.text OPERATOR(pg_catalog.||) marker::pg_catalog.text, true);
            RETURN true;
        END IF;
    END IF;
    done := pg_catalog.set_config('transaction_read_only', 'on', true);
    RETURN false;
END
$$;

-- Leaves a key that semel.enter_new entered: writes the settled record. True: the answer is kept; false: it was too large,
-- and a tombstone stands for it. Which statuses free a key is the library's to know; 5xx always do.
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
    is_first boolean;
    done     pg_catalog.text;
BEGIN
    IF NOT is_kept THEN
        -- What is too large is not kept; that it took effect is.
        leave_new.headers := CASE WHEN pg_catalog.octet_length(leave_new.headers) OPERATOR(pg_catalog.<=) 65536
            THEN leave_new.headers ELSE '' END;
        leave_new.body := '';
    END IF;
    INSERT INTO semel.record AS r (fence, nonce, hash, scope, key, endpoint, tenant, principal, state, guarantee,
        fingerprint, fingerprint_version, payload_hash, rotation, created_at, first_lease_until, late_until,
        settled_at, expires_at, lifetime_ms, status, headers, body, client_generated_at, request_headers, request_id)
    SELECT pg_catalog.nextval('semel.fence'), leave_new.nonce, leave_new.id, leave_new.scope, leave_new.key,
        leave_new.endpoint, leave_new.tenant, leave_new.principal, CASE WHEN is_kept THEN 2 ELSE 3 END, 1,
        pg_catalog.substring(leave_new.fingerprint, 2), pg_catalog.get_byte(leave_new.fingerprint, 0),
        leave_new.payload_hash, leave_new.rotation, t.now OPERATOR(pg_catalog.-) held_ms, t.now OPERATOR(pg_catalog.-) held_ms,
        t.now OPERATOR(pg_catalog.-) held_ms, t.now, t.now OPERATOR(pg_catalog.+) leave_new.lifetime_ms OPERATOR(pg_catalog.-)
            CASE WHEN leave_new.is_from_creation AND leave_new.lifetime_ms OPERATOR(pg_catalog.>) held_ms THEN held_ms ELSE 0 END,
        leave_new.lifetime_ms, leave_new.status, leave_new.headers, leave_new.body, leave_new.client_generated_at,
        leave_new.request_headers, leave_new.request_id
    FROM (
        SELECT CASE WHEN c.jump_ms OPERATOR(pg_catalog.=) 0
            THEN greatest(now_ms OPERATOR(pg_catalog.+) c.offset_ms, c.high_water_ms) ELSE semel.time_now() END AS now
        FROM semel.clock AS c OFFSET 0
    ) AS t
    ON CONFLICT DO NOTHING
    RETURNING r.xmin OPERATOR(pg_catalog.=) pg_catalog.pg_current_xact_id()::pg_catalog.xid INTO is_first;
    IF is_first IS NULL THEN
        RAISE EXCEPTION 'somebody else has this key by now' USING ERRCODE = 'serialization_failure',
            HINT = 'Roll back, and begin again.';
    END IF;
    IF NOT is_first THEN
        RAISE EXCEPTION 'semel.leave_new inside a savepoint is refused' USING ERRCODE = 'SM003',
            HINT = 'Rolling back to the savepoint would take the record back and leave the effect: leave after it.';
    END IF;
    IF marker IS NOT NULL THEN
        DELETE FROM semel.entered AS e WHERE e.ctid OPERATOR(pg_catalog.=) marker;
    END IF;
    -- An answer that is given must survive a crash, whatever the session prefers.
    done := pg_catalog.set_config('semel.entered', 'left', true) OPERATOR(pg_catalog.||) CASE
        WHEN pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) 'on' THEN ''
        WHEN pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) 'remote_apply' THEN ''
        ELSE pg_catalog.set_config('synchronous_commit', 'on', true) END;
    RETURN is_kept;
END
$$;

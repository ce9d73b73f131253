-- A pair of functions for libraries that send BEGIN and COMMIT themselves, at two thirds of the cost; and a mismatch tells which
-- payload its key stands for.
--
-- What entering and leaving cost is expressions: each is made ready once in every transaction, a function with three arguments
-- in some thousand instructions. So the pair takes values instead of JSON, gives one value instead of a row, and hands over
-- nothing but the key and the time. Only the usual way is in it: a key that nobody knows, an answer that is kept. For all others
-- semel.enter and semel.leave say what there is.

-- What a mismatch is told: the hash of the payload that the key stands for.
ALTER TYPE semel.judgement ADD ATTRIBUTE payload_hash bytea;

-- Decides what an arrival may do, by what is committed at this moment. is_held: this transaction has the key's lock.
-- Expired is what the clock that a watching process has confirmed says so: without such a process nothing expires.
CREATE OR REPLACE FUNCTION semel.judge(
    id bytea, scope bytea, key text, fingerprints bytea[], options jsonb, is_held boolean
) RETURNS semel.judgement LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    server_ms  bigint := floor(date_part('epoch', clock_timestamp()) * 1000)::bigint;
    given      text   := judge.options ->> 'fence';
    first_sent bigint := (judge.options ->> 'first_sent')::bigint;
    is_given   boolean := false;
    known      record;
    told       semel.judgement;
BEGIN
    SELECT greatest(server_ms + c.offset_ms
            + CASE WHEN c.jump_ms = 0 OR abs(c.jump_ms) > 60000 THEN 0 ELSE
                greatest(-(greatest(server_ms - c.jump_at_ms, 0) / 64),
                    least(c.jump_ms, greatest(server_ms - c.jump_at_ms, 0) / 64)) END,
            c.high_water_ms) AS now,
        c.high_water_ms, r.fence, r.nonce, r.scope, r.key, r.state, r.guarantee, r.fingerprint, r.fingerprint_version,
        r.payload_hash, r.created_at, r.first_lease_until, r.expires_at, r.status, r.headers, r.body, r.outcome_unknown
    INTO known
    FROM semel.clock AS c LEFT JOIN semel.record AS r ON r.hash = judge.id
    WHERE c.one;
    told.now := known.now;
    IF known.fence IS NULL THEN
        told.standing := 'absent';
    ELSE
        IF known.scope <> judge.scope OR known.key <> judge.key THEN
            RAISE EXCEPTION 'two keys with one id: 128 bits of SHA-256 would have to collide'
                USING ERRCODE = 'data_corrupted';
        END IF;
        told.fence := known.fence;
        told.nonce := known.nonce;
        told.state := known.state;
        told.guarantee := known.guarantee;
        told.created_at := known.created_at;
        told.expires_at := known.expires_at;
        is_given := given IS NOT NULL AND given = semel.fence_text(known.fence, known.nonce);
        CASE
            WHEN known.state IN (2, 3, 4, 6) AND known.expires_at <= known.high_water_ms THEN
                told.standing := 'expired';
            WHEN known.state = 2 THEN
                told.standing := 'settled';
            WHEN known.state = 3 THEN
                told.standing := 'unkept';
            WHEN known.state = 4 THEN
                told.standing := 'released';
            WHEN known.state = 6 THEN
                told.standing := 'sealed';
            WHEN is_given THEN
                told.standing := 'given';
            WHEN known.state = 5 THEN
                told.standing := 'unknown';
            WHEN coalesce((SELECT l.lease_until FROM semel.lease AS l WHERE l.fence = known.fence),
                known.first_lease_until) > known.now THEN
                told.standing := 'claimed';
            WHEN known.guarantee = 2 THEN
                told.standing := 'unknown';
            ELSE
                told.standing := 'abandoned';
        END CASE;
    END IF;
    IF first_sent - known.now > coalesce((judge.options ->> 'skew_ms')::bigint, 300000) THEN
        told.verdict := 'first-sent-in-future';
        RETURN told;
    END IF;
    IF told.standing NOT IN ('absent', 'expired', 'sealed') AND known.fingerprint IS NOT NULL
        AND cardinality(judge.fingerprints) > 0 AND (judge.options ->> 'compare') IS DISTINCT FROM 'false' THEN
        told.fingerprint := substring(int2send(known.fingerprint_version) FROM 2) || known.fingerprint;
        IF NOT told.fingerprint = ANY (judge.fingerprints) THEN
            -- What was keyed with a secret that is not at hand proves nothing either way.
            told.verdict := CASE WHEN EXISTS (
                SELECT FROM unnest(judge.fingerprints) AS own WHERE get_byte(own, 0) = known.fingerprint_version
            ) THEN 'mismatch' ELSE 'unknown' END;
            told.payload_hash := known.payload_hash;
            RETURN told;
        END IF;
    END IF;
    told.verdict := CASE told.standing
        WHEN 'settled' THEN 'replay'
        WHEN 'unkept' THEN 'not-kept'
        WHEN 'sealed' THEN 'sealed'
        WHEN 'unknown' THEN 'unknown'
        WHEN 'claimed' THEN CASE WHEN given IS NULL THEN 'in-flight' ELSE 'stale' END
        WHEN 'released' THEN
            CASE WHEN judge.options ->> 'failed_key' = 'sealed' THEN 'sealed' ELSE 'execute' END
        ELSE 'execute' END;
    IF told.verdict = 'execute' AND given IS NOT NULL AND NOT is_given THEN
        told.verdict := 'stale';
    ELSIF told.verdict = 'execute' AND NOT judge.is_held THEN
        told.verdict := 'in-flight';
    ELSIF told.verdict = 'execute' AND told.standing <> 'given'
        AND known.now - first_sent > coalesce((judge.options ->> 'retry_window_ms')::bigint, 86400000) THEN
        told.verdict := 'too-old';
    END IF;
    IF told.standing IN ('settled', 'unkept') THEN
        told.status := known.status;
        told.headers := coalesce(known.headers, ''::bytea);
        told.body := coalesce(known.body, ''::bytea);
        told.outcome_unknown := known.outcome_unknown;
    END IF;
    RETURN told;
END
$$;

DROP FUNCTION semel.look(bytea, bytea, text, bytea[], jsonb);
DROP FUNCTION semel.enter(bytea, bytea, text, bytea[], jsonb, jsonb);

-- Tells what is known of a key. Changes nothing and holds nothing once it returns; for autocommit, before a transaction and
-- while waiting.
CREATE FUNCTION semel.look(
    id bytea, scope bytea, key text, fingerprints bytea[], options jsonb,
    OUT verdict text, OUT status integer, OUT headers bytea, OUT body bytea, OUT fence text, OUT outcome_unknown boolean,
    OUT guarantee text, OUT fingerprint bytea, OUT created_at bigint, OUT expires_at bigint, OUT now bigint,
    OUT payload_hash bytea
) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off AS $$
DECLARE
    place   bigint;
    is_free boolean;
    told    semel.judgement;
BEGIN
    PERFORM semel.check_arrival(look.id, look.scope, look.key, look.fingerprints);
    place := semel.lock_of(look.id);
    -- Taken for this moment only, and shared: those who wait do not stand in each other's way.
    is_free := pg_try_advisory_lock_shared(place);
    IF is_free THEN
        PERFORM pg_advisory_unlock_shared(place);
    END IF;
    told := semel.judge_all(look.id, look.scope, look.key, look.fingerprints, look.options, is_free, false);
    look.verdict := told.verdict;
    look.status := told.status;
    look.headers := told.headers;
    look.body := told.body;
    look.fence := semel.fence_text(told.fence, told.nonce);
    look.outcome_unknown := told.outcome_unknown;
    look.guarantee := (ARRAY['atomic', 'fenced', 'none'])[told.guarantee];
    look.fingerprint := told.fingerprint;
    look.created_at := told.created_at;
    look.expires_at := told.expires_at;
    look.now := told.now;
    look.payload_hash := told.payload_hash;
END
$$;

-- Enters a key: the first write of the caller's transaction. After `execute` the transaction holds the key until it ends
-- and must leave it; after any other verdict it can write nothing.
--
-- Plans are made while the table is small and kept while it grows, hence without reading it from end to end. (Every table
-- that is read here is read by an index: what must be read from end to end all the same counts as so dear that it is compiled.)
-- Every expression of a function is made ready once in each transaction, which is most of what this costs. So the usual way,
-- a key that nobody knows, takes few of them, and everything else is judged by the functions above.
CREATE FUNCTION semel.enter(
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
        IF (enter.options ->> 'owned') IS DISTINCT FROM 'true' THEN
            INSERT INTO semel.entered AS e (id) VALUES (enter.id)
            RETURNING e.xmin = pg_current_xact_id()::xid, e.ctid INTO is_first, marker;
            IF NOT is_first THEN
                RAISE EXCEPTION 'semel.enter inside a savepoint is refused' USING ERRCODE = 'SM003',
                    HINT = 'Rolling back to the savepoint would forget that the key was entered: enter before it.';
            END IF;
        END IF;
        -- A holder that died or froze gives its key back, and can commit no more.
        done := set_config('semel.entered', ROW(enter.id, enter.scope, enter.key, enter.fingerprints[1], enter.about,
                coalesce(enter.options, '{}'),
                CASE coalesce(told.standing, 'absent') WHEN 'absent' THEN 1 WHEN 'given' THEN 3 ELSE 2 END::smallint,
                told.fence, told.nonce, coalesce(told.state, CASE WHEN known IS NOT NULL THEN 0 END), enter.now, marker)::semel.entering::text, true)
            || set_config('idle_in_transaction_session_timeout', coalesce(enter.options ->> 'hold_ms', '30000'), true);
        RETURN;
    END IF;
    -- Whoever ignores the verdict finds that nothing can be written.
    done := set_config('transaction_read_only', 'on', true);
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

-- Enters a key that nobody knows: the first write of the caller's transaction, as of semel.enter. True: the transaction holds
-- the key until it ends, and leaves it by semel.leave_new. False: somebody holds it, or it is known, and nothing can be
-- written; semel.enter says in another transaction what there is. COMMIT is not watched.
--
-- A search_path of its own would be read anew at every call. It has none, and so names every type, function and operator in
-- full: whatever the caller's path is, nothing of the caller's is found.
CREATE FUNCTION semel.enter_new(id bytea, rotation bytea, hold_ms text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET enable_seqscan = off AS $$
DECLARE
    is_free boolean;
    done    pg_catalog.text;
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
            -- A holder that died or froze gives its key back, and can commit no more.
            done := pg_catalog.set_config('idle_in_transaction_session_timeout', enter_new.hold_ms, true)
                OPERATOR(pg_catalog.||) pg_catalog.set_config('semel.entered', 'new' OPERATOR(pg_catalog.||) pg_catalog.encode(
                    enter_new.id, 'hex') OPERATOR(pg_catalog.||) (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp())
                    OPERATOR(pg_catalog.*) 1000)::bigint::pg_catalog.text, true);
            RETURN true;
        END IF;
    END IF;
    done := pg_catalog.set_config('transaction_read_only', 'on', true);
    RETURN false;
END
$$;

-- Says what is wrong with a departure by semel.leave_new; always raises.
CREATE FUNCTION semel.refuse_departure(
    id bytea, scope bytea, key text, fingerprint bytea, status integer, headers bytea, body bytea, max_response_bytes integer
) RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM semel.check_arrival(refuse_departure.id, refuse_departure.scope, refuse_departure.key,
        ARRAY[refuse_departure.fingerprint]);
    IF refuse_departure.status IS NULL OR refuse_departure.status NOT BETWEEN 200 AND 599 THEN
        RAISE EXCEPTION 'the status must be between 200 and 599' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF refuse_departure.status >= 500 THEN
        RAISE EXCEPTION 'an answer with status % frees the key: roll back instead', refuse_departure.status
            USING ERRCODE = 'SM005', HINT = 'ROLLBACK, and send the answer; nothing is recorded of it.';
    END IF;
    RAISE EXCEPTION 'semel.leave_new without semel.enter_new of this key, or for the second time' USING ERRCODE = 'SM003',
        HINT = 'enter_new, the handler''s statements, leave_new and COMMIT belong to one transaction.';
END
$$;

-- Leaves a key that semel.enter_new entered: writes the settled record. True: the answer is kept; false: it was too large,
-- and a tombstone stands for it. Which statuses free a key is the library's to know; 5xx always do.
CREATE FUNCTION semel.leave_new(
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
    ) IS TRUE THEN greatest(now_ms OPERATOR(pg_catalog.-) pg_catalog.substr(state, 36)::bigint, 0)
    ELSE semel.refuse_departure(leave_new.id, leave_new.scope, leave_new.key, leave_new.fingerprint, leave_new.status,
        leave_new.headers, leave_new.body, leave_new.max_response_bytes) END;
    is_kept  boolean := (pg_catalog.octet_length(leave_new.body) OPERATOR(pg_catalog.<=) leave_new.max_response_bytes
        AND pg_catalog.octet_length(leave_new.headers) OPERATOR(pg_catalog.<=) 65536) IS TRUE;
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
    -- An answer that is given must survive a crash, whatever the session prefers.
    done := pg_catalog.set_config('semel.entered', 'left', true) OPERATOR(pg_catalog.||) CASE
        WHEN pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) 'on' THEN ''
        WHEN pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) 'remote_apply' THEN ''
        ELSE pg_catalog.set_config('synchronous_commit', 'on', true) END;
    RETURN is_kept;
END
$$;

-- The store's time, for functions without a search_path.
CREATE FUNCTION semel.time_now() RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN semel.now_ms();
END
$$;

-- A transaction of the one pair cannot leave by the other, nor by another release's.
-- Leaves a key: writes the settled record into the transaction that entered it. Raises 40001 where somebody else has the key
-- by now, SM005 where the status is one that frees the key: then the transaction is to be rolled back instead.
CREATE OR REPLACE FUNCTION semel.leave(
    id bytea, status integer, headers bytea, body bytea, OUT verdict text, OUT fence text
) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    held      semel.entering;
    server_ms bigint;
    packed    bytea;
    content   bytea;
    kept      smallint := 2;
    is_first  boolean;
    done      text;
BEGIN
    held := CASE WHEN left(current_setting('semel.entered', true), 1) = '(' THEN
        current_setting('semel.entered', true)::semel.entering END;
    packed := coalesce(leave.headers, ''::bytea);
    content := coalesce(leave.body, ''::bytea);
    IF (held.id = leave.id AND held.how = 1 AND leave.status BETWEEN 200 AND 399 AND octet_length(packed) <= 65536
        AND octet_length(content) <= coalesce((held.options ->> 'max_response_bytes')::bigint, 1048576)
        AND held.state IS NULL AND NOT held.options ? 'formers') IS NOT TRUE THEN
        SELECT d.packed, d.content, d.kept INTO packed, content, kept
        FROM semel.check_departure(held, leave.id, leave.status, packed, content) AS d;
    END IF;
    IF held.how = 1 THEN
        server_ms := floor(date_part('epoch', clock_timestamp()) * 1000)::bigint;
        INSERT INTO semel.record AS r (fence, nonce, hash, scope, key, endpoint, tenant, principal, state, guarantee,
            fingerprint, fingerprint_version, payload_hash, rotation, created_at, first_lease_until, late_until,
            settled_at, expires_at, lifetime_ms, status, headers, body, client_generated_at, request_headers, request_id)
        SELECT nextval('semel.fence'), coalesce((held.options ->> 'nonce')::bigint, 0), held.id, held.scope, held.key, held.about ->> 'endpoint',
            held.about ->> 'tenant', held.about ->> 'principal', kept, 1,
            substring(held.fingerprint FROM 2), get_byte(held.fingerprint, 0), decode(held.about ->> 'payload_hash', 'hex'),
            decode(held.options ->> 'rotation', 'hex'), held.created_at, held.created_at, held.created_at, t.now,
            t.lifetime + CASE WHEN held.options ->> 'anchor' = 'created' AND held.created_at + t.lifetime > t.now
                THEN held.created_at ELSE t.now END,
            t.lifetime, leave.status, packed, content, (held.about ->> 'client_generated_at')::bigint,
            CASE WHEN held.about ?| '{client_tx_id,headers}' THEN semel.request_headers(held.about) ELSE ''::bytea END,
            coalesce(held.about ->> 'request_id', '')
        FROM (
            SELECT greatest(server_ms + c.offset_ms
                    + CASE WHEN c.jump_ms = 0 OR abs(c.jump_ms) > 60000 THEN 0 ELSE
                        greatest(-(greatest(server_ms - c.jump_at_ms, 0) / 64),
                            least(c.jump_ms, greatest(server_ms - c.jump_at_ms, 0) / 64)) END,
                    c.high_water_ms, held.created_at) AS now,
                coalesce((held.options ->> 'lifetime_ms')::bigint, 90600000) AS lifetime -- 25 h 10 min
            FROM semel.clock AS c
        ) AS t
        ON CONFLICT DO NOTHING
        RETURNING r.fence || '-' || lpad(to_hex(r.nonce), 16, '0'), r.xmin = pg_current_xact_id()::xid INTO leave.fence, is_first;
    ELSE
        SELECT semel.fence_text(w.fence, w.nonce), w.is_first INTO leave.fence, is_first
        FROM semel.overwrite(held, kept, leave.status, packed, content) AS w;
    END IF;
    IF is_first IS NOT TRUE THEN
        IF leave.fence IS NULL THEN
            RAISE EXCEPTION 'somebody else has this key by now' USING ERRCODE = 'serialization_failure',
                HINT = 'Roll back, and begin again with semel.enter.';
        END IF;
        RAISE EXCEPTION 'semel.leave inside a savepoint is refused' USING ERRCODE = 'SM003',
            HINT = 'Rolling back to the savepoint would take the record back and leave the effect: leave after it.';
    END IF;
    IF held.marker IS NOT NULL THEN
        DELETE FROM semel.entered AS e WHERE e.ctid = held.marker;
    END IF;
    leave.verdict := CASE kept WHEN 2 THEN 'settled' ELSE 'not-kept' END;
    -- An answer that is given must survive a crash, whatever the session prefers.
    done := set_config('semel.entered', 'left', true) || CASE
        WHEN current_setting('synchronous_commit') IN ('off', 'local', 'remote_write')
        THEN set_config('synchronous_commit', 'on', true) ELSE '' END;
END
$$;

CREATE OR REPLACE FUNCTION semel.grant_rights() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'semel_service') THEN
        GRANT USAGE ON SCHEMA semel TO semel_service;
        GRANT SELECT, INSERT, UPDATE, DELETE ON semel.record, semel.lease, semel.opened, semel.budget, semel.budget_id
            TO semel_service;
        GRANT SELECT, UPDATE ON semel.clock TO semel_service;
        GRANT SELECT, INSERT, UPDATE, DELETE ON semel.clock_mark TO semel_service;
        GRANT SELECT, INSERT ON semel.audit TO semel_service;
        GRANT SELECT ON semel.migration, semel.unknown TO semel_service;
        GRANT SELECT, INSERT, DELETE ON semel.cleanup TO semel_service;
        GRANT SELECT, INSERT, UPDATE, DELETE ON semel.stale, semel.form TO semel_service;
        GRANT SELECT, INSERT, UPDATE ON semel.restore TO semel_service;
        GRANT USAGE, SELECT ON SEQUENCE semel.fence TO semel_service;
        GRANT EXECUTE ON FUNCTION semel.now_ms(), semel.state(text), semel.settle(text, integer, jsonb, bytea),
            semel.confirm_clock(), semel.made_up_ms(bigint, bigint, bigint),
            semel.lock_budget(bytea, bigint, smallint, bigint),
            semel.count_request(bytea, bigint, bigint, bigint, bigint, bigint, bigint),
            semel.charge_in_window(bytea, bigint, bigint, bytea, bigint, bigint, bigint, bigint),
            semel.charge_in_log(bytea, bigint, bytea, bigint, bigint, bigint, bigint, bigint, bigint),
            semel.forget_budgets(bigint, bigint),
            semel.look(bytea, bytea, text, bytea[], jsonb), semel.admit(bytea, jsonb, jsonb),
            semel.enter(bytea, bytea, text, bytea[], jsonb, jsonb), semel.leave(bytea, integer, bytea, bytea),
            semel.enter_new(bytea, bytea, text),
            semel.leave_new(bytea, bytea, text, bytea, text, text, text, text, bigint, bytea, bytea, bytea, bigint, bigint,
                boolean, integer, integer, bytea, bytea)
            TO semel_service;
    END IF;
    IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'semel_handler') THEN
        GRANT USAGE ON SCHEMA semel TO semel_handler;
        GRANT EXECUTE ON FUNCTION semel.settle(text, integer, jsonb, bytea) TO semel_handler;
    END IF;
    IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'semel_library') THEN
        GRANT USAGE ON SCHEMA semel TO semel_library;
        GRANT EXECUTE ON FUNCTION semel.kept_headers(jsonb),
            semel.look(bytea, bytea, text, bytea[], jsonb), semel.admit(bytea, jsonb, jsonb),
            semel.enter(bytea, bytea, text, bytea[], jsonb, jsonb), semel.leave(bytea, integer, bytea, bytea),
            semel.enter_new(bytea, bytea, text),
            semel.leave_new(bytea, bytea, text, bytea, text, text, text, text, bigint, bytea, bytea, bytea, bigint, bigint,
                boolean, integer, integer, bytea, bytea)
            TO semel_library;
    END IF;
END
$$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA semel FROM PUBLIC;
SELECT semel.grant_rights();

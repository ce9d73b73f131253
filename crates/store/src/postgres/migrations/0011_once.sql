-- Once in one transaction: look up, run the handler's statements, write the settled record, commit; all in the caller's
-- own transaction, in any language. Nothing is committed before, so that a crash leaves nothing. Readers find the four
-- functions under docs/reference/sql.md.

-- A transaction that may execute and has not left yet. Its row goes with semel.leave; what stays is the trigger's event.
-- Rows are of no use after a crash, hence not written to the log.
CREATE UNLOGGED TABLE semel.entered (
    id bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- COMMIT fails unless semel.leave ran: an effect without a record is the one thing that must not be.
CREATE FUNCTION semel.refuse_unleft() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF pg_catalog.current_setting('semel.entered', true) IS DISTINCT FROM 'left' THEN
        RAISE EXCEPTION 'this transaction entered a key and did not leave it: nothing is committed'
            USING ERRCODE = 'SM004',
                HINT = 'Call semel.leave in the same transaction, at its top level, before COMMIT; autocommit does not work.';
    END IF;
    RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER entered_is_left AFTER INSERT ON semel.entered DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION semel.refuse_unleft();

-- What a transaction carries from semel.enter to semel.leave, as text in the setting semel.entered. how: 1 there is no
-- record (state 0: an expired one has its mark), 2 the record (fence, nonce, state) is replaced, 3 the gateway's claim
-- (fence, nonce) is settled.
CREATE TYPE semel.entering AS (
    id          bytea,
    scope       bytea,
    key         text,
    fingerprint bytea,
    about       jsonb,
    options     jsonb,
    how         smallint,
    fence       bigint,
    nonce       bigint,
    state       smallint,
    created_at  bigint,
    marker      tid
);

-- What is known of a key, and what an arrival may do.
CREATE TYPE semel.judgement AS (
    verdict         text,
    standing        text,
    status          integer,
    headers         bytea,
    body            bytea,
    outcome_unknown boolean,
    fence           bigint,
    nonce           bigint,
    state           smallint,
    guarantee       smallint,
    fingerprint     bytea,
    created_at      bigint,
    expires_at      bigint,
    now             bigint
);

-- The advisory lock of a key. A gateway's claims take the same.
CREATE FUNCTION semel.lock_of(id bytea) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN ('x' || encode(substring(lock_of.id FROM 1 FOR 8), 'hex'))::bit(64)::bigint;
END
$$;

-- A fence as it is written: the number, a dash, the nonce in hexadecimal.
CREATE FUNCTION semel.fence_text(fence bigint, nonce bigint) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN fence_text.fence || '-' || lpad(to_hex(fence_text.nonce), 16, '0');
END
$$;

-- Refuses arguments that cannot be: a wrong id would run a key twice under two names.
CREATE FUNCTION semel.check_arrival(id bytea, scope bytea, key text, fingerprints bytea[]) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF octet_length(check_arrival.scope) IS DISTINCT FROM 32 THEN
        RAISE EXCEPTION 'the scope must have 32 bytes' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF coalesce(char_length(check_arrival.key), 0) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION 'the key must have 1 to 255 characters' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF check_arrival.id IS DISTINCT FROM
        substring(sha256(check_arrival.scope || convert_to(check_arrival.key, 'UTF8')) FROM 1 FOR 16) THEN
        RAISE EXCEPTION 'the id must be the first 16 bytes of SHA-256 over scope and key'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF cardinality(check_arrival.fingerprints) > 0 AND octet_length(check_arrival.fingerprints[1]) IS DISTINCT FROM 33 THEN
        RAISE EXCEPTION 'a fingerprint must have 33 bytes: its version and 32 more' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN true;
END
$$;

-- Decides what an arrival may do, by what is committed at this moment. is_held: this transaction has the key's lock.
-- Expired is what the clock that a watching process has confirmed says so: without such a process nothing expires.
CREATE FUNCTION semel.judge(
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
        r.created_at, r.first_lease_until, r.expires_at, r.status, r.headers, r.body, r.outcome_unknown
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

-- What a key is known as beside its present name: under former names and scopes, and under another credential. NULL where
-- nothing of that stands in the way. has_lock: tries the locks of those names too, until the transaction ends.
CREATE FUNCTION semel.judge_formers(
    id bytea, key text, options jsonb, has_lock boolean
) RETURNS semel.judgement LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    mark        bytea := decode(judge_formers.options ->> 'rotation', 'hex');
    former      jsonb;
    scope       bytea;
    former_id   bytea;
    prints      bytea[];
    is_held     boolean;
    told        semel.judgement;
BEGIN
    FOR former IN SELECT item FROM jsonb_array_elements(judge_formers.options -> 'formers') AS item LOOP
        scope := decode(former ->> 'scope', 'hex');
        IF octet_length(scope) IS DISTINCT FROM 32 THEN
            RAISE EXCEPTION 'a former scope must have 32 bytes' USING ERRCODE = 'invalid_parameter_value';
        END IF;
        former_id := substring(sha256(scope || convert_to(judge_formers.key, 'UTF8')) FROM 1 FOR 16);
        IF former_id <> judge_formers.id THEN
            is_held := NOT judge_formers.has_lock OR pg_try_advisory_xact_lock(semel.lock_of(former_id));
            SELECT array_agg(decode(item, 'hex')) INTO prints
            FROM jsonb_array_elements_text(former -> 'fingerprints') AS item;
            told := semel.judge(former_id, scope, judge_formers.key, prints,
                judge_formers.options - 'fence' - 'first_sent', is_held);
            -- An abandoned claim may still be settled under its own name.
            IF told.standing IN ('abandoned', 'claimed') OR NOT is_held AND told.verdict = 'in-flight' THEN
                told.verdict := 'in-flight';
                RETURN told;
            END IF;
            IF told.standing NOT IN ('absent', 'expired', 'released') THEN
                RETURN told;
            END IF;
        END IF;
        IF former ? 'rotation' AND decode(former ->> 'rotation', 'hex') IS DISTINCT FROM mark
            AND semel.is_marked(decode(former ->> 'rotation', 'hex'), former_id) THEN
            told.verdict := 'credential-changed';
            RETURN told;
        END IF;
    END LOOP;
    IF mark IS NOT NULL THEN
        IF judge_formers.has_lock AND NOT pg_try_advisory_xact_lock(semel.lock_of(mark)) THEN
            told.verdict := 'in-flight';
            RETURN told;
        END IF;
        IF semel.is_marked(mark, judge_formers.id) THEN
            told.verdict := 'credential-changed';
            RETURN told;
        END IF;
    END IF;
    RETURN NULL;
END
$$;

-- Whether a record other than this key's was made with this mark of rotation and lives.
CREATE FUNCTION semel.is_marked(mark bytea, other_than bytea) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM semel.record AS r CROSS JOIN semel.clock AS c
        WHERE c.one AND r.rotation = is_marked.mark AND r.hash <> is_marked.other_than
            AND NOT (r.state IN (2, 3, 4, 6) AND coalesce(r.expires_at <= c.high_water_ms, false)));
END
$$;

-- Decides by everything that a key may be known as.
CREATE FUNCTION semel.judge_all(
    id bytea, scope bytea, key text, fingerprints bytea[], options jsonb, is_held boolean, has_lock boolean
) RETURNS semel.judgement LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    told   semel.judgement;
    former semel.judgement;
BEGIN
    told := semel.judge(judge_all.id, judge_all.scope, judge_all.key, judge_all.fingerprints,
        coalesce(judge_all.options, '{}'), judge_all.is_held);
    IF judge_all.options ?| '{formers,rotation}' AND told.standing IN ('absent', 'expired', 'released') THEN
        former := semel.judge_formers(judge_all.id, judge_all.key, judge_all.options, judge_all.has_lock);
        IF former.verdict IS NOT NULL THEN
            former.now := told.now;
            RETURN former;
        END IF;
    END IF;
    RETURN told;
END
$$;

-- Tells what is known of a key. Changes nothing and holds nothing once it returns; for autocommit, before a transaction and
-- while waiting.
CREATE FUNCTION semel.look(
    id bytea, scope bytea, key text, fingerprints bytea[], options jsonb,
    OUT verdict text, OUT status integer, OUT headers bytea, OUT body bytea, OUT fence text, OUT outcome_unknown boolean,
    OUT guarantee text, OUT fingerprint bytea, OUT created_at bigint, OUT expires_at bigint, OUT now bigint
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
END
$$;

-- Says what is wrong with an entry.
CREATE FUNCTION semel.refuse_entry(id bytea, scope bytea, key text, fingerprints bytea[], about jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF coalesce(current_setting('semel.entered', true), '') <> '' THEN
        RAISE EXCEPTION 'this transaction has entered a key before' USING ERRCODE = 'SM003',
            HINT = 'One transaction runs one request: roll back and begin another.';
    END IF;
    IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
        RAISE EXCEPTION 'semel.enter must be the first write of its transaction' USING ERRCODE = 'SM003',
            HINT = 'Roll back and call semel.enter before any statement that writes or locks rows.';
    END IF;
    PERFORM semel.check_arrival(refuse_entry.id, refuse_entry.scope, refuse_entry.key, refuse_entry.fingerprints);
    RAISE EXCEPTION 'about must name the endpoint and the principal' USING ERRCODE = 'invalid_parameter_value';
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
    OUT guarantee text, OUT fingerprint bytea, OUT created_at bigint, OUT expires_at bigint, OUT now bigint
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
END
$$;

-- Says what is wrong with a departure, or what is written in another way than usual: an answer that is too large is not kept;
-- a key with former names is looked up under them again.
CREATE FUNCTION semel.check_departure(
    held semel.entering, id bytea, status integer, INOUT packed bytea, INOUT content bytea, OUT kept smallint
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    max_headers_bytes CONSTANT integer := 65536;
    max_bytes bigint := coalesce((check_departure.held.options ->> 'max_response_bytes')::bigint, 1048576);
    mark      bytea  := decode(check_departure.held.options ->> 'rotation', 'hex');
BEGIN
    IF check_departure.held.id IS NULL THEN
        RAISE EXCEPTION 'semel.leave without semel.enter, or for the second time' USING ERRCODE = 'SM003',
            HINT = 'enter, the handler''s statements, leave and COMMIT belong to one transaction.';
    END IF;
    IF check_departure.held.id IS DISTINCT FROM check_departure.id THEN
        RAISE EXCEPTION 'semel.leave of another key than the one that was entered' USING ERRCODE = 'SM003';
    END IF;
    IF check_departure.status IS NULL OR check_departure.status NOT BETWEEN 200 AND 599 THEN
        RAISE EXCEPTION 'the status must be between 200 and 599' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF check_departure.status >= 500 OR coalesce(check_departure.held.options -> 'releases',
        '[401, 403, 408, 409, 425, 429]') @> to_jsonb(check_departure.status) THEN
        RAISE EXCEPTION 'an answer with status % frees the key: roll back instead', check_departure.status
            USING ERRCODE = 'SM005', HINT = 'ROLLBACK, and send the answer; nothing is recorded of it.';
    END IF;
    IF check_departure.held.how = 3 THEN
        SELECT coalesce(r.max_response_bytes, max_bytes) INTO max_bytes FROM semel.record AS r
        WHERE r.fence = check_departure.held.fence;
    END IF;
    check_departure.kept := 2;
    IF octet_length(check_departure.packed) > max_headers_bytes THEN
        check_departure.kept := 3;
        check_departure.packed := ''::bytea;
    END IF;
    IF octet_length(check_departure.content) > max_bytes OR check_departure.kept = 3 THEN
        -- What is too large is not kept; that it took effect is.
        check_departure.kept := 3;
        check_departure.content := ''::bytea;
    END IF;
    IF check_departure.held.options ?| '{formers,rotation}' THEN
        IF (semel.judge_formers(check_departure.held.id, check_departure.held.key, check_departure.held.options, true)).verdict
            IS NOT NULL THEN
            RAISE EXCEPTION 'this key came to be known by another name meanwhile' USING ERRCODE = 'serialization_failure';
        END IF;
        -- An expired record gives its place up to the same request under another credential.
        UPDATE semel.record AS r SET rotation = NULL FROM semel.clock AS c
        WHERE r.rotation = mark AND r.hash <> check_departure.held.id AND r.state IN (2, 3, 4, 6)
            AND r.expires_at <= c.high_water_ms;
    END IF;
END
$$;

-- Leaves a key: writes the settled record into the transaction that entered it. Raises 40001 where somebody else has the key
-- by now, SM005 where the status is one that frees the key: then the transaction is to be rolled back instead.
CREATE FUNCTION semel.leave(
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
    held := nullif(nullif(current_setting('semel.entered', true), ''), 'left')::semel.entering;
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

-- The request's headers that are kept, as the store keeps them: given so in hexadecimal, or the client's own number of its
-- transaction.
CREATE FUNCTION semel.request_headers(about jsonb) RETURNS bytea LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    value bytea;
BEGIN
    IF request_headers.about ? 'headers' THEN
        RETURN decode(request_headers.about ->> 'headers', 'hex');
    END IF;
    IF NOT request_headers.about ? 'client_tx_id' THEN
        RETURN ''::bytea;
    END IF;
    value := convert_to(request_headers.about ->> 'client_tx_id', 'UTF8');
    RETURN int2send(14::smallint) || 'x-client-tx-id'::bytea || int4send(octet_length(value)) || value;
END
$$;

-- Writes over the very record that semel.enter saw: one that had expired, was released or abandoned, or the claim of the
-- gateway in front. No row where somebody else has changed it meanwhile.
CREATE FUNCTION semel.overwrite(
    held semel.entering, kept smallint, status integer, packed bytea, content bytea,
    OUT fence bigint, OUT nonce bigint, OUT is_first boolean
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    now_ms   bigint := greatest(semel.now_ms(), overwrite.held.created_at);
    lifetime bigint := coalesce((overwrite.held.options ->> 'lifetime_ms')::bigint, 90600000); -- 25 h 10 min
    old      bigint := overwrite.held.fence;
BEGIN
    IF overwrite.held.how = 3 THEN
        UPDATE semel.record AS r SET state = overwrite.kept, status = overwrite.status, headers = overwrite.packed,
            body = overwrite.content, outcome_unknown = false, settled_at = now_ms,
            expires_at = coalesce(r.lifetime_ms, lifetime)
                + CASE WHEN r.anchor = 1 AND r.state = 1
                    AND r.created_at + coalesce(r.lifetime_ms, lifetime) > now_ms
                    THEN r.created_at ELSE now_ms END
        WHERE r.fence = old AND r.nonce = overwrite.held.nonce AND r.state IN (1, 5) AND r.guarantee IN (1, 2)
        RETURNING r.fence, r.nonce, r.xmin = pg_current_xact_id()::xid
        INTO overwrite.fence, overwrite.nonce, overwrite.is_first;
        RETURN;
    END IF;
    UPDATE semel.record AS r SET fence = nextval('semel.fence'),
        nonce = coalesce((overwrite.held.options ->> 'nonce')::bigint, 0), state = overwrite.kept, guarantee = 1,
        fingerprint = substring(overwrite.held.fingerprint FROM 2),
        fingerprint_version = get_byte(overwrite.held.fingerprint, 0),
        payload_hash = decode(overwrite.held.about ->> 'payload_hash', 'hex'), rotation = decode(overwrite.held.options ->> 'rotation', 'hex'),
        created_at = overwrite.held.created_at, first_lease_until = overwrite.held.created_at,
        late_until = overwrite.held.created_at, endpoint = overwrite.held.about ->> 'endpoint',
        tenant = overwrite.held.about ->> 'tenant', principal = overwrite.held.about ->> 'principal',
        client_generated_at = (overwrite.held.about ->> 'client_generated_at')::bigint,
        request_headers = semel.request_headers(overwrite.held.about),
        request_id = coalesce(overwrite.held.about ->> 'request_id', ''), settled_at = now_ms,
        expires_at = CASE WHEN overwrite.held.options ->> 'anchor' = 'created' AND overwrite.held.created_at + lifetime > now_ms
            THEN overwrite.held.created_at ELSE now_ms END + lifetime,
        lifetime_ms = lifetime, anchor = NULL, max_response_bytes = NULL, status = overwrite.status,
        headers = overwrite.packed, body = overwrite.content, outcome_unknown = false
    WHERE r.fence = old AND r.nonce = overwrite.held.nonce AND r.state = overwrite.held.state
    RETURNING r.fence, r.nonce, r.xmin = pg_current_xact_id()::xid
    INTO overwrite.fence, overwrite.nonce, overwrite.is_first;
    UPDATE semel.lease AS l SET ended = true WHERE l.fence = old;
END
$$;

-- Whose budget is spent, as a gate counts it: the principal's, at all routes that have this limit.
CREATE FUNCTION semel.budget_of(stage text, rate jsonb, about jsonb) RETURNS bytea LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    part    text;
    subject bytea := ''::bytea;
BEGIN
    FOREACH part IN ARRAY ARRAY[budget_of.stage, (budget_of.rate ->> 'count') || '/' || (budget_of.rate ->> 'window_ms'),
        coalesce(budget_of.about ->> 'tenant', ''), budget_of.about ->> 'principal'] LOOP
        subject := subject || int8send(octet_length(convert_to(part, 'UTF8'))::bigint) || convert_to(part, 'UTF8');
    END LOOP;
    RETURN substring(sha256(subject) FROM 1 FOR 16);
END
$$;

-- Whether a new key still fits its principal's budgets; for autocommit, before the transaction: inside, the budget's row
-- would be held until the handler commits.
CREATE FUNCTION semel.admit(
    id bytea, about jsonb, limits jsonb, OUT verdict text, OUT retry_after_ms bigint, OUT remaining bigint
) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    whole    CONSTANT bigint := 65536;
    now_ms   bigint := semel.now_ms();
    rate     jsonb;
    span     bigint;
    allowed  bigint;
    left_ms  bigint;
    who      bytea;
    counted  record;
    charged  record;
BEGIN
    admit.verdict := 'admitted';
    IF octet_length(admit.id) IS DISTINCT FROM 16 OR admit.about ->> 'principal' IS NULL THEN
        RAISE EXCEPTION 'the id must have 16 bytes, and about must name the principal'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF admit.limits -> 'request' IS NOT NULL THEN
        rate := admit.limits -> 'request';
        allowed := (rate ->> 'count')::bigint;
        span := greatest((rate ->> 'window_ms')::bigint, 1);
        left_ms := span - mod(now_ms, span);
        counted := semel.count_request(semel.budget_of('request', rate, admit.about), span, now_ms / span,
            (left_ms * whole + span - 1) / span, whole, allowed, now_ms + 3 * span);
        IF NOT counted.counted THEN
            admit.verdict := 'request-limited';
            admit.retry_after_ms := left_ms;
            admit.remaining := 0;
            RETURN;
        END IF;
    END IF;
    IF admit.limits -> 'admission' IS NOT NULL THEN
        rate := admit.limits -> 'admission';
        allowed := (rate ->> 'count')::bigint;
        span := greatest((rate ->> 'window_ms')::bigint, 1);
        who := semel.budget_of('admission', rate, admit.about);
        IF rate ->> 'charge' = 'id-window' THEN
            charged := semel.charge_in_window(who, span, now_ms / span, admit.id, allowed,
                coalesce((rate ->> 'attempts_per_id')::bigint, 100), now_ms, now_ms + 2 * span);
            left_ms := span - mod(now_ms, span);
        ELSE
            charged := semel.charge_in_log(who, span, admit.id, allowed,
                coalesce((rate ->> 'attempts_per_id')::bigint, 100), now_ms, now_ms - span, 512, now_ms + 2 * span);
            left_ms := CASE WHEN charged.leaving < 0 THEN span ELSE charged.leaving + span - now_ms END;
        END IF;
        admit.remaining := greatest(allowed - charged.used, 0);
        IF charged.step IN (2, 3) THEN
            admit.verdict := 'admission-limited';
            admit.retry_after_ms := greatest(left_ms, 0);
            RETURN;
        END IF;
    END IF;
    IF (admit.limits ->> 'stale')::boolean THEN
        INSERT INTO semel.stale AS s (principal, tenant, count, first_at, last_at)
        VALUES (admit.about ->> 'principal', coalesce(admit.about ->> 'tenant', ''), 1, now_ms, now_ms)
        ON CONFLICT (principal, tenant) DO UPDATE SET count = s.count + 1, last_at = excluded.last_at;
    END IF;
END
$$;

-- Makes the role, where that is allowed.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'semel_library') THEN
        CREATE ROLE semel_library NOLOGIN;
    END IF;
EXCEPTION
    -- Roles belong to the whole server: another database may be migrated at the same time.
    WHEN duplicate_object OR unique_violation THEN NULL;
    WHEN insufficient_privilege THEN
        RAISE NOTICE 'role semel_library was not created: % may not; create it and call semel.grant_rights()', current_user;
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
            semel.enter(bytea, bytea, text, bytea[], jsonb, jsonb), semel.leave(bytea, integer, bytea, bytea)
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
            semel.enter(bytea, bytea, text, bytea[], jsonb, jsonb), semel.leave(bytea, integer, bytea, bytea)
            TO semel_library;
    END IF;
END
$$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA semel FROM PUBLIC;
SELECT semel.grant_rights();

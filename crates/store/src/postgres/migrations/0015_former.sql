-- Three ways in which a key could be free for one and not for another.

-- What was committed under a former name since a transaction began is not seen by it in REPEATABLE READ and SERIALIZABLE, and
-- no unique index stands between two names: there former names are refused instead of believed.
CREATE OR REPLACE FUNCTION semel.judge_formers(
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
    IF judge_formers.has_lock AND current_setting('transaction_isolation') <> 'read committed'
        AND judge_formers.options ? 'formers' THEN
        RAISE EXCEPTION 'former names need READ COMMITTED' USING ERRCODE = 'SM003',
            HINT = 'A transaction of another isolation level does not see what was committed under a former name since it '
                'began: enter in READ COMMITTED as long as there are former names.';
    END IF;
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

-- Tells what is known of a key. Changes nothing and holds nothing once it returns; for autocommit, before a transaction and
-- while waiting.
CREATE OR REPLACE FUNCTION semel.look(
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
    -- Taken for this moment only, and shared: those who wait do not stand in each other's way. In one expression: whoever is
    -- cancelled between two statements would leave the lock to its session.
    is_free := pg_try_advisory_lock_shared(place) AND pg_advisory_unlock_shared(place);
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

-- Erasure with its owner. What has expired is what the confirmed clock says so, as everywhere: after a jump of the server's clock
-- a key that may still be tried stays known as used.
CREATE OR REPLACE FUNCTION semel.forget_deleted() RETURNS trigger
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
        SELECT r.fence, r.state <> 4 AND coalesce(r.expires_at > c.high_water_ms, false) AS stays
        FROM semel.record r, semel.clock c
        WHERE c.one AND r.principal = whose AND r.tenant IS NOT DISTINCT FROM group_ AND r.state IN (2, 3, 4, 6)
        ORDER BY r.fence FOR UPDATE OF r
    ), erased AS (
        DELETE FROM semel.record r USING theirs WHERE r.fence = theirs.fence AND NOT theirs.stays
    ), bared AS (
        UPDATE semel.record r SET state = CASE r.state WHEN 6 THEN 6 ELSE 3 END, endpoint = '', tenant = NULL,
            principal = '', fingerprint = NULL, fingerprint_version = NULL, payload_hash = NULL,
            status = CASE WHEN r.state = 6 THEN NULL WHEN r.status >= 400 THEN r.status ELSE 0 END, headers = NULL, body = NULL,
            outcome_unknown = r.state <> 6 AND (coalesce(r.outcome_unknown, false) OR coalesce(r.status >= 500, false)),
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

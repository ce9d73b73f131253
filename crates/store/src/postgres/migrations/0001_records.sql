-- The tables of the claim store. All times are milliseconds since 1970-01-01T00:00:00Z by semel.now_ms().

-- Numbers are never given twice. A cache would let a session give an old number after a newer one.
CREATE SEQUENCE semel.fence AS bigint CACHE 1 NO CYCLE;

-- One row for each key. state: 1 claimed, 2 settled, 3 unkept, 4 released, 5 unknown, 6 sealed.
-- guarantee: 1 atomic, 2 fenced, 3 none. anchor: 1 from the claim, 2 from the settlement.
CREATE TABLE semel.record (
    fence               bigint   PRIMARY KEY,
    nonce               bigint   NOT NULL,
    hash                bytea    NOT NULL CHECK (octet_length(hash) = 16),
    scope               bytea    NOT NULL CHECK (octet_length(scope) = 32),
    key                 text     COLLATE "C" NOT NULL,
    endpoint            text     COLLATE "C" NOT NULL,
    tenant              text     COLLATE "C",
    principal           text     COLLATE "C" NOT NULL,
    state               smallint NOT NULL CHECK (state BETWEEN 1 AND 6),
    guarantee           smallint NOT NULL CHECK (guarantee BETWEEN 1 AND 3),
    fingerprint         bytea    CHECK (octet_length(fingerprint) = 32),
    fingerprint_version smallint CHECK ((fingerprint IS NULL) = (fingerprint_version IS NULL)),
    payload_hash        bytea    CHECK (octet_length(payload_hash) = 32),
    rotation            bytea    CHECK (octet_length(rotation) = 16),
    created_at          bigint   NOT NULL,
    first_lease_until   bigint   NOT NULL,
    late_until          bigint   NOT NULL,
    settled_at          bigint,
    expires_at          bigint,
    lifetime_ms         bigint   CHECK (lifetime_ms > 0),
    anchor              smallint CHECK (anchor BETWEEN 1 AND 2),
    max_response_bytes  integer  CHECK (max_response_bytes >= 0),
    status              integer,
    headers             bytea,
    body                bytea,
    outcome_unknown     boolean  NOT NULL DEFAULT false,
    client_generated_at bigint,
    request_headers     bytea    NOT NULL,
    request_id          text     COLLATE "C" NOT NULL,
    -- A claim and an unknown outcome never expire.
    CHECK (expires_at IS NULL OR state NOT IN (1, 5))
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);

CREATE UNIQUE INDEX record_hash ON semel.record (hash);
CREATE UNIQUE INDEX record_rotation ON semel.record (rotation) WHERE rotation IS NOT NULL;
CREATE INDEX record_expires_at ON semel.record (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX record_principal ON semel.record (principal, fence);

-- Leases have a table of their own, so that a renewal never changes the row that a handler settles. Nothing but the
-- key is indexed and pages are left half empty, so that a renewal stays within its page.
CREATE TABLE semel.lease (
    fence       bigint PRIMARY KEY,
    lease_until bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- The store's clock: one row. offset_ms is added to the server's clock. Every change of the row that is meant, by an
-- operator or by a store that found the server's clock to have jumped, counts the revision up; a jump of the time
-- without one is not believed. jump_ms is what is not believed at present.
CREATE TABLE semel.clock (
    one           boolean PRIMARY KEY DEFAULT true CHECK (one),
    offset_ms     bigint  NOT NULL DEFAULT 0,
    jump_ms       bigint  NOT NULL DEFAULT 0,
    frozen        boolean GENERATED ALWAYS AS (jump_ms > 60000) STORED,
    high_water_ms bigint  NOT NULL DEFAULT 0,
    revision      bigint  NOT NULL DEFAULT 1
) WITH (fillfactor = 10);

INSERT INTO semel.clock DEFAULT VALUES;

-- What people did. Append-only: see the trigger.
CREATE TABLE semel.audit (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at     bigint NOT NULL,
    action text   NOT NULL,
    actor  text   NOT NULL,
    fence  text,
    reason text   NOT NULL,
    count  bigint NOT NULL
);

CREATE FUNCTION semel.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'semel.audit is append-only' USING ERRCODE = 'insufficient_privilege',
        HINT = 'Rows of the audit trail are neither changed nor removed.';
END
$$;

CREATE TRIGGER audit_is_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON semel.audit
    FOR EACH STATEMENT EXECUTE FUNCTION semel.refuse_change();

-- The store's time. It does not go back behind the last mark that was kept.
CREATE FUNCTION semel.now_ms() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT greatest(
        floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + clock.offset_ms, clock.high_water_ms)
    FROM semel.clock
$$;

-- Moves the store's clock on purpose: for tests, and for operators who know better than the server.
CREATE FUNCTION semel.shift_clock(by_ms bigint) RETURNS void LANGUAGE sql VOLATILE AS $$
    UPDATE semel.clock SET offset_ms = offset_ms + by_ms, revision = revision + 1
$$;

-- An operator confirms that the server's clock is right: what was not believed is believed from now on. Only a jump
-- ahead is confirmed; after one back, time goes on from where it was, since it never goes back.
CREATE FUNCTION semel.confirm_clock() RETURNS void LANGUAGE sql VOLATILE AS $$
    UPDATE semel.clock SET offset_ms = offset_ms + jump_ms, jump_ms = 0, revision = revision + 1 WHERE jump_ms > 0
$$;

-- The feed's tables, for PostgreSQL 13 and later. To be run by the owner of the database after `semel migrate`, and again without
-- harm. Everybody sees everything and changes only what is their own: the row policies say so, not the service.

DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'feed_service') THEN CREATE ROLE feed_service LOGIN; END IF;
END $$;
GRANT semel_library TO feed_service;

CREATE TABLE IF NOT EXISTS person (
    id     uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name   text NOT NULL UNIQUE CHECK (length(name) BETWEEN 1 AND 40),
    -- Whether the broker knows them.
    joined boolean NOT NULL DEFAULT false
);
CREATE TABLE IF NOT EXISTS post (
    id      uuid PRIMARY KEY,
    author  uuid NOT NULL REFERENCES person ON DELETE CASCADE,
    words   text NOT NULL CHECK (length(words) BETWEEN 1 AND 2000),
    made_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
-- Two devices have two keys; that a like counts once for each person is said here.
CREATE TABLE IF NOT EXISTS liked (
    post   uuid NOT NULL REFERENCES post ON DELETE CASCADE,
    person uuid NOT NULL REFERENCES person ON DELETE CASCADE,
    PRIMARY KEY (post, person)
);
CREATE TABLE IF NOT EXISTS comment (
    id      uuid PRIMARY KEY,
    post    uuid NOT NULL REFERENCES post ON DELETE CASCADE,
    author  uuid NOT NULL REFERENCES person ON DELETE CASCADE,
    words   text NOT NULL CHECK (length(words) BETWEEN 1 AND 2000),
    made_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
-- What the broker is still to be told; written in the transaction of the effect.
CREATE TABLE IF NOT EXISTS event (
    number       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id           uuid NOT NULL DEFAULT gen_random_uuid(),
    client_tx_id text,
    body         jsonb NOT NULL
);
CREATE INDEX IF NOT EXISTS post_made_at ON post (made_at);
CREATE INDEX IF NOT EXISTS comment_post ON comment (post, made_at);

-- The keys of a person go with the person.
DROP TRIGGER IF EXISTS forget_keys ON person;
CREATE TRIGGER forget_keys AFTER DELETE ON person FOR EACH ROW EXECUTE FUNCTION semel.forget_deleted('id');

CREATE OR REPLACE FUNCTION me() RETURNS uuid LANGUAGE sql STABLE AS $$ SELECT nullif(current_setting('feed.me', true), '')::uuid $$;

DO $$
DECLARE
    place text;
    owner text;
BEGIN
    FOR place, owner IN VALUES ('person', 'id'), ('post', 'author'), ('liked', 'person'), ('comment', 'author') LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', place);
        EXECUTE format('DROP POLICY IF EXISTS seen ON %I', place);
        EXECUTE format('DROP POLICY IF EXISTS made ON %I', place);
        EXECUTE format('DROP POLICY IF EXISTS gone ON %I', place);
        EXECUTE format('CREATE POLICY seen ON %I FOR SELECT USING (true)', place);
        EXECUTE format('CREATE POLICY made ON %I FOR INSERT WITH CHECK (%I = me())', place, owner);
        EXECUTE format('CREATE POLICY gone ON %I FOR DELETE USING (%I = me())', place, owner);
        EXECUTE format('GRANT SELECT, INSERT, DELETE ON %I TO feed_service', place);
    END LOOP;
END $$;
DROP POLICY IF EXISTS joined ON person;
CREATE POLICY joined ON person FOR UPDATE USING (true);
GRANT UPDATE (joined) ON person TO feed_service;
GRANT SELECT, INSERT, DELETE ON event TO feed_service;

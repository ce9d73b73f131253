-- The game's tables, for PostgreSQL 13 and later. To be run by the owner of the database after `semel migrate`, and again without harm.

DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'walker_service') THEN CREATE ROLE walker_service LOGIN; END IF;
END $$;
GRANT semel_library TO walker_service;

CREATE TABLE IF NOT EXISTS walker (
    id                 uuid PRIMARY KEY,
    name               text NOT NULL UNIQUE CHECK (length(name) BETWEEN 1 AND 40),
    -- The lock of its row decides who spends; this decides that nobody overspends.
    tree_points_banked integer NOT NULL DEFAULT 0 CHECK (tree_points_banked >= 0)
);
CREATE TABLE IF NOT EXISTS allocation (
    walker_id uuid NOT NULL REFERENCES walker ON DELETE CASCADE,
    node      text NOT NULL,
    points    integer NOT NULL CHECK (points > 0),
    PRIMARY KEY (walker_id, node)
);
CREATE TABLE IF NOT EXISTS quest_run (
    walker_id    uuid NOT NULL REFERENCES walker ON DELETE CASCADE,
    quest_id     integer NOT NULL,
    step         integer NOT NULL DEFAULT 0,
    completed_at timestamptz,
    PRIMARY KEY (walker_id, quest_id)
);
CREATE TABLE IF NOT EXISTS step_count (
    walker_id uuid NOT NULL REFERENCES walker ON DELETE CASCADE,
    key       text NOT NULL,
    steps     integer NOT NULL CHECK (steps >= 0),
    PRIMARY KEY (walker_id, key)
);
GRANT SELECT, INSERT, UPDATE, DELETE ON walker, allocation, quest_run, step_count TO walker_service;

-- The keys of a walker go with the walker.
DROP TRIGGER IF EXISTS forget_keys ON walker;
CREATE TRIGGER forget_keys AFTER DELETE ON walker FOR EACH ROW EXECUTE FUNCTION semel.forget_deleted('id');

-- The forms in which gates make the ids and fingerprints of requests, so that a key stays known when the configuration
-- changes. `gate` is the gate's name, `form` its own description.
CREATE TABLE semel_form (
    gate     TEXT    NOT NULL,
    form     TEXT    NOT NULL,
    kept_ms  INTEGER NOT NULL,
    first_at INTEGER NOT NULL,
    since    INTEGER NOT NULL,
    last_at  INTEGER NOT NULL,
    PRIMARY KEY (gate, form)
) STRICT, WITHOUT ROWID;

-- Refusals of a principal's credentials in a row: a provider that mints another one each time is asked less and less often.
ALTER TABLE relay_credential ADD COLUMN failures INTEGER NOT NULL DEFAULT 0;

-- Credentials that callers gave, sealed under the at-rest key. A credential is for one origin alone.
CREATE TABLE relay_given (
    target    TEXT NOT NULL,
    principal TEXT NOT NULL,
    origin    TEXT NOT NULL,
    sealed    TEXT NOT NULL,
    at_ms     INTEGER NOT NULL,
    PRIMARY KEY (target, principal)
) STRICT;

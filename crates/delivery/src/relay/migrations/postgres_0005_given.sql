-- Refusals of a principal's credentials in a row: a provider that mints another one each time is asked less and less often.
ALTER TABLE relay_credential ADD COLUMN failures bigint NOT NULL DEFAULT 0;

-- Credentials that callers gave, sealed under the at-rest key. A credential is for one origin alone.
CREATE TABLE relay_given (
    target    text NOT NULL,
    principal text NOT NULL,
    origin    text NOT NULL,
    sealed    text NOT NULL,
    at_ms     bigint NOT NULL,
    PRIMARY KEY (target, principal)
);
SELECT semel_relay.grant_rights();

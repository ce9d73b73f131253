-- Principals that have signed out: their messages are parked until they sign in again, in whatever process.
CREATE TABLE outbox_signed_out (
    principal TEXT PRIMARY KEY NOT NULL,
    at        INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Principals that have signed out: their messages are parked until they sign in again, in whatever process.
CREATE TABLE outbox_signed_out (
    principal TEXT PRIMARY KEY NOT NULL,
    at        INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What expired under an earlier release was told by it.
INSERT INTO outbox_events (at, kind, detail)
    SELECT max(at), 'expiry', '[]' FROM outbox_events WHERE kind = 'expired' HAVING count(*) > 0;

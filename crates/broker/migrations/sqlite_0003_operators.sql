-- What operators and owners did by hand: written with what it tells of, and never changed.
CREATE TABLE operator_audit (
    number  INTEGER PRIMARY KEY AUTOINCREMENT,
    at      INTEGER NOT NULL,
    actor   TEXT NOT NULL,
    action  TEXT NOT NULL,
    mesh    TEXT NOT NULL,
    subject TEXT NOT NULL,
    detail  TEXT NOT NULL,
    reason  TEXT NOT NULL
) STRICT;
CREATE TRIGGER operator_audit_no_update BEFORE UPDATE ON operator_audit
    BEGIN SELECT RAISE(ABORT, 'the audit trail is append-only'); END;
CREATE TRIGGER operator_audit_no_delete BEFORE DELETE ON operator_audit
    BEGIN SELECT RAISE(ABORT, 'the audit trail is append-only'); END;
-- REPLACE removes without a trigger for it.
CREATE TRIGGER operator_audit_no_replace BEFORE INSERT ON operator_audit
    WHEN EXISTS (SELECT 1 FROM operator_audit WHERE number = NEW.number)
    BEGIN SELECT RAISE(ABORT, 'the audit trail is append-only'); END;

-- REPLACE removes a row without firing the trigger that forbids it.
CREATE TRIGGER semel_audit_is_not_replaced BEFORE INSERT ON semel_audit
WHEN EXISTS (SELECT 1 FROM semel_audit WHERE number = NEW.number)
BEGIN
    SELECT RAISE(ABORT, 'the audit trail is append-only');
END;

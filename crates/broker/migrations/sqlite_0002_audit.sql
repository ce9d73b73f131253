-- Why something was done, where people say so.
ALTER TABLE audit_log ADD COLUMN detail TEXT;

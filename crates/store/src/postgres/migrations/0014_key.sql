-- Operators find a record by its key alone, whoever it belongs to. By the hash of the key, which is small however long keys are;
-- a settlement does not touch it. Whoever cannot keep writers waiting while it is built makes it before, under this name, with
-- CREATE INDEX CONCURRENTLY: it is taken as it is.
CREATE INDEX IF NOT EXISTS record_key ON semel.record USING hash (key);

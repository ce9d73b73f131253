-- Operators find a record by its key alone, whoever it belongs to. By four bytes of the key's hash, in an index to which a
-- claim appends: autovacuum sorts what is new in, many keys at a time, and until then a search reads it as it is. An index
-- into which every claim sorts its own key writes a quarter more to the disk. A settlement does not touch it. Whoever cannot
-- keep writers waiting while it is built makes it before, under this name, with CREATE INDEX CONCURRENTLY: it is taken as it is.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass('semel.record_key') AND NOT indisvalid) THEN
        RAISE EXCEPTION 'the index semel.record_key was not built to its end: drop it and build it again';
    END IF;
    IF to_regclass('semel.record_key') IS NULL
        AND (SELECT reltuples FROM pg_class WHERE oid = 'semel.record'::regclass) > 5000000 THEN
        RAISE EXCEPTION 'to build the index semel.record_key here would keep writers waiting for minutes'
            USING HINT = 'Build it before, beside them: CREATE INDEX CONCURRENTLY record_key ON semel.record USING gin ((ARRAY[hashtext(key)])) WITH (fastupdate = on, gin_pending_list_limit = 16384);';
    END IF;
END
$$;
CREATE INDEX IF NOT EXISTS record_key ON semel.record USING gin ((ARRAY[hashtext(key)]))
    WITH (fastupdate = on, gin_pending_list_limit = 16384);

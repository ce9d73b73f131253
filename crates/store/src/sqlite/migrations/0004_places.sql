-- Every write is an append. Which rows a key has is known in memory, filled at the start from the one index that is left:
-- in order of expiry, with everything that has to be known of a row.

-- Which principal a row is of, in four bytes. NULL where an older release wrote the row.
ALTER TABLE semel_claim ADD COLUMN who INTEGER;
ALTER TABLE semel_record ADD COLUMN who INTEGER;

DROP INDEX semel_claim_hash;
DROP INDEX semel_claim_rotation;
DROP INDEX semel_record_hash;
DROP INDEX semel_record_rotation;
DROP INDEX semel_record_principal;
DROP INDEX semel_record_expiry;

-- The same checks without lists: for every list of three or more SQLite builds a table of its own with every row that is
-- written. Rows are as they were, so only the words change, as SQLite's documents describe for constraints.
PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql = replace(replace(sql,
    'CHECK (state IN (''settled'', ''unkept'', ''released'', ''sealed''))',
    'CHECK (state = ''settled'' OR state = ''unkept'' OR state = ''released'' OR state = ''sealed'')'),
    'CHECK (guarantee IN (''atomic'', ''fenced'', ''none''))',
    'CHECK (guarantee = ''fenced'' OR guarantee = ''atomic'' OR guarantee = ''none'')')
WHERE type = 'table' AND name IN ('semel_claim', 'semel_record');
PRAGMA writable_schema = RESET;

CREATE INDEX semel_record_brief ON semel_record (expires_at, hash, who, rotation);

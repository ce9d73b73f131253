-- Moderations of a line have numbers, so that readers who are there hear of each: counted by the line, and written beside the message.
ALTER TABLE semel_broker.line ADD COLUMN moderated bigint NOT NULL DEFAULT 0;
ALTER TABLE semel_broker.message_history ADD COLUMN moderation bigint;
CREATE INDEX message_history_moderation ON semel_broker.message_history (line, moderation) WHERE moderation IS NOT NULL;
CREATE FUNCTION semel_broker.number_moderation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE semel_broker.line SET moderated = moderated + 1 WHERE line = NEW.line RETURNING moderated INTO NEW.moderation;
    RETURN NEW;
END
$$;
CREATE TRIGGER moderation_is_numbered BEFORE UPDATE OF moderated_at ON semel_broker.message_history
    FOR EACH ROW WHEN (OLD.moderated_at IS NULL AND NEW.moderated_at IS NOT NULL)
    EXECUTE FUNCTION semel_broker.number_moderation();

-- The words of a line are in the order of its numbers, which is the order of commits: a page goes on where the one before ended.
ALTER TABLE semel_broker.search_word DROP CONSTRAINT search_word_pkey, ADD PRIMARY KEY (mesh_id, word, line, number);
SELECT semel_broker.grant_rights();

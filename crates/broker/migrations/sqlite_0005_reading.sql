-- Moderations of a line have numbers, so that readers who are there hear of each: counted by the line, and written beside the message.
ALTER TABLE line ADD COLUMN moderated INTEGER NOT NULL DEFAULT 0;
ALTER TABLE message_history ADD COLUMN moderation INTEGER;
CREATE INDEX message_history_moderation ON message_history (line, moderation) WHERE moderation IS NOT NULL;
CREATE TRIGGER moderation_is_numbered AFTER UPDATE OF moderated_at ON message_history
    WHEN OLD.moderated_at IS NULL AND NEW.moderated_at IS NOT NULL
    BEGIN
        UPDATE line SET moderated = moderated + 1 WHERE line = NEW.line;
        UPDATE message_history SET moderation = (SELECT moderated FROM line WHERE line = NEW.line)
            WHERE line = NEW.line AND number = NEW.number;
    END;

-- The words of a line are in the order of its numbers, which is the order of commits: a page goes on where the one before ended.
CREATE TABLE search_word_of_line (
    mesh_id     TEXT NOT NULL,
    word        TEXT NOT NULL,
    broker_message_id TEXT NOT NULL,
    line        INTEGER NOT NULL,
    number      INTEGER NOT NULL,
    PRIMARY KEY (mesh_id, word, line, number)
) STRICT, WITHOUT ROWID;
INSERT INTO search_word_of_line SELECT mesh_id, word, broker_message_id, line, number FROM search_word;
DROP TABLE search_word;
ALTER TABLE search_word_of_line RENAME TO search_word;
CREATE INDEX search_word_message ON search_word (line, number);

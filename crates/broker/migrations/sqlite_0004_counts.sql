-- Whoever makes a row counts it, also a broker of an earlier release, which knows nothing of counts: a row that is removed by hand
-- is missed. Nothing but tokens and cancelled ids is ever removed, so that nothing else is counted off.
CREATE TRIGGER mesh_is_counted AFTER INSERT ON mesh
    BEGIN UPDATE broker_meta SET value = value + 1 WHERE name = 'meshes'; END;
CREATE TRIGGER member_is_counted AFTER INSERT ON member
    BEGIN UPDATE mesh SET members = members + 1 WHERE id = NEW.mesh_id; END;
CREATE TRIGGER line_is_counted AFTER INSERT ON line
    BEGIN UPDATE mesh SET lines = lines + 1 WHERE id = NEW.mesh_id; END;
CREATE TRIGGER webhook_is_counted AFTER INSERT ON webhook
    BEGIN UPDATE mesh SET webhooks = webhooks + 1 WHERE id = NEW.mesh_id; END;
CREATE TRIGGER interval_is_counted AFTER INSERT ON topic_subscription
    BEGIN UPDATE line SET intervals = intervals + 1 WHERE line = NEW.line; END;
CREATE TRIGGER cursor_is_counted AFTER INSERT ON ack_cursor
    BEGIN UPDATE line SET cursors = cursors + 1 WHERE line = NEW.line; END;

-- A member's tokens are replaced as a whole, after its row was written: they are counted from nothing then.
CREATE TRIGGER tokens_are_replaced AFTER UPDATE OF role, left_at ON member
    BEGIN UPDATE member SET tokens = 0 WHERE mesh_id = NEW.mesh_id AND member = NEW.member; END;
CREATE TRIGGER token_is_counted AFTER INSERT ON member_token
    BEGIN UPDATE member SET tokens = tokens + 1 WHERE mesh_id = NEW.mesh_id AND member = NEW.member; END;

-- Cancelled ids expire, and may be used again: each has its row here until then.
CREATE TABLE sealed_id (
    mesh_id           TEXT NOT NULL,
    client_message_id TEXT NOT NULL,
    expires_at        INTEGER NOT NULL,
    PRIMARY KEY (mesh_id, client_message_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX sealed_id_expires ON sealed_id (expires_at);
CREATE TRIGGER sealed_id_is_listed AFTER INSERT ON client_message_dedupe WHEN NEW.kind = 'sealed'
    BEGIN
        DELETE FROM sealed_id WHERE mesh_id = NEW.mesh_id AND client_message_id = NEW.client_message_id;
        INSERT INTO sealed_id (mesh_id, client_message_id, expires_at)
            VALUES (NEW.mesh_id, NEW.client_message_id, NEW.expires_at);
    END;

-- What a broker of an earlier release has made since rows are counted is counted now.
INSERT INTO sealed_id (mesh_id, client_message_id, expires_at)
    SELECT mesh_id, client_message_id, expires_at FROM client_message_dedupe WHERE kind = 'sealed';
ALTER TABLE mesh DROP COLUMN sealed;
UPDATE broker_meta SET value = (SELECT count(*) FROM mesh) WHERE name = 'meshes';
UPDATE mesh SET members = (SELECT count(*) FROM member m WHERE m.mesh_id = mesh.id),
    lines = (SELECT count(*) FROM line l WHERE l.mesh_id = mesh.id),
    webhooks = (SELECT count(*) FROM webhook w WHERE w.mesh_id = mesh.id);
UPDATE member SET tokens = (SELECT count(*) FROM member_token t WHERE t.mesh_id = member.mesh_id AND t.member = member.member);
UPDATE line SET intervals = (SELECT count(*) FROM topic_subscription s WHERE s.line = line.line),
    cursors = (SELECT count(*) FROM ack_cursor c WHERE c.line = line.line);

-- Whoever makes a row counts it, also a broker of an earlier release, which knows nothing of counts: a row that is removed by hand
-- is missed. Nothing but tokens and cancelled ids is ever removed, so that nothing else is counted off.

-- Nothing is made between the counts and the triggers. In the order in which a broker comes to them, as far as there is one.
LOCK TABLE semel_broker.client_message_dedupe, semel_broker.ack_cursor, semel_broker.member, semel_broker.line,
    semel_broker.topic_subscription, semel_broker.webhook, semel_broker.member_token, semel_broker.mesh, semel_broker.broker_meta
    IN SHARE ROW EXCLUSIVE MODE;

CREATE FUNCTION semel_broker.count_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    CASE TG_TABLE_NAME
        WHEN 'mesh' THEN
            UPDATE semel_broker.broker_meta SET value = value + 1 WHERE name = 'meshes';
        WHEN 'member' THEN
            UPDATE semel_broker.mesh SET members = members + 1 WHERE id = NEW.mesh_id;
        WHEN 'line' THEN
            UPDATE semel_broker.mesh SET lines = lines + 1 WHERE id = NEW.mesh_id;
        WHEN 'webhook' THEN
            UPDATE semel_broker.mesh SET webhooks = webhooks + 1 WHERE id = NEW.mesh_id;
        WHEN 'topic_subscription' THEN
            UPDATE semel_broker.line SET intervals = intervals + 1 WHERE line = NEW.line;
        WHEN 'ack_cursor' THEN
            UPDATE semel_broker.line SET cursors = cursors + 1 WHERE line = NEW.line;
        WHEN 'member_token' THEN
            UPDATE semel_broker.member SET tokens = tokens + 1 WHERE mesh_id = NEW.mesh_id AND member = NEW.member;
    END CASE;
    RETURN NULL;
END
$$;
CREATE TRIGGER mesh_is_counted AFTER INSERT ON semel_broker.mesh
    FOR EACH ROW EXECUTE FUNCTION semel_broker.count_row();
CREATE TRIGGER member_is_counted AFTER INSERT ON semel_broker.member
    FOR EACH ROW EXECUTE FUNCTION semel_broker.count_row();
CREATE TRIGGER line_is_counted AFTER INSERT ON semel_broker.line
    FOR EACH ROW EXECUTE FUNCTION semel_broker.count_row();
CREATE TRIGGER webhook_is_counted AFTER INSERT ON semel_broker.webhook
    FOR EACH ROW EXECUTE FUNCTION semel_broker.count_row();
CREATE TRIGGER interval_is_counted AFTER INSERT ON semel_broker.topic_subscription
    FOR EACH ROW EXECUTE FUNCTION semel_broker.count_row();
CREATE TRIGGER cursor_is_counted AFTER INSERT ON semel_broker.ack_cursor
    FOR EACH ROW EXECUTE FUNCTION semel_broker.count_row();
CREATE TRIGGER token_is_counted AFTER INSERT ON semel_broker.member_token
    FOR EACH ROW EXECUTE FUNCTION semel_broker.count_row();

-- A member's tokens are replaced as a whole, after its row was written: they are counted from nothing then.
CREATE FUNCTION semel_broker.replace_tokens() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.tokens := 0;
    RETURN NEW;
END
$$;
CREATE TRIGGER tokens_are_replaced BEFORE UPDATE OF role, left_at ON semel_broker.member
    FOR EACH ROW EXECUTE FUNCTION semel_broker.replace_tokens();

-- Cancelled ids expire, and may be used again: each has its row here until then.
CREATE TABLE semel_broker.sealed_id (
    mesh_id           text NOT NULL,
    client_message_id text NOT NULL,
    expires_at        bigint NOT NULL,
    PRIMARY KEY (mesh_id, client_message_id)
);
CREATE INDEX sealed_id_expires ON semel_broker.sealed_id (expires_at);
CREATE FUNCTION semel_broker.list_sealed_id() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO semel_broker.sealed_id (mesh_id, client_message_id, expires_at)
        VALUES (NEW.mesh_id, NEW.client_message_id, NEW.expires_at)
        ON CONFLICT (mesh_id, client_message_id) DO UPDATE SET expires_at = excluded.expires_at;
    RETURN NULL;
END
$$;
CREATE TRIGGER sealed_id_is_listed AFTER INSERT ON semel_broker.client_message_dedupe
    FOR EACH ROW WHEN (NEW.kind = 'sealed') EXECUTE FUNCTION semel_broker.list_sealed_id();

-- What a broker of an earlier release has made since rows are counted is counted now.
INSERT INTO semel_broker.sealed_id (mesh_id, client_message_id, expires_at)
    SELECT mesh_id, client_message_id, expires_at FROM semel_broker.client_message_dedupe WHERE kind = 'sealed';
ALTER TABLE semel_broker.mesh DROP COLUMN sealed;
UPDATE semel_broker.broker_meta SET value = (SELECT count(*) FROM semel_broker.mesh) WHERE name = 'meshes';
UPDATE semel_broker.mesh SET members = (SELECT count(*) FROM semel_broker.member m WHERE m.mesh_id = mesh.id),
    lines = (SELECT count(*) FROM semel_broker.line l WHERE l.mesh_id = mesh.id),
    webhooks = (SELECT count(*) FROM semel_broker.webhook w WHERE w.mesh_id = mesh.id);
UPDATE semel_broker.member SET tokens = (SELECT count(*) FROM semel_broker.member_token t WHERE t.mesh_id = member.mesh_id AND t.member = member.member);
UPDATE semel_broker.line SET intervals = (SELECT count(*) FROM semel_broker.topic_subscription s WHERE s.line = line.line),
    cursors = (SELECT count(*) FROM semel_broker.ack_cursor c WHERE c.line = line.line);
SELECT semel_broker.grant_rights();

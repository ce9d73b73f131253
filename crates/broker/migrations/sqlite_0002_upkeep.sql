-- Why something was done, where people say so.
ALTER TABLE audit_log ADD COLUMN detail TEXT;

-- How many rows belong to another one, counted when they are made: a row that is removed by hand is missed.
ALTER TABLE mesh ADD COLUMN members INTEGER NOT NULL DEFAULT 0;
ALTER TABLE mesh ADD COLUMN lines INTEGER NOT NULL DEFAULT 0;
ALTER TABLE mesh ADD COLUMN webhooks INTEGER NOT NULL DEFAULT 0;
ALTER TABLE mesh ADD COLUMN sealed INTEGER NOT NULL DEFAULT 0;
ALTER TABLE member ADD COLUMN tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE line ADD COLUMN intervals INTEGER NOT NULL DEFAULT 0;
ALTER TABLE line ADD COLUMN cursors INTEGER NOT NULL DEFAULT 0;
CREATE INDEX client_message_dedupe_sealed ON client_message_dedupe (mesh_id) WHERE kind = 'sealed';
INSERT INTO broker_meta (name, value) SELECT 'meshes', count(*) FROM mesh;
UPDATE mesh SET members = (SELECT count(*) FROM member m WHERE m.mesh_id = mesh.id),
    lines = (SELECT count(*) FROM line l WHERE l.mesh_id = mesh.id),
    webhooks = (SELECT count(*) FROM webhook w WHERE w.mesh_id = mesh.id),
    sealed = (SELECT count(*) FROM client_message_dedupe d WHERE d.mesh_id = mesh.id AND d.kind = 'sealed');
UPDATE member SET tokens = (SELECT count(*) FROM member_token t WHERE t.mesh_id = member.mesh_id AND t.member = member.member);
UPDATE line SET intervals = (SELECT count(*) FROM topic_subscription s WHERE s.line = line.line),
    cursors = (SELECT count(*) FROM ack_cursor c WHERE c.line = line.line);

-- The table of an older queue: an action in a row. Some payloads hold a key, some do not, and two share one.
CREATE TABLE offline_actions (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    walker_id    TEXT NOT NULL,
    action_type  TEXT NOT NULL,
    payload      TEXT NOT NULL,
    enqueued_at  INTEGER NOT NULL,
    retry_count  INTEGER NOT NULL DEFAULT 0
);

INSERT INTO offline_actions (walker_id, action_type, payload, enqueued_at, retry_count) VALUES
    ('walker-1', 'tree.allocate', '{"allocations":[{"node":"oak","points":2}],"idempotencyKey":"0f8fad5b-d9cb-469f-a165-70867728950e"}', 1767225600000, 0),
    ('walker-1', 'quest.advance', '{"questId":"q7","step":2}', 1767225660000, 3),
    ('walker-1', 'tree.allocate', '{"allocations":[{"node":"elm","points":1}],"idempotencyKey":"0f8fad5b-d9cb-469f-a165-70867728950e"}', 1767225720000, 0),
    ('walker-2', 'quest.complete', '{"questId":"q7"}', 1767225780000, 0);

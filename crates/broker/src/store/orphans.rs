//! Looks for rows without the rows that belong to them. One transaction wrote them all, so that any finding means that somebody
//! removed or changed a row by hand, or that a promise was broken. Changes nothing.

use semel_delivery::relay::store::sql::StoreError;

use super::{Store, first_int};

/// Findings of one kind that are told.
const TOLD_MAX: usize = 20;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Orphans {
    /// Committed ids that were looked at.
    pub looked: u64,
    /// What is wrong, in words; of each kind at most a few.
    pub findings: Vec<String>,
}

/// What must never be found: a few words, and the statement that finds it. Each statement says which row it is.
const CHECKS: &[(&str, &str)] = &[
    (
        "an id has no message",
        "SELECT d.client_message_id FROM client_message_dedupe d WHERE d.kind = 'committed' AND d.history_available = 1 \
         AND NOT EXISTS (SELECT 1 FROM topic_message m WHERE m.id = d.broker_message_id AND d.destination_kind = 'topic') \
         AND NOT EXISTS (SELECT 1 FROM message_queue m WHERE m.id = d.broker_message_id AND d.destination_kind = 'member')",
    ),
    (
        "an id has no history",
        "SELECT d.client_message_id FROM client_message_dedupe d WHERE d.kind = 'committed' AND d.history_available = 1 \
         AND NOT EXISTS (SELECT 1 FROM message_history h WHERE h.line = d.line AND h.number = d.number \
         AND h.broker_message_id = d.broker_message_id)",
    ),
    (
        "a message to a topic has no id",
        "SELECT m.id FROM topic_message m WHERE NOT EXISTS (SELECT 1 FROM client_message_dedupe d \
         WHERE d.mesh_id = m.mesh_id AND d.client_message_id = m.client_message_id AND d.broker_message_id = m.id)",
    ),
    (
        "a direct message has no id",
        "SELECT m.id FROM message_queue m WHERE NOT EXISTS (SELECT 1 FROM client_message_dedupe d \
         WHERE d.mesh_id = m.mesh_id AND d.client_message_id = m.client_message_id AND d.broker_message_id = m.id)",
    ),
    (
        "a history row has no message",
        "SELECT h.broker_message_id FROM message_history h WHERE \
         NOT EXISTS (SELECT 1 FROM topic_message m WHERE m.id = h.broker_message_id) \
         AND NOT EXISTS (SELECT 1 FROM message_queue m WHERE m.id = h.broker_message_id)",
    ),
    (
        "a history row has no line",
        "SELECT h.broker_message_id FROM message_history h WHERE NOT EXISTS (SELECT 1 FROM line l \
         WHERE l.line = h.line AND l.next_number > h.number)",
    ),
    (
        "a message to a topic lacks mentions, or has too many",
        "SELECT m.id FROM topic_message m WHERE m.mentions <> \
         (SELECT count(*) FROM mention_index i WHERE i.broker_message_id = m.id)",
    ),
    (
        "a direct message lacks mentions, or has too many",
        "SELECT m.id FROM message_queue m WHERE m.mentions <> \
         (SELECT count(*) FROM mention_index i WHERE i.broker_message_id = m.id)",
    ),
    (
        "a mention has no message",
        "SELECT i.broker_message_id FROM mention_index i WHERE \
         NOT EXISTS (SELECT 1 FROM topic_message m WHERE m.id = i.broker_message_id) \
         AND NOT EXISTS (SELECT 1 FROM message_queue m WHERE m.id = i.broker_message_id)",
    ),
    (
        "a message lacks deliveries to its webhooks, or has too many",
        "SELECT m.id FROM topic_message m JOIN client_message_dedupe d ON d.mesh_id = m.mesh_id \
         AND d.client_message_id = m.client_message_id WHERE m.webhooks <> \
         (SELECT count(*) FROM delivery_queue q WHERE q.line = d.line AND q.number = d.number)",
    ),
    (
        "a delivery has no message",
        "SELECT q.broker_message_id FROM delivery_queue q WHERE \
         NOT EXISTS (SELECT 1 FROM topic_message m WHERE m.id = q.broker_message_id)",
    ),
    (
        "a pending delivery does not wait",
        "SELECT q.broker_message_id FROM delivery_queue q WHERE q.status = 'pending' AND NOT EXISTS \
         (SELECT 1 FROM delivery_waiting d WHERE d.webhook = q.webhook AND d.line = q.line AND d.number = q.number)",
    ),
    (
        "something waits that is no pending delivery",
        "SELECT CAST(d.webhook AS text) FROM delivery_waiting d WHERE NOT EXISTS (SELECT 1 FROM delivery_queue q \
         WHERE q.webhook = d.webhook AND q.line = d.line AND q.number = d.number AND q.status = 'pending')",
    ),
    (
        "a line has no mesh",
        "SELECT l.ref FROM line l WHERE NOT EXISTS (SELECT 1 FROM mesh e WHERE e.id = l.mesh_id)",
    ),
    (
        "a member has no line of direct messages, or none that is its own",
        "SELECT m.member FROM member m WHERE m.left_at IS NULL AND NOT EXISTS (SELECT 1 FROM line l \
         JOIN topic_subscription s ON s.line = l.line WHERE l.mesh_id = m.mesh_id AND l.kind = 'member' \
         AND l.ref = m.member AND l.deleted_at IS NULL AND s.member = m.member AND s.until IS NULL)",
    ),
    (
        "a subscription has no member or no line",
        "SELECT s.member FROM topic_subscription s WHERE NOT EXISTS (SELECT 1 FROM line l JOIN member m \
         ON m.mesh_id = l.mesh_id WHERE l.line = s.line AND m.member = s.member)",
    ),
    (
        "an interval ends beyond its line, or before it began",
        "SELECT s.member FROM topic_subscription s JOIN line l ON l.line = s.line \
         WHERE s.since > l.next_number OR s.until > l.next_number OR s.until < s.since",
    ),
    (
        "a cursor is ahead of its line",
        "SELECT c.member FROM ack_cursor c WHERE NOT EXISTS (SELECT 1 FROM line l WHERE l.line = c.line \
         AND l.next_number > c.acked)",
    ),
];

impl Store {
    /// Looks at every row. Reads only.
    pub(crate) async fn orphans(&self) -> Result<Orphans, StoreError> {
        let sql = "SELECT count(*) FROM client_message_dedupe WHERE kind = 'committed'";
        let looked = u64::try_from(first_int(&self.read(sql, vec![]).await?)?).unwrap_or(0);
        let mut findings = Vec::new();
        for (what, sql) in CHECKS {
            let rows = self.read(&format!("{sql} LIMIT {TOLD_MAX}"), vec![]).await?;
            for row in rows {
                findings.push(format!("{what}: {}", row.text(0)?));
            }
        }
        Ok(Orphans { looked, findings })
    }
}

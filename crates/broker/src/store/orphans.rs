//! Looks for rows without the rows that belong to them. One transaction wrote them all, so that any finding means that somebody
//! removed or changed a row by hand, or that a promise was broken. What nothing else would miss is counted where it belongs.
//! Changes nothing. Looks at a bounded number of rows at a time, so that no statement of it takes long.

use std::time::Duration;

use semel_delivery::relay::store::sql::{Row, StoreError, Value};

use super::{Store, first_int};

/// Findings of one kind that are told.
const TOLD_MAX: usize = 20;
/// Rows that one statement looks at.
const ROWS_AT_ONCE: usize = 2000;
/// What others get to do between two of them.
const PAUSE: Duration = Duration::from_millis(2);
/// What expires within this many milliseconds may be swept while it is looked for.
const SOON_MILLIS: i64 = 60_000;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Orphans {
    /// Committed ids that were looked at.
    pub looked: u64,
    /// What is wrong, in words; of each kind at most a few.
    pub findings: Vec<String>,
}

/// What must never be found among the rows of a table, which is called `x` there: a few words, which row it is, and the condition.
/// `:soon` is a time that will come soon.
type Check = (&'static str, &'static str, &'static str);

/// A table, its key, and what must never be found in it.
struct Table {
    name: &'static str,
    key: &'static [&'static str],
    checks: &'static [Check],
}

const TABLES: &[Table] = &[
    Table {
        name: "client_message_dedupe",
        key: &["mesh_id", "client_message_id"],
        checks: &[
            (
                "an id has no message",
                "x.client_message_id",
                "x.kind = 'committed' AND x.history_available = 1 AND NOT EXISTS (SELECT 1 FROM topic_message m \
                 WHERE m.id = x.broker_message_id AND x.destination_kind = 'topic') AND NOT EXISTS (SELECT 1 FROM \
                 message_queue m WHERE m.id = x.broker_message_id AND x.destination_kind = 'member')",
            ),
            (
                "an id has no history",
                "x.client_message_id",
                "x.kind = 'committed' AND x.history_available = 1 AND NOT EXISTS (SELECT 1 FROM message_history h \
                 WHERE h.line = x.line AND h.number = x.number AND h.broker_message_id = x.broker_message_id)",
            ),
            (
                "a cancelled id is not on the list of them",
                "x.client_message_id",
                "x.kind = 'sealed' AND NOT EXISTS (SELECT 1 FROM sealed_id s WHERE s.mesh_id = x.mesh_id \
                 AND s.client_message_id = x.client_message_id)",
            ),
        ],
    },
    Table {
        name: "sealed_id",
        key: &["mesh_id", "client_message_id"],
        checks: &[(
            "a cancelled id is gone before its time",
            "x.client_message_id",
            "x.expires_at > :soon AND NOT EXISTS (SELECT 1 FROM client_message_dedupe d WHERE d.mesh_id = x.mesh_id \
             AND d.client_message_id = x.client_message_id AND d.kind = 'sealed')",
        )],
    },
    Table {
        name: "topic_message",
        key: &["id"],
        checks: &[
            (
                "a message to a topic has no id",
                "x.id",
                "NOT EXISTS (SELECT 1 FROM client_message_dedupe d WHERE d.mesh_id = x.mesh_id \
                 AND d.client_message_id = x.client_message_id AND d.broker_message_id = x.id)",
            ),
            (
                "a message to a topic lacks mentions, or has too many",
                "x.id",
                "x.mentions <> (SELECT count(*) FROM mention_index i WHERE i.broker_message_id = x.id)",
            ),
            (
                "a message lacks deliveries to its webhooks, or has too many",
                "x.id",
                "EXISTS (SELECT 1 FROM client_message_dedupe d WHERE d.mesh_id = x.mesh_id \
                 AND d.client_message_id = x.client_message_id AND d.broker_message_id = x.id AND x.webhooks <> \
                 (SELECT count(*) FROM delivery_queue q WHERE q.line = d.line AND q.number = d.number))",
            ),
        ],
    },
    Table {
        name: "message_queue",
        key: &["id"],
        checks: &[
            (
                "a direct message has no id",
                "x.id",
                "NOT EXISTS (SELECT 1 FROM client_message_dedupe d WHERE d.mesh_id = x.mesh_id \
                 AND d.client_message_id = x.client_message_id AND d.broker_message_id = x.id)",
            ),
            (
                "a direct message lacks mentions, or has too many",
                "x.id",
                "x.mentions <> (SELECT count(*) FROM mention_index i WHERE i.broker_message_id = x.id)",
            ),
        ],
    },
    Table {
        name: "message_history",
        key: &["line", "number"],
        checks: &[
            (
                "a history row has no message",
                "x.broker_message_id",
                "NOT EXISTS (SELECT 1 FROM topic_message m WHERE m.id = x.broker_message_id) \
                 AND NOT EXISTS (SELECT 1 FROM message_queue m WHERE m.id = x.broker_message_id)",
            ),
            (
                "a history row has no line",
                "x.broker_message_id",
                "NOT EXISTS (SELECT 1 FROM line l WHERE l.line = x.line AND l.next_number > x.number)",
            ),
            (
                "a message that was followed is not in the audit log",
                "x.broker_message_id",
                "EXISTS (SELECT 1 FROM followed f WHERE f.line = x.line AND f.number >= x.number) AND NOT EXISTS \
                 (SELECT 1 FROM audit_log a WHERE a.line = x.line AND a.number = x.number AND a.event = 'accepted')",
            ),
        ],
    },
    Table {
        name: "mention_index",
        key: &["broker_message_id", "mentioned"],
        checks: &[(
            "a mention has no message",
            "x.broker_message_id",
            "NOT EXISTS (SELECT 1 FROM topic_message m WHERE m.id = x.broker_message_id) \
             AND NOT EXISTS (SELECT 1 FROM message_queue m WHERE m.id = x.broker_message_id)",
        )],
    },
    Table {
        name: "delivery_queue",
        key: &["line", "number", "webhook"],
        checks: &[
            (
                "a delivery has no message",
                "x.broker_message_id",
                "NOT EXISTS (SELECT 1 FROM topic_message m WHERE m.id = x.broker_message_id)",
            ),
            (
                "a delivery has no webhook",
                "x.broker_message_id",
                "NOT EXISTS (SELECT 1 FROM webhook w WHERE w.webhook = x.webhook)",
            ),
            (
                "a pending delivery does not wait",
                "x.broker_message_id",
                "x.status = 'pending' AND NOT EXISTS (SELECT 1 FROM delivery_waiting d WHERE d.webhook = x.webhook \
                 AND d.line = x.line AND d.number = x.number)",
            ),
        ],
    },
    Table {
        name: "delivery_waiting",
        key: &["webhook", "line", "number"],
        checks: &[(
            "something waits that is no pending delivery",
            "CAST(x.webhook AS text)",
            "NOT EXISTS (SELECT 1 FROM delivery_queue q WHERE q.webhook = x.webhook AND q.line = x.line \
             AND q.number = x.number AND q.status = 'pending')",
        )],
    },
    Table {
        name: "broker_meta",
        key: &["name"],
        checks: &[(
            "a mesh is missing, or one too many is there",
            "x.name",
            "x.name = 'meshes' AND x.value <> (SELECT count(*) FROM mesh)",
        )],
    },
    Table {
        name: "mesh",
        key: &["id"],
        checks: &[
            (
                "a mesh lacks members, or has too many",
                "x.id",
                "x.members <> (SELECT count(*) FROM member m WHERE m.mesh_id = x.id)",
            ),
            (
                "a mesh lacks topics or lines of direct messages, or has too many",
                "x.id",
                "x.lines <> (SELECT count(*) FROM line l WHERE l.mesh_id = x.id)",
            ),
            (
                "a mesh lacks webhooks, or has too many",
                "x.id",
                "x.webhooks <> (SELECT count(*) FROM webhook w WHERE w.mesh_id = x.id)",
            ),
        ],
    },
    Table {
        name: "member",
        key: &["mesh_id", "member"],
        checks: &[
            ("a member has no mesh", "x.member", "NOT EXISTS (SELECT 1 FROM mesh e WHERE e.id = x.mesh_id)"),
            (
                "a member has no line of direct messages, or none that is its own",
                "x.member",
                "x.left_at IS NULL AND NOT EXISTS (SELECT 1 FROM line l JOIN topic_subscription s ON s.line = l.line \
                 WHERE l.mesh_id = x.mesh_id AND l.kind = 'member' AND l.ref = x.member AND l.deleted_at IS NULL \
                 AND s.member = x.member AND s.until IS NULL)",
            ),
            (
                "a member lacks tokens, or has too many",
                "x.member",
                "x.tokens <> (SELECT count(*) FROM member_token t WHERE t.mesh_id = x.mesh_id AND t.member = x.member)",
            ),
        ],
    },
    Table {
        name: "member_token",
        key: &["token_sha256"],
        checks: &[(
            "a token has no member",
            "x.member",
            "NOT EXISTS (SELECT 1 FROM member m WHERE m.mesh_id = x.mesh_id AND m.member = x.member)",
        )],
    },
    Table {
        name: "line",
        key: &["line"],
        checks: &[
            ("a line has no mesh", "x.ref", "NOT EXISTS (SELECT 1 FROM mesh e WHERE e.id = x.mesh_id)"),
            (
                "a line lacks subscriptions, or has too many",
                "x.ref",
                "x.intervals <> (SELECT count(*) FROM topic_subscription s WHERE s.line = x.line)",
            ),
            (
                "a line lacks cursors, or has too many",
                "x.ref",
                "x.cursors <> (SELECT count(*) FROM ack_cursor c WHERE c.line = x.line)",
            ),
        ],
    },
    Table {
        name: "topic_subscription",
        key: &["line", "member", "since"],
        checks: &[
            (
                "a subscription has no member or no line",
                "x.member",
                "NOT EXISTS (SELECT 1 FROM line l JOIN member m ON m.mesh_id = l.mesh_id WHERE l.line = x.line \
                 AND m.member = x.member)",
            ),
            (
                "an interval ends beyond its line, or before it began",
                "x.member",
                "x.until < x.since OR EXISTS (SELECT 1 FROM line l WHERE l.line = x.line AND (x.since > l.next_number \
                 OR x.until > l.next_number))",
            ),
        ],
    },
    Table {
        name: "ack_cursor",
        key: &["line", "member", "consumer"],
        checks: &[(
            "a cursor is ahead of its line",
            "x.member",
            "NOT EXISTS (SELECT 1 FROM line l WHERE l.line = x.line AND l.next_number > x.acked)",
        )],
    },
    Table {
        name: "webhook",
        key: &["webhook"],
        checks: &[(
            "a webhook has no topic",
            "x.name",
            "NOT EXISTS (SELECT 1 FROM line l WHERE l.line = x.line AND l.mesh_id = x.mesh_id)",
        )],
    },
];

impl Table {
    /// The key as SQL has it, `(x.a, x.b)`.
    fn columns(&self) -> String {
        self.key.iter().map(|column| format!("x.{column}")).collect::<Vec<_>>().join(", ")
    }

    /// Rows after the first key and up to the second; without one there is no bound.
    fn range(&self, after: Option<&Row>, until: Option<&Row>) -> (String, Vec<Value>) {
        let (mut sql, mut args) = ("1 = 1".to_owned(), Vec::new());
        for (bound, key) in [(">", after), ("<=", until)] {
            let Some(Row(key)) = key else { continue };
            let first = args.len() + 1;
            let places: Vec<String> = (first..first + key.len()).map(|at| format!("${at}")).collect();
            sql.push_str(&format!(" AND ({}) {bound} ({})", self.columns(), places.join(", ")));
            args.extend(key.iter().cloned());
        }
        (sql, args)
    }
}

impl Store {
    /// Looks at every row. Reads only.
    pub(crate) async fn orphans(&self) -> Result<Orphans, StoreError> {
        let mut found = Orphans::default();
        for table in TABLES {
            self.orphans_in(table, &mut found).await?;
        }
        Ok(found)
    }

    async fn orphans_in(&self, table: &Table, found: &mut Orphans) -> Result<(), StoreError> {
        let mut told = vec![0; table.checks.len()];
        let mut after: Option<Row> = None;
        loop {
            let until = self.end_of_batch(table, after.as_ref()).await?;
            let (range, args) = table.range(after.as_ref(), until.as_ref());
            if table.name == "client_message_dedupe" {
                let sql = format!(
                    "SELECT count(*) FROM client_message_dedupe x WHERE {range} AND x.kind = 'committed'"
                );
                let looked = first_int(&self.read(&sql, args.clone()).await?)?;
                found.looked += u64::try_from(looked).unwrap_or(0);
            }
            for ((what, shown, given), told) in table.checks.iter().zip(&mut told) {
                let left = TOLD_MAX - *told;
                let (name, mut args) = (table.name, args.clone());
                // One text for one statement: a server keeps what it has prepared.
                let condition = given.replace(":soon", &format!("${}", args.len() + 1));
                if condition != *given {
                    args.push(self.now().await?.saturating_add(SOON_MILLIS).into());
                }
                let sql =
                    format!("SELECT {shown} FROM {name} x WHERE {range} AND ({condition}) LIMIT {left}");
                let rows = if left == 0 { Vec::new() } else { self.read(&sql, args).await? };
                *told += rows.len();
                for row in rows {
                    found.findings.push(format!("{what}: {}", row.text(0)?));
                }
            }
            if until.is_none() {
                return Ok(());
            }
            after = until;
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// The key at which a batch ends; nothing where it is the last one.
    async fn end_of_batch(&self, table: &Table, after: Option<&Row>) -> Result<Option<Row>, StoreError> {
        let (range, args) = table.range(after, None);
        let (name, columns) = (table.name, table.columns());
        let sql = format!(
            "SELECT {columns} FROM {name} x WHERE {range} ORDER BY {columns} LIMIT 1 OFFSET {}",
            ROWS_AT_ONCE - 1
        );
        Ok(self.read(&sql, args).await?.into_iter().next())
    }
}

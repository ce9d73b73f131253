//! How many rows belong to another one. Whoever makes a row counts it, by the store's own triggers; here the rows are counted again
//! where a person has changed them. One row at a time is locked, so that nobody waits for what waits for them.

use semel_delivery::relay::store::sql::{Row, StoreError, Value};

use super::Store;

/// Rows that are found wrong at a time.
const WRONG_AT_ONCE: usize = 200;

/// A table that is called `x` there, its key, and its counts: the column, and the rows that it counts.
struct Counted {
    table: &'static str,
    key: &'static [&'static str],
    counts: &'static [(&'static str, &'static str)],
}

const COUNTED: &[Counted] = &[
    Counted { table: "broker_meta", key: &["name"], counts: &[("value", "mesh e WHERE x.name = 'meshes'")] },
    Counted {
        table: "mesh",
        key: &["id"],
        counts: &[
            ("members", "member m WHERE m.mesh_id = x.id"),
            ("lines", "line l WHERE l.mesh_id = x.id"),
            ("webhooks", "webhook w WHERE w.mesh_id = x.id"),
        ],
    },
    Counted {
        table: "member",
        key: &["mesh_id", "member"],
        counts: &[("tokens", "member_token t WHERE t.mesh_id = x.mesh_id AND t.member = x.member")],
    },
    Counted {
        table: "line",
        key: &["line"],
        counts: &[
            ("intervals", "topic_subscription s WHERE s.line = x.line"),
            ("cursors", "ack_cursor c WHERE c.line = x.line"),
        ],
    },
];

impl Counted {
    /// What finds a row by its key.
    fn is_row(&self) -> String {
        let each = self.key.iter().enumerate().map(|(at, column)| format!("{column} = ${}", at + 1));
        each.collect::<Vec<_>>().join(" AND ")
    }

    /// The keys of rows that say something else than what is there, after this key.
    fn wrong(&self, after: Option<&Row>) -> (String, Vec<Value>) {
        let columns = self.key.iter().map(|column| format!("x.{column}")).collect::<Vec<_>>().join(", ");
        let wrong =
            self.counts.iter().map(|(column, rows)| format!("x.{column} <> (SELECT count(*) FROM {rows})"));
        let wrong = wrong.collect::<Vec<_>>().join(" OR ");
        // Of what the broker keeps about itself the other numbers count nothing.
        let which = if self.table == "broker_meta" { "x.name = 'meshes'" } else { "1 = 1" };
        let (mut more, mut args) = (String::new(), Vec::new());
        if let Some(Row(key)) = after {
            let places = (1..=key.len()).map(|at| format!("${at}")).collect::<Vec<_>>().join(", ");
            more = format!(" AND ({columns}) > ({places})");
            args.extend(key.iter().cloned());
        }
        let table = self.table;
        let sql = format!(
            "SELECT {columns} FROM {table} x WHERE {which}{more} AND ({wrong}) ORDER BY {columns} LIMIT {WRONG_AT_ONCE}"
        );
        (sql, args)
    }
}

impl Store {
    /// Counts again what is counted beside the rows themselves.
    ///
    /// Crash: some are counted; asked again, the others are.
    pub(crate) async fn count_again(&self) -> Result<(), StoreError> {
        for counted in COUNTED {
            let mut after = None;
            loop {
                let (sql, args) = counted.wrong(after.as_ref());
                let wrong = self.read(&sql, args).await?;
                for row in &wrong {
                    self.count_row(counted, row).await?;
                }
                if wrong.len() < WRONG_AT_ONCE {
                    break;
                }
                after = wrong.into_iter().next_back();
            }
        }
        self.list_again().await
    }

    /// Puts the list of cancelled ids right, one row at a time.
    async fn list_again(&self) -> Result<(), StoreError> {
        let gone = "NOT EXISTS (SELECT 1 FROM client_message_dedupe d WHERE d.mesh_id = sealed_id.mesh_id \
            AND d.client_message_id = sealed_id.client_message_id AND d.kind = 'sealed')";
        let unlisted = "SELECT d.mesh_id, d.client_message_id, d.expires_at FROM client_message_dedupe d \
            WHERE d.kind = 'sealed' AND NOT EXISTS (SELECT 1 FROM sealed_id s WHERE s.mesh_id = d.mesh_id \
            AND s.client_message_id = d.client_message_id)";
        for (find, mend) in [
            (
                format!("SELECT mesh_id, client_message_id FROM sealed_id WHERE {gone}"),
                format!("DELETE FROM sealed_id WHERE mesh_id = $1 AND client_message_id = $2 AND {gone}"),
            ),
            (
                unlisted.to_owned(),
                "INSERT INTO sealed_id (mesh_id, client_message_id, expires_at) VALUES ($1, $2, $3) \
                 ON CONFLICT (mesh_id, client_message_id) DO NOTHING"
                    .to_owned(),
            ),
        ] {
            loop {
                let wrong = self.read(&format!("{find} LIMIT {WRONG_AT_ONCE}"), vec![]).await?;
                let count = wrong.len();
                for Row(row) in wrong {
                    let mut tx = self.db.begin().await?;
                    tx.run(&mend, row).await?;
                    tx.commit().await?;
                }
                if count < WRONG_AT_ONCE {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Counts what belongs to one row. Under its lock: who makes a row that belongs to it counts it before or after this.
    async fn count_row(&self, counted: &Counted, key: &Row) -> Result<(), StoreError> {
        let (table, is_row) = (counted.table, counted.is_row());
        let mut tx = self.db.begin().await?;
        let lock = format!("SELECT {} FROM {table} WHERE {is_row} /*LOCK*/", counted.key[0]);
        tx.run(&lock, key.0.clone()).await?;
        // In a statement after the lock: it sees what the one before committed.
        let set =
            counted.counts.iter().map(|(column, rows)| format!("{column} = (SELECT count(*) FROM {rows})"));
        let set = set.collect::<Vec<_>>().join(", ");
        tx.run(&format!("UPDATE {table} AS x SET {set} WHERE {is_row}"), key.0.clone()).await?;
        tx.commit().await
    }
}

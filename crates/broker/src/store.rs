//! What a broker keeps, and what holds of each call before it, after it, and after a crash. The statements are the same on
//! SQLite and PostgreSQL; every call is one short transaction, or one read.

pub(crate) mod accept;
pub(crate) mod acks;
mod counts;
pub(crate) mod deliveries;
pub(crate) mod follow;
pub(crate) mod history;
pub(crate) mod ids;
pub(crate) mod manage;
pub(crate) mod orphans;
pub(crate) mod people;
pub(crate) mod sweep;
pub(crate) mod trail;

use std::sync::Arc;

use semel_delivery::Operator;
use semel_delivery::relay::store::sql::{Database, Row, StoreError, Transaction, Value};

/// A transaction.
pub(crate) type Tx = Box<dyn Transaction>;

/// The store of a broker.
#[derive(Clone)]
pub(crate) struct Store {
    pub(crate) db: Arc<dyn Database>,
    /// In whose name something is done by hand.
    pub(crate) operator: Option<Operator>,
}

/// A line, as its row says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) line: i64,
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) next_number: i64,
}

impl Line {
    /// Its name on the wire.
    pub(crate) fn wire_name(&self) -> String {
        if self.kind == "topic" { format!("topic:{}", self.name) } else { "direct".to_owned() }
    }
}

impl Store {
    pub(crate) async fn now(&self) -> Result<i64, StoreError> {
        self.db.now().await
    }

    /// The time, and by how many milliseconds the clock is ahead of it, unbelieved.
    pub(crate) async fn clock(&self) -> Result<(i64, i64), StoreError> {
        let now = self.now().await?;
        Ok((now, self.db.clock_ahead()))
    }

    /// A person says that the clock is right. `false`: it was believed, and nothing changed.
    ///
    /// Crash: it is confirmed exactly where the trail says so, or, in a file, the trail says so and it is to be confirmed again.
    pub(crate) async fn confirm_clock(&self, who: &str, why: &str) -> Result<bool, StoreError> {
        let (now, ahead) = self.clock().await?;
        if ahead == 0 {
            return Ok(false);
        }
        let detail = format!("ahead by {ahead} ms: {why}");
        let sql = "INSERT INTO audit_log (line, number, event, broker_message_id, mesh_id, sender, at, detail) \
            VALUES (0, $1, 'clock-confirmed', '', '', $2, $1, $3) ON CONFLICT DO NOTHING";
        let mut tx = self.db.begin().await?;
        tx.run(sql, vec![now.into(), who.into(), detail.into()]).await?;
        self.note(&mut tx, ("confirm-clock", "", "", &format!("ahead by {ahead} ms"))).await?;
        tx.confirm_clock().await?;
        tx.commit().await?;
        // The process after this one goes on from the mark that a commit leaves. Where this one does not, the next one does.
        if let Ok(tx) = self.db.begin().await {
            let _ = tx.commit().await;
        }
        Ok(true)
    }

    pub(crate) async fn read(&self, sql: &str, args: Vec<Value>) -> Result<Vec<Row>, StoreError> {
        self.db.read(sql, args).await
    }

    /// The line of a topic or of a member's direct messages, also where it was removed.
    pub(crate) async fn line(&self, mesh: &str, kind: &str, name: &str) -> Result<Option<Line>, StoreError> {
        let sql =
            "SELECT line, kind, ref, next_number FROM line WHERE mesh_id = $1 AND kind = $2 AND ref = $3";
        let rows = self.read(sql, vec![mesh.into(), kind.into(), name.into()]).await?;
        rows.first().map(line_of).transpose()
    }

    /// A number that the broker keeps about itself.
    pub(crate) async fn number(&self, name: &str) -> Result<i64, StoreError> {
        let rows = self.read("SELECT value FROM broker_meta WHERE name = $1", vec![name.into()]).await?;
        rows.first().ok_or_else(|| StoreError::Failed(format!("no number {name}")))?.int(0)
    }

    /// The secret of this name; made now where there is none. Every broker of the database then has the same.
    pub(crate) async fn secret(&self, name: &str, fresh: &[u8]) -> Result<Vec<u8>, StoreError> {
        let mut tx = self.db.begin().await?;
        let sql = "INSERT INTO broker_secret (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING";
        tx.run(sql, vec![name.into(), fresh.to_vec().into()]).await?;
        let rows = tx.run("SELECT value FROM broker_secret WHERE name = $1", vec![name.into()]).await?;
        let secret = rows.first().ok_or_else(|| StoreError::Failed("no secret".to_owned()))?.bytes(0)?;
        tx.commit().await?;
        Ok(secret)
    }
}

pub(crate) fn line_of(row: &Row) -> Result<Line, StoreError> {
    Ok(Line { line: row.int(0)?, kind: row.text(1)?, name: row.text(2)?, next_number: row.int(3)? })
}

/// The first number of the first row.
pub(crate) fn first_int(rows: &[Row]) -> Result<i64, StoreError> {
    rows.first().ok_or_else(|| StoreError::Failed("nothing was found".to_owned()))?.int(0)
}

/// The time, as the first statement of a transaction tells it.
pub(crate) async fn time(tx: &mut Tx) -> Result<i64, StoreError> {
    first_int(&tx.run(semel_delivery::relay::store::sql::NOW, vec![]).await?)
}

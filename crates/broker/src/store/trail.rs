//! The trail of what operators and owners did by hand, written in the transaction of what it tells of.

use semel_contract::time::Timestamp;
use semel_delivery::Operator;
use semel_delivery::relay::store::sql::{Row, StoreError};
use serde::Serialize;

use super::{Store, Tx, time};

/// Something that was done by hand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Audited {
    /// Its number; they only grow.
    pub number: String,
    /// When.
    pub at: String,
    /// Who.
    pub actor: String,
    /// What was done, such as `put-member`.
    pub action: String,
    /// The mesh; empty where it was done to the broker.
    pub mesh: String,
    /// What it was done to.
    pub subject: String,
    /// What came of it, in words.
    pub detail: String,
    /// Why, in the actor's words; empty where nobody said.
    pub reason: String,
}

/// What was done: the action, the mesh, what it was done to in it, and what came of it.
pub(crate) type Deed<'a> = (&'a str, &'a str, &'a str, &'a str);

impl Store {
    /// The same store, in the name of somebody: what they do stands in the trail.
    pub(crate) fn by(&self, operator: &Operator) -> Self {
        Self { operator: Some(operator.clone()), ..self.clone() }
    }

    /// Writes down what somebody did. What the broker does by itself has nobody, and no row.
    ///
    /// Crash: the row is there exactly where the transaction is.
    pub(crate) async fn note(&self, tx: &mut Tx, deed: Deed<'_>) -> Result<(), StoreError> {
        let Some(by) = &self.operator else { return Ok(()) };
        let now = time(tx).await?;
        let (action, mesh, subject, detail) = deed;
        let reason = by.reason.as_deref().unwrap_or_default();
        let sql = "INSERT INTO operator_audit (at, actor, action, mesh, subject, detail, reason) \
            VALUES ($1, $2, $3, $4, $5, $6, $7)";
        let texts = [by.name.as_str(), action, mesh, subject, detail, reason];
        let args = std::iter::once(now.into()).chain(texts.map(Into::into)).collect();
        tx.run(sql, args).await.map(drop)
    }

    /// The same for what has no transaction of its own.
    pub(crate) async fn note_alone(&self, deed: Deed<'_>) -> Result<(), StoreError> {
        if self.operator.is_none() {
            return Ok(());
        }
        let mut tx = self.db.begin().await?;
        self.note(&mut tx, deed).await?;
        tx.commit().await
    }

    /// What was done by hand, the latest first; or what came before this number.
    pub(crate) async fn trail(&self, before: Option<i64>, limit: i64) -> Result<Vec<Audited>, StoreError> {
        let sql = "SELECT number, at, actor, action, mesh, subject, detail, reason FROM operator_audit \
            WHERE number < $1 ORDER BY number DESC LIMIT $2";
        let rows = self.read(sql, vec![before.unwrap_or(i64::MAX).into(), limit.into()]).await?;
        let audited = |row: &Row| {
            Ok(Audited {
                number: row.int(0)?.to_string(),
                at: Timestamp::from_millis(row.int(1)?).to_string(),
                actor: row.text(2)?,
                action: row.text(3)?,
                mesh: row.text(4)?,
                subject: row.text(5)?,
                detail: row.text(6)?,
                reason: row.text(7)?,
            })
        };
        rows.iter().map(audited).collect()
    }
}

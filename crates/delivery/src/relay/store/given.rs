//! Credentials that callers gave, as they are kept: sealed, for one target, principal and origin. Never sees what is in
//! them; see [`crate::relay::given`].

use super::{AuditRow, RelayStore, StoreError, audit};
use crate::operator::Operator;

/// A sealed credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// The origin that it is for.
    pub origin: String,
    /// It, sealed.
    pub sealed: String,
}

impl RelayStore {
    /// Keeps a credential in the place of the one before, or, with `None`, forgets that one.
    ///
    /// After: every process on this database finds it. Crash: the one before or this one.
    pub async fn give(
        &self,
        target: &str,
        principal: &str,
        given: Option<&Given>,
        who: impl Into<Operator> + Send,
    ) -> Result<(), StoreError> {
        let Operator { name: who, reason } = who.into();
        let now = self.now().await?;
        let mut tx = self.db.begin().await?;
        let (event, origin) = match given {
            Some(Given { origin, sealed }) => {
                let sql =
                    "INSERT INTO relay_given (target, principal, origin, sealed, at_ms) VALUES ($1, $2, $3, $4, $5)
                    ON CONFLICT (target, principal) DO UPDATE SET origin = excluded.origin, sealed = excluded.sealed,
                        at_ms = excluded.at_ms";
                let args = vec![target.into(), principal.into(), origin.into(), sealed.into(), now.into()];
                tx.run(sql, args).await?;
                ("credential-given", origin.as_str())
            }
            None => {
                let sql = "DELETE FROM relay_given WHERE target = $1 AND principal = $2";
                tx.run(sql, vec![target.into(), principal.into()]).await?;
                ("credential-taken-back", "")
            }
        };
        let row = AuditRow {
            at: now,
            event: event.to_owned(),
            target: target.to_owned(),
            principal: principal.to_owned(),
            detail: format!("by {who} {origin}").trim_end().to_owned(),
            reason,
            ..AuditRow::default()
        };
        audit(&mut tx, &row).await?;
        tx.commit().await
    }

    /// The credential that was given for this target and principal.
    pub async fn given(&self, target: &str, principal: &str) -> Result<Option<Given>, StoreError> {
        let sql = "SELECT origin, sealed FROM relay_given WHERE target = $1 AND principal = $2";
        let rows = self.db.read(sql, vec![target.into(), principal.into()]).await?;
        rows.first().map(|row| Ok(Given { origin: row.text(0)?, sealed: row.text(1)? })).transpose()
    }
}

//! Webhooks: where messages of a topic are sent beside its readers.

use semel_delivery::relay::store::sql::{Row, StoreError, Value};
use semel_delivery::url::Target;

use super::{ManageError, Put, WebhookInfo, Which, lock_line, need_mesh, tell_change};
use crate::store::{Store, time};

/// What a PUT says of a webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WebhookWish {
    pub(crate) url: String,
    pub(crate) topic: String,
    pub(crate) secrets: Vec<String>,
    pub(crate) is_ordered: bool,
}

/// The secrets of a webhook, as they are kept.
pub(crate) fn next_secrets(kept: &str) -> Vec<String> {
    serde_json::from_str(kept).unwrap_or_default()
}

/// Counts the webhooks of each line again, from their rows. A line without any is not asked for them.
const COUNT: &str = "UPDATE line SET webhooks = (SELECT count(*) FROM webhook w WHERE w.line = line.line \
    AND w.deleted_at IS NULL) WHERE line = $1";

impl Store {
    /// Makes a webhook, or says again what it is. Messages that commit later are sent to it.
    pub(crate) async fn put_webhook(
        &self,
        mesh: &str,
        name: &str,
        wish: &WebhookWish,
    ) -> Result<Put, ManageError> {
        let mut tx = self.db.begin().await?;
        let now = time(&mut tx).await?;
        need_mesh(&mut tx, mesh).await?;
        let line = match lock_line(&mut tx, mesh, "topic", &wish.topic).await? {
            Some((line, _, false)) => line,
            Some((_, _, true)) | None => return Err(ManageError::Missing("topic")),
        };
        let sql = "SELECT line, deleted_at FROM webhook WHERE mesh_id = $1 AND name = $2";
        let before = tx.run(sql, vec![mesh.into(), name.into()]).await?;
        let former = before
            .first()
            .map(|row| Ok::<_, StoreError>((row.int(0)?, row.maybe_int(1)?.is_some())))
            .transpose()?;
        if former.is_some_and(|(former, is_deleted)| former != line && !is_deleted) {
            return Err(ManageError::Refused(
                "a webhook stays with its topic: remove it, or make another".to_owned(),
            ));
        }
        let secrets =
            serde_json::to_string(&wish.secrets).map_err(|error| ManageError::Refused(error.to_string()))?;
        let args: Vec<Value> = vec![
            mesh.into(),
            name.into(),
            (&wish.url).into(),
            line.into(),
            secrets.into(),
            i64::from(wish.is_ordered).into(),
        ];
        let sql = "INSERT INTO webhook (mesh_id, name, url, line, secrets, ordered, created_at) \
            VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (mesh_id, name) DO NOTHING RETURNING webhook";
        let made = tx.run(sql, [args.clone(), vec![now.into()]].concat()).await?;
        if made.is_empty() {
            // Whoever holds it as it was sends nothing more; where nothing changed, nobody is disturbed.
            let sql = "UPDATE webhook SET url = $3, line = $4, secrets = $5, ordered = $6, deleted_at = NULL, \
                fence = fence + 1, lease_until = 0 WHERE mesh_id = $1 AND name = $2 \
                AND NOT (url = $3 AND line = $4 AND secrets = $5 AND ordered = $6 AND deleted_at IS NULL)";
            tx.run(sql, args).await?;
        }
        tx.run(COUNT, vec![line.into()]).await?;
        tell_change(&mut tx).await?;
        // A path may be a secret, and a trail is kept for ever.
        let origin = Target::absolute(&wish.url).map(|target| target.origin).unwrap_or_default();
        let detail = format!("topic {}, to {origin}", wish.topic);
        self.note(&mut tx, ("put-webhook", mesh, name, &detail)).await?;
        tx.commit().await?;
        Ok(if former.is_some_and(|(_, is_deleted)| !is_deleted) { Put::Kept } else { Put::Created })
    }

    /// Removes a webhook. What waits for it is not sent any more.
    pub(crate) async fn remove_webhook(&self, mesh: &str, name: &str) -> Result<(), ManageError> {
        let sql =
            "SELECT l.ref FROM webhook w JOIN line l ON l.line = w.line WHERE w.mesh_id = $1 AND w.name = $2";
        let rows = self.read(sql, vec![mesh.into(), name.into()]).await?;
        let Some(row) = rows.first() else { return Ok(()) };
        let topic = row.text(0)?;
        let mut tx = self.db.begin().await?;
        let now = time(&mut tx).await?;
        let Some((line, ..)) = lock_line(&mut tx, mesh, "topic", &topic).await? else { return Ok(()) };
        let sql = "UPDATE webhook SET deleted_at = coalesce(deleted_at, $3), fence = fence + 1 \
            WHERE mesh_id = $1 AND name = $2 RETURNING webhook";
        for row in tx.run(sql, vec![mesh.into(), name.into(), now.into()]).await? {
            let webhook = row.int(0)?;
            let dead = "UPDATE delivery_queue SET status = 'dead', last_error = 'the webhook was removed' \
                WHERE webhook = $1 AND status = 'pending'";
            tx.run(dead, vec![webhook.into()]).await?;
            tx.run("DELETE FROM delivery_waiting WHERE webhook = $1", vec![webhook.into()]).await?;
        }
        tx.run(COUNT, vec![line.into()]).await?;
        tell_change(&mut tx).await?;
        self.note(&mut tx, ("remove-webhook", mesh, name, "")).await?;
        Ok(tx.commit().await?)
    }

    /// Webhooks of a mesh, or the one of this name.
    pub(crate) async fn webhooks(
        &self,
        mesh: &str,
        which: Which<'_>,
    ) -> Result<Vec<WebhookInfo>, StoreError> {
        let sql = format!(
            "SELECT w.name, w.url, l.ref, w.ordered, w.secrets, \
             (SELECT count(*) FROM delivery_waiting d WHERE d.webhook = w.webhook), \
             (SELECT count(*) FROM delivery_queue q WHERE q.webhook = w.webhook AND q.status = 'dead'), \
             (SELECT q.last_error FROM delivery_queue q WHERE q.webhook = w.webhook AND q.last_error IS NOT NULL \
              ORDER BY q.line DESC, q.number DESC LIMIT 1) \
             FROM webhook w JOIN line l ON l.line = w.line WHERE w.mesh_id = $1 AND w.deleted_at IS NULL {} \
             ORDER BY w.name LIMIT $2",
            which.condition("w.name", 3)
        );
        let args = vec![mesh.into(), which.limit(), which.name()];
        let info = |row: &Row| {
            Ok(WebhookInfo {
                webhook: row.text(0)?,
                url: row.text(1)?,
                topic: row.text(2)?,
                ordered: row.int(3)? != 0,
                secrets: next_secrets(&row.text(4)?).len(),
                pending: row.int(5)?,
                dead: row.int(6)?,
                last_error: row.maybe_text(7)?,
            })
        };
        self.read(&sql, args).await?.iter().map(info).collect()
    }
}

//! How far members have acknowledged their lines, each of their consumers for itself. A cursor only goes forward.

use semel_delivery::relay::store::sql::StoreError;

use super::{Store, Tx, first_int, time};

/// How a message fares with those it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reached {
    pub(crate) recipients: i64,
    pub(crate) acknowledged: i64,
}

impl Store {
    /// Acknowledges a line up to this number. Says how far it is acknowledged now.
    ///
    /// After: the cursor is at least there. Crash: it moved or not; asked again, it moves.
    pub(crate) async fn acknowledge(
        &self,
        line: i64,
        member: &str,
        consumer: &str,
        up_to: i64,
    ) -> Result<i64, StoreError> {
        let mut tx = self.db.begin().await?;
        let now = time(&mut tx).await?;
        let sql = "UPDATE ack_cursor SET acked = CASE WHEN acked < $4 THEN $4 ELSE acked END, updated_at = $5 \
            WHERE line = $1 AND member = $2 AND consumer = $3 RETURNING acked";
        need_cursor(&mut tx, line, member, consumer, now).await?;
        let args = vec![line.into(), member.into(), consumer.into(), up_to.into(), now.into()];
        let acked = first_int(&tx.run(sql, args).await?)?;
        tx.commit().await?;
        Ok(acked)
    }

    /// How far a consumer has acknowledged a line, where it ever did.
    pub(crate) async fn acked(
        &self,
        line: i64,
        member: &str,
        consumer: &str,
    ) -> Result<Option<i64>, StoreError> {
        let sql =
            "SELECT acked FROM ack_cursor WHERE line = $1 AND member = $2 AND consumer = $3 AND acked > 0";
        let rows = self.read(sql, vec![line.into(), member.into(), consumer.into()]).await?;
        rows.first().map(|row| row.int(0)).transpose()
    }

    /// Begins a stream of a consumer: of several the newest counts. Says its number.
    pub(crate) async fn begin_stream(
        &self,
        line: i64,
        member: &str,
        consumer: &str,
    ) -> Result<i64, StoreError> {
        let mut tx = self.db.begin().await?;
        let now = time(&mut tx).await?;
        let sql = "UPDATE ack_cursor SET stream = stream + 1, updated_at = $4 \
            WHERE line = $1 AND member = $2 AND consumer = $3 RETURNING stream";
        need_cursor(&mut tx, line, member, consumer, now).await?;
        let args = vec![line.into(), member.into(), consumer.into(), now.into()];
        let stream = first_int(&tx.run(sql, args).await?)?;
        tx.commit().await?;
        Ok(stream)
    }

    /// The newest stream of a consumer.
    pub(crate) async fn newest_stream(
        &self,
        line: i64,
        member: &str,
        consumer: &str,
    ) -> Result<i64, StoreError> {
        let sql = "SELECT stream FROM ack_cursor WHERE line = $1 AND member = $2 AND consumer = $3";
        let rows = self.read(sql, vec![line.into(), member.into(), consumer.into()]).await?;
        rows.first().map_or(Ok(0), |row| row.int(0))
    }

    /// Whom a message is for, by the intervals, and how many of them have acknowledged it.
    pub(crate) async fn reached(&self, line: i64, number: i64) -> Result<Reached, StoreError> {
        let sql = "SELECT count(*) FROM topic_subscription WHERE line = $1 AND since <= $2 \
            AND (until IS NULL OR until > $2)";
        let recipients = first_int(&self.read(sql, vec![line.into(), number.into()]).await?)?;
        let sql = "SELECT count(DISTINCT c.member) FROM ack_cursor c WHERE c.line = $1 AND c.acked >= $2 AND EXISTS \
            (SELECT 1 FROM topic_subscription s WHERE s.line = c.line AND s.member = c.member AND s.since <= $2 \
            AND (s.until IS NULL OR s.until > $2))";
        let acknowledged = first_int(&self.read(sql, vec![line.into(), number.into()]).await?)?;
        Ok(Reached { recipients, acknowledged })
    }
}

/// Makes the cursor of a consumer, where it has none.
async fn need_cursor(
    tx: &mut Tx,
    line: i64,
    member: &str,
    consumer: &str,
    now: i64,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO ack_cursor (line, member, consumer, updated_at) VALUES ($1, $2, $3, $4) \
        ON CONFLICT (line, member, consumer) DO NOTHING";
    let args = vec![line.into(), member.into(), consumer.into(), now.into()];
    tx.run(sql, args).await.map(drop)
}

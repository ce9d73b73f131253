//! Who belongs to a mesh, by what they are known, and which numbers of a line are theirs. Reads only.

use semel_delivery::relay::store::sql::{Row, StoreError, Value};

use super::Store;
use crate::identity::{Caller, Role};

/// A member that may act.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) caller: Caller,
    pub(crate) role: Role,
}

/// From `since` up to, and without, `until`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interval {
    pub(crate) since: i64,
    pub(crate) until: Option<i64>,
}

impl Interval {
    pub(crate) fn has(&self, number: i64) -> bool {
        self.since <= number && self.until.is_none_or(|until| number < until)
    }
}

fn standing_of(row: &Row) -> Result<Standing, StoreError> {
    let role = Role::parse(&row.text(2)?).ok_or_else(|| StoreError::Failed("no such role".to_owned()))?;
    Ok(Standing { caller: Caller { mesh: row.text(0)?, member: row.text(1)? }, role })
}

impl Store {
    /// The member that a token belongs to.
    pub(crate) async fn by_token(&self, sha256: &str) -> Result<Option<Standing>, StoreError> {
        let sql = "SELECT t.mesh_id, t.member, m.role FROM member_token t \
            JOIN member m ON m.mesh_id = t.mesh_id AND m.member = t.member JOIN mesh e ON e.id = t.mesh_id \
            WHERE t.token_sha256 = $1 AND m.left_at IS NULL AND e.deleted_at IS NULL";
        self.standing(sql, vec![sha256.into()]).await
    }

    /// The member of this name.
    pub(crate) async fn by_name(&self, mesh: &str, member: &str) -> Result<Option<Standing>, StoreError> {
        let sql = "SELECT m.mesh_id, m.member, m.role FROM member m JOIN mesh e ON e.id = m.mesh_id \
            WHERE m.mesh_id = $1 AND m.member = $2 AND m.left_at IS NULL AND e.deleted_at IS NULL";
        self.standing(sql, vec![mesh.into(), member.into()]).await
    }

    async fn standing(&self, sql: &str, args: Vec<Value>) -> Result<Option<Standing>, StoreError> {
        self.read(sql, args).await?.first().map(standing_of).transpose()
    }

    /// Which numbers of a line are a member's, in order.
    pub(crate) async fn intervals(&self, line: i64, member: &str) -> Result<Vec<Interval>, StoreError> {
        let sql =
            "SELECT since, until FROM topic_subscription WHERE line = $1 AND member = $2 ORDER BY since";
        let rows = self.read(sql, vec![line.into(), member.into()]).await?;
        rows.iter().map(|row| Ok(Interval { since: row.int(0)?, until: row.maybe_int(1)? })).collect()
    }

    /// Bytes that a mesh keeps, and how many it may.
    pub(crate) async fn room(&self, mesh: &str) -> Result<(i64, Option<i64>), StoreError> {
        let used =
            self.read("SELECT bytes FROM line WHERE mesh_id = $1 AND bytes > 0", vec![mesh.into()]).await?;
        let used = used.iter().map(|row| row.int(0)).sum::<Result<i64, _>>()?;
        let rows = self.read("SELECT bytes_max FROM mesh WHERE id = $1", vec![mesh.into()]).await?;
        Ok((used, rows.first().map_or(Ok(None), |row| row.maybe_int(0))?))
    }
}

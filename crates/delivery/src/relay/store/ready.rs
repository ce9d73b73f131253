//! Which lanes are due. What is past is not walked over again: whoever looks remembers how far it has looked ([`Place`]), and
//! what was committed too late to be seen so is found by a pass over the lanes.

use semel_store::postgres::base::SESSIONS;

use super::RelayStore;
use super::sql::StoreError;

/// A place in the order in which lanes are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// When.
    pub due: i64,
    /// Which lane.
    pub lane: i64,
}

const NEWEST: &str = "FROM relay_state s WHERE s.lane = l.id ORDER BY s.version DESC LIMIT 1";

impl RelayStore {
    /// Lanes that are due, the longest first, from the beginning of time.
    pub async fn due(&self, now: i64, most: i64) -> Result<Vec<i64>, StoreError> {
        let start = Place { due: i64::MIN, lane: 0 };
        Ok(self.due_after(start, now, most).await?.into_iter().map(|place| place.lane).collect())
    }

    /// Lanes that are due after this place and until then, in order.
    pub async fn due_after(&self, after: Place, until: i64, most: i64) -> Result<Vec<Place>, StoreError> {
        let sql = "SELECT due_ms, lane FROM relay_state
            WHERE (due_ms, lane) > ($1, $2) AND due_ms <= $3 AND due_ms IS NOT NULL ORDER BY due_ms, lane LIMIT $4";
        let args = vec![after.due.into(), after.lane.into(), until.into(), most.into()];
        let rows = self.db.read(sql, args).await?;
        rows.iter().map(|row| Ok(Place { due: row.int(0)?, lane: row.int(1)? })).collect()
    }

    /// Looks at so many lanes after this one, by number. Returns those that are due, and the last one it looked at, `None`
    /// when there are no more.
    pub async fn due_among(
        &self,
        after: i64,
        now: i64,
        most: i64,
    ) -> Result<(Vec<i64>, Option<i64>), StoreError> {
        let sql = format!(
            "SELECT l.id, (SELECT s.due_ms {NEWEST}) FROM relay_lane l WHERE l.id > $1 ORDER BY l.id LIMIT $2"
        );
        let rows = self.db.read(&sql, vec![after.into(), most.into()]).await?;
        let (mut due, mut last) = (Vec::new(), None);
        for row in &rows {
            let lane = row.int(0)?;
            if row.maybe_int(1)?.is_some_and(|at| at <= now) {
                due.push(lane);
            }
            last = Some(lane);
        }
        Ok((due, last.filter(|_| rows.len() as i64 == most)))
    }

    /// When the next lane is due after one time and until another, if one is.
    pub async fn next_due(&self, after: i64, until: i64) -> Result<Option<i64>, StoreError> {
        let sql = "SELECT due_ms FROM relay_state WHERE due_ms > $1 AND due_ms <= $2 AND due_ms IS NOT NULL
            ORDER BY due_ms LIMIT 1";
        let rows = self.db.read(sql, vec![after.into(), until.into()]).await?;
        rows.first().map_or(Ok(None), |row| row.maybe_int(0))
    }

    /// The target of a lane.
    pub async fn target_of(&self, lane: i64) -> Result<Option<String>, StoreError> {
        let rows = self.db.read("SELECT target FROM relay_lane WHERE id = $1", vec![lane.into()]).await?;
        rows.first().map(|row| row.text(0)).transpose()
    }

    /// Whether somebody holds a lane now.
    pub async fn is_held(&self, lane: i64) -> Result<bool, StoreError> {
        let sql = "SELECT owner, lease_until FROM relay_state WHERE lane = $1 ORDER BY version DESC LIMIT 1";
        let (rows, now) = (self.db.read(sql, vec![lane.into()]).await?, self.now().await?);
        let Some(row) = rows.first() else { return Ok(false) };
        Ok(!row.text(0)?.is_empty() && row.int(1)? > now)
    }

    /// Whether none of these lanes is worked on, or will be by then.
    pub async fn none_due(&self, lanes: &[i64], by: i64) -> Result<bool, StoreError> {
        for lane in lanes {
            let sql = "SELECT owner, due_ms FROM relay_state WHERE lane = $1 ORDER BY version DESC LIMIT 1";
            let rows = self.db.read(sql, vec![(*lane).into()]).await?;
            let Some(row) = rows.first() else { continue };
            if !row.text(0)?.is_empty() || row.maybe_int(1)?.is_some_and(|due| due <= by) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// How many connections the relays on this server's database have, this one's among them, and from how many addresses.
    pub async fn sessions(&self) -> Result<(i64, i64), StoreError> {
        let rows = self.db.read(SESSIONS, vec![]).await?;
        rows.first().map_or(Ok((0, 0)), |row| Ok((row.int(0)?, row.int(1)?)))
    }

    /// Whether the database can serve, and answers.
    pub async fn ping(&self) -> Result<(), StoreError> {
        self.db.ready().await?;
        self.db.read("SELECT lane FROM relay_state WHERE lane = 0 LIMIT 1", vec![]).await.map(drop)
    }
}

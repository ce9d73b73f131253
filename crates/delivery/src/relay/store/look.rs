//! What can be seen: requests, lanes, what waits, the audit trail. Changes nothing.

use super::sql::{Row, StoreError};
use super::{AuditRow, Entry, Intent, LANE, Lane, LaneState, RelayStore, intent, waiting};
use crate::relay::reduce::Reducer;

/// Where one item of a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemState {
    /// It waits.
    Pending,
    /// It is being written, or may have been.
    Processing,
    /// It was applied.
    Completed,
    /// It was given up.
    Failed,
    /// It waits for a credential.
    AuthRevoked,
    /// Nobody knows whether it was applied.
    InDoubt,
    /// It waits until an operator has decided about its lane.
    Blocked,
}

impl ItemState {
    fn is_open(self) -> bool {
        !matches!(self, ItemState::Completed | ItemState::Failed)
    }

    /// The state's name.
    pub fn name(self) -> &'static str {
        match self {
            ItemState::Pending => "pending",
            ItemState::Processing => "processing",
            ItemState::Completed => "completed",
            ItemState::Failed => "failed",
            ItemState::AuthRevoked => "auth_revoked",
            ItemState::InDoubt => "in_doubt",
            ItemState::Blocked => "blocked",
        }
    }
}

/// One item of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Its lane.
    pub lane: String,
    /// The lane's group.
    pub group: String,
    /// What people call the lane.
    pub label: Option<String>,
    /// The item's value.
    pub value: i64,
    /// The upstream's value after the lane's last write.
    pub applied: Option<i64>,
    /// Where it stands.
    pub state: ItemState,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Items that are neither applied nor given up.
    pub open: i64,
    /// Items that were given up.
    pub dead: i64,
    /// Its items, in order.
    pub items: Vec<Item>,
}

/// A lane with what waits in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneView {
    /// The lane.
    pub lane: Lane,
    /// How many entries wait, parked ones included.
    pub pending: i64,
    /// By how much they will change the value.
    pub delta: i64,
    /// What is being written, or may have been. Its entries are part of `pending` and `delta` until they are settled.
    pub writing: Option<Writing>,
}

/// The values around a frozen batch. Whoever reads the upstream by itself and finds `after` knows that the batch is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Writing {
    /// The upstream's value before, where it is known.
    pub before: Option<i64>,
    /// The value that the write leads to, where it is known.
    pub after: Option<i64>,
}

/// Everything about one lane.
#[derive(Clone, Debug)]
pub struct LaneDetail {
    /// The lane.
    pub lane: Lane,
    /// The frozen batch.
    pub intent: Option<Intent>,
    /// What waits.
    pub entries: Vec<Entry>,
    /// What is held: state, reason and entry.
    pub held: Vec<(String, String, Entry)>,
    /// When it is due.
    pub due: Option<i64>,
    /// The last rows of its audit trail, newest first.
    pub audit: Vec<AuditRow>,
}

/// How much of everything there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Entries that wait in their lanes.
    pub pending: i64,
    /// Parked entries.
    pub parked: i64,
    /// Dead letters.
    pub dead: i64,
    /// Lanes in doubt.
    pub in_doubt: i64,
    /// Lanes that wait for a credential or an operator.
    pub blocked: i64,
}

impl RelayStore {
    /// A request with its items.
    pub async fn request(&self, id: i64) -> Result<Option<Request>, StoreError> {
        let mut tx = self.db.begin().await?;
        let rows = tx.run("SELECT dead, items FROM relay_request WHERE id = $1", vec![id.into()]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let (mut dead, count) = (row.int(0)?, row.int(1)?);
        let sql = "SELECT i.pos, l.name, l.grp, l.label, i.value, l.applied, i.seq, l.watermark, l.state, h.state, n.hi,
                (SELECT s.waits_for FROM relay_state s WHERE s.lane = l.id ORDER BY s.version DESC LIMIT 1), r.dead
            FROM relay_item i JOIN relay_request r ON r.id = i.request JOIN relay_now l ON l.id = i.lane
            LEFT JOIN relay_held h ON h.lane = i.lane AND h.seq = i.seq
            LEFT JOIN relay_intent n ON n.lane = i.lane AND n.fence > l.ended
            WHERE i.request = $1 ORDER BY i.pos, i.seq";
        let mut items: Vec<(i64, Item)> = Vec::with_capacity(usize::try_from(count).unwrap_or(0));
        for row in tx.run(sql, vec![id.into()]).await? {
            // Of the same moment as the items: what is given up meanwhile is not taken for applied.
            dead = row.int(12)?;
            let item = Item {
                lane: row.text(1)?,
                group: row.text(2)?,
                label: row.maybe_text(3)?,
                value: row.int(4)?,
                applied: row.maybe_int(5)?,
                state: state(&row)?,
            };
            // Released entries come again under a later number, which counts.
            items.retain(|(pos, _)| Some(*pos) != row.int(0).ok());
            items.push((row.int(0)?, item));
        }
        let items: Vec<Item> = items.into_iter().map(|(_, item)| item).collect();
        let open = items.iter().filter(|item| item.state.is_open()).count() as i64;
        Ok(Some(Request { open, dead, items }))
    }

    /// Whether every item of a request is applied or given up.
    pub async fn is_done(&self, id: i64) -> Result<bool, StoreError> {
        let mut tx = self.db.begin().await?;
        let sql = "SELECT i.seq FROM relay_item i JOIN relay_now l ON l.id = i.lane
            LEFT JOIN relay_held h ON h.lane = i.lane AND h.seq = i.seq
            WHERE i.request = $1 AND (h.state = 'parked' OR (h.state IS NULL AND i.seq > l.watermark)) LIMIT 1";
        Ok(tx.run(sql, vec![id.into()]).await?.is_empty())
    }

    /// The lanes of a target, of one group or of all, with what waits.
    pub async fn lanes(
        &self,
        target: &str,
        group: Option<&str>,
        reducer: Reducer,
    ) -> Result<Vec<LaneView>, StoreError> {
        let mut tx = self.db.begin().await?;
        // Lane and batch are of one moment: a batch that ends meanwhile is not missed beside an older watermark.
        let batch = "FROM relay_intent n WHERE n.lane = relay_now.id AND n.fence > relay_now.ended";
        let sql = format!(
            "SELECT {LANE}, (SELECT count(*) {batch}), (SELECT max(n.before) {batch}), (SELECT max(n.after) {batch})
             FROM relay_now WHERE target = $1 AND (CAST($2 AS text) IS NULL OR grp = $2)
             ORDER BY grp, name LIMIT 1000"
        );
        let mut views = Vec::new();
        for row in tx.run(&sql, vec![target.into(), group.into()]).await? {
            let lane = Lane::of(&row)?;
            let writing = Writing { before: row.maybe_int(11)?, after: row.maybe_int(12)? };
            let writing = (row.int(10)? > 0).then_some(writing);
            let sql = "SELECT value FROM (
                    SELECT i.seq AS seq, i.value AS value FROM relay_item i WHERE i.lane = $1 AND i.seq > $2
                      AND NOT EXISTS (SELECT 1 FROM relay_held h WHERE h.lane = i.lane AND h.seq = i.seq)
                    UNION ALL
                    SELECT seq, value FROM relay_held WHERE lane = $1 AND state = 'parked') AS waiting
                ORDER BY seq";
            let rows = tx.run(sql, vec![lane.id.into(), lane.watermark.into()]).await?;
            let values = rows.iter().map(|row| row.int(0)).collect::<Result<Vec<_>, _>>()?;
            views.push(LaneView {
                pending: values.len() as i64,
                delta: delta(reducer, lane.applied, &values),
                writing,
                lane,
            });
        }
        Ok(views)
    }

    /// How many entries of a principal wait, by target, group and lane.
    pub async fn pending(
        &self,
        principal: &str,
        group: Option<&str>,
        session: Option<&str>,
    ) -> Result<Vec<(Lane, i64)>, StoreError> {
        let mut tx = self.db.begin().await?;
        let sql = format!(
            "WITH RECURSIVE lanes (lane) AS (
                SELECT min(lane) FROM relay_item WHERE principal = $1
                UNION ALL
                SELECT (SELECT min(i.lane) FROM relay_item i WHERE i.principal = $1 AND i.lane > lanes.lane)
                FROM lanes WHERE lanes.lane IS NOT NULL)
             SELECT {LANE}, waiting.many FROM relay_now JOIN (
                SELECT lane AS of_lane, count(*) AS many FROM (
                    SELECT i.lane AS lane, i.session AS session
                    FROM lanes JOIN relay_now l ON l.id = lanes.lane
                        JOIN relay_item i ON i.principal = $1 AND i.lane = l.id AND i.seq > l.watermark
                    WHERE NOT EXISTS (SELECT 1 FROM relay_held h WHERE h.lane = i.lane AND h.seq = i.seq)
                    UNION ALL
                    SELECT lane, session FROM relay_held WHERE principal = $1 AND state = 'parked') AS entries
                WHERE CAST($3 AS text) IS NULL OR session = $3
                GROUP BY lane) AS waiting ON waiting.of_lane = relay_now.id
             WHERE CAST($2 AS text) IS NULL OR grp = $2
             ORDER BY target, grp, name LIMIT 1000"
        );
        let rows = tx.run(&sql, vec![principal.into(), group.into(), session.into()]).await?;
        rows.iter().map(|row| Ok((Lane::of(row)?, row.int(10)?))).collect()
    }

    /// How much of everything there is.
    pub async fn counts(&self) -> Result<Counts, StoreError> {
        let mut tx = self.db.begin().await?;
        let mut one = Vec::new();
        for sql in [
            "SELECT CAST(coalesce(sum((SELECT count(*) FROM relay_item i WHERE i.lane = l.id AND i.seq > l.watermark
                AND NOT EXISTS (SELECT 1 FROM relay_held h WHERE h.lane = i.lane AND h.seq = i.seq))), 0) AS bigint)
                FROM relay_now l",
            "SELECT count(*) FROM relay_held WHERE state = 'parked'",
            "SELECT count(*) FROM relay_held WHERE state = 'dead'",
            "SELECT count(*) FROM relay_state WHERE state <> 'open' AND state = 'in-doubt'",
            "SELECT count(*) FROM relay_state WHERE state <> 'open' AND state = 'blocked'",
        ] {
            let rows = tx.run(sql, vec![]).await?;
            one.push(rows.first().map_or(Ok(0), |row| row.int(0))?);
        }
        Ok(Counts { pending: one[0], parked: one[1], dead: one[2], in_doubt: one[3], blocked: one[4] })
    }

    /// Everything about one lane.
    pub async fn detail(&self, lane: i64) -> Result<Option<LaneDetail>, StoreError> {
        let mut tx = self.db.begin().await?;
        let sql = format!("SELECT {LANE}, ended, due_ms FROM relay_now WHERE id = $1");
        let rows = tx.run(&sql, vec![lane.into()]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let (found, ended, due) = (Lane::of(row)?, row.int(10)?, row.maybe_int(11)?);
        let sql =
            "SELECT state, error, seq, request, pos, principal, value, session, since_ms FROM relay_held
            WHERE lane = $1 AND state IN ('parked', 'dead') ORDER BY seq LIMIT 1000";
        let held = tx.run(sql, vec![lane.into()]).await?;
        let held = held.iter().map(|row| {
            let entry = Entry {
                seq: row.int(2)?,
                request: row.int(3)?,
                pos: row.int(4)?,
                principal: row.text(5)?,
                value: row.int(6)?,
                session: row.maybe_text(7)?,
                created: row.int(8)?,
                is_alone: false,
            };
            Ok((row.text(0)?, row.text(1)?, entry))
        });
        let held = held.collect::<Result<_, StoreError>>()?;
        let sql = format!(
            "SELECT {AUDIT} FROM relay_audit WHERE target = $1 AND grp = $2 AND lane = $3 ORDER BY id DESC LIMIT 50"
        );
        let args = vec![(&found.target).into(), (&found.group).into(), (&found.name).into()];
        let audit = tx.run(&sql, args).await?.iter().map(audit_of).collect::<Result<_, _>>()?;
        Ok(Some(LaneDetail {
            intent: intent(&mut tx, lane, ended).await?,
            entries: waiting(&mut tx, lane, found.watermark, i64::MAX, 1000).await?,
            lane: found,
            held,
            due,
            audit,
        }))
    }

    /// The audit trail after this row, oldest first.
    pub async fn audit_after(&self, id: i64, most: i64) -> Result<Vec<AuditRow>, StoreError> {
        let mut tx = self.db.begin().await?;
        let sql = format!("SELECT {AUDIT} FROM relay_audit WHERE id > $1 ORDER BY id LIMIT $2");
        tx.run(&sql, vec![id.into(), most.into()]).await?.iter().map(audit_of).collect()
    }
}

const AUDIT: &str =
    "id, at_ms, event, target, grp, lane, seq, request, pos, principal, sender, value, before, after, batch,
    detail, reason";

fn audit_of(row: &Row) -> Result<AuditRow, StoreError> {
    Ok(AuditRow {
        id: row.int(0)?,
        at: row.int(1)?,
        event: row.text(2)?,
        target: row.text(3)?,
        group: row.text(4)?,
        lane: row.text(5)?,
        seq: row.maybe_int(6)?,
        request: row.maybe_int(7)?,
        pos: row.maybe_int(8)?,
        principal: row.text(9)?,
        sender: row.maybe_text(10)?,
        value: row.maybe_int(11)?,
        before: row.maybe_int(12)?,
        after: row.maybe_int(13)?,
        batch: row.maybe_text(14)?,
        detail: row.text(15)?,
        reason: row.maybe_text(16)?,
    })
}

fn state(row: &Row) -> Result<ItemState, StoreError> {
    let (seq, watermark) = (row.int(6)?, row.int(7)?);
    let lane = row.text(8)?;
    let is_frozen = row.maybe_int(10)?.is_some_and(|hi| seq <= hi);
    Ok(match row.maybe_text(9)?.as_deref() {
        Some("parked") => ItemState::AuthRevoked,
        Some("dead" | "purged") => ItemState::Failed,
        Some(_) if lane == LaneState::Open.name() => ItemState::Pending,
        Some(_) => waits(row)?,
        None if seq <= watermark => ItemState::Completed,
        None if is_frozen && lane == LaneState::InDoubt.name() => ItemState::InDoubt,
        None if is_frozen => ItemState::Processing,
        None if lane != LaneState::Open.name() => waits(row)?,
        None => ItemState::Pending,
    })
}

/// How an item stands whose lane is stopped: by a credential, or until an operator decides.
fn waits(row: &Row) -> Result<ItemState, StoreError> {
    let is_for_credential = row.maybe_text(11)?.is_some();
    Ok(if is_for_credential { ItemState::AuthRevoked } else { ItemState::Blocked })
}

/// By how much waiting values will change the value.
fn delta(reducer: Reducer, applied: Option<i64>, values: &[i64]) -> i64 {
    let change = |wanted: i64| wanted.saturating_sub(applied.unwrap_or(0));
    match (reducer, values) {
        (_, []) => 0,
        (Reducer::Sum, values) => values.iter().fold(0, |sum: i64, value| sum.saturating_add(*value)),
        (Reducer::Last, [.., last]) => change(*last),
        (Reducer::Max, values) => change(values.iter().copied().max().unwrap_or(0)).max(0),
    }
}

//! Lanes for operators: which of them, in which order, and what is held in each. Changes nothing.

use super::sql::{StoreError, Value};
use super::{LANE, Lane, LaneState, RelayStore};
use crate::store::Order;

/// Which lanes are listed.
#[derive(Clone, Debug, Default)]
pub struct LaneFilter {
    /// Only in this state, or with dead letters (`dead`), parked entries (`parked`) or anything that waits (`pending`).
    pub state: Option<String>,
    /// Only of this target.
    pub target: Option<String>,
    /// Only of this name.
    pub lane: Option<String>,
    /// Only with an entry of a request with this key.
    pub key: Option<String>,
    /// Only with numbers above this one.
    pub after: i64,
    /// Only with numbers below this one.
    pub before: Option<i64>,
    /// Which come first.
    pub order: Order,
    /// At most so many.
    pub limit: i64,
}

/// A lane in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedLane {
    /// The lane.
    pub lane: Lane,
    /// Entries that wait in it.
    pub pending: i64,
    /// Entries that wait for a credential.
    pub parked: i64,
    /// Dead letters.
    pub dead: i64,
}

impl ListedLane {
    /// How it stands, in one word: a lane that is open and has nothing but parked entries or dead letters does not move.
    pub fn standing(&self) -> &'static str {
        match self.lane.state {
            LaneState::Open if self.pending == 0 && self.parked > 0 => "parked",
            LaneState::Open if self.pending == 0 && self.dead > 0 => "dead",
            state @ (LaneState::Open | LaneState::Blocked | LaneState::InDoubt) => state.name(),
        }
    }
}

/// What waits in a lane, frozen or not.
const WAITING: &str = "SELECT 1 FROM relay_item i WHERE i.lane = relay_now.id AND i.seq > watermark
    AND NOT EXISTS (SELECT 1 FROM relay_held h WHERE h.lane = i.lane AND h.seq = i.seq)";

fn condition(state: &str) -> String {
    match state {
        "pending" => format!("EXISTS ({WAITING})"),
        "dead" => held("dead", "1", "EXISTS "),
        "parked" => held("parked", "1", "EXISTS "),
        "in-doubt" => "state = 'in-doubt'".to_owned(),
        "blocked" => "state = 'blocked'".to_owned(),
        _ => "state = 'open'".to_owned(),
    }
}

/// A question about what is held in a lane. The words are this file's own.
fn held(state: &str, what: &str, before: &str) -> String {
    format!("{before}(SELECT {what} FROM relay_held h WHERE h.lane = relay_now.id AND h.state = '{state}')")
}

impl RelayStore {
    /// Lanes in this state, the first numbers first; see [`LaneFilter`].
    pub async fn list(&self, what: Option<&str>, after: i64, most: i64) -> Result<Vec<Lane>, StoreError> {
        let filter =
            LaneFilter { state: what.map(str::to_owned), after, limit: most, ..LaneFilter::default() };
        let rows = self.listed(&filter, LANE).await?;
        rows.iter().map(Lane::of).collect()
    }

    /// Lanes with what is held in each.
    pub async fn find_lanes(&self, filter: &LaneFilter) -> Result<Vec<ListedLane>, StoreError> {
        let waiting = WAITING.replacen("SELECT 1", "SELECT count(*)", 1);
        let (parked, dead) = (held("parked", "count(*)", ""), held("dead", "count(*)", ""));
        let rows = self.listed(filter, &format!("{LANE}, ({waiting}), {parked}, {dead}")).await?;
        let listed = |row: &super::sql::Row| {
            let lane = Lane::of(row)?;
            Ok(ListedLane { lane, pending: row.int(10)?, parked: row.int(11)?, dead: row.int(12)? })
        };
        rows.iter().map(listed).collect()
    }

    async fn listed(&self, filter: &LaneFilter, columns: &str) -> Result<Vec<super::sql::Row>, StoreError> {
        let mut args: Vec<Value> =
            vec![filter.after.into(), filter.before.unwrap_or(i64::MAX).into(), filter.limit.into()];
        let mut wanted = filter.state.as_deref().map(condition).into_iter().collect::<Vec<_>>();
        let of_key = "EXISTS (SELECT 1 FROM relay_item i JOIN relay_request r ON r.id = i.request
            WHERE i.lane = relay_now.id AND r.key = ";
        let texts =
            [("target = ", &filter.target, ""), ("name = ", &filter.lane, ""), (of_key, &filter.key, ")")];
        for (before, text, after) in texts {
            if let Some(text) = text {
                args.push(text.into());
                wanted.push(format!("{before}${}{after}", args.len()));
            }
        }
        let wanted: String = wanted.iter().map(|condition| format!(" AND {condition}")).collect();
        let order = match filter.order {
            Order::OldestFirst => "ASC",
            Order::NewestFirst => "DESC",
        };
        let sql = format!(
            "SELECT {columns} FROM relay_now WHERE id > $1 AND id < $2{wanted} ORDER BY id {order} LIMIT $3"
        );
        let mut tx = self.db.begin().await?;
        tx.run(&sql, args).await
    }
}

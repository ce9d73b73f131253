//! Takes entries in: a request row, and for each item a row in its lane, numbered under the lane's lock.

use std::collections::BTreeMap;

use super::sql::StoreError;
use super::{LaneState, RelayStore, Tx, locked_by_name, locked_or_new};
use crate::relay::debounce::{Debounce, Due, Mode, due};

/// One item of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewItem {
    /// Its lane.
    pub lane: String,
    /// The lane's group; empty where it has none.
    pub group: String,
    /// What people call the lane.
    pub label: Option<String>,
    /// The session that sends it.
    pub session: Option<String>,
    /// The value.
    pub value: i64,
}

/// A request.
#[derive(Clone, Debug)]
pub struct Submission {
    /// The target's name.
    pub target: String,
    /// Whose it is.
    pub principal: String,
    /// Its key, of this principal alone.
    pub key: String,
    /// What it asks for, hashed.
    pub fingerprint: String,
    /// How it is treated.
    pub mode: Mode,
    /// How long background entries wait.
    pub debounce: Debounce,
    /// Whether one name in two groups is two lanes of the target.
    pub groups: bool,
    /// What it brings.
    pub items: Vec<NewItem>,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// It is in.
    New {
        /// The request's number.
        request: i64,
        /// Its lanes.
        lanes: Vec<i64>,
    },
    /// The same request is known.
    Known {
        /// Its number.
        request: i64,
    },
    /// The key is known with another request.
    Mismatch,
}

impl RelayStore {
    /// Takes a request in, or finds it.
    ///
    /// Before: nothing is assumed. After: all items are in their lanes, or none. Two transactions on one lane commit in the
    /// order of their numbers. Crash: before the commit nothing is known of the request; the same request sent again is
    /// then new. `Unknown`: sent again, it is found or new, never both.
    pub async fn accept(&self, submission: &Submission) -> Result<Accepted, StoreError> {
        let now = self.now().await?;
        let mut tx = self.db.begin().await?;
        if let Some(known) = known(&mut tx, submission).await? {
            return Ok(known);
        }
        let sql =
            "INSERT INTO relay_request (target, principal, key, fingerprint, mode, items, open, created_ms)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (principal, key) DO NOTHING RETURNING id";
        let count = submission.items.len() as i64;
        let args = vec![
            (&submission.target).into(),
            (&submission.principal).into(),
            (&submission.key).into(),
            (&submission.fingerprint).into(),
            submission.mode.name().into(),
            count.into(),
            count.into(),
            now.into(),
        ];
        let Some(row) = tx.run(sql, args).await?.into_iter().next() else {
            // A racer was first, and has committed: a second read sees it.
            let racer = known(&mut tx, submission).await?;
            return racer.ok_or_else(|| StoreError::Failed("a racer's request is gone again".to_owned()));
        };
        let request = row.int(0)?;
        let mut by_lane: BTreeMap<(&str, &str), Vec<(i64, &NewItem)>> = BTreeMap::new();
        for (pos, item) in (0..).zip(&submission.items) {
            let group = if submission.groups { item.group.as_str() } else { "" };
            by_lane.entry((group, &item.lane)).or_default().push((pos, item));
        }
        let mut lanes = Vec::new();
        // In one order for everybody, so that no two wait for each other.
        for ((group, name), items) in by_lane {
            lanes.push(into_lane(&mut tx, submission, request, (group, name), &items, now).await?);
        }
        tx.commit().await?;
        Ok(Accepted::New { request, lanes })
    }
}

async fn known(tx: &mut Tx, submission: &Submission) -> Result<Option<Accepted>, StoreError> {
    let sql = "SELECT id, fingerprint FROM relay_request WHERE principal = $1 AND key = $2";
    let rows = tx.run(sql, vec![(&submission.principal).into(), (&submission.key).into()]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let is_same = row.text(1)? == submission.fingerprint;
    Ok(Some(if is_same { Accepted::Known { request: row.int(0)? } } else { Accepted::Mismatch }))
}

async fn into_lane(
    tx: &mut Tx,
    submission: &Submission,
    request: i64,
    (group, name): (&str, &str),
    items: &[(i64, &NewItem)],
    now: i64,
) -> Result<i64, StoreError> {
    let mut state = match submission.groups {
        true => locked_or_new(tx, &submission.target, group, name).await?,
        false => {
            let said =
                items.iter().rev().map(|(_, item)| item.group.as_str()).find(|group| !group.is_empty());
            locked_by_name(tx, &submission.target, said, name).await?
        }
    };
    let before = state.clone();
    if let Some(label) = items.iter().rev().find_map(|(_, item)| item.label.as_deref()) {
        state.label = Some(label.to_owned());
    }
    let sql = "INSERT INTO relay_item (lane, seq, request, pos, principal, value, session, created_ms, alone)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";
    let alone = (submission.items.len() == 1).then_some(1);
    let row = |(seq, (pos, item)): (i64, &(i64, &NewItem))| {
        vec![
            state.lane.into(),
            seq.into(),
            request.into(),
            (*pos).into(),
            (&submission.principal).into(),
            item.value.into(),
            item.session.as_deref().into(),
            now.into(),
            alone.into(),
        ]
    };
    tx.run_each(sql, (state.last_seq + 1..).zip(items).map(row).collect()).await?;
    // A lane that waits for a person or a credential is not among the waiting work.
    if state.state == LaneState::Open {
        let known = match (state.since, state.due) {
            (Some(since), Some(at)) => Some(Due { since, at }),
            (Some(_), None) | (None, _) => None,
        };
        let next = due(known, submission.mode, submission.debounce, now);
        state.make_due(next.since, next.at);
    }
    // The entries themselves tell the last number: most of them change nothing else of the lane.
    if state != before {
        state.last_seq += items.len() as i64;
        state.save(tx).await?;
    }
    Ok(before.lane)
}

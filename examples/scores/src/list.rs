//! The list of patrols: what the external service shows, and what the relay still adds. Nothing is counted twice while a write is
//! under way, nothing is left out. While the external service does not answer, its last list goes on, with what the relay knows.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use semel_delivery::relay::reduce::Reducer;
use semel_delivery::relay::store::look::LaneView;
use semel_delivery::relay::store::{RelayStore, StoreError};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::external::{External, TARGET};

/// Looks until nothing changed between the first and the last of them.
const LOOKS_MAX: usize = 5;

/// A patrol of the external service.
#[derive(Clone, Debug, Deserialize)]
pub struct Patrol {
    id: String,
    name: Option<String>,
    score: i64,
}

/// The last list of each section that the external service gave.
pub type LastLists = Arc<Mutex<BTreeMap<String, Vec<Patrol>>>>;

/// The patrols of a section, as this leader sees them.
pub(crate) async fn patrols(
    store: &RelayStore,
    external: &External,
    lists: &LastLists,
    section: &str,
    leader: &str,
) -> Result<Vec<Value>, StoreError> {
    let mut looks = 0;
    loop {
        let before = lanes(store, section).await?;
        let theirs = theirs(external, section, leader).await;
        let after = lanes(store, section).await?;
        looks += 1;
        let mut last = lists.lock().unwrap_or_else(PoisonError::into_inner);
        match theirs {
            Some(theirs) if before == after || looks == LOOKS_MAX => {
                last.insert(section.to_owned(), theirs.clone());
                return Ok(merge(&theirs, &before, &after));
            }
            Some(_) => {}
            // A score of then does not go with what waits now, unless the relay never wrote that patrol.
            None => return Ok(merge(last.get(section).map_or(&[], Vec::as_slice), &[], &after)),
        }
    }
}

async fn lanes(store: &RelayStore, section: &str) -> Result<Vec<LaneView>, StoreError> {
    store.lanes(TARGET, Some(section), Reducer::Sum).await
}

/// The external service's own list; nothing when it does not give one.
async fn theirs(external: &External, section: &str, leader: &str) -> Option<Vec<Patrol>> {
    #[derive(Deserialize)]
    struct List {
        patrols: Vec<Patrol>,
    }
    let answer =
        external.ask("GET", &format!("/sections/{section}/patrols"), Some(leader), &Value::Null).await?;
    let list = (answer.status == 200).then_some(answer.body)?;
    Some(serde_json::from_slice::<List>(&list).ok()?.patrols)
}

fn merge(theirs: &[Patrol], before: &[LaneView], after: &[LaneView]) -> Vec<Value> {
    let mut all: Vec<Value> = Vec::new();
    for patrol in theirs {
        let view = after.iter().find(|view| view.lane.name == patrol.id);
        all.push(match view {
            // It changed around the look at the external service, whose score may be the one before or the one after.
            Some(view) if !before.contains(view) => {
                shown(patrol.name.as_deref(), Some(view.lane.applied.unwrap_or(patrol.score)), view.delta, view)
            }
            Some(view) => shown(patrol.name.as_deref(), Some(patrol.score), rest(patrol.score, view), view),
            None => json!({"id": patrol.id, "name": patrol.name, "score": patrol.score, "pendingDelta": 0, "hasPending": false}),
        });
    }
    let unknown = after.iter().filter(|view| !theirs.iter().any(|patrol| patrol.id == view.lane.name));
    // What the relay alone knows has no score before its first write.
    all.extend(unknown.map(|view| shown(view.lane.label.as_deref(), view.lane.applied, view.delta, view)));
    all
}

fn shown(name: Option<&str>, score: Option<i64>, rest: i64, view: &LaneView) -> Value {
    let (id, waits) = (&view.lane.name, view.pending > 0);
    json!({"id": id, "name": name, "score": score, "pendingDelta": rest, "hasPending": waits})
}

/// What is still to be added to a score. A write that is under way may be in the score already.
fn rest(score: i64, view: &LaneView) -> i64 {
    match view.writing.and_then(|writing| Some((writing.before?, writing.after?))) {
        Some((before, after)) if score == after => view.delta - (after - before),
        _ => view.delta,
    }
}

//! Lists by what records mean now. A claim whose lease ran out is an unknown outcome, also while nobody has marked it so.

use semel_contract::decide::Standing;
use semel_contract::record::State;
use semel_contract::time::Timestamp;
use semel_store::{AdminStore, Entry, Filter, StoreError};

/// Claims that are looked at in one go.
const PAGE: u32 = 1000;
/// Pages that are looked at for one list; live claims are few.
const PAGES_MAX: usize = 20;

/// Entries by fence number, in the order that the filter says.
pub(crate) async fn listed(
    store: &dyn AdminStore,
    filter: &Filter,
    now: Timestamp,
) -> Result<Vec<Entry>, StoreError> {
    let is_lapsed = |entry: &Entry| {
        entry.record.state == State::Claimed && Standing::of(Some(&entry.record), now) == Standing::Unknown
    };
    match filter.state {
        Some(State::Unknown) => {
            let mut found = store.list(filter).await?;
            found.extend(claims(store, filter, is_lapsed).await?);
            found.sort_by(|a, b| filter.order.compare(a.record.fence.number, b.record.fence.number));
            // Marked between the two lists, it would be in both.
            found.dedup_by_key(|entry| entry.record.fence.number);
            found.truncate(filter.limit as usize);
            Ok(found)
        }
        Some(State::Claimed) => claims(store, filter, |entry| !is_lapsed(entry)).await,
        Some(State::Settled | State::Unkept | State::Released | State::Sealed) | None => {
            store.list(filter).await
        }
    }
}

/// Claims of a kind, page by page until there are enough.
async fn claims(
    store: &dyn AdminStore,
    filter: &Filter,
    is_meant: impl Fn(&Entry) -> bool,
) -> Result<Vec<Entry>, StoreError> {
    let mut page = Filter { state: Some(State::Claimed), limit: PAGE, ..filter.clone() };
    let mut found = Vec::new();
    for _ in 0..PAGES_MAX {
        let entries = store.list(&page).await?;
        let is_last = entries.len() < PAGE as usize;
        page.after = entries.last().map(|entry| entry.record.fence.number).or(page.after);
        found.extend(entries.into_iter().filter(&is_meant));
        if is_last || found.len() >= filter.limit as usize {
            break;
        }
    }
    found.truncate(filter.limit as usize);
    Ok(found)
}

//! Lists by what records mean now. A claim whose lease ran out is an unknown outcome, also while nobody has marked it so.

use semel_contract::decide::Standing;
use semel_contract::record::State;
use semel_contract::time::Timestamp;
use semel_store::admin::{KeyReach, Sought};
use semel_store::{AdminStore, Entry, Filter, Order, StoreError};

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

/// What a list is narrowed by that has no index, beside the filter.
pub(crate) struct Narrowed {
    pub(crate) key: Option<String>,
    pub(crate) request_id: Option<String>,
    pub(crate) created_after: Option<Timestamp>,
    /// How many records may be looked at.
    pub(crate) within: Option<u32>,
}

/// What was found among those that were looked at.
pub(crate) struct Found {
    pub(crate) entries: Vec<Entry>,
    /// The number to go on after.
    pub(crate) next: Option<u64>,
    pub(crate) looked: u64,
    /// Whether there is no record that was not looked at.
    pub(crate) is_complete: bool,
    /// Whether the keys of older records are still being read after a start.
    pub(crate) is_reading: bool,
}

/// Records of one key.
const OF_KEY_MAX: u32 = 1000;

/// Entries that fit all that was said. A key is looked up; anything else is searched record by record.
pub(crate) async fn search_within(
    store: &dyn AdminStore,
    filter: &Filter,
    narrowed: &Narrowed,
    now: Timestamp,
) -> Result<Found, StoreError> {
    if let Some(key) = &narrowed.key {
        return search_key(store, key, filter, narrowed, now).await;
    }
    // Open records are few and have lists of their own.
    if matches!(filter.state, Some(State::Unknown | State::Claimed)) {
        let found = listed(store, filter, now).await?;
        let is_full = found.len() == filter.limit as usize;
        let next = found.last().filter(|_| is_full).map(|last| last.record.fence.number);
        let looked = found.len() as u64;
        let entries = found.into_iter().filter(|entry| fits(entry, filter, narrowed, now)).collect();
        return Ok(Found { entries, next, looked, is_complete: true, is_reading: false });
    }
    let within = u64::from(narrowed.within.unwrap_or(u32::MAX));
    let mut page = Filter { limit: PAGE, order: filter.order, after: filter.after, ..Filter::default() };
    let mut found =
        Found { entries: Vec::new(), next: None, looked: 0, is_complete: false, is_reading: false };
    while found.looked < within {
        let entries = store.list(&page).await?;
        let is_last = entries.len() < PAGE as usize;
        page.after = entries.last().map(|entry| entry.record.fence.number).or(page.after);
        for entry in entries {
            found.looked += 1;
            let is_too_old = narrowed.created_after.is_some_and(|after| entry.record.created_at < after);
            if is_too_old && filter.order == Order::NewestFirst {
                found.is_complete = true;
                return Ok(found);
            }
            let number = entry.record.fence.number;
            if fits(&entry, filter, narrowed, now) {
                found.entries.push(entry);
                if found.entries.len() == filter.limit as usize {
                    found.next = Some(number);
                    found.is_complete = true;
                    return Ok(found);
                }
            }
        }
        if is_last {
            found.is_complete = true;
            return Ok(found);
        }
    }
    Ok(found)
}

/// Entries of one key. Soon after a start it may reach some of the records only, and says how many.
async fn search_key(
    store: &dyn AdminStore,
    key: &str,
    filter: &Filter,
    narrowed: &Narrowed,
    now: Timestamp,
) -> Result<Found, StoreError> {
    let reach = store.key_reach().await?;
    let mut entries = store.find(&Sought::Key(key.to_owned()), OF_KEY_MAX).await?;
    let of_key = entries.len() as u64;
    let (looked, is_reading) = match reach {
        KeyReach::All => (of_key, false),
        KeyReach::Newest(rows) => (rows, true),
    };
    entries.retain(|entry| fits(entry, filter, narrowed, now));
    entries.sort_by(|a, b| filter.order.compare(a.record.fence.number, b.record.fence.number));
    entries.truncate(filter.limit as usize);
    let is_complete = !is_reading && of_key < u64::from(OF_KEY_MAX);
    Ok(Found { entries, next: None, looked, is_complete, is_reading })
}

fn fits(entry: &Entry, filter: &Filter, narrowed: &Narrowed, now: Timestamp) -> bool {
    let is_lapsed =
        entry.record.state == State::Claimed && Standing::of(Some(&entry.record), now) == Standing::Unknown;
    let state = if is_lapsed { State::Unknown } else { entry.record.state };
    let is = |wanted: &Option<String>, has: &str| wanted.as_ref().is_none_or(|wanted| wanted == has);
    filter.state.is_none_or(|wanted| wanted == state)
        && is(&filter.principal, &entry.about.principal)
        && is(&filter.endpoint, &entry.about.endpoint)
        && is(&narrowed.request_id, &entry.about.request_id)
        && filter.created_before.is_none_or(|before| entry.record.created_at <= before)
        && narrowed.created_after.is_none_or(|after| entry.record.created_at >= after)
}

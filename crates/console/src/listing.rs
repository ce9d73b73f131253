//! Lists by what records mean now. A claim whose lease ran out is an unknown outcome, also while nobody has marked it so.

use semel_contract::decide::Standing;
use semel_contract::record::State;
use semel_contract::time::Timestamp;
use semel_store::admin::{KeyReach, Sought};
use semel_store::{AdminStore, Entry, Filter, Order, StoreError};

/// Records that are looked at in one go.
const PAGE: u32 = 1000;
/// Claims that are looked at for one list that nobody bounds; live claims are few.
const CLAIMS_MAX: u64 = 20_000;

/// Entries by fence number, in the order that the filter says.
pub(crate) async fn listed(
    store: &dyn AdminStore,
    filter: &Filter,
    now: Timestamp,
) -> Result<Found, StoreError> {
    if let Some(State::Unknown | State::Claimed) = filter.state {
        return search_open(store, filter, &Narrowed::default(), CLAIMS_MAX, now).await;
    }
    let entries = store.list(filter).await?;
    let is_full = entries.len() == filter.limit as usize;
    let next = entries.last().filter(|_| is_full).map(|last| last.record.fence.number);
    Ok(Found { looked: entries.len() as u64, entries, next, is_complete: true, is_reading: false })
}

/// Open records that fit all that was said. They are few and have lists of their own: those that are marked unknown, and
/// claims, of which some have lapsed and are unknown outcomes too.
async fn search_open(
    store: &dyn AdminStore,
    filter: &Filter,
    narrowed: &Narrowed,
    within: u64,
    now: Timestamp,
) -> Result<Found, StoreError> {
    let mut found = claims_or_marked(store, State::Claimed, filter, narrowed, within, now).await?;
    if filter.state == Some(State::Unknown) {
        let marked = claims_or_marked(store, State::Unknown, filter, narrowed, within, now).await?;
        let ends = [&found, &marked].map(|one| one.next.filter(|_| !one.is_complete));
        found.entries.extend(marked.entries);
        found.entries.sort_by(|a, b| filter.order.compare(a.record.fence.number, b.record.fence.number));
        // Marked between the two looks, it would be in both.
        found.entries.dedup_by_key(|entry| entry.record.fence.number);
        found.looked += marked.looked;
        // Where one of them was not looked at to its end, the other counts up to there.
        let end = ends.into_iter().flatten().min_by(|a, b| filter.order.compare(*a, *b));
        if let Some(end) = end {
            found.entries.retain(|entry| filter.order.compare(entry.record.fence.number, end).is_le());
        }
        found.next = end;
        found.is_complete = end.is_none();
    }
    if found.entries.len() >= filter.limit as usize {
        found.entries.truncate(filter.limit as usize);
        found.next = found.entries.last().map(|last| last.record.fence.number);
        found.is_complete = true;
    }
    Ok(found)
}

/// Records in one of the two states that fit, page by page until there are enough or so many were looked at.
async fn claims_or_marked(
    store: &dyn AdminStore,
    state: State,
    filter: &Filter,
    narrowed: &Narrowed,
    within: u64,
    now: Timestamp,
) -> Result<Found, StoreError> {
    let mut page = Filter { state: Some(state), limit: PAGE, ..filter.clone() };
    let mut found =
        Found { entries: Vec::new(), next: None, looked: 0, is_complete: false, is_reading: false };
    loop {
        let entries = store.list(&page).await?;
        let is_last = entries.len() < PAGE as usize;
        found.looked += entries.len() as u64;
        page.after = entries.last().map(|entry| entry.record.fence.number).or(page.after);
        found.entries.extend(entries.into_iter().filter(|entry| fits(entry, filter, narrowed, now)));
        let is_enough = found.entries.len() >= filter.limit as usize;
        if is_last || is_enough {
            found.is_complete = true;
            return Ok(found);
        }
        if found.looked >= within {
            found.next = page.after;
            return Ok(found);
        }
    }
}

/// What a list is narrowed by that has no index, beside the filter.
#[derive(Default)]
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
    /// Whether nothing before `next`, or at all where there is none, was left out.
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
    let within = u64::from(narrowed.within.unwrap_or(u32::MAX));
    if let Some(State::Unknown | State::Claimed) = filter.state {
        return search_open(store, filter, narrowed, within, now).await;
    }
    // Mostly the first that are looked at fit; where they do not, more are looked at in one go.
    let limit = filter.limit.min(PAGE);
    let mut page = Filter { limit, order: filter.order, after: filter.after, ..Filter::default() };
    let mut found =
        Found { entries: Vec::new(), next: None, looked: 0, is_complete: false, is_reading: false };
    while found.looked < within {
        page.limit = u64::from(page.limit).min(within - found.looked) as u32;
        let entries = store.list(&page).await?;
        let is_last = entries.len() < page.limit as usize;
        page.after = entries.last().map(|entry| entry.record.fence.number).or(page.after);
        page.limit = (page.limit * 4).min(PAGE);
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

//! What keeps the store in order: renewals, sweeps, erasure, lists, and the mark that keeps time from going back.

use std::collections::BTreeSet;
use std::sync::Weak;
use std::time::Duration;

use semel_contract::record::{Fence, State};
use semel_contract::time::Timestamp;
use tokio_postgres::Row;

use super::link::{PgFailure, Timed, Value};
use super::rows::{entry, span, state_number, stored_nonce, stored_number};
use super::{Core, sql};
use crate::claims::{Entry, FencedWrite, Filter, Id, Order, StoreError, Swept};
use crate::clock::{Clock, SystemClock};

/// Leases that are renewed in one statement.
const RENEWALS_MAX: usize = 1000;
/// Leases that are removed in one statement.
const LEASES_AT_ONCE: i64 = 1000;
/// Statements that claimed that are looked at together: each may have claimed a whole batch.
const OPENED_AT_ONCE: i64 = 200;
/// How long a lapsed lease is kept: longer than a renewal may be under way.
const LAPSED_KEPT: Duration = Duration::from_mins(2);
/// Records that are erased in one transaction.
const FORGET_BATCH: i64 = 1000;
/// How often the latest time is marked; a restart of everything goes back by at most this much.
const MARK_EVERY: Duration = Duration::from_secs(10);

/// Extends leases. A fence that is skipped because somebody is writing its lease is asked for again, singly.
pub(super) async fn renew(
    core: &Core,
    held: &[(Id, Fence)],
    lease: Duration,
) -> Result<Vec<FencedWrite>, StoreError> {
    let mut written = Vec::with_capacity(held.len());
    for held in held.chunks(RENEWALS_MAX) {
        let mut renewed = extend(core, sql::RENEW, held, lease).await.map_err(PgFailure::of_write)?;
        for (id, fence) in held {
            if !renewed.contains(&held_by(id, *fence)) {
                let one = [(id.clone(), *fence)];
                let waited = extend(core, sql::RENEW_WAITING, &one, lease).await;
                renewed.extend(waited.map_err(PgFailure::of_write)?);
            }
        }
        written.extend(held.iter().map(|(id, fence)| match renewed.contains(&held_by(id, *fence)) {
            true => FencedWrite::Done,
            false => FencedWrite::Superseded,
        }));
    }
    Ok(written)
}

/// A fence of a key, as it is stored: a number alone does not say who holds it.
type Held = (i64, i64, Vec<u8>);

async fn extend(
    core: &Core,
    sql: &str,
    held: &[(Id, Fence)],
    lease: Duration,
) -> Result<BTreeSet<Held>, PgFailure> {
    let mut sorted: Vec<&(Id, Fence)> = held.iter().collect();
    sorted.sort_by_key(|(_, fence)| fence.number);
    let fence: Vec<i64> = sorted.iter().map(|(_, fence)| stored_number(*fence)).collect();
    let nonce: Vec<i64> = sorted.iter().map(|(_, fence)| stored_nonce(fence.nonce)).collect();
    let hash: Vec<Vec<u8>> = sorted.iter().map(|(id, _)| id.hash().to_vec()).collect();
    let answer = core.link.run_aside(sql, &[&fence, &nonce, &hash, &span(lease)]).await?;
    let renewed = |row: &Row| {
        let hash: Option<&[u8]> = row.get("hash");
        Some((row.get::<_, Option<i64>>("fence")?, row.get::<_, Option<i64>>("nonce")?, hash?.to_vec()))
    };
    Ok(answer.rows.iter().filter_map(renewed).collect())
}

fn held_by(id: &Id, fence: Fence) -> Held {
    (stored_number(fence), stored_nonce(fence.nonce), id.hash().to_vec())
}

/// Removes what has expired and marks what has lapsed, each at most `batch`, each in a transaction of its own.
pub(super) async fn sweep(core: &Core, batch: u32, grace: Duration) -> Result<Swept, StoreError> {
    let batch = i64::from(batch);
    let run = async |sql, values: &[Value<'_>]| core.link.run(sql, values).await.map_err(PgFailure::of_write);
    let mut swept = Swept::default();
    // What fails there does not keep the rest from being done.
    let followed = follow(core).await;
    for row in &run(sql::SWEEP_LAPSED, &[&batch]).await?.rows {
        match row.get::<_, Option<bool>>("freed") {
            Some(true) => swept.released += 1,
            Some(false) => swept.unknown += 1,
            None => {}
        }
        announce(core, row);
    }
    for row in &run(sql::SWEEP_EXPIRED, &[&span(grace), &batch]).await?.rows {
        swept.removed += u64::from(announce(core, row).is_some());
    }
    let values: [Value<'_>; 2] = [&core.link.last_seen().millis(), &batch];
    core.link
        .query("SELECT semel.forget_budgets($1::bigint, $2::bigint)", &values)
        .await
        .map_err(PgFailure::of_write)?;
    followed.map_err(PgFailure::of_write)?;
    Ok(swept)
}

/// Looks after claims whose first lease has lapsed, and removes leases that nobody needs any more: a settlement leaves the
/// lease behind, where there was one.
async fn follow(core: &Core) -> Result<(), PgFailure> {
    // One at a time, so that renewals always find a connection beside it.
    let _turn = core.following.lock().await;
    let gone = |answer: Timed| answer.rows.first().map_or(0, |row| row.get::<_, i64>("gone"));
    while gone(core.link.run_aside(sql::SWEEP_OPENED, &[&OPENED_AT_ONCE]).await?) == OPENED_AT_ONCE {}
    let values: [Value<'_>; 2] = [&LEASES_AT_ONCE, &span(LAPSED_KEPT)];
    while gone(core.link.run_aside(sql::SWEEP_LEASES, &values).await?) == LEASES_AT_ONCE {}
    Ok(())
}

fn announce(core: &Core, row: &Row) -> Option<()> {
    let hash: Option<&[u8]> = row.get("hash");
    core.announce(hash?.try_into().ok()?);
    Some(())
}

/// Erases the finished records of a principal, a batch and its row in the audit trail at a time.
pub(super) async fn forget(
    core: &Core,
    tenant: Option<&str>,
    principal: &str,
    by: &str,
) -> Result<u64, StoreError> {
    let mut gone = 0;
    loop {
        let values: [Value<'_>; 4] = [&principal, &FORGET_BATCH, &by, &tenant];
        let Timed { rows, .. } = core.link.run(sql::FORGET, &values).await.map_err(PgFailure::of_write)?;
        let erased = rows.iter().filter(|row| row.get::<_, Option<&[u8]>>("hash").is_some()).count();
        gone += erased as u64;
        if (erased as i64) < FORGET_BATCH {
            return Ok(gone);
        }
    }
}

/// Lists entries by fence number.
pub(super) async fn list(core: &Core, filter: &Filter) -> Result<Vec<Entry>, StoreError> {
    let (order, first) = match filter.order {
        Order::OldestFirst => (0, 0),
        Order::NewestFirst => (1, i64::MAX),
    };
    let after = filter.after.map_or(first, |after| i64::try_from(after).unwrap_or(i64::MAX));
    let state = filter.state.map(state_number);
    let before = filter.created_before.map(Timestamp::millis);
    let limit = i64::from(filter.limit);
    let mut values: Vec<Value<'_>> = vec![&after, &state, &filter.endpoint, &before, &limit];
    let sql = match &filter.principal {
        Some(principal) => {
            values.push(principal);
            sql::LIST_OF_PRINCIPAL
        }
        None => match filter.state {
            Some(State::Claimed) => sql::LIST_CLAIMED,
            Some(State::Unknown) => sql::LIST_UNKNOWN,
            Some(State::Settled | State::Unkept | State::Released | State::Sealed) | None => sql::LIST,
        },
    };
    let answer = core.link.read(sql[order], &values).await?;
    answer.rows.iter().filter_map(|row| entry(row).transpose()).collect()
}

/// Marks the latest time from time to time, and so notices a jump of the clock also when nobody asks for anything. Looks
/// after claims meanwhile: sweeps may be a day apart, and what claimed since would be a long list.
pub(super) async fn keep_time(core: Weak<Core>) {
    loop {
        tokio::time::sleep(MARK_EVERY).await;
        let Some(core) = core.upgrade() else { return };
        // Whatever fails here is tried again, and meanwhile every statement keeps time by itself.
        if core.link.run_aside(sql::TIME, &[]).await.is_ok() {
            let _ = core.link.mark_time(SystemClock.boot()).await;
            let _ = vouch(&core).await;
            let _ = follow(&core).await;
        }
    }
}

/// Believes a clock that was ahead at a start, unexplained, once a time service vouches for this machine's clock and the
/// server's agrees with it.
async fn vouch(core: &Core) -> Result<(), PgFailure> {
    if !SystemClock.is_synchronised() {
        return Ok(());
    }
    let wall = SystemClock.read().wall.millis();
    core.link.run_untimed(sql::VOUCH, &[&wall]).await.map(drop)
}

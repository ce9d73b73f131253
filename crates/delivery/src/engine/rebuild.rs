//! Asks the application how a lane goes on that its server wants rebuilt, and puts its answer in place. What
//! takes their place is written in one transaction by the store.

use crate::hooks::Rebuilt;
use crate::message::{HeldFor, Row, Status};
use crate::outbox::{Asked, Outbox, OutboxError};
use crate::requeue;
use crate::store::Filter;

/// Messages behind a refused one that the application is shown.
const BEHIND_MAX: u32 = 1000;

/// The server wants the lane rebuilt: the application is asked, and the lane waits.
pub(super) fn begin(outbox: &Outbox, row: &Row) {
    let is_asked = outbox.inner.rebuilds.with(|known| {
        let is_asked = matches!(known.get(&row.id), Some(Asked::Now | Asked::Again));
        known.insert(row.id, if is_asked { Asked::Again } else { Asked::Now });
        is_asked
    });
    if !is_asked {
        let (outbox, row) = (outbox.clone(), row.clone());
        tokio::spawn(async move {
            let asked = ask(&outbox, &row).await;
            outbox.inner.rebuilds.with(|known| {
                let is_another = known.get(&row.id) == Some(&Asked::Again);
                known.insert(row.id, if is_another { Asked::Later } else { asked });
            });
        });
    }
}

/// Asks about those of these held messages about which nobody was asked in this run, or could tell.
pub(super) fn begin_again(outbox: &Outbox, held: &[Row]) {
    let waits = |row: &&Row| row.held_for == Some(HeldFor::Rebuild);
    let is_open = |row: &&Row| {
        outbox.inner.rebuilds.with(|known| match known.get(&row.id) {
            None | Some(Asked::Later) => true,
            Some(Asked::Now | Asked::Again | Asked::Decided) => false,
        })
    };
    outbox.inner.rebuilds.with(|known| {
        let is_asked = |asked| matches!(asked, Asked::Now | Asked::Again);
        known.retain(|id, asked| is_asked(*asked) || held.iter().any(|row| row.id == *id));
    });
    held.iter().filter(waits).filter(is_open).for_each(|row| begin(outbox, row));
}

async fn ask(outbox: &Outbox, row: &Row) -> Asked {
    let inner = &outbox.inner;
    let behind = Filter {
        status: Some(Status::Pending),
        lane: Some(row.lane.clone()),
        after: row.id,
        limit: BEHIND_MAX,
        ..Filter::default()
    };
    let behind = match inner.store.list(behind).await {
        Ok(behind) => behind,
        Err(error) => {
            tracing::warn!(%error, row = row.id, "failed to read what waits behind a message");
            return Asked::Later;
        }
    };
    let (drop, with) = match inner.settings.hooks.rebuild(row, &behind).await {
        Rebuilt::Wait => return Asked::Decided,
        Rebuilt::Later => return Asked::Later,
        Rebuilt::Replace { drop, with } => (drop, with),
    };
    let rebuilt = requeue::rebuilt(outbox, row, drop, with).await;
    inner.wakes.wake([row.lane.clone()]);
    match rebuilt {
        Ok(()) => Asked::Decided,
        Err(error) => {
            tracing::error!(%error, row = row.id, "the rebuild failed: the lane waits");
            match error {
                OutboxError::Store(_) => Asked::Later,
                _ => Asked::Decided,
            }
        }
    }
}

//! What the store's methods do inside the writer, one function each. They decide by the tables and by what is held, and
//! leave durability to the batch.

use std::time::Duration;

use semel_contract::decide::Standing;
use semel_contract::profile::Lifetime;
use semel_contract::record::{Fence, State};
use semel_contract::transitions::{self, Claiming, Holding, Resolving, Sweeping, is_sealable};

use super::admin_rows;
use super::claim_tx::ClaimTx;
use super::engine::Fault;
use super::row::{Hash, StoredEntry};
use super::statements::{self, AuditRow};
use crate::admin::{Audited, action};
use crate::claims::{
    About, ClaimOutcome, ClaimRequest, Entry, FencedWrite, Id, Resolution, Resolved, Sealed, Settlement,
    Swept,
};

/// Claims a key.
pub(super) fn claim(tx: &mut ClaimTx<'_>, request: &ClaimRequest, hash: Hash) -> Result<ClaimOutcome, Fault> {
    let now = tx.now();
    let known = tx.find(&request.id, hash)?.map(|kept| kept.entry);
    match (request.claiming(known.as_ref(), now), known) {
        (Claiming::Win, _) => {}
        (Claiming::Again, Some(entry)) => return Ok(ClaimOutcome::Won { fence: entry.record.fence, now }),
        (Claiming::Known, Some(entry)) => return Ok(ClaimOutcome::Known { entry: Box::new(entry), now }),
        (Claiming::Changed | Claiming::Again | Claiming::Known, _) => return Ok(ClaimOutcome::Changed),
    }
    if let Some(rotation) = request.rotation
        && tx.rotation_lives(rotation, hash, now)?
    {
        return Ok(ClaimOutcome::CredentialChanged);
    }
    let fence = tx.next_fence(request.nonce);
    tx.put(StoredEntry { hash, entry: Entry::of_claim(request, fence, now), rotation: request.rotation })?;
    Ok(ClaimOutcome::Won { fence, now })
}

/// What a fence is worth now.
pub(super) enum Holds {
    /// It may settle this.
    Open(StoredEntry),
    /// It has settled this.
    Ended(Entry),
    /// Nothing.
    No,
}

/// Whether a fence holds a key.
pub(super) fn holds(tx: &ClaimTx<'_>, id: &Id, fence: Fence) -> Result<Holds, Fault> {
    let Some(kept) = tx.find(id, id.hash())?.filter(|kept| kept.entry.record.fence == fence) else {
        return Ok(Holds::No);
    };
    Ok(match transitions::holding(kept.entry.record.state) {
        Holding::Open => Holds::Open(kept),
        Holding::Ended => Holds::Ended(kept.entry),
        Holding::Nothing => Holds::No,
    })
}

/// Ends an attempt.
pub(super) fn settle(
    tx: &mut ClaimTx<'_>,
    id: &Id,
    fence: Fence,
    settlement: &Settlement,
    lifetime: &Lifetime,
) -> Result<FencedWrite, Fault> {
    match holds(tx, id, fence)? {
        Holds::Open(kept) => {
            write(tx, kept, settlement, lifetime)?;
            Ok(FencedWrite::Done)
        }
        Holds::Ended(entry) if entry.is_said_by(settlement) => Ok(FencedWrite::Done),
        Holds::Ended(_) | Holds::No => Ok(FencedWrite::Superseded),
    }
}

/// Writes a settlement over a claim or an unknown outcome.
pub(super) fn write(
    tx: &mut ClaimTx<'_>,
    mut kept: StoredEntry,
    settlement: &Settlement,
    lifetime: &Lifetime,
) -> Result<(), Fault> {
    let now = tx.now();
    kept.entry.settle(settlement.clone(), lifetime, now);
    tx.put(kept)
}

/// A person's or a probe's word on an unknown outcome.
#[derive(Clone, Debug)]
pub(super) struct Word {
    pub(super) resolution: Resolution,
    pub(super) by: String,
    pub(super) reason: String,
}

/// Resolves an unknown outcome.
pub(super) fn resolve(
    tx: &mut ClaimTx<'_>,
    id: &Id,
    fence: Fence,
    word: &Word,
    lifetime: &Lifetime,
) -> Result<Resolved, Fault> {
    let now = tx.now();
    let Some(mut kept) = tx.find(id, id.hash())?.filter(|kept| kept.entry.record.fence == fence) else {
        return Ok(Resolved::NotUnknown);
    };
    match kept.entry.resolving(&word.resolution, now) {
        Resolving::Write => {}
        Resolving::NotUnknown => return Ok(Resolved::NotUnknown),
        Resolving::TooEarly => return Ok(Resolved::TooEarly { until: kept.entry.late_until }),
    }
    kept.entry.record.fence = tx.next_fence(fence.nonce);
    let row = AuditRow {
        at: now,
        actor: word.by.clone(),
        action: word.resolution.action().to_owned(),
        fence: Some(fence.to_string()),
        reason: word.reason.clone(),
    };
    statements::audit(tx.connection(), &row, Some(kept.hash))?;
    write(tx, kept, &word.resolution.clone().into_settlement(), lifetime)?;
    Ok(Resolved::Done)
}

/// Cancels a key that has not taken effect.
pub(super) fn seal(
    tx: &mut ClaimTx<'_>,
    id: &Id,
    about: &About,
    lifetime: &Lifetime,
) -> Result<Sealed, Fault> {
    let now = tx.now();
    if let Some(kept) = tx.find(id, id.hash())?
        && !is_sealable(Standing::of(Some(&kept.entry.record), now))
    {
        return Ok(Sealed::Known(Box::new(kept.entry)));
    }
    let entry = Entry::of_seal(id, about, tx.next_fence(0), lifetime, now);
    tx.put(StoredEntry { hash: id.hash(), entry, rotation: None })?;
    Ok(Sealed::Done)
}

/// Removes at most `limit` expired records, and ends at most `lapsed_max` lapsed claims.
pub(super) fn sweep(
    tx: &mut ClaimTx<'_>,
    limit: u32,
    lapsed_max: usize,
    grace: Duration,
) -> Result<Swept, Fault> {
    let now = tx.now();
    let mut swept = Swept::default();
    for mut kept in tx.lapsed(now, lapsed_max) {
        match transitions::sweep(&kept.entry.record, grace, now) {
            Sweeping::LetGo => {
                tx.let_go(kept.hash);
                swept.released += 1;
            }
            Sweeping::MarkUnknown => {
                kept.entry.record.state = State::Unknown;
                tx.put(kept)?;
                swept.unknown += 1;
            }
            Sweeping::Keep | Sweeping::Remove => {}
        }
    }
    if !tx.is_frozen() {
        let removed = statements::sweep(tx.connection(), now.minus(grace), limit)?;
        swept.removed = removed.len() as u64;
        tx.forget_rows(removed);
    }
    Ok(swept)
}

/// Erases those of these rows that are finished records of a principal, and leaves an audit row that does not name it.
pub(super) fn forget(
    tx: &mut ClaimTx<'_>,
    tenant: Option<&str>,
    principal: &str,
    by: &str,
    numbers: &[u64],
) -> Result<u64, Fault> {
    let now = tx.now();
    let (mut gone, mut count) = (Vec::new(), 0);
    for number in numbers {
        let found = admin_rows::by_number(tx.connection(), number.cast_signed())?;
        for kept in found.into_iter().filter(|kept| kept.entry.is_forgotten_with(tenant, principal)) {
            count += 1;
            match kept.entry.bare(now) {
                Some(mut entry) => {
                    entry.record.fence = tx.next_fence(entry.record.fence.nonce);
                    tx.put(StoredEntry { entry, ..kept })?;
                }
                None => gone.extend(statements::erase(tx.connection(), *number, kept.hash)?),
            }
        }
    }
    admin_rows::forget_stale(tx.connection(), tenant, principal)?;
    let row = Audited {
        number: 0,
        at: tx.now(),
        actor: by.to_owned(),
        action: action::FORGET.to_owned(),
        hash: None,
        fence: None,
        reason: String::new(),
        count,
    };
    admin_rows::note(tx.connection(), &row)?;
    tx.forget_rows(gone);
    Ok(count)
}

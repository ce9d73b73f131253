//! What the store's methods do inside the writer, one function each. They decide by the tables and by what is held, and
//! leave durability to the batch.

use std::time::Duration;

use bytes::Bytes;
use semel_contract::decide::{Claim, Standing};
use semel_contract::profile::Lifetime;
use semel_contract::record::{Fence, Guarantee, Record, State};
use semel_contract::time::Timestamp;

use super::admin_rows;
use super::claim_tx::ClaimTx;
use super::engine::Fault;
use super::row::{Hash, StoredEntry};
use super::statements::{self, AuditRow};
use crate::admin::{Audited, action};
use crate::claims::{
    About, Answer, Claimed, Entry, Id, Resolution, Resolved, Sealed, Settlement, Swept, Wish, Written, bare,
    expiry, is_open_to,
};

/// Claims a key.
pub(super) fn claim(tx: &mut ClaimTx<'_>, wish: &Wish, hash: Hash) -> Result<Claimed, Fault> {
    let now = tx.now();
    match tx.find(&wish.id, hash)? {
        Some(StoredEntry { entry, .. }) => {
            let record = &entry.record;
            if record.state == State::Claimed && record.fence.nonce == wish.nonce {
                return Ok(Claimed::Won { fence: record.fence, now });
            }
            let standing = Some(Standing::of(Some(record), now));
            if wish.replaces != Some(record.fence) || standing != standing_of(wish.how) {
                return Ok(Claimed::Known { entry: Box::new(entry), now });
            }
        }
        None if wish.how == Claim::New => {}
        None => return Ok(Claimed::Changed),
    }
    if let Some(rotation) = wish.rotation
        && tx.rotation_lives(rotation, hash, now)?
    {
        return Ok(Claimed::CredentialChanged);
    }
    let fence = tx.next_fence(wish.nonce);
    tx.put(StoredEntry { hash, entry: claimed(wish, fence, now), rotation: wish.rotation })?;
    Ok(Claimed::Won { fence, now })
}

/// The standing that a way of claiming belongs to; a new claim belongs to none.
fn standing_of(how: Claim) -> Option<Standing> {
    match how {
        Claim::New => None,
        Claim::TakeOver => Some(Standing::Expired),
        Claim::Supersede => Some(Standing::Abandoned),
        Claim::Reclaim => Some(Standing::Released),
        Claim::Forward | Claim::Rerun => Some(Standing::Unknown),
    }
}

fn claimed(wish: &Wish, fence: Fence, now: Timestamp) -> Entry {
    let lease_until = now.plus(wish.lease);
    let record = Record {
        state: State::Claimed,
        guarantee: wish.guarantee,
        fence,
        fingerprint: wish.fingerprint,
        payload_hash: wish.payload_hash,
        lease_until,
        created_at: now,
        expires_at: None,
    };
    Entry {
        id: wish.id.clone(),
        record,
        about: wish.about.clone(),
        answer: None,
        settled_at: None,
        late_until: lease_until.plus(wish.late),
    }
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
    Ok(match kept.entry.record.state {
        State::Claimed | State::Unknown => Holds::Open(kept),
        State::Settled | State::Unkept | State::Released => Holds::Ended(kept.entry),
        State::Sealed => Holds::No,
    })
}

/// Ends an attempt.
pub(super) fn settle(
    tx: &mut ClaimTx<'_>,
    id: &Id,
    fence: Fence,
    settlement: &Settlement,
    lifetime: &Lifetime,
) -> Result<Written, Fault> {
    match holds(tx, id, fence)? {
        Holds::Open(kept) => {
            write(tx, kept, settlement, lifetime)?;
            Ok(Written::Done)
        }
        Holds::Ended(entry) if says_the_same(&entry, settlement) => Ok(Written::Done),
        Holds::Ended(_) | Holds::No => Ok(Written::Superseded),
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
    let state = settlement.state();
    let record = &mut kept.entry.record;
    record.expires_at = expiry(record, state, lifetime, now);
    record.state = state;
    kept.entry.settled_at = (state != State::Unknown).then_some(now);
    kept.entry.answer = answer_of(settlement);
    tx.put(kept)
}

/// What is kept of a settlement's answer.
fn answer_of(settlement: &Settlement) -> Option<Answer> {
    match settlement {
        Settlement::Settle(answer) => Some(answer.clone()),
        Settlement::Unkept(answer) => Some(Answer { body: Bytes::new(), ..answer.clone() }),
        Settlement::Release | Settlement::Unknown => None,
    }
}

fn says_the_same(entry: &Entry, settlement: &Settlement) -> bool {
    entry.record.state == settlement.state() && entry.answer == answer_of(settlement)
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
    let is_open = |kept: &StoredEntry| {
        kept.entry.record.fence == fence && is_open_to(&kept.entry, &word.resolution, now)
    };
    let Some(mut kept) = tx.find(id, id.hash())?.filter(is_open) else {
        return Ok(Resolved::NotUnknown);
    };
    let (settlement, action) = match &word.resolution {
        Resolution::Applied(Some(answer)) => (Settlement::Settle(answer.clone()), action::RESOLVE_APPLIED),
        Resolution::Applied(None) => (Settlement::Unkept(no_answer()), action::RESOLVE_APPLIED),
        Resolution::NotApplied if now < kept.entry.late_until => {
            return Ok(Resolved::TooEarly { until: kept.entry.late_until });
        }
        Resolution::NotApplied => (Settlement::Release, action::RESOLVE_NOT_APPLIED),
    };
    kept.entry.record.fence = tx.next_fence(fence.nonce);
    let row = AuditRow {
        at: now,
        actor: word.by.clone(),
        action: action.to_owned(),
        fence: Some(fence.to_string()),
        reason: word.reason.clone(),
    };
    statements::audit(tx.connection(), &row, Some(kept.hash))?;
    write(tx, kept, &settlement, lifetime)?;
    Ok(Resolved::Done)
}

/// It took effect, and nobody knows with which answer.
fn no_answer() -> Answer {
    Answer { status: 0, headers: [].into(), body: Bytes::new(), outcome_unknown: false }
}

/// Cancels a key that has not taken effect.
pub(super) fn seal(
    tx: &mut ClaimTx<'_>,
    id: &Id,
    about: &About,
    lifetime: &Lifetime,
) -> Result<Sealed, Fault> {
    let now = tx.now();
    if let Some(kept) = tx.find(id, id.hash())? {
        match Standing::of(Some(&kept.entry.record), now) {
            Standing::Absent | Standing::Expired | Standing::Released => {}
            Standing::Claimed
            | Standing::Abandoned
            | Standing::Unknown
            | Standing::Settled
            | Standing::Unkept
            | Standing::Sealed => return Ok(Sealed::Known(Box::new(kept.entry))),
        }
    }
    let record = Record {
        state: State::Sealed,
        guarantee: Guarantee::None,
        fence: tx.next_fence(0),
        fingerprint: None,
        payload_hash: None,
        lease_until: now,
        created_at: now,
        expires_at: Some(now.plus(lifetime.record())),
    };
    let (settled_at, late_until) = (Some(now), now);
    let entry =
        Entry { id: id.clone(), record, about: about.clone().into(), answer: None, settled_at, late_until };
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
        match kept.entry.record.guarantee {
            Guarantee::Atomic | Guarantee::None => {
                tx.let_go(kept.hash);
                swept.released += 1;
            }
            Guarantee::Fenced => {
                kept.entry.record.state = State::Unknown;
                tx.put(kept)?;
                swept.unknown += 1;
            }
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
        let is_theirs = |kept: &StoredEntry| {
            let about = &kept.entry.about;
            // What is left of those who were forgotten is nobody's.
            !principal.is_empty() && about.principal == principal && about.tenant.as_deref() == tenant
        };
        let is_finished =
            |kept: &StoredEntry| !matches!(kept.entry.record.state, State::Claimed | State::Unknown);
        let found = admin_rows::by_number(tx.connection(), number.cast_signed())?;
        for kept in found.into_iter().filter(|kept| is_theirs(kept) && is_finished(kept)) {
            count += 1;
            match bare(&kept.entry, now) {
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

//! What the store's methods do inside the writer, one function each. They decide by the tables and by what is held, and
//! leave durability to the batch.

use std::time::Duration;

use bytes::Bytes;
use semel_contract::decide::{Claim, Standing};
use semel_contract::profile::Lifetime;
use semel_contract::record::{Fence, Guarantee, Record, State};
use semel_contract::time::Timestamp;

use super::error::Fault;
use super::ledger;
use super::row::{Hash, Kept};
use super::table::{self, AuditRow};
use super::turn::Turn;
use crate::admin::{Audited, action};
use crate::claims::{
    About, Answer, Claimed, Entry, Id, Resolution, Resolved, Sealed, Settlement, Swept, Wish, Written, bare,
    expiry, is_open_to,
};

/// Claims a key.
pub(super) fn claim(turn: &mut Turn<'_>, wish: &Wish, hash: Hash) -> Result<Claimed, Fault> {
    let now = turn.now();
    match turn.find(&wish.id, hash)? {
        Some(Kept { entry, .. }) => {
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
        && turn.rotation_lives(rotation, hash, now)?
    {
        return Ok(Claimed::CredentialChanged);
    }
    let fence = turn.next_fence(wish.nonce);
    turn.put(Kept { hash, entry: claimed(wish, fence, now), rotation: wish.rotation })?;
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
    Open(Kept),
    /// It has settled this.
    Ended(Entry),
    /// Nothing.
    No,
}

/// Whether a fence holds a key.
pub(super) fn holds(turn: &Turn<'_>, id: &Id, fence: Fence) -> Result<Holds, Fault> {
    let Some(kept) = turn.find(id, id.hash())?.filter(|kept| kept.entry.record.fence == fence) else {
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
    turn: &mut Turn<'_>,
    id: &Id,
    fence: Fence,
    settlement: &Settlement,
    lifetime: &Lifetime,
) -> Result<Written, Fault> {
    match holds(turn, id, fence)? {
        Holds::Open(kept) => {
            write(turn, kept, settlement, lifetime)?;
            Ok(Written::Done)
        }
        Holds::Ended(entry) if says_the_same(&entry, settlement) => Ok(Written::Done),
        Holds::Ended(_) | Holds::No => Ok(Written::Superseded),
    }
}

/// Writes a settlement over a claim or an unknown outcome.
pub(super) fn write(
    turn: &mut Turn<'_>,
    mut kept: Kept,
    settlement: &Settlement,
    lifetime: &Lifetime,
) -> Result<(), Fault> {
    let now = turn.now();
    let state = settlement.state();
    let record = &mut kept.entry.record;
    record.expires_at = expiry(record, state, lifetime, now);
    record.state = state;
    kept.entry.settled_at = (state != State::Unknown).then_some(now);
    kept.entry.answer = answer_of(settlement);
    turn.put(kept)
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
    turn: &mut Turn<'_>,
    id: &Id,
    fence: Fence,
    word: &Word,
    lifetime: &Lifetime,
) -> Result<Resolved, Fault> {
    let now = turn.now();
    let is_open =
        |kept: &Kept| kept.entry.record.fence == fence && is_open_to(&kept.entry, &word.resolution, now);
    let Some(mut kept) = turn.find(id, id.hash())?.filter(is_open) else {
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
    kept.entry.record.fence = turn.next_fence(fence.nonce);
    let row = AuditRow {
        at: now,
        actor: word.by.clone(),
        action: action.to_owned(),
        fence: Some(fence.to_string()),
        reason: word.reason.clone(),
    };
    table::audit(turn.connection(), &row, Some(kept.hash))?;
    write(turn, kept, &settlement, lifetime)?;
    Ok(Resolved::Done)
}

/// It took effect, and nobody knows with which answer.
fn no_answer() -> Answer {
    Answer { status: 0, headers: [].into(), body: Bytes::new(), outcome_unknown: false }
}

/// Cancels a key that has not taken effect.
pub(super) fn seal(
    turn: &mut Turn<'_>,
    id: &Id,
    about: &About,
    lifetime: &Lifetime,
) -> Result<Sealed, Fault> {
    let now = turn.now();
    if let Some(kept) = turn.find(id, id.hash())? {
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
        fence: turn.next_fence(0),
        fingerprint: None,
        payload_hash: None,
        lease_until: now,
        created_at: now,
        expires_at: Some(now.plus(lifetime.record())),
    };
    let (settled_at, late_until) = (Some(now), now);
    let entry =
        Entry { id: id.clone(), record, about: about.clone().into(), answer: None, settled_at, late_until };
    turn.put(Kept { hash: id.hash(), entry, rotation: None })?;
    Ok(Sealed::Done)
}

/// Removes at most `limit` expired records, and ends at most `lapsed_max` lapsed claims.
pub(super) fn sweep(
    turn: &mut Turn<'_>,
    limit: u32,
    lapsed_max: usize,
    grace: Duration,
) -> Result<Swept, Fault> {
    let now = turn.now();
    let mut swept = Swept::default();
    for mut kept in turn.lapsed(now, lapsed_max) {
        match kept.entry.record.guarantee {
            Guarantee::Atomic | Guarantee::None => {
                turn.let_go(kept.hash);
                swept.released += 1;
            }
            Guarantee::Fenced => {
                kept.entry.record.state = State::Unknown;
                turn.put(kept)?;
                swept.unknown += 1;
            }
        }
    }
    if !turn.is_frozen() {
        let removed = table::sweep(turn.connection(), now.minus(grace), limit)?;
        swept.removed = removed.len() as u64;
        turn.removed(removed);
    }
    Ok(swept)
}

/// Erases those of these rows that are finished records of a principal, and leaves an audit row that does not name it.
pub(super) fn forget(
    turn: &mut Turn<'_>,
    tenant: Option<&str>,
    principal: &str,
    by: &str,
    numbers: &[u64],
) -> Result<u64, Fault> {
    let now = turn.now();
    let (mut gone, mut count) = (Vec::new(), 0);
    for number in numbers {
        let is_theirs = |kept: &Kept| {
            let about = &kept.entry.about;
            about.principal == principal && about.tenant.as_deref() == tenant
        };
        let is_finished = |kept: &Kept| !matches!(kept.entry.record.state, State::Claimed | State::Unknown);
        let found = ledger::by_number(turn.connection(), number.cast_signed())?;
        for kept in found.into_iter().filter(|kept| is_theirs(kept) && is_finished(kept)) {
            count += 1;
            match bare(&kept.entry, now) {
                Some(mut entry) => {
                    entry.record.fence = turn.next_fence(entry.record.fence.nonce);
                    turn.put(Kept { entry, ..kept })?;
                }
                None => gone.extend(table::erase(turn.connection(), *number, kept.hash)?),
            }
        }
    }
    ledger::forget_stale(turn.connection(), tenant, principal)?;
    let row = Audited {
        number: 0,
        at: turn.now(),
        actor: by.to_owned(),
        action: action::FORGET.to_owned(),
        hash: None,
        fence: None,
        reason: String::new(),
        count,
    };
    ledger::note(turn.connection(), &row)?;
    turn.removed(gone);
    Ok(count)
}

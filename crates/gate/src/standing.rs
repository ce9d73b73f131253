//! Of several records of one key, which one tells what became of it. Usually there is one alone. A process that ends between
//! its claim in one form and its look into the others leaves a second, and so does a seal that came too late.

use std::cmp::Reverse;

use semel_contract::decide::Standing;
use semel_contract::fingerprint::Fingerprint;
use semel_contract::record::Record;
use semel_contract::time::Timestamp;
use semel_store::{ClaimStore, Id, StoreError};

use crate::measure::{Call, StoreMeters};

/// A store, and what is counted of its calls.
pub(crate) type Store<'a> = (&'a dyn ClaimStore, &'a StoreMeters);

/// What a record is evidence of. Of two claims in different forms at most one was dispatched, since each looks for the other
/// before it is: so the greater of two records tells, whatever the other one says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Evidence {
    /// Its owner cancelled it, where nothing had happened yet.
    Cancelled,
    /// It may have been dispatched.
    Begun {
        /// For the request that is asked about.
        is_same: bool,
        /// How far it came.
        attempt: Attempt,
    },
    /// It was dispatched, and has come to its end.
    Ended,
}

/// An attempt whose end is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Attempt {
    /// It can still be taken back.
    Abandoned,
    Unknown,
    /// Soon it will be known.
    Running,
}

impl Evidence {
    /// Nothing where a record does not stand.
    fn of(record: &Record, own: &[Fingerprint], now: Timestamp) -> Option<Self> {
        let begun = |attempt| {
            let same = |known: &Fingerprint| own.is_empty() || own.iter().any(|own| own.same(known));
            Evidence::Begun { is_same: record.fingerprint.as_ref().is_none_or(same), attempt }
        };
        match Standing::of(Some(record), now) {
            Standing::Settled | Standing::Unkept => Some(Evidence::Ended),
            Standing::Claimed => Some(begun(Attempt::Running)),
            Standing::Unknown => Some(begun(Attempt::Unknown)),
            Standing::Abandoned => Some(begun(Attempt::Abandoned)),
            Standing::Sealed => Some(Evidence::Cancelled),
            Standing::Absent | Standing::Released | Standing::Expired => None,
        }
    }
}

/// The place of the record that tells, among these keys, each with what its request is called there.
pub(crate) async fn telling(
    (store, meters): Store<'_>,
    among: &[(usize, &Id, &[Fingerprint])],
) -> Result<Option<usize>, StoreError> {
    if let [] | [_] = among {
        return Ok(among.first().map(|(place, _, _)| *place));
    }
    let mut greatest = None;
    for (place, id, own) in among {
        let (entry, now) = meters.time(Call::LookUp, store.look_up(id)).await?;
        let Some(record) = entry.map(|entry| entry.record) else { continue };
        let Some(evidence) = Evidence::of(&record, own, now) else { continue };
        // Of equals the earliest, so that all who ask are told of the same one.
        let rank = (evidence, Reverse(record.fence.number));
        if greatest.is_none_or(|(greatest, _)| greatest < rank) {
            greatest = Some((rank, *place));
        }
    }
    Ok(greatest.map(|(_, place)| place))
}

/// Whether an attempt of unknown outcome is all that there is of each of these keys.
pub(crate) async fn all_unknown((store, meters): Store<'_>, ids: &[Id]) -> Result<bool, StoreError> {
    for id in ids {
        let (entry, now) = meters.time(Call::LookUp, store.look_up(id)).await?;
        if Standing::of(entry.as_ref().map(|entry| &entry.record), now) != Standing::Unknown {
            return Ok(false);
        }
    }
    Ok(true)
}

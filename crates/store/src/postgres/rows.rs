//! Turns rows into entries and back. Refuses a row that it cannot read, instead of guessing.

use std::time::Duration;

use bytes::Bytes;
use semel_contract::fingerprint::{Fingerprint, Version};
use semel_contract::key::{Format, Key};
use semel_contract::profile::Anchor;
use semel_contract::record::{Fence, Guarantee, Record, State};
use semel_contract::scope::Scope;
use semel_contract::time::{Timestamp, millis_of};
use tokio_postgres::Row;

use super::clock::UNNOTICED_MILLIS;
use crate::claims::{About, Answer, ClaimRequest, Entry, Id, StoreError};

/// Longest lease and late window that are kept, so that times stay within a bigint.
const SPAN_MILLIS_MAX: i64 = 1 << 50;

/// The stored number of a state.
pub(super) fn state_number(state: State) -> i16 {
    match state {
        State::Claimed => 1,
        State::Settled => 2,
        State::Unkept => 3,
        State::Released => 4,
        State::Unknown => 5,
        State::Sealed => 6,
    }
}

fn state_of(number: i16) -> Option<State> {
    State::ALL.into_iter().find(|state| state_number(*state) == number)
}

/// The stored number of a guarantee.
pub(super) fn guarantee_number(guarantee: Guarantee) -> i16 {
    match guarantee {
        Guarantee::Atomic => 1,
        Guarantee::Fenced => 2,
        Guarantee::None => 3,
    }
}

fn guarantee_of(number: i16) -> Option<Guarantee> {
    [Guarantee::Atomic, Guarantee::Fenced, Guarantee::None]
        .into_iter()
        .find(|guarantee| guarantee_number(*guarantee) == number)
}

/// The number of a fence as it is stored. Numbers come from a sequence of bigints, so one that does not fit was never
/// given and matches nothing.
pub(super) fn stored_number(fence: Fence) -> i64 {
    i64::try_from(fence.number).unwrap_or(-1)
}

/// The nonce of a fence as it is stored: the same 64 bits.
pub(super) fn stored_nonce(nonce: u64) -> i64 {
    nonce.cast_signed()
}

/// The fence of a row's number and nonce.
pub(super) fn fence_of(number: i64, nonce: i64) -> Fence {
    Fence { number: number.cast_unsigned(), nonce: nonce.cast_unsigned() }
}

/// Packs headers so that order, repeated names and any bytes survive: length of the name (2 bytes), name, length of the
/// value (4 bytes), value. `semel.kept_headers` writes the same.
pub(super) fn pack<N: AsRef<[u8]>, V: AsRef<[u8]>>(headers: &[(N, V)]) -> Vec<u8> {
    let mut packed = Vec::new();
    for (name, value) in headers {
        let (name, value) = (name.as_ref(), value.as_ref());
        let name_bytes = u16::try_from(name.len()).expect("a header's name is short");
        let value_bytes = u32::try_from(value.len()).expect("a header's value is bounded");
        packed.extend(name_bytes.to_be_bytes());
        packed.extend(name);
        packed.extend(value_bytes.to_be_bytes());
        packed.extend(value);
    }
    packed
}

/// Reads what [`pack`] wrote; `None` when it is something else.
pub(super) fn unpack(mut packed: &[u8]) -> Option<Vec<(String, Vec<u8>)>> {
    let mut headers = Vec::new();
    while !packed.is_empty() {
        let (length, rest) = packed.split_first_chunk()?;
        let (name, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
        let (length, rest) = rest.split_first_chunk()?;
        let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        headers.push((String::from_utf8(name.to_vec()).ok()?, value.to_vec()));
        packed = rest;
    }
    Some(headers)
}

/// The entry of a row that `sql::entry!` selected; `None` where the outer join found none.
pub(super) fn entry(row: &Row) -> Result<Option<Entry>, StoreError> {
    read(row).map_err(|why| StoreError::Unavailable(format!("a record cannot be read: {why}")))
}

fn read(row: &Row) -> Result<Option<Entry>, String> {
    let text = |error: tokio_postgres::Error| error.to_string();
    let Some(number) = row.try_get::<_, Option<i64>>("fence").map_err(text)? else { return Ok(None) };
    let key: String = row.try_get("key").map_err(text)?;
    // It was checked when it came in, by a format that the store does not know; only the bounds hold for all.
    let key = Key::parse(&Format::Any255, &key).map_err(|_| "its key")?;
    let scope = array(row.try_get("scope").map_err(text)?).ok_or("its scope")?;
    let record = Record {
        state: state_of(row.try_get("state").map_err(text)?).ok_or("its state")?,
        guarantee: guarantee_of(row.try_get("guarantee").map_err(text)?).ok_or("its guarantee")?,
        fence: fence_of(number, row.try_get("nonce").map_err(text)?),
        fingerprint: fingerprint(
            row.try_get("fingerprint").map_err(text)?,
            row.try_get("fingerprint_version").map_err(text)?,
        )
        .ok_or("its fingerprint")?,
        payload_hash: whole(row.try_get("payload_hash").map_err(text)?).ok_or("its payload's hash")?,
        lease_until: Timestamp::from_millis(row.try_get("lease_until").map_err(text)?),
        created_at: Timestamp::from_millis(row.try_get("created_at").map_err(text)?),
        expires_at: row.try_get::<_, Option<i64>>("expires_at").map_err(text)?.map(Timestamp::from_millis),
    };
    if record.expires_at.is_some() && matches!(record.state, State::Claimed | State::Unknown) {
        return Err("it expires, and nobody knows its outcome".to_owned());
    }
    Ok(Some(Entry {
        id: Id { scope: Scope::from_bytes(scope), key },
        record,
        about: about(row)?.into(),
        answer: answer(row)?,
        settled_at: row.try_get::<_, Option<i64>>("settled_at").map_err(text)?.map(Timestamp::from_millis),
        late_until: Timestamp::from_millis(row.try_get("late_until").map_err(text)?),
    }))
}

fn array<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
    bytes.try_into().ok()
}

/// So many bytes, or none at all; `None` where there are others.
fn whole<const N: usize>(bytes: Option<&[u8]>) -> Option<Option<[u8; N]>> {
    bytes.map_or(Some(None), |bytes| array(bytes).map(Some))
}

/// A fingerprint of a version that is not known here is as good as none. `None` where it is no fingerprint.
fn fingerprint(bytes: Option<&[u8]>, version: Option<i16>) -> Option<Option<Fingerprint>> {
    match (whole(bytes)?, version) {
        (Some(bytes), Some(version)) => {
            let version = u8::try_from(version).ok().and_then(Version::from_byte);
            Some(version.map(|version| Fingerprint { version, bytes }))
        }
        (None, None) => Some(None),
        (Some(_), None) | (None, Some(_)) => None,
    }
}

fn about(row: &Row) -> Result<About, String> {
    let text = |error: tokio_postgres::Error| error.to_string();
    let headers = unpack(row.try_get("request_headers").map_err(text)?).ok_or("its request's headers")?;
    let in_utf8 = |(name, value)| Some((name, String::from_utf8(value).ok()?));
    Ok(About {
        endpoint: row.try_get("endpoint").map_err(text)?,
        tenant: row.try_get("tenant").map_err(text)?,
        principal: row.try_get("principal").map_err(text)?,
        client_generated_at: row
            .try_get::<_, Option<i64>>("client_generated_at")
            .map_err(text)?
            .map(Timestamp::from_millis),
        headers: headers.into_iter().map(in_utf8).collect::<Option<_>>().ok_or("its request's headers")?,
        request_id: row.try_get("request_id").map_err(text)?,
    })
}

fn answer(row: &Row) -> Result<Option<Answer>, String> {
    let text = |error: tokio_postgres::Error| error.to_string();
    let Some(status) = row.try_get::<_, Option<i32>>("status").map_err(text)? else { return Ok(None) };
    let headers: Option<&[u8]> = row.try_get("headers").map_err(text)?;
    let body: Option<Vec<u8>> = row.try_get("body").map_err(text)?;
    Ok(Some(Answer {
        status: u16::try_from(status).map_err(|_| "its status")?,
        headers: unpack(headers.unwrap_or_default()).ok_or("its headers")?.into(),
        body: Bytes::from(body.unwrap_or_default()),
        outcome_unknown: row.try_get("outcome_unknown").map_err(text)?,
    }))
}

/// The stored number of a fingerprint's version.
pub(super) fn version_number(request: &ClaimRequest) -> Option<i16> {
    request.fingerprint.as_ref().map(|of| i16::from(of.version as u8))
}

/// How long a record lives that is settled by SQL.
pub(super) fn lifetime_millis(request: &ClaimRequest) -> Option<i64> {
    request.terms.as_ref().map(|terms| span(terms.lifetime.record()).max(1))
}

/// From when that counts.
pub(super) fn anchor_number(request: &ClaimRequest) -> Option<i16> {
    request.terms.as_ref().map(|terms| match terms.lifetime.anchor {
        Anchor::Created => 1,
        Anchor::Settled => 2,
    })
}

/// How large an answer may be that is settled by SQL.
pub(super) fn response_bytes(request: &ClaimRequest) -> Option<i32> {
    request.terms.as_ref().map(|terms| i32::try_from(terms.max_response_bytes).unwrap_or(i32::MAX))
}

/// A duration in milliseconds, bounded so that adding it to a time cannot overflow.
pub(super) fn span(duration: Duration) -> i64 {
    millis_of(duration).min(SPAN_MILLIS_MAX)
}

/// A late window, longer by what a process may believe the server's clock to be ahead.
pub(super) fn late(window: Duration) -> i64 {
    span(window).saturating_add(UNNOTICED_MILLIS)
}

/// The advisory lock of a key, as `semel.lock_of` numbers it.
pub(super) fn lock_number(hash: &[u8; 16]) -> i64 {
    i64::from_be_bytes(*hash.first_chunk().expect("a hash has 16 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_headers_keep_order_repetition_and_any_bytes() {
        let headers = vec![
            ("x-b".to_owned(), vec![0xff, 0x00, b'\n']),
            ("x-a".to_owned(), Vec::new()),
            ("x-b".to_owned(), b"again".to_vec()),
        ];
        assert_eq!(unpack(&pack(&headers)), Some(headers));
        assert_eq!(unpack(&[]), Some(Vec::new()));
    }

    #[test]
    fn what_is_no_fingerprint_is_not_read_as_none() {
        let bytes = [7; 32];
        let read = |bytes: Option<&[u8]>, version| fingerprint(bytes, version).map(|found| found.is_some());
        assert_eq!(read(Some(&bytes), Some(1)), Some(true));
        assert_eq!(read(None, None), Some(false));
        assert_eq!(read(Some(&bytes), Some(999)), Some(false), "of a later release");
        assert_eq!(read(Some(&bytes[1..]), Some(1)), None);
        assert_eq!(read(Some(&bytes), None), None);
        assert_eq!(read(None, Some(1)), None);
        assert_eq!((whole::<32>(Some(&bytes[1..])), whole::<32>(None)), (None, Some(None)));
    }

    #[test]
    fn what_was_cut_off_is_not_read() {
        let packed = pack(&[("x-a", "value")]);
        assert!((1..packed.len()).all(|end| unpack(&packed[..end]).is_none()));
    }

    #[test]
    fn numbers_of_states_and_guarantees_read_back() {
        assert!(State::ALL.into_iter().all(|state| state_of(state_number(state)) == Some(state)));
        assert_eq!((state_of(0), state_of(7), guarantee_of(0), guarantee_of(4)), (None, None, None, None));
        let fence = Fence { number: 42, nonce: u64::MAX - 1 };
        assert_eq!(fence_of(stored_number(fence), stored_nonce(fence.nonce)), fence);
    }
}

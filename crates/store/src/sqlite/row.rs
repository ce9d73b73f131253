//! Rows and what they mean: one place that writes and reads the columns of claims and records, in one order. Refuses a
//! row that does not make sense instead of guessing.

use std::hash::{DefaultHasher, Hasher};

use bytes::Bytes;
use rusqlite::types::{FromSql, Type};
use rusqlite::{CachedStatement, Row, params};
use semel_contract::fingerprint::{Fingerprint, Version};
use semel_contract::key::{Format, Key};
use semel_contract::record::{Fence, Guarantee, Record, State};
use semel_contract::scope::Scope;
use semel_contract::time::Timestamp;

use super::fence_table::who;
use crate::claims::{About, Answer, Entry, Filter, Id};

/// The hash of an id.
pub(super) type Hash = [u8; 16];
/// What recognises a request under another credential.
pub(super) type Rotation = [u8; 16];

/// An entry and what else its row keeps.
#[derive(Clone, Debug)]
pub(super) struct StoredEntry {
    /// The hash of its id.
    pub(super) hash: Hash,
    /// What the store shows.
    pub(super) entry: Entry,
    /// What recognises the request under another credential.
    pub(super) rotation: Option<Rotation>,
}

impl StoredEntry {
    /// Whether a list shows it.
    pub(super) fn is_shown(&self, filter: &Filter) -> bool {
        filter.shows(&self.entry)
    }
}

/// The columns of a claim, which a record has too, in the order in which they are read and written.
macro_rules! claim_columns {
    () => {
        "fence, nonce, hash, scope, key, endpoint, tenant, principal, state, guarantee, fingerprint_version, \
         fingerprint, payload_hash, rotation, created_at, lease_until, late_until, client_generated_at, \
         request_headers, request_id"
    };
}
/// The columns of a record only.
macro_rules! record_columns {
    () => {
        "settled_at, expires_at, status, headers, outcome_unknown, body"
    };
}
/// In their place, for a claim.
macro_rules! no_record_columns {
    () => {
        "NULL, NULL, NULL, NULL, NULL, NULL"
    };
}
pub(super) use {claim_columns, no_record_columns, record_columns};

/// Writes a claim's columns.
pub(super) fn write_claim(
    statement: &mut CachedStatement<'_>,
    kept: &StoredEntry,
) -> rusqlite::Result<usize> {
    let (record, about) = (&kept.entry.record, &kept.entry.about);
    statement.execute(params![
        number(record.fence),
        record.fence.nonce.cast_signed(),
        kept.hash,
        kept.entry.id.scope.as_bytes(),
        kept.entry.id.key.as_str(),
        about.endpoint,
        about.tenant,
        about.principal,
        record.state.name(),
        record.guarantee.name(),
        record.fingerprint.map(|print| print.version as u8),
        record.fingerprint.map(|print| print.bytes),
        record.payload_hash,
        kept.rotation,
        record.created_at.millis(),
        record.lease_until.millis(),
        kept.entry.late_until.millis(),
        about.client_generated_at.map(Timestamp::millis),
        pack(about.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()))),
        about.request_id,
        who(&about.principal),
    ])
}

/// Writes a record's columns.
pub(super) fn write_record(
    statement: &mut CachedStatement<'_>,
    kept: &StoredEntry,
) -> rusqlite::Result<usize> {
    let (record, about, answer) = (&kept.entry.record, &kept.entry.about, kept.entry.answer.as_ref());
    let headers = answer.map(|it| pack(it.headers.iter().map(|(name, value)| (name.as_str(), &value[..]))));
    statement.execute(params![
        number(record.fence),
        record.fence.nonce.cast_signed(),
        kept.hash,
        kept.entry.id.scope.as_bytes(),
        kept.entry.id.key.as_str(),
        about.endpoint,
        about.tenant,
        about.principal,
        record.state.name(),
        record.guarantee.name(),
        record.fingerprint.map(|print| print.version as u8),
        record.fingerprint.map(|print| print.bytes),
        record.payload_hash,
        kept.rotation,
        record.created_at.millis(),
        record.lease_until.millis(),
        kept.entry.late_until.millis(),
        about.client_generated_at.map(Timestamp::millis),
        pack(about.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()))),
        about.request_id,
        kept.entry.settled_at.map(Timestamp::millis),
        record.expires_at.map(Timestamp::millis),
        answer.map(|it| it.status),
        headers,
        answer.map(|it| it.outcome_unknown),
        answer.map(|it| &it.body[..]),
        who(&about.principal),
    ])
}

/// Reads a row of either table.
pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<StoredEntry> {
    let mut columns = Columns { row, at: 0 };
    let fence = Fence {
        number: columns.next::<i64>()?.cast_unsigned(),
        nonce: columns.next::<i64>()?.cast_unsigned(),
    };
    let hash = columns.next()?;
    let id = Id { scope: Scope::from_bytes(columns.next()?), key: columns.key()? };
    let (endpoint, tenant, principal) = (columns.next()?, columns.next()?, columns.next()?);
    let (state, guarantee) = (columns.state()?, columns.guarantee()?);
    let (fingerprint, payload_hash, rotation) = (columns.fingerprint()?, columns.next()?, columns.next()?);
    let (created_at, lease_until, late_until) = (columns.time()?, columns.time()?, columns.time()?);
    let client_generated_at = columns.maybe_time()?;
    let (headers, request_id) = (columns.request_headers()?, columns.next()?);
    let (settled_at, expires_at) = (columns.maybe_time()?, columns.maybe_time()?);
    let answer = columns.answer()?;
    let record =
        Record { state, guarantee, fence, fingerprint, payload_hash, lease_until, created_at, expires_at };
    let about = About { endpoint, tenant, principal, client_generated_at, headers, request_id }.into();
    Ok(StoredEntry { hash, entry: Entry { id, record, about, answer, settled_at, late_until }, rotation })
}

/// Sixteen bytes of a key: what it is found by in memory, whoever it belongs to.
pub(super) fn digest(key: impl AsRef<[u8]>) -> Hash {
    let key = key.as_ref();
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        hasher.write_u8(salt);
        hasher.write(key);
        hasher.finish().to_be_bytes()
    };
    let mut hash = [0; 16];
    hash[..8].copy_from_slice(&half(0));
    hash[8..].copy_from_slice(&half(1));
    hash
}

/// The number of a fence as a rowid.
pub(super) fn number(fence: Fence) -> i64 {
    i64::try_from(fence.number).expect("fence numbers are counted up from one")
}

/// The columns still to be read.
struct Columns<'a, 'stmt> {
    row: &'a Row<'stmt>,
    at: usize,
}

impl Columns<'_, '_> {
    fn next<T: FromSql>(&mut self) -> rusqlite::Result<T> {
        self.at += 1;
        self.row.get(self.at - 1)
    }

    /// The value just read makes no sense.
    fn senseless(&self, why: &str) -> rusqlite::Error {
        rusqlite::Error::FromSqlConversionFailure(self.at - 1, Type::Text, why.to_owned().into())
    }

    fn key(&mut self) -> rusqlite::Result<Key> {
        // It was checked when it arrived, by a format that the store does not know; only the bounds hold for all.
        let key = Key::parse(&Format::Any255, self.text()?);
        key.map_err(|_| self.senseless("not a key"))
    }

    fn text(&mut self) -> rusqlite::Result<&str> {
        self.at += 1;
        Ok(self.row.get_ref(self.at - 1)?.as_str()?)
    }

    fn state(&mut self) -> rusqlite::Result<State> {
        let name = self.text()?;
        let state = State::ALL.into_iter().find(|state| state.name() == name);
        state.ok_or_else(|| self.senseless("not a state"))
    }

    fn guarantee(&mut self) -> rusqlite::Result<Guarantee> {
        let name = self.text()?;
        let guarantee = [Guarantee::Atomic, Guarantee::Fenced, Guarantee::None]
            .into_iter()
            .find(|guarantee| guarantee.name() == name);
        guarantee.ok_or_else(|| self.senseless("not a guarantee"))
    }

    fn fingerprint(&mut self) -> rusqlite::Result<Option<Fingerprint>> {
        let (version, bytes): (Option<u8>, Option<[u8; 32]>) = (self.next()?, self.next()?);
        match (version, bytes) {
            (None, None) => Ok(None),
            (Some(version), Some(bytes)) => match Version::from_byte(version) {
                Some(version) => Ok(Some(Fingerprint { version, bytes })),
                None => Err(self.senseless("a fingerprint of an unknown version")),
            },
            (Some(_), None) | (None, Some(_)) => Err(self.senseless("half a fingerprint")),
        }
    }

    fn time(&mut self) -> rusqlite::Result<Timestamp> {
        self.next().map(Timestamp::from_millis)
    }

    fn maybe_time(&mut self) -> rusqlite::Result<Option<Timestamp>> {
        Ok(self.next::<Option<i64>>()?.map(Timestamp::from_millis))
    }

    fn request_headers(&mut self) -> rusqlite::Result<Vec<(String, String)>> {
        self.at += 1;
        let packed = self.row.get_ref(self.at - 1)?.as_blob()?;
        let text = |(name, value)| Some((name, String::from_utf8(value).ok()?));
        unpack(packed)
            .and_then(|headers| headers.into_iter().map(text).collect())
            .ok_or_else(|| self.senseless("not a list of headers"))
    }

    fn answer(&mut self) -> rusqlite::Result<Option<Answer>> {
        let status: Option<u16> = self.next()?;
        let headers: Option<Vec<u8>> = self.next()?;
        let Some(status) = status else { return Ok(None) };
        let headers = headers
            .and_then(|packed| unpack(&packed))
            .ok_or_else(|| self.senseless("not a list of headers"))?;
        let outcome_unknown = self.next()?;
        let body = Bytes::from(self.next::<Vec<u8>>()?);
        Ok(Some(Answer { status, headers: headers.into(), body, outcome_unknown }))
    }
}

/// Headers as one value: each name and each value with its length before it.
fn pack<'a>(headers: impl Iterator<Item = (&'a str, &'a [u8])>) -> Vec<u8> {
    let mut packed = Vec::new();
    for part in headers.flat_map(|(name, value)| [name.as_bytes(), value]) {
        let length = u32::try_from(part.len()).expect("a header is shorter than 4 GiB");
        packed.extend_from_slice(&length.to_be_bytes());
        packed.extend_from_slice(part);
    }
    packed
}

fn unpack(mut packed: &[u8]) -> Option<Vec<(String, Vec<u8>)>> {
    let mut headers = Vec::new();
    while !packed.is_empty() {
        let name = take_part(&mut packed)?;
        let value = take_part(&mut packed)?;
        headers.push((String::from_utf8(name.to_vec()).ok()?, value.to_vec()));
    }
    Some(headers)
}

fn take_part<'a>(packed: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = packed.split_first_chunk::<4>()?;
    let (part, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    *packed = rest;
    Some(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_headers_read_back_as_written() {
        let headers: [(&str, &[u8]); 4] = [("a", b"1"), ("a", b"\xff\x00"), ("empty", b""), ("", b"x")];
        let unpacked = unpack(&pack(headers.into_iter())).expect("what was packed can be read");
        let expected: Vec<_> =
            headers.iter().map(|(name, value)| ((*name).to_owned(), value.to_vec())).collect();
        assert_eq!(unpacked, expected);
    }

    #[test]
    fn a_cut_list_of_headers_is_refused() {
        let packed = pack([("name", b"value".as_slice())].into_iter());
        assert!((1..packed.len()).all(|length| unpack(&packed[..length]).is_none()));
    }
}

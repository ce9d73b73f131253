//! The outside of a sealed answer: how it is marked, what it is bound to, and how it is closed and opened. Owns the
//! form, which has a version; a form that it does not know is refused. Sealed by XChaCha20-Poly1305 with a random nonce
//! of 24 bytes, which is long enough that chance never repeats one.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use chacha20poly1305::XNonce;
use chacha20poly1305::aead::{Aead, Payload};

use super::Protection;
use super::content::{Damaged, Packing, fold, pack, unfold, unpack};
use super::keys::KeyRing;
use crate::claims::{Answer, Id, StoreError};

/// The first header of a sealed answer: form, packing and key, as in `1 zstd key:2026-a` or `1 whole open`.
pub const MARKER_HEADER: &str = "semel-at-rest";
/// The header that carries the sealed bytes, in base64, where an answer's body is not kept.
pub const BLOB_HEADER: &str = "semel-at-rest-blob";
/// The form that is written.
const FORM: &str = "1";
/// Bytes of a nonce.
const NONCE_BYTES: usize = 24;

/// The record an answer belongs to. Not the fence's number: that changes when a person resolves the record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub(crate) id: &'a Id,
    pub(crate) nonce: u64,
}

/// Where the sealed bytes are carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    /// In the body of a kept answer.
    Body,
    /// In a header, since stores drop the body of an answer that is not kept.
    Header,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Marker {
    packing: Packing,
    key: Option<String>,
}

impl Marker {
    fn text(&self) -> String {
        match &self.key {
            Some(id) => format!("{FORM} {} key:{id}", self.packing.name()),
            None => format!("{FORM} {} open", self.packing.name()),
        }
    }

    fn parse(text: &[u8]) -> Result<Marker, String> {
        let unreadable = || "has a marker that cannot be read: it was tampered with".to_owned();
        let text = std::str::from_utf8(text).map_err(|_| unreadable())?;
        let mut words = text.split(' ');
        match words.next() {
            Some(FORM) => {}
            Some(_) | None => {
                return Err(format!("has a form that this version does not read (it reads {FORM})"));
            }
        }
        let (packing, key) = (words.next(), words.next());
        let packing = Packing::ALL.into_iter().find(|known| Some(known.name()) == packing);
        let key = match key {
            Some("open") => Some(None),
            Some(key) => key.strip_prefix("key:").map(|id| Some(id.to_owned())),
            None => None,
        };
        let marker = packing.zip(key).map(|(packing, key)| Marker { packing, key });
        // One marker has one spelling, so that nothing can hide in another.
        marker.filter(|marker| marker.text() == text).ok_or_else(unreadable)
    }
}

/// The answer as it is to be kept.
pub(crate) fn close(
    protection: &Protection,
    place: Place<'_>,
    answer: &Answer,
    carrier: Carrier,
) -> Result<Answer, StoreError> {
    let piece = fold(answer);
    let (ring, (packing, piece)) = match protection {
        Protection::Compress { .. } => (None, pack(piece, answer.body.len())),
        Protection::Encrypt(ring) => (Some(ring), (Packing::Whole, piece)),
        Protection::CompressAndEncrypt(ring) => (Some(ring), pack(piece, answer.body.len())),
    };
    // An answer that is not changed needs no envelope, unless it looks like one.
    if ring.is_none() && packing == Packing::Whole && !mentions_marker(answer) {
        return Ok(answer.clone());
    }
    let marker = Marker { packing, key: ring.map(|ring| ring.writing_id().to_owned()) };
    let blob = match ring {
        Some(ring) => seal(ring, &bound_to(place, &marker, answer, carrier), &piece)?,
        None => piece,
    };
    Ok(carried(answer, &marker, blob, carrier))
}

/// The answer as it was given; the error is the end of a sentence about the answer.
pub(crate) fn open(protection: &Protection, place: Place<'_>, answer: Answer) -> Result<Answer, String> {
    let Some((_, marker)) = answer.headers.first().filter(|(name, _)| name == MARKER_HEADER) else {
        return Ok(answer);
    };
    let marker = Marker::parse(marker)?;
    let (carrier, blob) = blob_of(&answer)?;
    let piece = match &marker.key {
        Some(key) => {
            let ring = match protection {
                Protection::Compress { reads } => reads.as_ref(),
                Protection::Encrypt(ring) | Protection::CompressAndEncrypt(ring) => Some(ring),
            };
            unseal(ring, key, &bound_to(place, &marker, &answer, carrier), &blob)?
        }
        None => blob,
    };
    let (headers, body) = unpack(marker.packing, piece)
        .and_then(|piece| unfold(&piece))
        .map_err(|Damaged(what)| what.to_owned())?;
    Ok(Answer { headers: headers.into(), body, ..answer })
}

fn mentions_marker(answer: &Answer) -> bool {
    answer.headers.iter().any(|(name, _)| name == MARKER_HEADER)
}

fn carried(answer: &Answer, marker: &Marker, blob: Vec<u8>, carrier: Carrier) -> Answer {
    let mut headers = vec![(MARKER_HEADER.to_owned(), marker.text().into_bytes())];
    let body = match carrier {
        Carrier::Body => Bytes::from(blob),
        Carrier::Header => {
            headers.push((BLOB_HEADER.to_owned(), STANDARD.encode(blob).into_bytes()));
            Bytes::new()
        }
    };
    Answer { status: answer.status, headers: headers.into(), body, outcome_unknown: answer.outcome_unknown }
}

fn blob_of(answer: &Answer) -> Result<(Carrier, Vec<u8>), String> {
    match answer.headers.get(1) {
        Some((name, text)) if name == BLOB_HEADER => {
            let blob = STANDARD.decode(text).map_err(|_| TAMPERED.to_owned())?;
            Ok((Carrier::Header, blob))
        }
        Some(_) => Err(TAMPERED.to_owned()),
        None => Ok((Carrier::Body, answer.body.to_vec())),
    }
}

const TAMPERED: &str = "was tampered with, or belongs to another record";

/// What a seal vouches for beside its content. Every part has its length, so that no two lists of parts run together.
fn bound_to(place: Place<'_>, marker: &Marker, answer: &Answer, carrier: Carrier) -> Vec<u8> {
    let carrier: &[u8] = match carrier {
        Carrier::Body => b"body",
        Carrier::Header => b"header",
    };
    let (marker, nonce, status) = (marker.text(), place.nonce.to_be_bytes(), answer.status.to_be_bytes());
    let parts: [&[u8]; 8] = [
        b"semel.at-rest",
        place.id.scope.as_bytes(),
        place.id.key.as_str().as_bytes(),
        &nonce,
        marker.as_bytes(),
        &status,
        &[u8::from(answer.outcome_unknown)],
        carrier,
    ];
    let mut bytes = Vec::new();
    for part in parts {
        bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
        bytes.extend_from_slice(part);
    }
    bytes
}

fn seal(ring: &KeyRing, bound: &[u8], piece: &[u8]) -> Result<Vec<u8>, StoreError> {
    let mut nonce = [0; NONCE_BYTES];
    getrandom::fill(&mut nonce).map_err(|error| {
        StoreError::Unavailable(format!("there is no randomness to encrypt with: {error}"))
    })?;
    let payload = Payload { msg: piece, aad: bound };
    let sealed = ring.writing().encrypt(&XNonce::from(nonce), payload);
    let sealed = sealed.map_err(|_| StoreError::Full("the answer is too large to encrypt".to_owned()))?;
    Ok([nonce.as_slice(), &sealed].concat())
}

fn unseal(ring: Option<&KeyRing>, key: &str, bound: &[u8], blob: &[u8]) -> Result<Vec<u8>, String> {
    let cipher = ring.and_then(|ring| ring.reading(key)).ok_or_else(|| {
        format!("is encrypted under the key {key:?}, which the key file does not have: put that key back")
    })?;
    let (nonce, sealed) = blob.split_first_chunk::<NONCE_BYTES>().ok_or(TAMPERED)?;
    let payload = Payload { msg: sealed, aad: bound };
    cipher.decrypt(&XNonce::from(*nonce), payload).map_err(|_| TAMPERED.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use semel_contract::key::{Format, Key};
    use semel_contract::scope::Scope;

    use super::*;

    fn ring() -> KeyRing {
        KeyRing::parse(&format!("k {}", STANDARD.encode([7; 32]))).expect("a key file")
    }

    fn id(principal: &str) -> Id {
        let key = Key::parse(&Format::Printable255, "key-1").expect("a printable key");
        Id { scope: Scope::of(None, Some(principal), None), key }
    }

    fn protections() -> [Protection; 3] {
        [
            Protection::Compress { reads: None },
            Protection::Encrypt(ring()),
            Protection::CompressAndEncrypt(ring()),
        ]
    }

    fn answers() -> impl Strategy<Value = Answer> {
        let name = prop_oneof![Just(MARKER_HEADER.to_owned()), Just(BLOB_HEADER.to_owned()), "[a-z-]{0,12}"];
        let headers = prop::collection::vec((name, prop::collection::vec(any::<u8>(), 0..40)), 0..5);
        let repeated = (any::<u8>(), 0usize..5_000).prop_map(|(byte, count)| vec![byte; count]);
        let body = prop_oneof![prop::collection::vec(any::<u8>(), 0..2_000), repeated];
        (any::<u16>(), headers, body, any::<bool>()).prop_map(|(status, headers, body, outcome_unknown)| {
            Answer { status, headers: headers.into(), body: Bytes::from(body), outcome_unknown }
        })
    }

    proptest! {
        #[test]
        fn what_is_closed_opens_as_it_was(answer in answers(), nonce in any::<u64>()) {
            let id = id("alice");
            let place = Place { id: &id, nonce };
            for protection in protections() {
                let closed = close(&protection, place, &answer, Carrier::Body).expect("it closes");
                prop_assert_eq!(open(&protection, place, closed), Ok(answer.clone()));
                let tombstone = Answer { body: Bytes::new(), ..answer.clone() };
                let closed = close(&protection, place, &tombstone, Carrier::Header).expect("it closes");
                prop_assert_eq!(&closed.body, &Bytes::new(), "stores drop the body");
                prop_assert_eq!(open(&protection, place, closed), Ok(tombstone));
            }
        }

        #[test]
        fn a_changed_bit_never_opens(answer in answers(), at in any::<prop::sample::Index>(), bit in 0u8..8) {
            let id = id("alice");
            let place = Place { id: &id, nonce: 1 };
            let protection = Protection::CompressAndEncrypt(ring());
            let closed = close(&protection, place, &answer, Carrier::Body).expect("it closes");
            let mut body = closed.body.to_vec();
            let at = at.index(body.len());
            body[at] ^= 1 << bit;
            let changed = Answer { body: Bytes::from(body), ..closed };
            prop_assert_eq!(open(&protection, place, changed), Err(TAMPERED.to_owned()));
        }

        #[test]
        fn any_kept_answer_opens_or_is_refused_without_panic(
            answer in answers(), marker in "1 zstd open|1 whole key:k|1 zstd key:k|2 x|.{0,20}",
        ) {
            let id = id("alice");
            let mut answer = answer;
            let marked = std::iter::once((MARKER_HEADER.to_owned(), marker.into_bytes()));
            answer.headers = marked.chain(answer.headers.iter().cloned()).collect();
            for protection in protections() {
                let _ = open(&protection, Place { id: &id, nonce: 1 }, answer.clone());
            }
        }
    }

    #[test]
    fn a_seal_vouches_for_everything_beside_its_content() {
        let (alices, bobs) = (id("alice"), id("bob"));
        let other_key =
            Id { key: Key::parse(&Format::Printable255, "key-2").expect("a key"), ..alices.clone() };
        let place = Place { id: &alices, nonce: 1 };
        let answer = Answer {
            status: 201,
            headers: vec![("location".to_owned(), b"/orders/1".to_vec())].into(),
            body: Bytes::from(vec![b'a'; 1000]),
            outcome_unknown: false,
        };
        let protection = Protection::CompressAndEncrypt(ring());
        let closed = close(&protection, place, &answer, Carrier::Body).expect("it closes");
        assert_eq!(open(&protection, place, closed.clone()), Ok(answer));
        for place in [
            Place { id: &bobs, nonce: 1 },
            Place { id: &other_key, nonce: 1 },
            Place { id: &alices, nonce: 2 },
        ] {
            assert_eq!(open(&protection, place, closed.clone()), Err(TAMPERED.to_owned()));
        }
        let blob = STANDARD.encode(&closed.body).into_bytes();
        let moved = vec![closed.headers[0].clone(), (BLOB_HEADER.to_owned(), blob)];
        let unpacked = vec![(MARKER_HEADER.to_owned(), b"1 whole key:k".to_vec())];
        for changed in [
            Answer { status: 200, ..closed.clone() },
            Answer { outcome_unknown: true, ..closed.clone() },
            Answer { headers: moved.into(), body: Bytes::new(), ..closed.clone() },
            Answer { headers: unpacked.into(), ..closed.clone() },
        ] {
            assert_eq!(open(&protection, place, changed.clone()), Err(TAMPERED.to_owned()), "{changed:?}");
        }
    }

    #[test]
    fn a_marker_has_one_spelling() {
        for text in ["1 zstd open", "1 whole key:2026-a"] {
            assert_eq!(Marker::parse(text.as_bytes()).expect("a marker").text(), text);
        }
        for text in [
            "",
            "1",
            "1 zstd",
            "1 gzip open",
            "1 zstd shut",
            "1 zstd open ",
            "1  zstd open",
            "2 zstd open",
            "1 zstd open x",
        ] {
            assert!(Marker::parse(text.as_bytes()).is_err(), "{text:?}");
        }
    }
}

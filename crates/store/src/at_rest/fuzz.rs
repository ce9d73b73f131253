//! What stands in a database may have been written by anybody: any kept answer opens to what was closed, or is refused.

use bytes::Bytes;
use semel_contract::key::{Format, Key};
use semel_contract::scope::Scope;
use semel_fuzz::Target;

use super::Protection;
use super::content::{Packing, fold, pack, unfold, unpack};
use super::envelope::{BLOB_HEADER, Carrier, MARKER_HEADER, Place, close, open};
use super::keys::KeyRing;
use crate::claims::{Answer, Id};

fn ring(byte: u8) -> KeyRing {
    let key: String = std::iter::repeat_n([byte; 3], 10).flatten().chain([byte; 2]).map(char::from).collect();
    let encoded = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, key.as_bytes());
    KeyRing::parse(&format!("k {encoded}")).expect("a key file")
}

#[test]
fn fuzz_at_rest() {
    let key = Key::parse(&Format::Printable255, "key-1").expect("a key");
    let id = Id { scope: Scope::of(None, Some("alice"), None), key };
    let protections = [
        Protection::Compress { reads: None },
        Protection::Encrypt(ring(7)),
        Protection::CompressAndEncrypt(ring(7)),
    ];
    let answer = |name: &str, value: &[u8], body: Vec<u8>| Answer {
        status: 200,
        headers: vec![(name.to_owned(), value.to_vec())].into(),
        body: Bytes::from(body),
        outcome_unknown: false,
    };
    let piece = fold(&answer("a", b"b", vec![b'c'; 600]));
    let (packing, packed) = pack(piece.clone(), 600);
    assert_eq!(packing, Packing::Zstd);
    Target::new("at-rest")
        .words(&[
            "1 zstd open\n",
            "1 whole open\n",
            "1 whole key:k\n",
            "1 zstd key:k\n",
            "2 zstd open\n",
            MARKER_HEADER,
            BLOB_HEADER,
            "\0\0\0\0\0\0\0\x01",
            "\0\0\0\0\0\0\0\0",
            "\0\0\x02\x10",
        ])
        .seed(piece.clone())
        .seed(fold(&answer(MARKER_HEADER, b"1 whole open", vec![b'a'; 900])))
        .seed([b"1 whole open\n".as_slice(), &piece].concat())
        .seed([b"1 zstd open\n".as_slice(), &packed].concat())
        .seed(format!("{MARKER_HEADER}\n1 whole open\n\nbody"))
        .seed(format!("a\nb\n\n{}", "body".repeat(200)))
        .bytes_max(1500)
        .run(|input| {
            let place = Place { id: &id, nonce: 9 };
            let protection = &protections[input.len() % protections.len()];
            let folded = parts_fit_in_one_way(input)?;
            let closed = what_is_closed_opens(protection, place, input)?;
            let stored = anything_stored_opens_or_is_refused(protection, place, input)?;
            Ok(format!("{folded}, {closed}, {stored}").into())
        });
}

/// Bytes that unfold are the bytes that their parts fold to: no two texts stand for one answer.
fn parts_fit_in_one_way(input: &[u8]) -> Result<String, String> {
    match unfold(input) {
        Ok((headers, body)) => {
            let count = headers.len();
            let again = fold(&Answer { status: 200, headers: headers.into(), body, outcome_unknown: false });
            if again == input { Ok(format!("{count} headers")) } else { Err(format!("folds to {again:?}")) }
        }
        Err(_) => Ok("no parts".to_owned()),
    }
}

/// The input as headers (name, value, name, … between newlines) and a body after an empty line.
fn answer_of(input: &[u8]) -> Answer {
    let mut lines = input.split(|byte| *byte == b'\n');
    let mut headers = Vec::new();
    while let (Some(name), Some(value)) = (lines.next().filter(|name| !name.is_empty()), lines.next()) {
        headers.push((String::from_utf8_lossy(name).into_owned(), value.to_vec()));
    }
    let body = lines.collect::<Vec<_>>().join(&b'\n');
    let status = u16::try_from(input.len()).unwrap_or(200);
    Answer {
        status,
        headers: headers.into(),
        body: Bytes::from(body),
        outcome_unknown: input.first() == Some(&b'!'),
    }
}

fn what_is_closed_opens(protection: &Protection, place: Place<'_>, input: &[u8]) -> Result<String, String> {
    let answer = answer_of(input);
    let tombstone = Answer { body: Bytes::new(), ..answer.clone() };
    let mut outcome = String::new();
    for (answer, carrier) in [(&answer, Carrier::Body), (&tombstone, Carrier::Header)] {
        let closed = close(protection, place, answer, carrier).map_err(|error| error.to_string())?;
        let marker = closed.headers.first().filter(|_| closed != *answer);
        outcome.push_str(
            &marker.map_or_else(|| "as it is ".into(), |(_, marker)| String::from_utf8_lossy(marker)),
        );
        let opened = open(protection, place, closed.clone());
        if opened.as_ref() != Ok(answer) {
            return Err(format!("{answer:?} was closed and opened as {opened:?}"));
        }
        altered_never_opens(protection, place, &closed, input)?;
    }
    Ok(format!("{} headers, {outcome}", answer.headers.len().min(4)))
}

/// One bit of a sealed answer changed: it is refused.
fn altered_never_opens(
    protection: &Protection,
    place: Place<'_>,
    closed: &Answer,
    input: &[u8],
) -> Result<(), String> {
    if matches!(protection, Protection::Compress { .. }) || closed.body.is_empty() {
        return Ok(());
    }
    let mut body = closed.body.to_vec();
    let at = input.iter().map(|byte| usize::from(*byte)).sum::<usize>() % body.len();
    body[at] ^= 1 << (input.len() % 8);
    match open(protection, place, Answer { body: Bytes::from(body), ..closed.clone() }) {
        Err(_) => Ok(()),
        Ok(opened) => Err(format!("altered at byte {at} it opens as {opened:?}")),
    }
}

/// The first line as a marker, the rest as what it marks.
fn anything_stored_opens_or_is_refused(
    protection: &Protection,
    place: Place<'_>,
    input: &[u8],
) -> Result<&'static str, String> {
    let (marker, rest) = input.split_at(input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len()));
    let body = rest.get(1..).unwrap_or_default().to_vec();
    let stored = Answer {
        status: 200,
        headers: vec![(MARKER_HEADER.to_owned(), marker.to_vec())].into(),
        body: Bytes::from(body.clone()),
        outcome_unknown: false,
    };
    let expected = match marker {
        b"1 whole open" => unfold(&body).ok(),
        b"1 zstd open" => unpack(Packing::Zstd, body).ok().and_then(|piece| unfold(&piece).ok()),
        // Nobody but the holder of the key can write what opens under it.
        _ => None,
    };
    match (open(protection, place, stored), expected) {
        (Ok(opened), Some((headers, body))) if *opened.headers == *headers && opened.body == body => {
            Ok("opens")
        }
        (Err(_), None) => Ok("is refused"),
        (found, expected) => Err(format!("{marker:?}: expected {expected:?}, found {found:?}")),
    }
}

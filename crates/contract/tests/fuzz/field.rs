//! A key written as a structured field is read as the RFC reads it, and in no other way.

use semel_contract::key::{Format, KeyPolicy, Syntax, Written};
use semel_contract::profile::presets;
use semel_contract::request::{Body, trimmed};
use semel_fuzz::{Target, Verdict};

use crate::item::{Item, item};

#[test]
fn fuzz_field() {
    Target::new("field")
        .words(&[
            "\"", "\\\"", "\\\\", "\"k\"", ";a=1", ";*a=?1", ";q=\"x\"", "; ", ":aGk=:", "1.5", "@1",
            "%\"a\"", "?0", "tok",
        ])
        .seed("\"8e03978e-40d5-43e8-bc93-6894a57f9324\"")
        .seed("\"a b\\\"c\\\\\";v=1;w=\"x\"")
        .seed("tok;a=:aGVsbG8=:")
        .seed("-999999999999999")
        .run(|input| {
            let string = strings_are_read_as_the_rfc_reads_them(&policy(Syntax::SfString), input)?;
            Ok(format!("{string}, {}", quoted_or_bare(&policy(Syntax::Both), input)?).into())
        });
}

fn policy(syntax: Syntax) -> KeyPolicy {
    KeyPolicy { syntax, format: Format::Printable255, ..presets::ietf().key }
}

fn read(policy: &KeyPolicy, value: &[u8]) -> Result<(String, Written), ()> {
    let lines = [("Idempotency-Key", value)];
    match policy.read(lines.as_slice(), &Body::new(None, b"")) {
        Ok(Some(found)) => Ok((found.key.as_str().to_owned(), found.written)),
        Ok(None) | Err(_) => Err(()),
    }
}

fn strings_are_read_as_the_rfc_reads_them(policy: &KeyPolicy, input: &[u8]) -> Verdict {
    let (expected, has_bytes) = item(trimmed(input));
    let found = read(policy, input);
    let is_key = |text: &str| (1..=255).contains(&text.len());
    match (&expected, &found) {
        (Item::Text(text), Ok((key, Written::SfString))) if key == text && is_key(text) => {
            let again = format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
            match read(policy, again.as_bytes()) {
                Ok((key, _)) if key == *text => Ok("a string".into()),
                other => Err(format!("{text:?}, written again as {again:?}, reads as {other:?}")),
            }
        }
        (Item::Text(text), Err(())) if !is_key(text) => Ok("a string that is no key".into()),
        (Item::Text(_) | Item::Other, Err(())) if has_bytes => Ok("bytes whose padding is refused".into()),
        (Item::Other, Err(())) => Ok("another item".into()),
        (Item::Refused, Err(())) => Ok("not an item".into()),
        _ => Err(format!("the RFC reads {expected:?}, this reads {found:?}")),
    }
}

/// A value without a quote in front is the key as it stands; with one it is a string or refused.
fn quoted_or_bare(policy: &KeyPolicy, input: &[u8]) -> Verdict {
    let value = trimmed(input);
    let found = read(policy, input);
    if value.starts_with(b"\"") {
        return strings_are_read_as_the_rfc_reads_them(policy, input);
    }
    let is_printable = value.iter().all(|byte| matches!(byte, b' '..=b'~'));
    let expected = (is_printable && (1..=255).contains(&value.len()))
        .then(|| (String::from_utf8_lossy(value).into_owned(), Written::Bare));
    if found.clone().ok() == expected {
        Ok(if expected.is_some() { "bare".into() } else { "bare and refused".into() })
    } else {
        Err(format!("expected {expected:?}, found {found:?}"))
    }
}

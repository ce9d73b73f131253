//! Keys: each format against a pattern that says the same, and every way of writing a key against the others.

use std::sync::LazyLock;

use regex_lite::Regex;
use semel_contract::json::Pointer;
use semel_contract::key::{Format, Key, KeyPolicy, Presence, Source, Syntax};
use semel_contract::profile::presets;
use semel_contract::request::{Body, trimmed};
use semel_fuzz::{Target, Verdict};

/// Formats by name, and a pattern for each that was written from its description.
static FORMATS: LazyLock<Vec<(Format, Regex)>> = LazyLock::new(|| {
    let format = |name: &str, pattern: &str| {
        let pattern = Regex::new(&format!("^(?:{pattern})$")).expect("a pattern");
        (name.parse().expect("a format"), pattern)
    };
    let hex = |digit: &str, variant: &str, version: &str| {
        format!("{digit}{{8}}-{digit}{{4}}-{version}{digit}{{3}}-{variant}{digit}{{3}}-{digit}{{12}}")
    };
    vec![
        format("uuid4-lower", &hex("[0-9a-f]", "[89ab]", "4")),
        format("uuid", &hex("[0-9a-fA-F]", "[0-9a-fA-F]", "[0-9a-fA-F]")),
        format("token255", "[A-Za-z0-9_-]{1,255}"),
        format("printable255", "[ -~]{1,255}"),
        format("any255", "(?s)[^\\x00-\\x1f\\x7f-\\u{9f}]{1,255}"),
        format("ulid", "[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{25}"),
        format("regex:ord-[0-9]+", "ord-[0-9]{1,251}"),
    ]
});

#[test]
fn fuzz_key() {
    Target::new("key")
        .words(&[
            "-",
            "_",
            "4",
            "8",
            "a",
            "A",
            "ord-",
            "\u{80}",
            "\u{9f}",
            "é",
            "\u{10ffff}",
            "~0",
            "~1",
            "header:",
            "json:/",
            "regex:",
            "I",
            "U",
            "z",
        ])
        .seed("8e03978e-40d5-43e8-bc93-6894a57f9324")
        .seed("8E03978E-40D5-13E8-0C93-6894A57F9324")
        .seed("01ARZ3NDEKTSV4RRFFQ69G5FAV")
        // Just beyond what is accepted.
        .seed("81ARZ3NDEKTSV4RRFFQ69G5FAV")
        .seed("8e03978e-40d5-43e8-cc93-6894a57f9324")
        .seed("8e03978e40d543e8bc936894a57f9324")
        .seed("k".repeat(256))
        .seed("ord-17")
        .seed("k".repeat(255))
        .seed("é".repeat(255))
        .seed("json:/a~1b/0")
        .seed("header:X-Key")
        .run(|input| {
            let Ok(text) = std::str::from_utf8(input) else { return not_text(input) };
            names_read_back(text)?;
            let mut accepted = String::new();
            for (at, (format, pattern)) in FORMATS.iter().enumerate() {
                let expected = pattern.is_match(text);
                match (Key::parse(format, text), expected) {
                    (Ok(key), true) if key.as_str() == text => accepted.push_str(&format!("{format} ")),
                    (Err(_), false) => {}
                    (found, _) => return Err(format!("{format}: expected {expected}, found {found:?}")),
                }
                if text.len() % FORMATS.len() == at {
                    carried_alike(format, text, expected)?;
                }
            }
            Ok(format!("{accepted}{}", text.len().min(300) / 64).into())
        });
}

fn not_text(input: &[u8]) -> Verdict {
    let policy = KeyPolicy { syntax: Syntax::Both, format: Format::Any255, ..presets::ietf().key };
    let is_text = std::str::from_utf8(trimmed(input)).is_ok();
    match policy.read([("Idempotency-Key", input)].as_slice(), &Body::new(None, b"")) {
        Ok(found) if !is_text => Err(format!("bytes that are no text are the key {found:?}")),
        Ok(_) | Err(_) => Ok("no text".into()),
    }
}

/// A key in a header, the same in a body, and both at once are one key.
fn carried_alike(format: &Format, text: &str, expected: bool) -> Result<(), String> {
    let policy = KeyPolicy {
        sources: vec![
            Source::Header("Idempotency-Key".to_owned()),
            Source::Json(Pointer::parse("/key").expect("a pointer")),
        ],
        syntax: Syntax::Bare,
        format: format.clone(),
        presence: Presence::Required,
        require_headers: Vec::new(),
    };
    let document = serde_json::json!({ "key": text }).to_string();
    let (none, body) = (Body::new(None, b""), Body::new(None, document.as_bytes()));
    let line = [("idempotency-key", text.as_bytes())];
    let read = |lines: &[(&str, &[u8])], body: &Body<'_>| {
        policy.read(lines, body).ok().flatten().map(|found| found.key.as_str().to_owned())
    };
    let wanted = expected.then(|| text.to_owned());
    let in_body = read(&[], &body);
    if in_body != wanted {
        return Err(format!("{format}: in a body {in_body:?}, expected {wanted:?}"));
    }
    if trimmed(text.as_bytes()) == text.as_bytes() {
        for (how, found) in [("header", read(&line, &none)), ("both", read(&line, &body))] {
            if found != wanted {
                return Err(format!("{format}: in {how} {found:?}, expected {wanted:?}"));
            }
        }
    }
    let twice = [line[0], line[0]];
    match read(&twice, &none) {
        None => Ok(()),
        Some(key) => Err(format!("two lines are the key {key:?}")),
    }
}

/// What can be named in the configuration reads back as it is shown.
fn names_read_back(text: &str) -> Result<(), String> {
    fn same<T: std::str::FromStr + ToString>(text: &str) -> Result<(), String> {
        let Ok(value) = text.parse::<T>() else { return Ok(()) };
        let shown = value.to_string();
        match shown.parse::<T>() {
            Ok(again) if again.to_string() == shown => Ok(()),
            Ok(_) | Err(_) => Err(format!("{text:?} is shown as {shown:?}, which reads otherwise")),
        }
    }
    same::<Format>(text)?;
    same::<Source>(text)?;
    match Pointer::parse(text) {
        Ok(pointer) if pointer.to_string() != text => Err(format!("{text:?} is shown as {pointer}")),
        Ok(_) | Err(_) => Ok(()),
    }
}

//! JSON: the same texts are JSON here as for serde_json, and their canonical form is the one that a second, slower writer
//! makes from what serde_json read.

use semel_contract::json::{Document, Pointer};
use semel_fuzz::{Target, Verdict};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

#[test]
fn fuzz_json() {
    Target::new("json")
        .words(&[
            "{", "}", "[", "]", ":", ",", "\"", "true", "false", "null", "\\u0041", "\\ud83d\\ude00", "\\ud800", "\\n", "\\/",
            "1e20", "-0", "1E-7", "0.1", "9007199254740993", "\"a\":", "\u{feff}", "\u{2028}", "\"\\u0000\"", "1e400",
            "é", "\u{ff61}", "\u{1f600}", "123456789012345678901234567890",
        ])
        .seed(r#"{"amount":100,"currency":"EUR","lines":[{"id":1,"text":"a\u00e9\ud83d\ude00"},null,true,1e-7]}"#)
        .seed(r#"{"b":1,"a":{"\u20ac":1,"\r":2,"\ufb33":3,"1":4,"\ud83d\ude00":5,"\u0080":6,"\u00f6":7}}"#)
        .seed("[0.1,1e21,1e20,-0,4.35,9007199254740992,9007199254740993,333333333.33333329]")
        .seed("[".repeat(127) + &"]".repeat(127))
        .seed(r#"{"a":1,"a":2}"#)
        .run(judge);
}

fn judge(input: &[u8]) -> Verdict {
    let elsewhere = serde_json::from_slice::<Value>(input).ok();
    let repeats = elsewhere.is_some() && serde_json::from_slice::<NamesOnce>(input).is_err();
    let here = Document::parse(input).ok();
    let (Some(value), Some(document)) = (&elsewhere, &here) else {
        return match (&elsewhere, &here) {
            (None, None) => Ok("not JSON".into()),
            (Some(_), None) if repeats => Ok("a repeated name".into()),
            _ => Err(format!("elsewhere {elsewhere:?}, here {here:?}")),
        };
    };
    if repeats {
        return Err("a repeated name is read".to_owned());
    }
    let canonical = document.root.canonical();
    let expected = written(value);
    if canonical != expected {
        return Err(format!("canonical {canonical:?}, expected {expected:?}"));
    }
    let again = Document::parse(canonical.as_bytes()).map(|document| document.root.canonical());
    if again.as_ref() != Ok(&canonical) {
        return Err(format!("canonical {canonical:?} reads as {again:?}"));
    }
    if document.exact == has_large_integer(input) {
        return Err(format!("exact: {}, but a large integer: {}", document.exact, !document.exact));
    }
    members_can_be_pointed_at(document, value)?;
    Ok(format!("{} {} {}", kind(value), document.exact, canonical.len().min(400) / 40).into())
}

/// Every member of the root is found by its pointer, and leaves the others as they are when it is removed.
fn members_can_be_pointed_at(document: &Document<'_>, value: &Value) -> Result<(), String> {
    let Value::Object(members) = value else { return Ok(()) };
    for (name, member) in members {
        let text = format!("/{}", name.replace('~', "~0").replace('/', "~1"));
        let pointer = Pointer::parse(&text).map_err(|_| format!("{text:?} is no pointer"))?;
        let found = document.root.get(&pointer).map(|found| found.canonical());
        if found != Some(written(member)) {
            return Err(format!("{text:?} points at {found:?}"));
        }
        let (mut without, mut expected) = (document.root.clone(), members.clone());
        without.remove(&pointer);
        expected.remove(name);
        if without.canonical() != written(&Value::Object(expected)) {
            return Err(format!("without {text:?}: {}", without.canonical()));
        }
    }
    Ok(())
}

/// RFC 8785 by the book: names in UTF-16 order, the shortest escapes, numbers as ECMAScript writes them.
fn written(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => {
            let double = number.as_f64().expect("a number is a double here");
            ryu_js::Buffer::new().format_finite(double).to_owned()
        }
        Value::String(text) => quoted(text),
        Value::Array(items) => format!("[{}]", items.iter().map(written).collect::<Vec<_>>().join(",")),
        Value::Object(members) => {
            let mut members: Vec<(Vec<u16>, String)> = members
                .iter()
                .map(|(name, value)| {
                    (name.encode_utf16().collect(), format!("{}:{}", quoted(name), written(value)))
                })
                .collect();
            members.sort();
            let members: Vec<String> = members.into_iter().map(|(_, text)| text).collect();
            format!("{{{}}}", members.join(","))
        }
    }
}

fn quoted(text: &str) -> String {
    let escaped = text.chars().map(|c| match c {
        '"' => "\\\"".to_owned(),
        '\\' => "\\\\".to_owned(),
        '\u{8}' => "\\b".to_owned(),
        '\t' => "\\t".to_owned(),
        '\n' => "\\n".to_owned(),
        '\u{c}' => "\\f".to_owned(),
        '\r' => "\\r".to_owned(),
        c if (c as u32) < 0x20 => format!("\\u{:04x}", c as u32),
        c => c.to_string(),
    });
    format!("\"{}\"", escaped.collect::<String>())
}

/// Whether a valid text has an integer literal beyond 2^53: numbers are what stands outside of strings.
fn has_large_integer(text: &[u8]) -> bool {
    let (mut in_string, mut escaped, mut outside) = (false, false, String::new());
    for byte in text {
        match (in_string, escaped, byte) {
            (true, true, _) => escaped = false,
            (true, false, b'\\') => escaped = true,
            (true, false, b'"') => in_string = false,
            (true, false, _) => {}
            (false, _, b'"') => {
                in_string = true;
                outside.push(' ');
            }
            (false, _, byte) => outside.push(char::from(*byte)),
        }
    }
    let is_of_number = |c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.' | 'e' | 'E');
    let words = outside.split(|c: char| !is_of_number(c)).map(|word| word.trim_start_matches('-'));
    words
        .filter(|word| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit()))
        .any(|digits| digits.parse::<u128>().map_or(true, |value| value > 1 << 53))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null | Value::Bool(_) => "word",
        Value::Number(_) => "number",
        Value::String(_) => "text",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Any JSON in which no object has two members of one name, as another parser sees it.
struct NamesOnce;

impl<'de> Deserialize<'de> for NamesOnce {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NamesOnce)
    }
}

impl<'de> Visitor<'de> for NamesOnce {
    type Value = NamesOnce;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("names that are not repeated")
    }

    fn visit_unit<E>(self) -> Result<NamesOnce, E> {
        Ok(NamesOnce)
    }

    fn visit_bool<E>(self, _: bool) -> Result<NamesOnce, E> {
        Ok(NamesOnce)
    }

    fn visit_i64<E>(self, _: i64) -> Result<NamesOnce, E> {
        Ok(NamesOnce)
    }

    fn visit_u64<E>(self, _: u64) -> Result<NamesOnce, E> {
        Ok(NamesOnce)
    }

    fn visit_f64<E>(self, _: f64) -> Result<NamesOnce, E> {
        Ok(NamesOnce)
    }

    fn visit_str<E>(self, _: &str) -> Result<NamesOnce, E> {
        Ok(NamesOnce)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<NamesOnce, A::Error> {
        while items.next_element::<NamesOnce>()?.is_some() {}
        Ok(NamesOnce)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<NamesOnce, A::Error> {
        let mut names = std::collections::BTreeSet::new();
        while let Some((name, _)) = members.next_entry::<String, NamesOnce>()? {
            if !names.insert(name) {
                return Err(A::Error::custom("a repeated name"));
            }
        }
        Ok(NamesOnce)
    }
}

//! Canonical JSON (RFC 8785) and JSON pointers (RFC 6901). Says of every document whether its canonical form belongs to
//! it alone, and refuses one that repeats a member name.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::fmt::Write as _;

mod parse;

pub use parse::{Document, NotJson};

/// A JSON document without duplicate names, as far as fingerprints need it.
#[derive(Clone, Debug, PartialEq)]
pub enum Json<'a> {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// Any number, as the double that RFC 8785 writes.
    Number(f64),
    /// A string.
    Text(Cow<'a, str>),
    /// An array.
    Array(Vec<Json<'a>>),
    /// An object, its members in canonical order.
    Object(Members<'a>),
}

/// Members in the order of their names' UTF-16 code units, no name twice.
#[derive(Clone, Debug, PartialEq)]
pub struct Members<'a>(Vec<(Cow<'a, str>, Json<'a>)>);

impl<'a> Members<'a> {
    /// Sorts the members; `None` when a name is repeated.
    fn new(mut members: Vec<(Cow<'a, str>, Json<'a>)>) -> Option<Self> {
        members.sort_by(|(a, _), (b, _)| utf16_order(a, b));
        members.is_sorted_by(|(a, _), (b, _)| a != b).then_some(Self(members))
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.0.binary_search_by(|(known, _)| utf16_order(known, name)).ok()
    }

    fn get(&self, name: &str) -> Option<&Json<'a>> {
        self.find(name).map(|at| &self.0[at].1)
    }

    fn get_mut(&mut self, name: &str) -> Option<&mut Json<'a>> {
        self.find(name).map(|at| &mut self.0[at].1)
    }
}

/// UTF-8 sorts like UTF-16 except where surrogate pairs meet the characters above them.
fn utf16_order(a: &str, b: &str) -> Ordering {
    if a.is_ascii() || b.is_ascii() { a.cmp(b) } else { a.encode_utf16().cmp(b.encode_utf16()) }
}

impl<'a> Json<'a> {
    /// The canonical text of RFC 8785.
    pub fn canonical(&self) -> String {
        let mut text = String::with_capacity(256);
        self.write(&mut text, &mut ryu_js::Buffer::new());
        text
    }

    fn write(&self, out: &mut String, digits: &mut ryu_js::Buffer) {
        match self {
            Json::Null => out.push_str("null"),
            Json::Bool(true) => out.push_str("true"),
            Json::Bool(false) => out.push_str("false"),
            Json::Number(value) => match whole(*value) {
                Some(whole) => drop(write!(out, "{whole}")),
                None => out.push_str(digits.format_finite(*value)),
            },
            Json::Text(value) => write_string(value, out),
            Json::Array(items) => {
                out.push('[');
                for (at, item) in items.iter().enumerate() {
                    if at > 0 {
                        out.push(',');
                    }
                    item.write(out, digits);
                }
                out.push(']');
            }
            Json::Object(Members(members)) => {
                out.push('{');
                for (at, (name, value)) in members.iter().enumerate() {
                    if at > 0 {
                        out.push(',');
                    }
                    write_string(name, out);
                    out.push(':');
                    value.write(out, digits);
                }
                out.push('}');
            }
        }
    }

    /// What the pointer addresses, if anything.
    pub fn get(&self, pointer: &Pointer) -> Option<&Json<'a>> {
        pointer.0.iter().try_fold(self, |at, token| match at {
            Json::Object(members) => members.get(token.as_str()),
            Json::Array(items) => items.get(array_index(token)?),
            Json::Null | Json::Bool(_) | Json::Number(_) | Json::Text(_) => None,
        })
    }

    /// Removes what the pointer addresses. An array element becomes `null`, so that the others keep their places.
    pub fn remove(&mut self, pointer: &Pointer) {
        let Some((last, path)) = pointer.0.split_last() else {
            *self = Json::Null;
            return;
        };
        let parent = path.iter().try_fold(self, |at, token| match at {
            Json::Object(members) => members.get_mut(token.as_str()),
            Json::Array(items) => items.get_mut(array_index(token)?),
            Json::Null | Json::Bool(_) | Json::Number(_) | Json::Text(_) => None,
        });
        match parent {
            Some(Json::Object(members)) => {
                members.find(last).map(|at| members.0.remove(at));
            }
            Some(Json::Array(items)) => {
                if let Some(item) = array_index(last).and_then(|index| items.get_mut(index)) {
                    *item = Json::Null;
                }
            }
            Some(Json::Null | Json::Bool(_) | Json::Number(_) | Json::Text(_)) | None => {}
        }
    }
}

/// An RFC 6901 pointer, parsed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pointer(Vec<String>);

/// Why a text is not a JSON pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAPointer;

impl fmt::Display for NotAPointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected a JSON pointer such as /order/id (RFC 6901)")
    }
}

impl std::error::Error for NotAPointer {}

impl Pointer {
    /// Whether it addresses the whole document.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// Parses a pointer. The empty pointer addresses the whole document.
    pub fn parse(text: &str) -> Result<Self, NotAPointer> {
        if text.is_empty() {
            return Ok(Self(Vec::new()));
        }
        let tokens = text.strip_prefix('/').ok_or(NotAPointer)?.split('/').map(unescape);
        tokens.collect::<Option<_>>().map(Self).ok_or(NotAPointer)
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|token| write!(f, "/{}", token.replace('~', "~0").replace('/', "~1")))
    }
}

fn unescape(token: &str) -> Option<String> {
    let mut out = String::with_capacity(token.len());
    let mut chars = token.chars();
    while let Some(c) = chars.next() {
        out.push(match c {
            '~' => match chars.next()? {
                '0' => '~',
                '1' => '/',
                _ => return None,
            },
            other => other,
        });
    }
    Some(out)
}

/// RFC 6901 allows digits without a leading zero, and nothing else.
fn array_index(token: &str) -> Option<usize> {
    let plain = token == "0" || (!token.starts_with('0') && token.bytes().all(|b| b.is_ascii_digit()));
    plain.then(|| token.parse().ok()).flatten()
}

/// A number without a fraction that is surely written without an exponent: most are, and are written faster so.
fn whole(value: f64) -> Option<i64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    (value.abs() < EXACT && value.fract() == 0.0).then_some(value as i64)
}

/// How many bytes stand in a string as they are, from the beginning: no quote, no backslash, no control character. Looks
/// at eight bytes in one word; the lowest mark in it is always that of the first special byte.
fn plain_length(text: &[u8]) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGHS: u64 = 0x8080_8080_8080_8080;
    let below = |word: u64, bound: u64| word.wrapping_sub(ONES * bound) & !word & HIGHS;
    let equal = |word: u64, byte: u8| below(word ^ (ONES * u64::from(byte)), 1);
    let (words, rest) = text.as_chunks::<8>();
    for (at, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let special = below(word, 32) | equal(word, b'"') | equal(word, b'\\');
        if special != 0 {
            return at * 8 + special.trailing_zeros() as usize / 8;
        }
    }
    let is_special = |byte: &u8| *byte < 32 || *byte == b'"' || *byte == b'\\';
    words.len() * 8 + rest.iter().position(is_special).unwrap_or(rest.len())
}

/// A string as RFC 8785 writes it: the short escapes, `\u00xx` for other control characters, all else as it is.
fn write_string(text: &str, out: &mut String) {
    out.push('"');
    let mut rest = text;
    loop {
        let (plain, special) = rest.split_at(plain_length(rest.as_bytes()));
        out.push_str(plain);
        let Some(byte) = special.bytes().next() else { break };
        match byte {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            8 => out.push_str("\\b"),
            9 => out.push_str("\\t"),
            10 => out.push_str("\\n"),
            12 => out.push_str("\\f"),
            13 => out.push_str("\\r"),
            other => out.push_str(&format!("\\u{other:04x}")),
        }
        rest = &special[1..];
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn plain_bytes_are_counted_up_to_the_first_special_one(
            text in prop::collection::vec(prop_oneof![3 => any::<u8>(), 1 => Just(b'"'), 12 => 32_u8..127], 0..70)
        ) {
            let is_special = |byte: &u8| *byte < 32 || *byte == b'"' || *byte == b'\\';
            let first = text.iter().position(is_special).unwrap_or(text.len());
            prop_assert_eq!(plain_length(&text), first);
        }
    }
}

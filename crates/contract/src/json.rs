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

/// A string as RFC 8785 writes it: the short escapes, `\u00xx` for other control characters, all else as it is.
/// A number without a fraction that is surely written without an exponent: most are, and are written faster so.
fn whole(value: f64) -> Option<i64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    (value.abs() < EXACT && value.fract() == 0.0).then_some(value as i64)
}

fn write_string(text: &str, out: &mut String) {
    out.push('"');
    let mut from = 0;
    for (at, byte) in text.bytes().enumerate() {
        let escape = match byte {
            b'"' => "\\\"",
            b'\\' => "\\\\",
            8 => "\\b",
            9 => "\\t",
            10 => "\\n",
            12 => "\\f",
            13 => "\\r",
            0..32 => "",
            _ => continue,
        };
        out.push_str(&text[from..at]);
        from = at + 1;
        if escape.is_empty() {
            out.push_str(&format!("\\u{byte:04x}"));
        } else {
            out.push_str(escape);
        }
    }
    out.push_str(&text[from..]);
    out.push('"');
}

//! The idempotency key: where it stands in a request, how it is written, what it may look like. A [`Key`] is proof that
//! all of this was checked; past the door no `&str` is called a key.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use regex_lite::Regex;
use sfv::{Item, Parser, Version};

use crate::BadSetting;
use crate::json::{Json, Pointer};
use crate::limits::KEY_CHARS_MAX;
use crate::problem::{Kind, Problem};
use crate::request::{Body, Headers, trimmed};

/// The headers by which clients everywhere send keys. A key in one of them is never ignored, whatever the sources of a route
/// say: a key that is ignored is a retry that runs again.
pub const KEY_HEADERS: [&str; 2] = ["Idempotency-Key", "X-Idempotency-Key"];

/// A checked key. Compared byte for byte, never case-folded.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

impl Key {
    /// Checks a key that is already unquoted.
    pub fn parse(format: &Format, text: &str) -> Result<Self, Problem> {
        if text.is_empty() {
            return Err(Problem::new(Kind::KeyInvalid, "the key is empty"));
        }
        if format.accepts(text) {
            Ok(Self(text.into()))
        } else {
            Err(Problem::new(Kind::KeyInvalid, format!("the key must be {}", format.in_words())))
        }
    }

    /// The key's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the key is a UUID of any version.
    pub fn is_uuid(&self) -> bool {
        is_uuid(&self.0)
    }

    /// Whether the key carries the 122 random bits of a version 4 UUID.
    pub fn is_random_uuid(&self) -> bool {
        is_uuid(&self.0)
            && self.0.as_bytes()[14] == b'4'
            && matches!(self.0.as_bytes()[19], b'8' | b'9' | b'a' | b'b' | b'A' | b'B')
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a key may look like.
#[derive(Clone, Debug)]
pub enum Format {
    /// A version 4 UUID in lower case.
    Uuid4Lower,
    /// Any UUID with dashes, in either case.
    Uuid,
    /// Letters, digits, dash and underscore.
    Token255,
    /// ASCII from space to tilde.
    Printable255,
    /// Any text without control characters.
    Any255,
    /// A ULID.
    Ulid,
    /// The whole key matches a pattern.
    Regex(Pattern),
}

/// A pattern that must match a whole key.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: String,
    whole: Regex,
}

impl Pattern {
    /// Compiles a pattern; the error says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, BadSetting> {
        let whole =
            Regex::new(&format!("^(?:{text})$")).map_err(|error| format!("bad pattern {text:?}: {error}"))?;
        Ok(Self { text: text.to_owned(), whole })
    }

    /// Whether the pattern matches all of `text`.
    pub fn matches(&self, text: &str) -> bool {
        self.whole.is_match(text)
    }
}

impl Format {
    fn accepts(&self, text: &str) -> bool {
        // No format lets a control character through, not even a pattern that would.
        let is_too_long = text.len() > KEY_CHARS_MAX && text.chars().count() > KEY_CHARS_MAX;
        if is_too_long || text.chars().any(char::is_control) {
            return false;
        }
        match self {
            Format::Uuid4Lower => {
                is_uuid(text)
                    && !text.bytes().any(|b| b.is_ascii_uppercase())
                    && text.as_bytes()[14] == b'4'
                    && matches!(text.as_bytes()[19], b'8' | b'9' | b'a' | b'b')
            }
            Format::Uuid => is_uuid(text),
            Format::Token255 => text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_')),
            Format::Printable255 => text.bytes().all(|b| matches!(b, b' '..=b'~')),
            Format::Any255 => true,
            Format::Ulid => is_ulid(text),
            Format::Regex(pattern) => pattern.matches(text),
        }
    }

    fn in_words(&self) -> String {
        match self {
            Format::Uuid4Lower => "a version 4 UUID in lower case with dashes".to_owned(),
            Format::Uuid => "a UUID with dashes".to_owned(),
            Format::Token255 => "1 to 255 letters, digits, dashes or underscores".to_owned(),
            Format::Printable255 => "1 to 255 printable ASCII characters".to_owned(),
            Format::Any255 => "1 to 255 characters without control characters".to_owned(),
            Format::Ulid => "a ULID".to_owned(),
            Format::Regex(pattern) => format!("at most 255 characters matching {}", pattern.text),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Format::Uuid4Lower => f.write_str("uuid4-lower"),
            Format::Uuid => f.write_str("uuid"),
            Format::Token255 => f.write_str("token255"),
            Format::Printable255 => f.write_str("printable255"),
            Format::Any255 => f.write_str("any255"),
            Format::Ulid => f.write_str("ulid"),
            Format::Regex(pattern) => write!(f, "regex:{}", pattern.text),
        }
    }
}

impl FromStr for Format {
    type Err = BadSetting;

    fn from_str(text: &str) -> Result<Self, BadSetting> {
        Ok(match text {
            "uuid4-lower" => Format::Uuid4Lower,
            "uuid" => Format::Uuid,
            "token255" => Format::Token255,
            "printable255" => Format::Printable255,
            "any255" => Format::Any255,
            "ulid" => Format::Ulid,
            other => match other.strip_prefix("regex:") {
                Some(pattern) => Format::Regex(Pattern::parse(pattern)?),
                None => {
                    let why = format!(
                        "unknown key format {other:?}: expected uuid4-lower, uuid, token255, printable255, any255, ulid or regex:PATTERN"
                    );
                    return Err(why.into());
                }
            },
        })
    }
}

/// Whether a text is a UUID with dashes, of any version.
pub fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(at, b)| match at {
            8 | 13 | 18 | 23 => b == b'-',
            _ => b.is_ascii_hexdigit(),
        })
}

fn is_ulid(text: &str) -> bool {
    let is_digit =
        |b: u8| b.is_ascii_alphanumeric() && !matches!(b.to_ascii_uppercase(), b'I' | b'L' | b'O' | b'U');
    text.len() == 26 && text.bytes().all(is_digit) && text.as_bytes()[0] <= b'7'
}

/// Where a key may stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A header, by name.
    Header(String),
    /// A string in a JSON body.
    Json(Pointer),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Header(name) => write!(f, "header:{name}"),
            Source::Json(pointer) => write!(f, "json:{pointer}"),
        }
    }
}

impl FromStr for Source {
    type Err = BadSetting;

    fn from_str(text: &str) -> Result<Self, BadSetting> {
        match text.split_once(':') {
            Some(("header", name)) if is_header_name(name) => Ok(Source::Header(name.to_owned())),
            Some(("json", pointer)) => Pointer::parse(pointer)
                .map(Source::Json)
                .map_err(|error| format!("key source {text:?}: {error}").into()),
            _ => Err(format!("unknown key source {text:?}: expected header:NAME or json:/POINTER").into()),
        }
    }
}

/// Whether a text is a legal header name (an RFC 9110 token).
pub fn is_header_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

/// How a header writes its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syntax {
    /// The value as it stands.
    Bare,
    /// An RFC 8941 String.
    SfString,
    /// A String when it begins with a quote, else bare.
    Both,
}

/// How the key that was found had been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// As it stands.
    Bare,
    /// As an RFC 8941 String.
    SfString,
}

impl Written {
    /// `bare` or `sf-string`.
    pub fn name(self) -> &'static str {
        match self {
            Written::Bare => "bare",
            Written::SfString => "sf-string",
        }
    }
}

/// Whether a key must be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// A request without one is refused.
    Required,
    /// A request without one passes unprotected.
    Optional,
    /// A request without one is given one.
    Mint,
}

/// A header that must accompany the key and is kept with the record.
#[derive(Clone, Debug)]
pub struct RequiredHeader {
    /// The header's name.
    pub name: String,
    /// What its value must look like.
    pub format: Format,
}

/// How keys are read on a route.
#[derive(Clone, Debug)]
pub struct KeyPolicy {
    /// Where to look, in order.
    pub sources: Vec<Source>,
    /// How headers write keys.
    pub syntax: Syntax,
    /// What a key may look like.
    pub format: Format,
    /// Whether it must be there.
    pub presence: Presence,
    /// Headers that must come with it.
    pub require_headers: Vec<RequiredHeader>,
}

/// A key, with where and how it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The key.
    pub key: Key,
    /// Where it stood.
    pub source: Source,
    /// How it was written.
    pub written: Written,
}

impl KeyPolicy {
    /// Reads the key of a request. `None`: there is none, and none is required.
    pub fn read<H: Headers + ?Sized>(&self, headers: &H, body: &Body<'_>) -> Result<Option<Found>, Problem> {
        let mut found: Option<Unchecked> = None;
        let mut unread_body = false;
        for source in &self.sources {
            let value = match source {
                Source::Header(name) => self.read_header(headers, name)?,
                Source::Json(pointer) => match body.json() {
                    Some(document) => read_json(document, pointer)?,
                    None => {
                        unread_body |= !body.bytes().is_empty();
                        None
                    }
                },
            };
            add(&mut found, value, || source.clone())?;
        }
        let reads_headers = self.sources.iter().any(|source| matches!(source, Source::Header(_)));
        if !reads_headers {
            for name in KEY_HEADERS {
                let value = self.read_header(headers, name)?;
                add(&mut found, value, || Source::Header(name.to_owned()))?;
            }
        }
        match found {
            Some((text, source, written)) => {
                Ok(Some(Found { key: Key::parse(&self.format, &text)?, source, written }))
            }
            None if unread_body => Err(Problem::new(
                Kind::BodyNotJson,
                "the key is read from the body, which must be JSON without repeated names",
            )),
            None => self.refuse_missing(headers).map(|()| None),
        }
    }

    /// Refuses a request whose key is missing where it is required, or stands in a header that this route does not read.
    fn refuse_missing<H: Headers + ?Sized>(&self, headers: &H) -> Result<(), Problem> {
        let given = KEY_HEADERS.iter().find(|name| headers.values(name).next().is_some());
        let wanted = self.sources_in_words();
        match (given, self.presence) {
            (Some(given), _) => {
                let detail = format!("{given} is not read here: send the key in {wanted}");
                Err(Problem::new(Kind::KeyMissing, detail))
            }
            (None, Presence::Required) => {
                Err(Problem::new(Kind::KeyMissing, format!("send a key in {wanted}")))
            }
            (None, Presence::Optional | Presence::Mint) => Ok(()),
        }
    }

    /// Whether a request may carry a key, as far as its headers tell. A body that was not read yet may always hold one.
    pub fn may_have_key<H: Headers + ?Sized>(&self, headers: &H) -> bool {
        let is_there = |name: &str| headers.values(name).next().is_some();
        let named = self.sources.iter().any(|source| match source {
            Source::Header(name) => is_there(name),
            Source::Json(_) => true,
        });
        named || KEY_HEADERS.iter().any(|name| is_there(name))
    }

    /// The values of the required headers, in the policy's order.
    pub fn read_required<H: Headers + ?Sized>(&self, headers: &H) -> Result<Vec<String>, Problem> {
        let read = |required: &RequiredHeader| {
            let missing = |what: &str| Problem::new(Kind::HeaderMissing, format!("{} {what}", required.name));
            let value = only_line(headers, &required.name).map_err(|_| missing("is given twice"))?;
            let value = value.ok_or_else(|| missing("is required"))?;
            let text = std::str::from_utf8(value).map_err(|_| missing("must be text"))?;
            if !text.is_empty() && required.format.accepts(text) {
                Ok(text.to_owned())
            } else {
                Err(missing(&format!("must be {}", required.format.in_words())))
            }
        };
        self.require_headers.iter().map(read).collect()
    }

    fn read_header<H: Headers + ?Sized>(
        &self,
        headers: &H,
        name: &str,
    ) -> Result<Option<(String, Written)>, Problem> {
        let line = only_line(headers, name).map_err(|_| {
            Problem::new(Kind::KeyAmbiguous, format!("{name} is given on more than one line"))
        })?;
        let Some(value) = line else { return Ok(None) };
        let quoted = match self.syntax {
            Syntax::Bare => false,
            Syntax::SfString => true,
            Syntax::Both => value.starts_with(b"\""),
        };
        if quoted {
            return parse_sf_string(value).map(|text| Some((text, Written::SfString)));
        }
        let text = std::str::from_utf8(value)
            .map_err(|_| Problem::new(Kind::KeyInvalid, "the key is not UTF-8 text"))?;
        Ok(Some((text.to_owned(), Written::Bare)))
    }

    fn sources_in_words(&self) -> String {
        let words = self.sources.iter().map(|source| match source {
            Source::Header(name) => format!("the {name} header"),
            Source::Json(pointer) => format!("the body at {pointer}"),
        });
        words.collect::<Vec<_>>().join(" or ")
    }
}

/// A key's text, where it stood and how it was written.
type Unchecked = (String, Source, Written);

/// Takes over what a source gave. Two sources that give different keys are refused.
fn add(
    found: &mut Option<Unchecked>,
    value: Option<(String, Written)>,
    source: impl Fn() -> Source,
) -> Result<(), Problem> {
    match (&*found, value) {
        (None, Some((text, written))) => *found = Some((text, source(), written)),
        (Some((first, from, _)), Some((text, _))) if *first != text => {
            let detail = format!("{from} and {} give different keys", source());
            return Err(Problem::new(Kind::KeyAmbiguous, detail));
        }
        (Some(_), Some(_)) | (_, None) => {}
    }
    Ok(())
}

/// More than one line carries the header.
struct Doubled;

fn only_line<'a, H: Headers + ?Sized>(headers: &'a H, name: &'a str) -> Result<Option<&'a [u8]>, Doubled> {
    let mut lines = headers.values(name);
    let first = lines.next();
    if lines.next().is_some() { Err(Doubled) } else { Ok(first.map(trimmed)) }
}

fn read_json(document: &Json<'_>, pointer: &Pointer) -> Result<Option<(String, Written)>, Problem> {
    match document.get(pointer) {
        None => Ok(None),
        Some(Json::Text(text)) => Ok(Some((text.clone().into_owned(), Written::Bare))),
        Some(Json::Null | Json::Bool(_) | Json::Number(_) | Json::Array(_) | Json::Object(_)) => {
            Err(Problem::new(Kind::KeyInvalid, format!("the key at {pointer} must be a string")))
        }
    }
}

fn parse_sf_string(value: &[u8]) -> Result<String, Problem> {
    let invalid =
        |why: String| Problem::new(Kind::KeyInvalid, format!("the key is not an RFC 8941 string: {why}"));
    let parser = Parser::new(value).with_version(Version::Rfc8941);
    let item: Item = parser.parse().map_err(|error| invalid(error.to_string()))?;
    match item.bare_item.as_string() {
        Some(text) => Ok(text.as_str().to_owned()),
        None => Err(invalid("it must be in double quotes".to_owned())),
    }
}

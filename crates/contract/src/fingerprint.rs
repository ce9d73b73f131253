//! The fingerprint: 32 bytes that say what a key was used for. Versioned, so that a change of algorithm is never taken
//! for a change of request; keyed where a plain hash would betray a guessable payload.

use std::borrow::Cow;
use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::hex::hex;
use crate::json::{Json, Pointer};
use crate::planted::{self, Bug};
use crate::problem::{Kind, Problem};
use crate::request::Body;

/// How a fingerprint was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Version {
    /// SHA-256.
    Plain = 1,
    /// HMAC-SHA-256 with a secret of the installation.
    Keyed = 2,
}

impl Version {
    /// The version a stored byte stands for.
    pub fn from_byte(byte: u8) -> Option<Self> {
        [Self::Plain, Self::Keyed].into_iter().find(|version| *version as u8 == byte)
    }
}

/// A fingerprint with its version.
#[derive(Clone, Copy, Debug)]
pub struct Fingerprint {
    /// How it was made.
    pub version: Version,
    /// The hash.
    pub bytes: [u8; 32],
}

impl Fingerprint {
    /// Whether both were made from the same request. Takes the same time wherever they differ.
    pub fn same(&self, other: &Self) -> bool {
        self.version == other.version && bool::from(self.bytes.ct_eq(&other.bytes))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.bytes))
    }
}

/// One thing a fingerprint can be made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// The method.
    Method,
    /// The endpoint's name.
    Route,
    /// The path parameters.
    Params,
    /// The query.
    Query,
    /// The principal, for scopes that leave it out.
    Principal,
    /// The body.
    Body,
}

impl Input {
    /// Every input, in the order in which they are hashed.
    pub const ALL: [Input; 6] =
        [Input::Method, Input::Route, Input::Params, Input::Query, Input::Principal, Input::Body];

    /// The input's name in settings.
    pub fn name(self) -> &'static str {
        match self {
            Input::Method => "method",
            Input::Route => "route",
            Input::Params => "params",
            Input::Query => "query",
            Input::Principal => "principal",
            Input::Body => "body",
        }
    }

    fn letter(self) -> u8 {
        match self {
            Input::Method => b'm',
            Input::Route => b'r',
            Input::Params => b'p',
            Input::Query => b'q',
            Input::Principal => b's',
            Input::Body => b'b',
        }
    }
}

/// What a route's fingerprint is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// The inputs; their order here does not matter.
    pub inputs: Vec<Input>,
    /// Volatile parts of a JSON body that are left out.
    pub exclude: Vec<Pointer>,
    /// When not empty, the only parts of a JSON body that count.
    pub include: Vec<Pointer>,
}

impl Default for Recipe {
    /// Everything that a request asks for, whoever sends it.
    fn default() -> Self {
        let inputs = vec![Input::Method, Input::Route, Input::Params, Input::Query, Input::Body];
        Self { inputs, exclude: Vec::new(), include: Vec::new() }
    }
}

/// The request's parts other than the body.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// The method as received.
    pub method: &'a str,
    /// The endpoint's name.
    pub route: &'a str,
    /// Path parameters in the order of the pattern.
    pub params: &'a [(&'a str, &'a str)],
    /// The query without its question mark.
    pub query: &'a str,
    /// The principal.
    pub principal: &'a str,
}

/// How a body entered the fingerprint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form<'a> {
    /// There was none.
    Empty,
    /// As canonical JSON.
    Json(String),
    /// As the bytes themselves.
    Raw(Cow<'a, [u8]>),
}

impl Form<'_> {
    fn letter(&self) -> u8 {
        match self {
            Form::Empty => b'n',
            Form::Json(_) => b'j',
            Form::Raw(_) => b'r',
        }
    }

    fn content(&self) -> &[u8] {
        match self {
            Form::Empty => b"",
            Form::Json(text) => text.as_bytes(),
            Form::Raw(bytes) => bytes,
        }
    }

    /// SHA-256 over the canonical text or the raw bytes: what `sha256sum` prints.
    pub fn payload_hash(&self) -> [u8; 32] {
        Sha256::digest(self.content()).into()
    }
}

/// The secret of keyed fingerprints.
#[derive(Clone)]
pub struct Secret(Hmac<Sha256>);

impl Secret {
    /// A secret of any length; 32 random bytes are right.
    pub fn new(secret: &[u8]) -> Self {
        Self(Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes keys of any length"))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Recipe {
    /// The form in which the body counts.
    pub fn form<'a>(&self, body: &Body<'a>) -> Result<Form<'a>, Problem> {
        if body.bytes().is_empty() {
            return Ok(Form::Empty);
        }
        if self.exclude.is_empty() && self.include.is_empty() {
            return Ok(match body.exact_json() {
                Some(document) => Form::Json(document.canonical()),
                None => Form::Raw(Cow::Borrowed(body.bytes())),
            });
        }
        let mut document = body.exact_json().cloned().ok_or_else(|| {
            Problem::new(Kind::BodyNotJson, "parts of the body are left out or chosen here, which needs JSON without repeated names and without integers beyond 2^53")
        })?;
        self.exclude.iter().for_each(|pointer| document.remove(pointer));
        if !self.include.is_empty() {
            document = self.selected(&document);
        }
        Ok(Form::Json(document.canonical()))
    }

    fn selected<'a>(&self, document: &Json<'a>) -> Json<'a> {
        let mut chosen: Vec<(String, &Pointer)> =
            self.include.iter().map(|pointer| (pointer.to_string(), pointer)).collect();
        chosen.sort();
        chosen.dedup();
        let pair = |(text, pointer): (String, &Pointer)| {
            let value = document.get(pointer)?.clone();
            Some(Json::Array(vec![Json::Text(Cow::Owned(text)), value]))
        };
        Json::Array(chosen.into_iter().filter_map(pair).collect())
    }

    /// The fingerprint of a request whose body counts in this form.
    pub fn fingerprint(&self, parts: &Parts<'_>, form: &Form<'_>, secret: Option<&Secret>) -> Fingerprint {
        match secret {
            None => {
                let mut hash = Sha256::new();
                self.feed(parts, form, &mut |bytes| hash.update(bytes));
                Fingerprint { version: Version::Plain, bytes: hash.finalize().into() }
            }
            Some(Secret(keyed)) => {
                let mut hash = keyed.clone();
                self.feed(parts, form, &mut |bytes| hash.update(bytes));
                Fingerprint { version: Version::Keyed, bytes: hash.finalize().into_bytes().into() }
            }
        }
    }

    fn feed(&self, parts: &Parts<'_>, form: &Form<'_>, sink: &mut impl FnMut(&[u8])) {
        if self.inputs == [Input::Body] {
            return sink(form.content());
        }
        length_prefixed(sink, b"semel.fingerprint.1");
        let counts = |input: &Input| {
            let is_planted = match input {
                Input::Params => planted::is(Bug::FingerprintWithoutPath),
                Input::Body => planted::is(Bug::FingerprintWithoutBody),
                Input::Method | Input::Route | Input::Query | Input::Principal => false,
            };
            self.inputs.contains(input) && !is_planted
        };
        for input in Input::ALL.into_iter().filter(counts) {
            sink(&[input.letter()]);
            match input {
                Input::Method => length_prefixed(sink, parts.method.as_bytes()),
                Input::Route => length_prefixed(sink, parts.route.as_bytes()),
                Input::Params => {
                    let size =
                        parts.params.iter().map(|(name, value)| 16 + name.len() + value.len()).sum::<usize>();
                    sink(&(size as u64).to_be_bytes());
                    for (name, value) in parts.params {
                        length_prefixed(sink, name.as_bytes());
                        length_prefixed(sink, value.as_bytes());
                    }
                }
                Input::Query => length_prefixed(sink, parts.query.as_bytes()),
                Input::Principal => length_prefixed(sink, parts.principal.as_bytes()),
                Input::Body => {
                    sink(&(1 + form.content().len() as u64).to_be_bytes());
                    sink(&[form.letter()]);
                    sink(form.content());
                }
            }
        }
    }
}

fn length_prefixed(sink: &mut impl FnMut(&[u8]), part: &[u8]) {
    sink(&(part.len() as u64).to_be_bytes());
    sink(part);
}

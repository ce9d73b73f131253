//! Reads JSON (RFC 8259) for canonicalisation. By hand, because what is needed is exactly what general parsers leave to
//! their options: repeated names, integers that no double holds, correct rounding, a depth limit. Options that another
//! crate of the same program could switch would change fingerprints.

use std::borrow::Cow;

use super::{Json, Members, plain_length};
use crate::limits::{JSON_DEPTH_MAX, JSON_INTEGER_MAX};

/// A parsed text.
#[derive(Clone, Debug, PartialEq)]
pub struct Document<'a> {
    /// What it says.
    pub root: Json<'a>,
    /// Whether its canonical form belongs to it alone: no integer literal lies beyond 2^53.
    pub exact: bool,
}

/// The text does not parse, nests too deeply, or repeats a member name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotJson;

impl<'a> Document<'a> {
    /// Parses a text.
    pub fn parse(text: &'a [u8]) -> Result<Self, NotJson> {
        let text = std::str::from_utf8(text).map_err(|_| NotJson)?;
        let mut parser = Parser { text, at: 0, depth: 0, exact: true };
        let root = parser.value()?;
        parser.skip_space();
        if parser.at == text.len() { Ok(Self { root, exact: parser.exact }) } else { Err(NotJson) }
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    exact: bool,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn expect(&mut self, byte: u8) -> Result<(), NotJson> {
        if self.peek() == Some(byte) {
            self.at += 1;
            Ok(())
        } else {
            Err(NotJson)
        }
    }

    fn value(&mut self) -> Result<Json<'a>, NotJson> {
        self.skip_space();
        match self.peek().ok_or(NotJson)? {
            b'{' => self.nested(Self::object),
            b'[' => self.nested(Self::array),
            b'"' => self.string().map(Json::Text),
            b'-' | b'0'..=b'9' => self.number(),
            b't' => self.word("true", Json::Bool(true)),
            b'f' => self.word("false", Json::Bool(false)),
            b'n' => self.word("null", Json::Null),
            _ => Err(NotJson),
        }
    }

    fn word(&mut self, word: &str, value: Json<'a>) -> Result<Json<'a>, NotJson> {
        let found = self.text.as_bytes()[self.at..].starts_with(word.as_bytes());
        self.at += word.len();
        if found { Ok(value) } else { Err(NotJson) }
    }

    fn nested(&mut self, read: fn(&mut Self) -> Result<Json<'a>, NotJson>) -> Result<Json<'a>, NotJson> {
        self.depth += 1;
        if self.depth > JSON_DEPTH_MAX {
            return Err(NotJson);
        }
        self.at += 1;
        let value = read(self)?;
        self.depth -= 1;
        Ok(value)
    }

    /// Whether the list goes on after an item; past the closing byte it does not.
    fn goes_on(&mut self, close: u8) -> Result<bool, NotJson> {
        self.skip_space();
        match self.peek() {
            Some(b',') => {
                self.at += 1;
                Ok(true)
            }
            Some(byte) if byte == close => {
                self.at += 1;
                Ok(false)
            }
            Some(_) | None => Err(NotJson),
        }
    }

    fn is_empty(&mut self, close: u8) -> bool {
        self.skip_space();
        let closed = self.peek() == Some(close);
        self.at += usize::from(closed);
        closed
    }

    fn array(&mut self) -> Result<Json<'a>, NotJson> {
        let mut items = Vec::new();
        if self.is_empty(b']') {
            return Ok(Json::Array(items));
        }
        loop {
            items.push(self.value()?);
            if !self.goes_on(b']')? {
                return Ok(Json::Array(items));
            }
        }
    }

    fn object(&mut self) -> Result<Json<'a>, NotJson> {
        let mut members = Vec::new();
        if !self.is_empty(b'}') {
            loop {
                self.skip_space();
                let name = self.string()?;
                self.skip_space();
                self.expect(b':')?;
                members.push((name, self.value()?));
                if !self.goes_on(b'}')? {
                    break;
                }
            }
        }
        Members::new(members).map(Json::Object).ok_or(NotJson)
    }

    fn digits(&mut self) -> Result<(), NotJson> {
        let from = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at > from { Ok(()) } else { Err(NotJson) }
    }

    fn number(&mut self) -> Result<Json<'a>, NotJson> {
        let from = self.at;
        self.at += usize::from(self.peek() == Some(b'-'));
        let integer = self.at;
        self.digits()?;
        let integer = &self.text[integer..self.at];
        if integer.len() > 1 && integer.starts_with('0') {
            return Err(NotJson);
        }
        let mut digits_only = true;
        if self.peek() == Some(b'.') {
            digits_only = false;
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            digits_only = false;
            self.at += 1;
            self.at += usize::from(matches!(self.peek(), Some(b'+' | b'-')));
            self.digits()?;
        }
        if digits_only && integer.parse().map_or(true, |value: u64| value > JSON_INTEGER_MAX) {
            self.exact = false;
        }
        let value: f64 = self.text[from..self.at].parse().map_err(|_| NotJson)?;
        if value.is_finite() { Ok(Json::Number(value)) } else { Err(NotJson) }
    }

    fn string(&mut self) -> Result<Cow<'a, str>, NotJson> {
        self.expect(b'"')?;
        let mut from = self.at;
        let mut unescaped = String::new();
        loop {
            self.at += plain_length(&self.text.as_bytes()[self.at..]);
            match self.peek().ok_or(NotJson)? {
                b'"' => {
                    let last = &self.text[from..self.at];
                    self.at += 1;
                    return Ok(if unescaped.is_empty() {
                        Cow::Borrowed(last)
                    } else {
                        Cow::Owned(unescaped + last)
                    });
                }
                b'\\' => {
                    unescaped.push_str(&self.text[from..self.at]);
                    self.at += 1;
                    unescaped.push(self.escape()?);
                    from = self.at;
                }
                _ => return Err(NotJson),
            }
        }
    }

    fn escape(&mut self) -> Result<char, NotJson> {
        let letter = self.peek().ok_or(NotJson)?;
        self.at += 1;
        Ok(match letter {
            b'"' => '"',
            b'\\' => '\\',
            b'/' => '/',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => self.unicode()?,
            _ => return Err(NotJson),
        })
    }

    /// A `\u` escape, or a pair of them for one character. An unpaired surrogate is no character.
    fn unicode(&mut self) -> Result<char, NotJson> {
        let first = self.four_digits()?;
        if !(0xd800..0xdc00).contains(&first) {
            return char::from_u32(first).ok_or(NotJson);
        }
        self.expect(b'\\')?;
        self.expect(b'u')?;
        let second = self.four_digits()?;
        if !(0xdc00..0xe000).contains(&second) {
            return Err(NotJson);
        }
        char::from_u32(0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)).ok_or(NotJson)
    }

    fn four_digits(&mut self) -> Result<u32, NotJson> {
        let digits = self.text.as_bytes().get(self.at..self.at + 4).ok_or(NotJson)?;
        self.at += 4;
        digits
            .iter()
            .try_fold(0, |sum, digit| (*digit as char).to_digit(16).map(|value| sum * 16 + value))
            .ok_or(NotJson)
    }
}

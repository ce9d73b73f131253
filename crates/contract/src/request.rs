//! A request as the contract sees it: header lines and a body that is parsed at most once. Owns no copy of either.

use std::cell::OnceCell;

use crate::json::{Document, Json};

/// Header lines, in whatever form the caller keeps them. Names compare without case.
pub trait Headers {
    /// The values of every line with this name, in order, as received.
    fn values<'a>(&'a self, name: &'a str) -> Box<dyn Iterator<Item = &'a [u8]> + 'a>;
}

impl<N: AsRef<str>, V: AsRef<[u8]>> Headers for [(N, V)] {
    fn values<'a>(&'a self, name: &'a str) -> Box<dyn Iterator<Item = &'a [u8]> + 'a> {
        let named = move |line: &&'a (N, V)| line.0.as_ref().eq_ignore_ascii_case(name);
        Box::new(self.iter().filter(named).map(|line| line.1.as_ref()))
    }
}

/// Cuts the white space that HTTP allows around a header's value.
pub fn trimmed(value: &[u8]) -> &[u8] {
    let is_space = |b: &u8| matches!(b, b' ' | b'\t');
    let start = value.iter().position(|b| !is_space(b)).unwrap_or(value.len());
    let end = value.iter().rposition(|b| !is_space(b)).map_or(start, |last| last + 1);
    &value[start..end]
}

/// A request body with its media type.
#[derive(Debug)]
pub struct Body<'a> {
    bytes: &'a [u8],
    claims_json: bool,
    document: OnceCell<Option<Document<'a>>>,
}

impl<'a> Body<'a> {
    /// A body and the value of its `Content-Type`, if there was one.
    pub fn new(content_type: Option<&[u8]>, bytes: &'a [u8]) -> Self {
        let claims_json = !bytes.is_empty() && content_type.is_none_or(is_json_type);
        Self { bytes, claims_json, document: OnceCell::new() }
    }

    /// The bytes as received.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The document, when the body is JSON without repeated member names.
    pub fn json(&self) -> Option<&Json<'a>> {
        self.document().map(|document| &document.root)
    }

    /// The document, when its canonical form belongs to it alone.
    pub fn exact_json(&self) -> Option<&Json<'a>> {
        self.document().filter(|document| document.exact).map(|document| &document.root)
    }

    fn document(&self) -> Option<&Document<'a>> {
        let parse = || self.claims_json.then(|| Document::parse(self.bytes).ok()).flatten();
        self.document.get_or_init(parse).as_ref()
    }
}

fn is_json_type(content_type: &[u8]) -> bool {
    let essence = content_type.split(|b| *b == b';').next().map_or(&b""[..], trimmed);
    essence.eq_ignore_ascii_case(b"application/json")
        || (essence.contains(&b'/')
            && essence.len() >= 5
            && essence[essence.len() - 5..].eq_ignore_ascii_case(b"+json"))
}

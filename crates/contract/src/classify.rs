//! What an answer means to a sender. One ordered table per profile; the first rule that matches counts.

use std::borrow::Cow;

use crate::json::{Document, Json, Pointer};

/// What to do about an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Class {
    /// Done.
    Success,
    /// Try again by the schedule.
    Retry,
    /// Try again by the schedule, but at most so often for this answer; then the other class.
    RetryAtMost(u32, Box<Class>),
    /// Come back when told, else by the schedule.
    RetryAfter,
    /// Hold until there is a fresh credential.
    Auth,
    /// Ask the application to rebuild the queue.
    Rebuild,
    /// Final, reported, not kept.
    Drop(Cow<'static, str>),
    /// Final, kept for an operator.
    Dead(Cow<'static, str>),
}

/// One row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The lowest status it speaks of.
    pub from: u16,
    /// The highest.
    pub to: u16,
    /// The codes it speaks of; empty means any, or none.
    pub codes: Vec<Cow<'static, str>>,
    /// What to do.
    pub class: Class,
}

/// The table of one profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Classify {
    /// Rules, the first that matches counts.
    pub rules: Vec<Rule>,
    /// What any other answer means.
    pub otherwise: Class,
}

impl Classify {
    /// What an answer with this status and code means. No answer at all is always worth another try.
    pub fn classify(&self, status: Option<u16>, code: Option<&str>) -> &Class {
        self.classify_by(status, code.as_slice())
    }

    /// The same for an answer that several codes name, such as the one in its body and that of the page it links to.
    pub fn classify_by(&self, status: Option<u16>, codes: &[&str]) -> &Class {
        let Some(status) = status else { return &Class::Retry };
        let is_named = |known: &Cow<'static, str>| codes.iter().any(|code| is_same_code(known, code));
        let matches = |rule: &&Rule| {
            (rule.from..=rule.to).contains(&status)
                && (rule.codes.is_empty() || rule.codes.iter().any(is_named))
        };
        self.rules.iter().find(matches).map_or(&self.otherwise, |rule| &rule.class)
    }
}

/// Codes are compared without regard to case, `_` and `-` alike.
pub fn is_same_code(a: &str, b: &str) -> bool {
    let plain = |b: u8| if b == b'_' { b'-' } else { b.to_ascii_lowercase() };
    a.len() == b.len() && a.bytes().map(plain).eq(b.bytes().map(plain))
}

/// The code in an error body: the last segment of `type`, else `code`, else `error`, else `error.code`.
pub fn code_of(body: &[u8]) -> Option<String> {
    let document = Document::parse(body).ok()?.root;
    let text = |pointer: &str| match document.get(&Pointer::parse(pointer).ok()?) {
        Some(Json::Text(text)) => Some(text.as_ref()),
        Some(Json::Null | Json::Bool(_) | Json::Number(_) | Json::Array(_) | Json::Object(_)) | None => None,
    };
    let of_type = || {
        let segment = text("/type").filter(|uri| *uri != "about:blank")?.rsplit([':', '/']).next();
        segment.filter(|segment| !segment.is_empty())
    };
    of_type()
        .or_else(|| text("/code"))
        .or_else(|| text("/error"))
        .or_else(|| text("/error/code"))
        .map(str::to_owned)
}

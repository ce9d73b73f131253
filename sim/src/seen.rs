//! An answer as a client sees it, and what the client makes of it.

use bytes::Bytes;
use http::response::Parts;
use semel_contract::problem::{Kind, Retry};
use semel_store::Answer;
use serde_json::Value;

use crate::routes::Endpoint;

/// An answer, read in full.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The status.
    pub status: u16,
    headers: Vec<(String, Vec<u8>)>,
    body: Bytes,
    /// What it says, where it is JSON.
    said: Value,
}

/// What a client makes of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// There is nothing more to ask.
    Last(&'static str),
    /// It asks again; so far the outcome may be unknown.
    Again {
        /// Whether it was told so.
        unknown: bool,
    },
}

impl Seen {
    /// Reads an answer.
    pub fn new(parts: &Parts, body: Bytes) -> Self {
        let headers = parts.headers.iter();
        let headers =
            headers.map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec())).collect();
        let said = serde_json::from_slice(&body).unwrap_or(Value::Null);
        Self { status: parts.status.as_u16(), headers, body, said }
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_slice())
    }

    /// Whether it was answered from the record.
    pub fn is_replayed(&self) -> bool {
        self.header("idempotency-replayed") == Some(b"true")
    }

    /// What it says of the outcome.
    pub fn outcome(&self) -> Option<&[u8]> {
        self.header("semel-outcome")
    }

    /// Whether it says that the outcome is unknown.
    pub fn is_unknown(&self) -> bool {
        self.outcome() == Some(b"unknown")
    }

    /// The effect that the upstream reports by it; a refusal of the gate reports none.
    pub fn effect(&self) -> Option<&str> {
        self.said["effect"].as_str()
    }

    /// Whose effect it reports.
    pub fn who(&self) -> Option<u64> {
        self.said["who"].as_u64()
    }

    /// The refusal, where it is one.
    pub fn problem(&self) -> Option<Kind> {
        let slug = self.said["type"].as_str()?.rsplit(':').next()?;
        Kind::ALL.iter().copied().find(|kind| kind.slug() == slug)
    }

    /// Whether it says that a key is cancelled.
    pub fn is_seal(&self) -> bool {
        self.status == 200 && self.said["sealed"] == true
    }

    /// What the log says of it.
    pub fn summary(&self) -> String {
        let what = match (self.problem(), self.effect()) {
            (Some(kind), _) => kind.slug(),
            (None, Some(effect)) => effect,
            (None, None) => self.said["status"].as_str().unwrap_or("something else"),
        };
        let replayed = if self.is_replayed() { ", replayed" } else { "" };
        let outcome = self.outcome().map(|value| format!(", {}", String::from_utf8_lossy(value)));
        format!("{} {what}{replayed}{}", self.status, outcome.unwrap_or_default())
    }

    /// Whether it is this kept answer, byte for byte.
    pub fn is(&self, kept: &Answer) -> bool {
        const PASSING: [&str; 3] = ["date", "idempotency-replayed", "set-cookie"];
        let is_kept = |name: &str| !PASSING.contains(&name) && !name.starts_with("semel-");
        let mut own: Vec<_> = self.headers.iter().filter(|(name, _)| is_kept(name)).cloned().collect();
        let mut theirs = kept.headers.to_vec();
        own.sort();
        theirs.sort();
        let unknown = self.is_unknown() == kept.outcome_unknown;
        self.status == kept.status && self.body == kept.body && own == theirs && unknown
    }

    /// What a client makes of it.
    pub fn word(&self, endpoint: Endpoint) -> Word {
        let unknown = self.is_unknown();
        if let Some(kind) = self.problem() {
            let unknown = unknown || kind == Kind::OutcomeUnknown;
            // One who forgot to say who they are says so the next time, and an upload that broke off is made once more.
            if matches!(kind, Kind::IdentityMissing | Kind::RequestMalformed) {
                return Word::Again { unknown: false };
            }
            return match kind.retry() {
                Retry::SameKey => Word::Again { unknown },
                Retry::NewKey | Retry::Never => Word::Last(kind.slug()),
            };
        }
        if self.effect().is_none() {
            return Word::Again { unknown };
        }
        match (self.status, unknown) {
            // What was recorded will not be said otherwise, and neither will an error that holds the key.
            (_, true) if self.is_replayed() || endpoint != Endpoint::Probe => Word::Last("unknown"),
            (_, true) => Word::Again { unknown },
            (_, false) if self.is_replayed() => Word::Last("answered"),
            (429 | 503, false) => Word::Again { unknown },
            (200..=499, false) => Word::Last("answered"),
            (_, false) if self.outcome() == Some(b"applied") => Word::Last("answered"),
            (_, false) => Word::Again { unknown },
        }
    }
}

//! What an upstream is to the relay, as a trait: it can be read, and a frozen write can be sent to it. A target of
//! `semel.toml` is one implementation ([`http`]); code may be another.

pub mod http;

use std::future::Future;
use std::pin::Pin;

use semel_http::MaySend;

use crate::credentials::Credential;
use crate::message::Answer;
use crate::transport::Sent;

/// A batch, to be made into a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The lane.
    pub lane: String,
    /// Its group.
    pub group: String,
    /// What people call it.
    pub label: Option<String>,
    /// By whose credential it is written.
    pub principal: String,
    /// All entries as one: the change for `sum`, the wanted value for the others.
    pub delta: i64,
    /// The value before, where it is known.
    pub before: Option<i64>,
    /// The value after, where it is known.
    pub after: Option<i64>,
    /// The batch's own key, the same in every attempt; also its marker.
    pub key: String,
    /// The version that was read.
    pub version: Option<String>,
}

/// Which lane is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place<'a> {
    /// The lane.
    pub lane: &'a str,
    /// Its group.
    pub group: &'a str,
    /// Whose credential reads.
    pub principal: &'a str,
}

/// What was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Current {
    /// The value.
    pub value: Option<i64>,
    /// Its version.
    pub version: Option<String>,
    /// Markers that are kept beside it.
    pub markers: Vec<String>,
}

/// What became of a reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// There is a value.
    Current(Current),
    /// There is an answer, and no value in it.
    Answered(Answer),
    /// There is none.
    Failed(String),
}

/// What an upstream promises.
pub type Asked<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// An upstream.
pub trait Upstream: Send + Sync + 'static {
    /// Scheme, host and port: what credentials and pauses are bound to.
    fn origin(&self) -> &str;

    /// Whether its value can be read.
    fn reads(&self) -> bool;

    /// Whether what this lane, group, label and principal are called can be written where it goes.
    ///
    /// # Errors
    /// Says what is wrong, for the sender.
    fn admits(&self, place: &Place<'_>, label: Option<&str>) -> Result<(), String> {
        let _ = (place, label);
        Ok(())
    }

    /// The value now.
    fn read<'a>(&'a self, place: &'a Place<'a>, credential: Option<&'a Credential>) -> Asked<'a, Read>;

    /// Makes the bytes of a write, without credentials. Nothing is sent.
    ///
    /// # Errors
    /// A value cannot be written where it should go.
    fn freeze(&self, batch: &Batch) -> Result<String, String>;

    /// Sends a frozen write, once, unless `may_send` says no between connect and the first byte: others may then have gone
    /// on with the lane.
    fn write<'a>(
        &'a self,
        frozen: &'a str,
        credential: Option<&'a Credential>,
        may_send: MaySend,
    ) -> Asked<'a, Sent>;
}

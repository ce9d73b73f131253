//! Lines as members name them, whose they are, and where a reader of one begins.

use semel_delivery::relay::store::sql::StoreError;

use super::Broker;
use crate::cursor::{After, Known, start};
use crate::event::Gap;
use crate::event_id::{EventId, check_of};
use crate::identity::Caller;
use crate::store::Line;
use crate::store::people::Interval;

/// A line, as a member names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LineName {
    /// A topic.
    Topic(String),
    /// The member's own direct messages.
    Direct,
}

impl LineName {
    /// Reads `topic:NAME` or `direct`.
    pub fn parse(text: &str) -> Option<Self> {
        match text.strip_prefix("topic:") {
            Some(topic) if !topic.is_empty() => Some(LineName::Topic(topic.to_owned())),
            Some(_) => None,
            None => (text == "direct").then_some(LineName::Direct),
        }
    }
}

/// Why something cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// It is not there, or it is not for this member: which of both is not told.
    NotAllowed,
    /// The cursor is not one.
    BadCursor,
    /// Too many streams are open.
    TooMany,
    /// The store did not answer.
    Store(StoreError),
}

impl From<StoreError> for ReadError {
    fn from(error: StoreError) -> Self {
        ReadError::Store(error)
    }
}

impl Broker {
    /// A line that is, or was, a member's, and which of its numbers are.
    pub(crate) async fn own_line(
        &self,
        caller: &Caller,
        name: &LineName,
    ) -> Result<(Line, Vec<Interval>), ReadError> {
        let found = match name {
            LineName::Topic(topic) => self.0.store.line(&caller.mesh, "topic", topic).await?,
            LineName::Direct => self.0.store.line(&caller.mesh, "member", &caller.member).await?,
        };
        let line = found.ok_or(ReadError::NotAllowed)?;
        let intervals = self.0.store.intervals(line.line, &caller.member).await?;
        if intervals.is_empty() { Err(ReadError::NotAllowed) } else { Ok((line, intervals)) }
    }
}

/// Decides where a line begins, and by which id that is resumed.
pub(crate) async fn begin(
    broker: &Broker,
    line: &Line,
    wire_name: &str,
    after: After,
    intervals: &[Interval],
) -> Result<(i64, EventId, Option<Gap>), ReadError> {
    let store = &broker.0.store;
    let asked = match after {
        After::Event(id) => Some(id.number),
        After::Newest => Some(line.next_number - 1),
        After::Kept(number) => Some(number),
        After::Beginning => None,
    };
    let at_cursor = match asked {
        Some(number) => store.message_id_at(line.line, number).await?,
        None => None,
    };
    let epoch = broker.0.directory.epoch();
    let known = Known {
        line: wire_name,
        epoch,
        next_number: line.next_number,
        oldest: store.oldest(line).await?,
        at_cursor: at_cursor.as_deref(),
        intervals,
    };
    let begun = start(after, known);
    let is_asked = asked == Some(begun.after);
    let check = at_cursor.filter(|_| is_asked).map_or(0, |message| check_of(&message));
    Ok((begun.after, EventId { epoch, number: begun.after, check }, begun.gap))
}

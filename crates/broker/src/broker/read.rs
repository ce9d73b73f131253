//! What members read: receipts and histories; and what they acknowledge. Whoever was never subscribed is told the
//! same as of a topic that is not there.

use semel_delivery::relay::store::sql::StoreError;
use serde::Serialize;
use serde_json::value::RawValue;

use super::Broker;
use super::line::{LineName, ReadError, begin};
use super::reader::{Reader, StreamWish};
use crate::cursor::{After, next_own};
use crate::directory::KnownBy;
use crate::event::{Event, Gap};
use crate::event_id::{EventId, check_of};
use crate::identity::Caller;
use crate::limits::{PAGE_MAX, PAGE_USUAL};
use crate::published::Receipt;
use crate::store::Line;
use crate::store::acks::Reached;
use crate::store::people::Interval;

/// Pages that are read for one answer while nothing on them is the reader's own.
const PAGES_AT_ONCE: usize = 20;

/// How often a page is read while somebody changes who belongs to what.
const LOOKS_MAX: usize = 20;

/// Messages on one page.
#[derive(Debug, Serialize)]
pub struct Page {
    /// The messages.
    pub messages: Vec<Box<RawValue>>,
    /// Where the next page begins; nothing where this is the last one for now.
    pub next_after: Option<String>,
    /// What is gone before them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gap: Option<Gap>,
}

/// What a sender sees of its own message.
#[derive(Clone, Debug)]
pub struct ReceiptView {
    /// What it was told at first.
    pub receipt: Receipt,
    /// Members that it is for.
    pub recipients: i64,
    /// Those of them that have acknowledged it.
    pub acknowledged: i64,
}

/// Adds what is gone before this message to what is told of already.
fn widen(gap: &mut Option<Gap>, line: &str, from: &EventId, oldest: &EventId) {
    match gap {
        Some(gap) => gap.oldest = oldest.to_string(),
        None => *gap = Some(Gap::swept(line, from, oldest)),
    }
}

pub(super) fn limit_of(asked: Option<usize>) -> usize {
    asked.unwrap_or(PAGE_USUAL).clamp(1, PAGE_MAX)
}

pub(super) fn raw(event: &Event) -> Option<Box<RawValue>> {
    RawValue::from_string(String::from_utf8(event.json.to_vec()).ok()?).ok()
}

impl Broker {
    /// Messages of a line that are this member's, after a cursor.
    ///
    /// # Errors
    /// The line is not the member's, or the cursor is not one.
    pub async fn history(
        &self,
        caller: &Caller,
        name: &LineName,
        after: Option<&str>,
        limit: Option<usize>,
    ) -> Result<Page, ReadError> {
        for _ in 0..LOOKS_MAX {
            let before = self.0.store.number("directory").await?;
            let (line, intervals) = self.own_line(caller, name).await?;
            let page = self.page(&line, &intervals, after, limit_of(limit)).await?;
            // Whose a message is was decided when it was committed: intervals from before a change since then do not tell.
            if self.0.store.number("directory").await? == before {
                return Ok(page);
            }
        }
        Err(ReadError::Store(StoreError::Failed("who belongs to what changes without end".to_owned())))
    }

    /// All messages of a topic, for operators.
    ///
    /// # Errors
    /// There is no such topic, or the cursor is not one.
    pub async fn topic_history(
        &self,
        mesh: &str,
        topic: &str,
        after: Option<&str>,
        limit: Option<usize>,
    ) -> Result<Page, ReadError> {
        let line = self.0.store.line(mesh, "topic", topic).await?.ok_or(ReadError::NotAllowed)?;
        self.page(&line, &[Interval { since: 1, until: None }], after, limit_of(limit)).await
    }

    async fn page(
        &self,
        line: &Line,
        intervals: &[Interval],
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page, ReadError> {
        let after = match after {
            None | Some("" | "0") => After::Beginning,
            Some(text) => After::Event(text.parse().map_err(|_| ReadError::BadCursor)?),
        };
        let name = line.wire_name();
        // From the first that is kept: what is gone before it is no surprise.
        let mut is_told = after == After::Beginning;
        let (mut after, mut resumes, mut gap) = begin(self, line, &name, after, intervals).await?;
        let epoch = self.0.directory.epoch();
        let (mut messages, mut next_after, mut is_full) = (Vec::new(), None, false);
        for _ in 0..PAGES_AT_ONCE {
            let Some(next) = next_own(after + 1, intervals) else { break };
            let found = self.0.store.page(line, after.max(next - 1), limit - messages.len()).await?;
            let mut is_last = found.len() < limit - messages.len();
            for stored in &found {
                let is_missing = next_own(after + 1, intervals).is_some_and(|own| own < stored.number);
                if is_missing && !is_told {
                    if !messages.is_empty() {
                        // The next page begins with the gap.
                        (is_full, is_last) = (true, false);
                        break;
                    }
                    let oldest = EventId { epoch, number: stored.number, check: 0 };
                    widen(&mut gap, &name, &resumes, &oldest);
                }
                after = stored.number;
                if intervals.iter().any(|interval| interval.has(stored.number)) {
                    let event = Event::of(&name, epoch, stored);
                    (resumes, is_told) = (event.id, false);
                    next_after = Some(event.id.to_string());
                    messages.extend(raw(&event));
                }
            }
            if is_last {
                // Numbers that were given before the page was read, and have no message, are gone.
                let is_missing = next_own(after + 1, intervals).is_some_and(|own| own < line.next_number);
                if !is_missing || is_told {
                    next_after = None;
                } else if messages.is_empty() {
                    let oldest = EventId { epoch, number: line.next_number, check: 0 };
                    widen(&mut gap, &name, &resumes, &oldest);
                    next_after = Some(EventId { number: line.next_number - 1, ..oldest }.to_string());
                }
            }
            if is_last || is_full || messages.len() >= limit {
                break;
            }
        }
        Ok(Page { messages, next_after, gap })
    }

    /// What a sender was told of its message, and how it fares.
    ///
    /// # Errors
    /// There is none, or it is another's.
    pub async fn receipt(&self, caller: &Caller, id: &str) -> Result<ReceiptView, ReadError> {
        let known = self.0.store.look_up(&caller.mesh, id).await?;
        let known = known
            .filter(|known| known.sender == caller.member && !known.receipt.broker_message_id.is_empty());
        let known = known.ok_or(ReadError::NotAllowed)?;
        let Reached { recipients, acknowledged } = self.0.store.reached(known.line, known.number).await?;
        Ok(ReceiptView { receipt: known.receipt, recipients, acknowledged })
    }

    /// Acknowledges all messages of a line up to this one. Says how far it is acknowledged now.
    ///
    /// # Errors
    /// The line is not the member's, or no message of it has this id.
    pub async fn acknowledge(
        &self,
        caller: &Caller,
        name: &LineName,
        up_to: &str,
        consumer: &str,
    ) -> Result<i64, ReadError> {
        let (line, intervals) = self.own_line(caller, name).await?;
        let own = semel_http::percent_encode(&line.wire_name());
        let named = up_to.split(',').filter_map(|one| one.split_once('=')).find(|(name, _)| *name == own);
        let id: crate::event_id::EventId =
            named.map_or(up_to, |(_, id)| id).parse().map_err(|_| ReadError::BadCursor)?;
        let message = self.0.store.message_id_at(line.line, id.number).await?;
        let is_known = match message {
            Some(message) => check_of(&message) == id.check,
            // Swept since; a number that was never given is none.
            None => id.epoch == self.0.directory.epoch() && id.number < self.0.store.oldest(&line).await?,
        };
        let is_own = intervals.iter().any(|interval| interval.since <= id.number);
        if !is_known || !is_own {
            return Err(ReadError::BadCursor);
        }
        Ok(self.0.store.acknowledge(line.line, &caller.member, consumer, id.number).await?)
    }

    /// Opens a stream.
    pub(crate) async fn stream(
        &self,
        caller: &Caller,
        known_by: KnownBy,
        wish: StreamWish,
    ) -> Result<Reader, ReadError> {
        Reader::open(self, caller, known_by, wish).await
    }
}

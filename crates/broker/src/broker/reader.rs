//! One reader of one or several lines: first everything after its cursor from the history, then live, without a gap in between.
//! Ends when its member may not read any more, when the broker stops, or when a newer stream of its consumer begins.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::select_all;
use semel_delivery::relay::store::sql::StoreError;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::time::Instant;

use super::Broker;
use super::line::{LineName, ReadError, begin};
use crate::consumers::Joined;
use crate::cursor::{After, next_own};
use crate::directory::KnownBy;
use crate::event::{Event, Gap};
use crate::event_id::{EventId, check_of};
use crate::identity::Caller;
use crate::limits::STREAMS_MAX;
use crate::live::{Fed, Feed};
use crate::news::Subscriber;
use crate::store::Line;
use crate::store::history::Standing;
use crate::store::people::Interval;

/// Messages that are read at a time while catching up.
const READ_AT_ONCE: usize = 100;
/// How often a consumer looks whether a newer stream of it has begun at another broker.
const NEWEST_LOOKED_FOR: Duration = Duration::from_millis(500);

/// What a stream is asked for.
#[derive(Clone, Debug)]
pub(crate) struct StreamWish {
    pub(crate) lines: Vec<LineName>,
    pub(crate) after: Option<String>,
    pub(crate) consumer: Option<String>,
    /// How long the credential is good that it is opened with.
    pub(crate) left: Option<Duration>,
}

/// What comes next.
#[derive(Debug)]
pub(crate) enum Item {
    /// A message, and the id that resumes after it.
    Event { id: String, event: Arc<Event> },
    /// Messages are gone; the id resumes after the gap.
    Gap { id: String, gap: Gap },
    /// A message of before is hidden now; the id still resumes after what came last.
    Moderated { id: String, event: Arc<Event> },
    /// Nothing, for a while.
    Beat,
}

/// A reader.
pub(crate) struct Reader {
    broker: Broker,
    caller: Caller,
    known_by: KnownBy,
    lines: Vec<LineReader>,
    ready: VecDeque<(usize, Ready)>,
    directory: Subscriber<i64>,
    epoch: Subscriber<i64>,
    /// The epoch in which it began.
    begun_in: i64,
    draining: Subscriber<bool>,
    others: Option<Joined>,
    consumer: Option<String>,
    heartbeat: Duration,
    /// When its credential ends.
    ends: Option<Instant>,
    _counted: Counted,
}

enum Ready {
    Event(Arc<Event>),
    Gap(Gap, EventId),
    Moderated(Arc<Event>),
}

struct LineReader {
    line: Line,
    name: String,
    intervals: Vec<Interval>,
    /// The directory's number as of which the intervals are known, or were.
    directory: i64,
    /// The intervals may have changed.
    is_stale: bool,
    /// The last number that was looked at.
    after: i64,
    /// The last message that was seen: its number and its check. Another one under this number tells that the store went back.
    seen: Option<(i64, u16)>,
    is_lost: bool,
    /// The last moderation that was told of.
    moderated: i64,
    /// Moderations may have been missed.
    misses_moderated: bool,
    /// The id that resumes this line.
    resume: EventId,
    feed: Arc<Feed>,
    events: broadcast::Receiver<Fed>,
    is_live: bool,
    stream: i64,
}

/// A stream, as long as it is open.
struct Counted(Broker);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.hub.streams.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Reader {
    /// Opens a stream for a member.
    pub(crate) async fn open(
        broker: &Broker,
        caller: &Caller,
        known_by: KnownBy,
        wish: StreamWish,
    ) -> Result<Self, ReadError> {
        let counted = Counted(broker.clone());
        if broker.0.hub.streams.fetch_add(1, Ordering::SeqCst) >= STREAMS_MAX {
            return Err(ReadError::TooMany);
        }
        // Before anything is read: what changes meanwhile is noticed.
        let (directory, draining) = (broker.0.directory.watch(), broker.0.draining.subscribe());
        let (epoch, begun_in) = (broker.0.directory.watch_epoch(), broker.0.directory.epoch());
        let join = |consumer: &String| broker.0.consumers.join(caller, consumer);
        let others = wish.consumer.as_ref().map(join);
        let mut lines = Vec::with_capacity(wish.lines.len());
        let mut ready = VecDeque::new();
        for (at, name) in wish.lines.iter().enumerate() {
            let (opened, gap) = open_line(broker, caller, name, &wish).await?;
            if let Some((gap, resume)) = gap {
                ready.push_back((at, Ready::Gap(gap, resume)));
            }
            lines.push(opened);
        }
        if lines.iter().all(LineReader::is_finished) {
            return Err(ReadError::NotAllowed);
        }
        others.iter().for_each(Joined::tell);
        Ok(Self {
            broker: broker.clone(),
            caller: caller.clone(),
            known_by,
            lines,
            ready,
            directory,
            epoch,
            begun_in,
            draining,
            others,
            consumer: wish.consumer,
            heartbeat: broker.settings().heartbeat,
            // What no clock can count is as good as for ever.
            ends: wish.left.and_then(|left| Instant::now().checked_add(left)),
            _counted: counted,
        })
    }

    /// What comes next; nothing when the stream ends. Most readers wait most of the time: what asks the store is in a box, so that a
    /// reader that waits has no room for it.
    pub(crate) async fn next(&mut self) -> Option<Item> {
        let beat = Instant::now() + self.heartbeat;
        loop {
            if let Some((at, ready)) = self.ready.pop_front() {
                return Some(self.item(at, ready));
            }
            if self.draining.look() || self.lines.iter().all(LineReader::is_finished) {
                return None;
            }
            // The store went back: what this reader has seen may not be there any more. Its last id tells so when it comes back.
            if self.ends.is_some_and(|ends| Instant::now() >= ends) {
                return None;
            }
            let has_other_epoch = self.broker.0.directory.epoch() != self.begun_in;
            if has_other_epoch || self.lines.iter().any(|line| line.is_lost || line.feed.is_lost()) {
                return None;
            }
            for at in 0..self.lines.len() {
                if !self.lines[at].is_live {
                    Box::pin(self.catch_up(at)).await.ok()?;
                }
                while self.lines[at].is_live && self.lines[at].misses_moderated {
                    Box::pin(self.catch_up_moderated(at)).await.ok()?;
                }
            }
            if !self.ready.is_empty() || self.lines.iter().any(|line| !line.is_live || line.is_lost) {
                continue;
            }
            let look = self.look_at();
            tokio::select! {
                biased;
                () = self.draining.changed() => return None,
                () = self.epoch.changed() => return None,
                () = self.directory.changed() => {
                    if !Box::pin(self.is_allowed()).await { return None; }
                }
                () = another(&mut self.others) => {
                    if !Box::pin(self.is_newest()).await { return None; }
                }
                (at, event) = next_event(&mut self.lines) => self.take(at, event),
                () = tokio::time::sleep_until(self.ends.map_or(look.min(beat), |ends| ends.min(look).min(beat))) => {
                    if Instant::now() >= beat { return Some(Item::Beat); }
                    if !Box::pin(self.is_newest()).await { return None; }
                }
            }
        }
    }

    /// When a consumer looks for newer streams of it. Where one process owns the database it is told.
    fn look_at(&self) -> Instant {
        let is_told = self.consumer.is_none() || self.broker.0.store.db.is_owned();
        Instant::now() + if is_told { self.heartbeat } else { NEWEST_LOOKED_FOR }
    }

    fn item(&mut self, at: usize, ready: Ready) -> Item {
        match ready {
            Ready::Event(event) => {
                self.lines[at].resume = event.id;
                Item::Event { id: self.resume_id(), event }
            }
            Ready::Gap(gap, resume) => {
                self.lines[at].resume = resume;
                Item::Gap { id: self.resume_id(), gap }
            }
            Ready::Moderated(event) => Item::Moderated { id: self.resume_id(), event },
        }
    }

    /// The id by which the whole stream is resumed: of one line its event's, of several all of them by name.
    fn resume_id(&self) -> String {
        match self.lines.as_slice() {
            [line] => line.resume.to_string(),
            lines => {
                let each =
                    |line: &LineReader| format!("{}={}", semel_http::percent_encode(&line.name), line.resume);
                lines.iter().map(each).collect::<Vec<_>>().join(",")
            }
        }
    }

    /// Reads the history once; a line that is read to its end is live.
    async fn catch_up(&mut self, at: usize) -> Result<(), StoreError> {
        if self.lines[at].is_stale {
            self.read_intervals(at).await?;
        }
        let line = &mut self.lines[at];
        let Some(next) = next_own(line.after + 1, &line.intervals) else {
            line.is_live = true;
            return Ok(());
        };
        if let Some((number, check)) = line.seen {
            let Standing { head, message, .. } = self.broker.0.store.at(line.line.line, number).await?;
            line.is_lost = head <= number || message.is_some_and(|message| check_of(&message) != check);
            if line.is_lost {
                // Looked at before anything is handed out.
                line.is_live = true;
                return Ok(());
            }
        }
        let after = line.after.max(next - 1);
        // Read before the page: what is handed out later comes by the feed.
        let position = line.feed.join().1;
        let epoch = self.broker.0.directory.epoch();
        let found = self.broker.0.store.page(&line.line, after, READ_AT_ONCE).await?;
        // Whose these are was decided when they were committed: intervals from before a change since then do not tell.
        if self.broker.0.store.number("directory").await? != line.directory {
            line.is_stale = true;
            return Ok(());
        }
        line.after = after;
        for stored in &found {
            let missing = next_own(line.after + 1, &line.intervals).filter(|own| *own < stored.number);
            if missing.is_some() {
                let oldest = EventId { epoch, number: stored.number, check: 0 };
                self.ready.push_back((at, line.swept(oldest)));
            }
            line.after = stored.number;
            line.seen = Some((stored.number, check_of(&stored.broker_message_id)));
            if line.intervals.iter().any(|interval| interval.has(stored.number)) {
                self.ready.push_back((at, Ready::Event(Arc::new(Event::of(&line.name, epoch, stored)))));
            }
        }
        if found.len() == READ_AT_ONCE {
            return Ok(());
        }
        // What was handed out before the page was read, and is not in it, is gone.
        if line.after < position {
            if next_own(line.after + 1, &line.intervals).is_some_and(|own| own <= position) {
                let oldest = EventId { epoch, number: position + 1, check: 0 };
                self.ready.push_back((at, line.swept(oldest)));
            }
            line.after = position;
        }
        line.is_live = true;
        Ok(())
    }

    /// Looks for moderations that did not come by the feed.
    async fn catch_up_moderated(&mut self, at: usize) -> Result<(), StoreError> {
        let line = &mut self.lines[at];
        let epoch = self.broker.0.directory.epoch();
        let found = self.broker.0.store.moderated_after(&line.line, line.moderated, READ_AT_ONCE).await?;
        line.misses_moderated = found.len() == READ_AT_ONCE;
        for (moderation, stored) in found {
            let event = Arc::new(Event::of(&self.lines[at].name, epoch, &stored));
            self.take(at, Ok(Fed::Moderated { event, moderation }));
        }
        Ok(())
    }

    /// Takes a live event, or goes back to the history where some were missed.
    fn take(&mut self, at: usize, fed: Result<Fed, RecvError>) {
        let line = &mut self.lines[at];
        match fed {
            // Looked at before anything else comes.
            Ok(Fed::Lost) => {}
            Ok(Fed::Event { event, .. }) if event.id.number <= line.after => {
                let EventId { number, check, .. } = event.id;
                line.is_lost |= line.seen.is_some_and(|seen| seen.0 == number && seen.1 != check);
            }
            Ok(Fed::Event { directory, .. }) if directory > line.directory => {
                (line.is_stale, line.is_live) = (true, false);
            }
            Ok(Fed::Event { event, .. }) if event.id.number == line.after + 1 => {
                line.after = event.id.number;
                line.seen = Some((event.id.number, event.id.check));
                if line.intervals.iter().any(|interval| interval.has(event.id.number)) {
                    self.ready.push_back((at, Ready::Event(event)));
                }
            }
            Ok(Fed::Moderated { moderation, .. }) if moderation <= line.moderated => {}
            Ok(Fed::Moderated { event, moderation }) => {
                line.moderated = moderation;
                // What was not handed out so far is hidden when it is read.
                let number = event.id.number;
                if number <= line.after && line.intervals.iter().any(|interval| interval.has(number)) {
                    self.ready.push_back((at, Ready::Moderated(event)));
                }
            }
            Err(RecvError::Lagged(_)) => (line.is_live, line.misses_moderated) = (false, true),
            Ok(Fed::Event { .. }) | Err(RecvError::Closed) => line.is_live = false,
        }
    }

    /// Reads which numbers of a line are this member's.
    async fn read_intervals(&mut self, at: usize) -> Result<(), StoreError> {
        let (store, line) = (&self.broker.0.store, &mut self.lines[at]);
        // Read first: the intervals are at least as new.
        line.directory = store.number("directory").await?;
        line.intervals = store.intervals(line.line.line, &self.caller.member).await?;
        line.is_stale = false;
        Ok(())
    }

    /// Whether the member may still read; its intervals may have changed.
    async fn is_allowed(&mut self) -> bool {
        let standing = self.broker.0.directory.find(&self.known_by).await;
        if !matches!(standing, Ok(Some(standing)) if standing.caller == self.caller) {
            return false;
        }
        for line in &mut self.lines {
            // Of an interval that has ended the rest is still read.
            (line.is_stale, line.is_live) = (true, false);
        }
        true
    }

    /// Whether no newer stream of this consumer has begun.
    async fn is_newest(&self) -> bool {
        let Some(consumer) = &self.consumer else { return true };
        for line in &self.lines {
            let store = &self.broker.0.store;
            match store.newest_stream(line.line.line, &self.caller.member, consumer).await {
                Ok(newest) if newest == line.stream => {}
                Ok(_) | Err(_) => return false,
            }
        }
        true
    }
}

impl LineReader {
    /// What tells that the messages from where the line is up to this one are gone.
    fn swept(&self, oldest: EventId) -> Ready {
        let gap = Gap::swept(&self.name, &self.resume, &oldest);
        Ready::Gap(gap, EventId { number: oldest.number - 1, ..oldest })
    }

    /// Whether nothing of this line can come any more.
    fn is_finished(&self) -> bool {
        next_own(self.after + 1, &self.intervals).is_none()
    }
}

async fn next_event(lines: &mut [LineReader]) -> (usize, Result<Fed, RecvError>) {
    match lines {
        [line] => (0, line.events.recv().await),
        lines => {
            let each = lines
                .iter_mut()
                .enumerate()
                .map(|(at, line)| Box::pin(async move { (at, line.events.recv().await) }));
            select_all(each).await.0
        }
    }
}

/// Waits for another stream of the same consumer. Where a stream is nobody's in particular, for ever.
async fn another(others: &mut Option<Joined>) {
    match others {
        Some(others) => others.another().await,
        None => std::future::pending().await,
    }
}

/// Opens one line of a stream at its cursor.
async fn open_line(
    broker: &Broker,
    caller: &Caller,
    name: &LineName,
    wish: &StreamWish,
) -> Result<(LineReader, Option<(Gap, EventId)>), ReadError> {
    let store = &broker.0.store;
    // Read first: the intervals are at least as new.
    let directory = store.number("directory").await?;
    let (line, intervals) = broker.own_line(caller, name).await?;
    // Before the feed begins and the first page is read: what is hidden later is told.
    let moderated = store.at(line.line, 0).await?.moderated;
    let feed = broker.0.hub.feed(&line, moderated);
    let (events, _) = feed.join();
    // After the feed has begun, so that nothing falls between them.
    let line = Line { next_number: store.head(line.line).await?, ..line };
    let wire_name = line.wire_name();
    let after = read_after(broker, caller, &line, wish).await?;
    let begun = begin(broker, &line, &wire_name, after, &intervals).await?;
    let stream = match &wish.consumer {
        Some(consumer) => store.begin_stream(line.line, &caller.member, consumer).await?,
        None => 0,
    };
    let (begins, resumes, gap) = begun;
    // Until the gap is handed out the line resumes before it: the ids of other lines' events must not pass it.
    let resume = match (&gap, after) {
        (Some(_), After::Event(id)) => id,
        (Some(_), After::Kept(number)) => EventId { number, check: 0, ..resumes },
        (Some(_), After::Beginning | After::Newest) | (None, _) => resumes,
    };
    let reader = LineReader {
        line,
        name: wire_name,
        intervals,
        directory,
        is_stale: false,
        after: begins,
        seen: None,
        is_lost: false,
        moderated,
        misses_moderated: false,
        resume,
        feed,
        events,
        is_live: false,
        stream,
    };
    Ok((reader, gap.map(|gap| (gap, resumes))))
}

/// What a stream says about where it is in this line. An id of one line says nothing about the others: those begin at what
/// was acknowledged, so that a message may come twice, and none is left out.
async fn read_after(
    broker: &Broker,
    caller: &Caller,
    line: &Line,
    wish: &StreamWish,
) -> Result<After, ReadError> {
    let acked = || async {
        let consumer = wish.consumer.as_deref().unwrap_or_default();
        let acked = broker.0.store.acked(line.line, &caller.member, consumer).await?;
        Ok::<_, ReadError>(After::Kept(acked.unwrap_or(0)))
    };
    let Some(text) = wish.after.as_deref() else {
        return if wish.consumer.is_some() { acked().await } else { Ok(After::Newest) };
    };
    if text == "0" {
        return Ok(After::Beginning);
    }
    let bad = |_| ReadError::BadCursor;
    if text.contains('=') {
        let own = semel_http::percent_encode(&line.wire_name());
        let own = text.split(',').filter_map(|one| one.split_once('=')).find(|(name, _)| *name == own);
        return match own {
            Some((_, id)) => Ok(After::Event(id.parse().map_err(bad)?)),
            None => acked().await,
        };
    }
    let id: EventId = text.parse().map_err(bad)?;
    if wish.lines.len() == 1 {
        return Ok(After::Event(id));
    }
    let message = broker.0.store.message_id_at(line.line, id.number).await?;
    match message.is_some_and(|message| check_of(&message) == id.check) {
        true => Ok(After::Event(id)),
        false => acked().await,
    }
}

//! Live readers: one read of a line feeds all of them. A feed follows commits and never leads: it is woken after a commit, and
//! reads what is committed. Whoever falls behind reads the history at its own pace.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use semel_delivery::relay::store::sql::StoreError;
use tokio::sync::{Notify, broadcast};
use tokio::time::Instant;

use crate::directory::Directory;
use crate::event::Event;
use crate::store::history::{Standing, Stored};
use crate::store::{Line, Store};

/// Events that a live reader may be behind before it reads the history.
const FEED_EVENTS: usize = 256;
/// Messages that a feed reads at a time.
const READ_AT_ONCE: usize = 200;

/// How long the time of a push is told.
const LAG_FRESH: Duration = Duration::from_secs(60);

/// The lines that have live readers.
pub(crate) struct Hub {
    store: Store,
    directory: Arc<Directory>,
    poll: Duration,
    feeds: Mutex<BTreeMap<i64, Weak<Feed>>>,
    pub(crate) push_lag: Arc<PushLag>,
    pub(crate) streams: AtomicUsize,
}

/// The time between the last commit and its reaching of readers. What was long ago says nothing of now.
#[derive(Default)]
pub(crate) struct PushLag(Mutex<Option<(i64, Instant)>>);

impl PushLag {
    fn note(&self, millis: i64) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((millis, Instant::now()));
    }

    /// In milliseconds; zero where nothing was pushed for a while.
    pub(crate) fn millis(&self) -> i64 {
        let noted = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        noted.filter(|(_, at)| at.elapsed() < LAG_FRESH).map_or(0, |(millis, _)| millis)
    }
}

/// What is handed out.
#[derive(Clone)]
pub(crate) enum Fed {
    /// A message.
    Event {
        event: Arc<Event>,
        /// The directory's number, read after the event. Whose a message is was decided when it was committed: a reader that
        /// knows its intervals as of this number, or of a later one, knows whether the event is its own.
        directory: i64,
    },
    /// A message that was handed out is hidden from now on; a line's moderations are numbered.
    Moderated { event: Arc<Event>, moderation: i64 },
    /// The store went back behind what was handed out: nothing that comes now follows upon it.
    Lost,
}

/// What all readers of a line share.
pub(crate) struct Feed {
    events: broadcast::Sender<Fed>,
    /// The last number that was handed out. Moved before the event is sent: whoever joins in between finds the event in the
    /// history, and knows it when it comes again.
    position: Arc<AtomicI64>,
    wake: Arc<Notify>,
    is_lost: Arc<AtomicBool>,
    epoch: i64,
    pump: tokio::task::AbortHandle,
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.pump.abort();
    }
}

impl Feed {
    /// Joins: events after the number that is told come by the receiver, the others are in the history.
    pub(crate) fn join(&self) -> (broadcast::Receiver<Fed>, i64) {
        let receiver = self.events.subscribe();
        (receiver, self.position.load(Ordering::SeqCst))
    }

    /// Whether the store went back behind what was handed out. Its readers end; who comes back begins at another feed.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::SeqCst)
    }
}

impl Hub {
    pub(crate) fn new(store: Store, directory: Arc<Directory>, poll: Duration) -> Self {
        let (push_lag, streams) = (Arc::default(), AtomicUsize::new(0));
        Self { store, directory, poll, feeds: Mutex::default(), push_lag, streams }
    }

    /// A line has new messages.
    pub(crate) fn wake(&self, line: i64) {
        let feeds = self.feeds.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(feed) = feeds.get(&line).and_then(Weak::upgrade) {
            feed.wake.notify_one();
        }
    }

    /// Any line may have new messages.
    pub(crate) fn wake_all(&self) {
        let feeds = self.feeds.lock().unwrap_or_else(PoisonError::into_inner);
        feeds.values().filter_map(Weak::upgrade).for_each(|feed| feed.wake.notify_one());
    }

    /// The feed of a line; begun now where it has no reader yet. It tells of moderations after this one.
    pub(crate) fn feed(&self, line: &Line, moderated: i64) -> Arc<Feed> {
        let mut feeds = self.feeds.lock().unwrap_or_else(PoisonError::into_inner);
        let is_good = |feed: &Arc<Feed>| !feed.is_lost() && feed.epoch == self.directory.epoch();
        if let Some(feed) = feeds.get(&line.line).and_then(Weak::upgrade).filter(is_good) {
            return feed;
        }
        feeds.retain(|_, feed| feed.strong_count() > 0);
        let feed = Arc::new(self.begin(line, moderated));
        feeds.insert(line.line, Arc::downgrade(&feed));
        feed
    }

    fn begin(&self, line: &Line, moderated: i64) -> Feed {
        let (events, _) = broadcast::channel(FEED_EVENTS);
        let position = Arc::new(AtomicI64::new(line.next_number - 1));
        let (wake, is_lost) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
        let pump = Pump {
            store: self.store.clone(),
            directory: Arc::clone(&self.directory),
            line: line.clone(),
            poll: self.poll,
            events: events.clone(),
            position: Arc::clone(&position),
            wake: Arc::clone(&wake),
            is_lost: Arc::clone(&is_lost),
            last: None,
            moderated,
            push_lag: Arc::clone(&self.push_lag),
        };
        let pump = tokio::spawn(pump.run()).abort_handle();
        Feed { events, position, wake, is_lost, epoch: self.directory.epoch(), pump }
    }

    /// Hands out an event that is not committed, as a broker would that pushes first.
    pub(crate) fn push_unread(&self, line: i64, event: Event) {
        let feeds = self.feeds.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(feed) = feeds.get(&line).and_then(Weak::upgrade) {
            let _ =
                feed.events.send(Fed::Event { event: Arc::new(event), directory: self.directory.version() });
        }
    }
}

/// Reads a line once for all its readers.
struct Pump {
    store: Store,
    directory: Arc<Directory>,
    line: Line,
    poll: Duration,
    events: broadcast::Sender<Fed>,
    position: Arc<AtomicI64>,
    wake: Arc<Notify>,
    is_lost: Arc<AtomicBool>,
    /// The message that was handed out last.
    last: Option<String>,
    /// The last moderation that was told.
    moderated: i64,
    push_lag: Arc<PushLag>,
}

impl Pump {
    async fn run(mut self) {
        let name = self.line.wire_name();
        loop {
            let after = self.position.load(Ordering::SeqCst);
            // What cannot be read now is read at the next look.
            let read = tokio::join!(self.read(after), self.store.at(self.line.line, after));
            let (mut found, mut directory, mut moderated) = Default::default();
            if let (_, Ok(standing)) = &read
                && self.has_gone_back(after, standing)
            {
                self.is_lost.store(true, Ordering::SeqCst);
                let _ = self.events.send(Fed::Lost);
                return;
            }
            if let (Ok(read), Ok(standing)) = read {
                self.last = self.last.take().or(standing.message);
                ((found, directory), moderated) = (read, standing.moderated);
            }
            for stored in &found {
                let event = Event::of(&name, self.directory.epoch(), stored);
                self.position.store(stored.number, Ordering::SeqCst);
                // Without a receiver there is nobody to tell.
                let _ = self.events.send(Fed::Event { event: Arc::new(event), directory });
                self.last = Some(stored.broker_message_id.clone());
            }
            if moderated > self.moderated {
                self.tell_moderated(&name).await;
            }
            if let Some(last) = found.last()
                && let Ok(now) = self.store.now().await
            {
                self.push_lag.note((now - last.created_at).max(0));
            }
            if found.len() < READ_AT_ONCE {
                // Commits wake, here and by a word of another broker; words may be lost, so it is looked for, too.
                let _ = tokio::time::timeout(self.poll, self.wake.notified()).await;
            }
        }
    }

    /// Whether the store is no longer the one that this number was read from: its line ends before it, or another message has it.
    fn has_gone_back(&self, position: i64, standing: &Standing) -> bool {
        let message = standing.message.as_ref();
        let is_other = message.is_some_and(|message| self.last.as_ref().is_some_and(|last| last != message));
        standing.head <= position || is_other
    }

    /// Says which messages are hidden by now. What cannot be read now is told at the next look.
    async fn tell_moderated(&mut self, name: &str) {
        let found = self.store.moderated_after(&self.line, self.moderated, READ_AT_ONCE).await;
        for (moderation, stored) in found.unwrap_or_default() {
            let event = Arc::new(Event::of(name, self.directory.epoch(), &stored));
            let _ = self.events.send(Fed::Moderated { event, moderation });
            self.moderated = moderation;
        }
    }

    /// Messages, and the directory's number as of a moment after them.
    async fn read(&self, after: i64) -> Result<(Vec<Stored>, i64), StoreError> {
        let found = self.store.page(&self.line, after, READ_AT_ONCE).await?;
        let directory = if found.is_empty() { 0 } else { self.store.number("directory").await? };
        Ok((found, directory))
    }
}

//! The outbox as an application sees it: enqueue, look, wait, operate. Clones share one outbox.

mod meters;
mod outliving;
mod rebuilds;
mod refusals;
mod signed_out;
mod trail;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_contract::time::{Timestamp, format_duration};
use semel_store::clock::StoreClock;
use semel_store::sqlite::OpenError;
use tokio::sync::{Notify, watch};

use crate::accept::{Acceptance, Conflict, Sameness, accept};
use crate::envelope::{Draft, Refused};
use crate::limits::WAIT_MAX;
use crate::message::{Attempt, Enqueue, Event, Row, Status};
use crate::settings::Settings;
use crate::sqlite::SqliteStore;
use crate::store::{Arrived, Depth, Filter, Find, LaneState, OutboxStore, Room, StoreError};
use crate::time::Time;
use crate::waiting::waits_for;

pub(crate) use meters::Meters;
use outliving::Outliving;
pub(crate) use rebuilds::{Asked, Rebuilds};
pub(crate) use refusals::{Refusal, Refusals};
use signed_out::SignedOut;

/// A durable local queue.
#[derive(Clone)]
pub struct Outbox {
    pub(crate) inner: Arc<Inner>,
    /// The store in the name of somebody who does something by hand.
    acting: Option<Arc<dyn OutboxStore>>,
}

pub(crate) struct Inner {
    pub(crate) store: Arc<dyn OutboxStore>,
    pub(crate) settings: Settings,
    pub(crate) time: Time,
    pub(crate) wakes: Wakes,
    pub(crate) retentions: Mutex<HashMap<String, u64>>,
    pub(crate) refusals: Refusals,
    pub(crate) signed_out: SignedOut,
    pub(crate) meters: Meters,
    /// Messages that were too old, in this run or at the end of the one before, of which the application was not told yet.
    pub(crate) expired: Mutex<Vec<Row>>,
    pub(crate) rebuilds: Rebuilds,
    pub(crate) inbox_told: watch::Sender<u64>,
    waiting: Mutex<HashMap<i64, Arc<Notify>>>,
    lock_file: Option<PathBuf>,
}

/// Why the engine should look at a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wake {
    /// A message came, at its end: who waits for its head waits on.
    Appended,
    /// Its head may be another, or may be sent now.
    HeadChanged,
}

/// Lanes that the engine should look at.
#[derive(Default)]
pub(crate) struct Wakes {
    lanes: Mutex<BTreeMap<String, Wake>>,
    pub(crate) notify: Notify,
}

impl Wakes {
    /// Something changed in these lanes.
    pub(crate) fn wake(&self, lanes: impl IntoIterator<Item = String>) {
        lanes.into_iter().for_each(|lane| self.note(lane, Wake::HeadChanged));
    }

    /// A message came to this lane.
    pub(crate) fn came(&self, lane: String) {
        self.note(lane, Wake::Appended);
    }

    fn note(&self, lane: String, why: Wake) {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        // The engine takes all at once: whoever came before has told it.
        let is_first = lanes.is_empty();
        let noted = lanes.entry(lane).or_insert(why);
        *noted = why.max(*noted);
        drop(lanes);
        if is_first {
            self.notify.notify_one();
        }
    }

    pub(crate) fn take(&self) -> BTreeMap<String, Wake> {
        std::mem::take(&mut *self.lanes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Inner {
    /// Tells the engine of what arrived.
    fn wake_for(&self, arrived: &Arrived) {
        match arrived {
            Arrived::New(row) => self.wakes.came(row.lane.clone()),
            // Whoever handed it in before may have gone away before the engine was told.
            Arrived::SameAction(row) | Arrived::Known { row, .. } if row.status == Status::Pending => {
                self.wakes.wake([row.lane.clone()]);
            }
            Arrived::SameAction(_) | Arrived::Known { .. } => {}
        }
    }
}

/// Why the outbox did not do it.
#[derive(Debug)]
pub enum OutboxError {
    /// The file could not be opened.
    Open(OpenError),
    /// A setting is unsafe.
    Unsafe(String),
    /// The message is not acceptable; its id stays free.
    Refused(Refused),
    /// The id was used before, for something else or for something that was given up.
    Conflict(Box<Row>, Conflict, [u8; 32]),
    /// The store did not do it.
    Store(StoreError),
    /// There is no such message.
    Unknown,
    /// The message's state does not allow it.
    State(String),
}

impl fmt::Display for OutboxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OutboxError::Open(error) => write!(f, "failed to open the outbox: {error}"),
            OutboxError::Refused(error) => write!(f, "{error}"),
            OutboxError::Conflict(row, conflict, _) => {
                write!(f, "the id {:?} is spent: {}", row.client_message_id, conflict.name())
            }
            OutboxError::Store(error) => write!(f, "{error}"),
            OutboxError::Unknown => f.write_str("there is no such message"),
            OutboxError::Unsafe(why) | OutboxError::State(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for OutboxError {}

impl From<StoreError> for OutboxError {
    fn from(error: StoreError) -> Self {
        OutboxError::Store(error)
    }
}

/// What a caller is told of a message that was accepted, now or before.
#[derive(Clone, Debug)]
pub struct Accepted {
    /// What it met: inserted, queued, in flight or delivered before.
    pub acceptance: Acceptance,
    /// The message.
    pub receipt: Row,
    /// The caller's id where it is another name of the message.
    pub alias: Option<String>,
    /// Whether it is the same action as one that waits.
    pub is_same_action: bool,
}

impl Outbox {
    /// Opens a file, or creates it. What was accepted before is there; nothing is sent before [`Outbox::start`].
    ///
    /// # Errors
    /// The file cannot be opened, or a setting is unsafe.
    pub async fn open(path: impl AsRef<Path>, settings: Settings) -> Result<Self, OutboxError> {
        let store = SqliteStore::open(path.as_ref()).map_err(OutboxError::Open)?;
        let lock_file = store.lock_file();
        Self::start_up(Arc::new(store), settings, lock_file).await
    }

    /// An outbox on this store.
    ///
    /// # Errors
    /// A setting is unsafe, or the store refuses.
    pub async fn with_store(store: Arc<dyn OutboxStore>, settings: Settings) -> Result<Self, OutboxError> {
        Self::start_up(store, settings, None).await
    }

    async fn start_up(
        store: Arc<dyn OutboxStore>,
        settings: Settings,
        lock_file: Option<PathBuf>,
    ) -> Result<Self, OutboxError> {
        settings.check().map_err(|why| OutboxError::Unsafe(why.into()))?;
        let clock = Arc::clone(&settings.clock);
        let kept = store.kept_time().await?;
        let local = StoreClock::open(kept.map(|kept| kept.mark_for(clock.boot())), &*clock);
        let recovered = store.recover(local.now(clock.read())).await?;
        let retentions: HashMap<String, u64> = recovered.retentions.iter().cloned().collect();
        for (origin, seconds) in &retentions {
            let safe = settings.check_against(origin, Duration::from_secs(*seconds));
            // An age that nobody chose is shortened instead.
            if settings.max_age_is_chosen {
                safe.map_err(|why| OutboxError::Unsafe(why.into()))?;
            }
        }
        let time = Time::new(clock, local, kept, &recovered);
        store.keep_time(time.mark()).await?;
        if let Some(jump) = time.jump() {
            let ahead = format_duration(Duration::from_secs(jump.unsigned_abs() / 1000));
            tracing::warn!(
                ahead,
                "the wall clock is ahead of the outbox's time and nothing explains it: nothing expires, and what may be too \
                 old is not sent, until a time service keeps it right or somebody confirms it: semel outbox clock"
            );
        }
        let mut expired = Vec::new();
        for number in &recovered.expired_untold {
            expired.extend(store.find(Find::Row(*number)).await?);
        }
        let inner = Inner {
            store,
            settings,
            time,
            wakes: Wakes::default(),
            retentions: Mutex::new(retentions),
            refusals: Refusals::default(),
            signed_out: SignedOut::of(recovered.signed_out),
            meters: Meters::default(),
            expired: Mutex::new(expired),
            rebuilds: Rebuilds::default(),
            inbox_told: watch::Sender::new(0),
            waiting: Mutex::default(),
            lock_file,
        };
        Ok(Self { inner: Arc::new(inner), acting: None })
    }

    /// Accepts a message. Once this returns `Ok`, a restart finds it.
    ///
    /// # Errors
    /// See [`OutboxError`]; after `Refused` and `Store` the id is as free as it was.
    pub async fn enqueue(&self, enqueue: Enqueue) -> Result<Accepted, OutboxError> {
        let inner = &self.inner;
        let now = self.now();
        let draft = Draft::of(enqueue, &inner.settings, now, &inner.settings.entropy)
            .map_err(OutboxError::Refused)?;
        let fingerprint = draft.fingerprint;
        let asked = draft.is_callers.then(|| draft.client_message_id.clone());
        let room = Room { rows: inner.settings.rows_max, bytes: inner.settings.bytes_max };
        // The store may commit it although nobody waits any more: then it is sent all the same, and soon.
        let accepting = Arc::clone(inner);
        let arrived = Outliving::of(async move {
            let arrived = accepting.store.accept(draft, now, accepting.time.epoch(), room).await?;
            accepting.wake_for(&arrived);
            Ok::<_, StoreError>(arrived)
        });
        match arrived.await? {
            Arrived::New(row) => {
                Ok(Accepted { acceptance: accept(None), receipt: row, alias: None, is_same_action: false })
            }
            Arrived::SameAction(row) => {
                let acceptance = accept(Some((row.status, Sameness::Match)));
                Ok(Accepted { acceptance, receipt: row, alias: asked, is_same_action: true })
            }
            Arrived::Known { row, fingerprint: known, is_alias } => {
                let sameness = if known == fingerprint { Sameness::Match } else { Sameness::Mismatch };
                match accept(Some((row.status, sameness))) {
                    Acceptance::Refused(conflict) => {
                        Err(OutboxError::Conflict(Box::new(row), conflict, known))
                    }
                    acceptance => Ok(Accepted {
                        acceptance,
                        receipt: row,
                        alias: asked.filter(|_| is_alias),
                        is_same_action: is_alias,
                    }),
                }
            }
        }
    }

    /// Whether the store can serve: it may answer, and there is room to write. Otherwise it recovers by itself.
    ///
    /// # Errors
    /// It cannot.
    pub async fn ready(&self) -> Result<(), OutboxError> {
        Ok(self.inner.store.ready().await?)
    }

    /// The message of this id, or of one of its other names.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn receipt(&self, client_message_id: &str) -> Result<Option<Row>, OutboxError> {
        Ok(self.inner.store.find(Find::Id(client_message_id.to_owned())).await?)
    }

    /// One message.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn found(&self, find: Find) -> Result<Option<Row>, OutboxError> {
        Ok(self.inner.store.find(find).await?)
    }

    /// The message that an operator means: an id, or the number of a row. Where both exist and differ, neither is meant.
    ///
    /// # Errors
    /// There is none, or the name is ambiguous.
    pub async fn named(&self, name: &str) -> Result<Row, OutboxError> {
        let by_id = self.receipt(name).await?;
        let by_number = match name.parse() {
            Ok(number) => self.inner.store.find(Find::Row(number)).await?,
            Err(_) => None,
        };
        match (by_id, by_number) {
            (Some(one), Some(other)) if one.id != other.id => Err(OutboxError::State(format!(
                "{name:?} is the id of row {} and also the number of another row: name that one by its id {:?}",
                one.id, other.client_message_id
            ))),
            (Some(row), _) | (None, Some(row)) => Ok(row),
            (None, None) => Err(OutboxError::Unknown),
        }
    }

    /// Waits until a message is finished, at most so long, and returns it as it is then.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn wait(&self, row: i64, at_most: Duration) -> Result<Option<Row>, OutboxError> {
        let finished = {
            let mut waiting = self.inner.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(waiting.entry(row).or_default())
        };
        let deadline = tokio::time::Instant::now() + at_most.min(WAIT_MAX);
        loop {
            // Registered before the look, so that a settlement in between is not missed.
            let mut notified = std::pin::pin!(finished.notified());
            notified.as_mut().enable();
            let found = self.inner.store.find(Find::Row(row)).await?;
            let is_over = found.as_ref().is_none_or(|row| !row.status.is_live());
            let is_late = !is_over && tokio::time::timeout_at(deadline, notified).await.is_err();
            if is_over || is_late {
                self.stop_waiting(row);
                // What was waited for in vain is shown as it is now, not as it was before.
                return if is_late { Ok(self.inner.store.find(Find::Row(row)).await?) } else { Ok(found) };
            }
        }
    }

    /// Forgets where waiters are told, once the last of them goes.
    fn stop_waiting(&self, row: i64) {
        let mut waiting = self.inner.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.get(&row).is_some_and(|notify| Arc::strong_count(notify) <= 2) {
            waiting.remove(&row);
        }
    }

    /// Messages, by number.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn list(&self, filter: Filter) -> Result<Vec<Row>, OutboxError> {
        Ok(self.inner.store.list(filter).await?)
    }

    /// The log of a message's attempts.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn attempts(&self, row: i64) -> Result<Vec<Attempt>, OutboxError> {
        Ok(self.inner.store.attempts(row).await?)
    }

    /// Events above this number, and the lowest number that is still kept.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn events(&self, after: i64, limit: u32) -> Result<(Vec<Event>, i64), OutboxError> {
        Ok(self.inner.store.events(after, limit).await?)
    }

    /// The number of the last event, told again whenever there is a new one.
    pub fn watch(&self) -> watch::Receiver<i64> {
        self.inner.store.watch()
    }

    /// Takes a message back. One that is being sent cannot be taken back.
    ///
    /// # Errors
    /// Its state does not allow it.
    pub async fn abort(&self, row: i64, why: &str) -> Result<Row, OutboxError> {
        let aborted = self.acting().abort(row, "operator", why, self.now()).await?;
        let Some(aborted) = aborted else {
            let found = self.inner.store.find(Find::Row(row)).await?.ok_or(OutboxError::Unknown)?;
            return Err(OutboxError::State(format!(
                "a message that is {} cannot be aborted",
                found.status.name()
            )));
        };
        self.finished(row);
        self.inner.wakes.wake([aborted.lane.clone()]);
        Ok(aborted)
    }

    /// Tries a message that waits for its next attempt at once, in its lane's order.
    ///
    /// # Errors
    /// It is not one that waits.
    pub async fn retry(&self, row: i64) -> Result<Row, OutboxError> {
        let Some(hurried) = self.inner.store.hurry(row, self.now()).await? else {
            let found = self.inner.store.find(Find::Row(row)).await?.ok_or(OutboxError::Unknown)?;
            let why = format!("a message that is {} cannot be tried at once", found.status.name());
            return Err(OutboxError::State(why));
        };
        self.inner.wakes.wake([hurried.lane.clone()]);
        Ok(hurried)
    }

    /// Sends no more from a lane.
    ///
    /// # Errors
    /// The store refuses.
    pub async fn pause(&self, lane: &str) -> Result<(), OutboxError> {
        Ok(self.acting().set_paused(lane, true, self.now()).await?)
    }

    /// Sends from a lane again, past a dead head and a message that waits for a rebuild as well.
    ///
    /// # Errors
    /// The store refuses.
    pub async fn resume(&self, lane: &str) -> Result<(), OutboxError> {
        self.acting().set_paused(lane, false, self.now()).await?;
        self.inner.wakes.wake([lane.to_owned()]);
        Ok(())
    }

    /// Lanes with something waiting, paused or blocked.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn lanes(&self) -> Result<Vec<LaneState>, OutboxError> {
        Ok(self.inner.store.lanes().await?)
    }

    /// One lane.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn lane(&self, lane: &str) -> Result<LaneState, OutboxError> {
        Ok(self.inner.store.lane(lane).await?)
    }

    /// Says that a principal has a fresh credential: its lanes go on, also where it had signed out.
    ///
    /// # Errors
    /// The store refuses.
    pub async fn refreshed(&self, principal: &str) -> Result<(), OutboxError> {
        self.release(principal, None).await.map(|_| ())
    }

    /// Lets a principal's messages be tried again, unless it has signed out.
    ///
    /// # Errors
    /// The store refuses.
    pub async fn try_again(&self, principal: &str) -> Result<(), OutboxError> {
        if self.is_signed_out(principal) {
            return Ok(());
        }
        self.inner.refusals.start_over(principal, None);
        self.release_by_itself(principal, None).await.map(|_| ())
    }

    /// Lets a principal's messages be tried again, to one origin or to all, also under the credential that was refused, and
    /// also where the principal had signed out.
    /// Those that another origin holds up are held again without a call. Returns the lanes.
    ///
    /// # Errors
    /// The store refuses.
    pub async fn release(&self, principal: &str, origin: Option<&str>) -> Result<Vec<String>, OutboxError> {
        self.forget_sign_out(principal).await?;
        self.inner.refusals.start_over(principal, origin);
        self.release_by_itself(principal, origin).await
    }

    /// The same, without a person: what was refused often in a row is tried less often.
    pub(crate) async fn release_by_itself(
        &self,
        principal: &str,
        origin: Option<&str>,
    ) -> Result<Vec<String>, OutboxError> {
        let last = self.inner.refusals.last();
        let lanes = self.acting().release(principal, self.now()).await?;
        // Where the store did not do it, the engine still knows that somebody waits, and tries again.
        self.inner.refusals.forget(principal, origin, last);
        self.inner.wakes.wake(lanes.iter().cloned());
        Ok(lanes)
    }

    /// Principals and the origins that refuse their credentials.
    pub fn holds(&self) -> Vec<(String, String)> {
        self.inner.refusals.all().into_iter().map(|refusal| (refusal.principal, refusal.origin)).collect()
    }

    /// What each of these messages waits for, in words for a person.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn waits_for(&self, rows: &[Row]) -> Result<Vec<Option<String>>, OutboxError> {
        let now = self.now();
        let mut lanes: HashMap<String, (LaneState, Option<Row>)> = HashMap::new();
        let mut said = Vec::with_capacity(rows.len());
        for row in rows {
            if row.status.is_live() && !lanes.contains_key(&row.lane) {
                let lane = self.inner.store.lane(&row.lane).await?;
                let head = match lane.head {
                    Some(head) => self.inner.store.find(Find::Row(head)).await?,
                    None => None,
                };
                lanes.insert(row.lane.clone(), (lane, head));
            }
            let lane = lanes.get(&row.lane);
            said.push(lane.and_then(|(lane, head)| waits_for(row, lane, head.as_ref(), now)));
        }
        Ok(said)
    }

    /// How full it is.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn depth(&self) -> Result<Depth, OutboxError> {
        Ok(self.inner.store.depth().await?)
    }

    /// Metrics in Prometheus' text form.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn metrics(&self) -> Result<String, OutboxError> {
        let inbox = self.inner.store.inbox_depth().await?;
        Ok(self.inner.meters.text(&self.depth().await?, &inbox, self.now(), self.clock_jump().is_some()))
    }

    /// Where the lock file is that says who owns the file.
    pub fn lock_file(&self) -> Option<&Path> {
        self.inner.lock_file.as_deref()
    }

    /// What it was told.
    pub fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    /// Now, on a clock that never goes back.
    pub fn now(&self) -> Timestamp {
        self.inner.time.now()
    }

    /// By how many milliseconds the wall clock is ahead of the outbox's time, where nothing explains it. Then nothing
    /// expires.
    pub fn clock_jump(&self) -> Option<i64> {
        self.inner.time.jump()
    }

    /// A person says that the wall clock is right, and why: expiry goes on by it.
    ///
    /// # Errors
    /// There is nothing to confirm, or the store refuses.
    pub async fn confirm_clock(&self, reason: &str) -> Result<(), OutboxError> {
        if self.clock_jump().is_none() {
            return Err(OutboxError::State("the clock is believed: there is nothing to confirm".to_owned()));
        }
        self.inner.time.confirm();
        self.inner.store.keep_time(self.inner.time.mark()).await?;
        self.acting().note("clock-confirmed", reason.to_owned(), self.now()).await?;
        self.inner.wakes.wake(self.inner.store.live_lanes().await?);
        Ok(())
    }

    /// A message is finished: tells those who wait.
    pub(crate) fn finished(&self, row: i64) {
        let waiting = self.inner.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(notify) = waiting.get(&row) {
            notify.notify_waiters();
        }
    }
}

impl fmt::Debug for Outbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbox").field("settings", &self.inner.settings).finish_non_exhaustive()
    }
}

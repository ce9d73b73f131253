//! Sends what waits: picks lanes that are due, a bounded number at once, and hands each to a walk. Owns when a lane is
//! looked at; whether its head may be sent is the store's to say.

mod attempt;
mod rebuild;
mod walk;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use semel_contract::time::{Timestamp, millis_of};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::expiry::{self, EXPIRY};
use crate::limits::LIST_ROWS_MAX;
use crate::message::Status;
use crate::outbox::{Outbox, Refusal, Wake};
use crate::store::{FencedWrite, Filter, StoreError};
use walk::{Walk, Walked};

/// How often credentials of refused principals are looked at again.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// How often leases are ended and bodies of finished messages are purged.
const MAINTAIN_EVERY: Duration = Duration::from_secs(60);
/// How soon a lane is looked at again after the store failed.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// How often lanes are looked for in which something waits and which nobody has told of: whoever was to tell may have gone
/// away right after the commit.
const SEARCH_EVERY: Duration = Duration::from_secs(60);
/// How long the engine sleeps at most.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);
/// How long a notice of what was too old waits for the end of a drain.
const EXPIRED_TOLD_WITHIN: Duration = Duration::from_secs(5);

/// The engine at work.
#[derive(Debug)]
pub struct Sending {
    stop: watch::Sender<bool>,
    task: Option<JoinHandle<()>>,
}

impl Sending {
    /// Begins no new attempt and waits for those that run, at most so long. What is left stays in flight on disk, and the
    /// next start sends it again with the same key.
    pub async fn stop(mut self, within: Duration) {
        let _ = self.stop.send(true);
        if let Some(mut task) = self.task.take()
            && tokio::time::timeout(within, &mut task).await.is_err()
        {
            task.abort();
        }
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
    }
}

impl Outbox {
    /// Starts to send. Dropping or stopping what is returned ends it.
    pub fn start(&self) -> Sending {
        let (stop, stopped) = watch::channel(false);
        let engine = Engine::new(self.clone(), stopped.clone());
        let maintenance = maintain(self.clone(), stopped);
        let task = tokio::spawn(async move {
            tokio::join!(engine.run(), maintenance);
        });
        Sending { stop, task: Some(task) }
    }
}

/// What the engine knows of a lane.
enum Lane {
    /// It is looked at then: its head waits until then.
    Due(Timestamp),
    /// A walk is in it, and this was heard of it meanwhile.
    Walked(Option<Wake>),
    /// Its head cannot be sent before something changes.
    Stuck,
}

struct Engine {
    outbox: Outbox,
    stopped: watch::Receiver<bool>,
    lanes: HashMap<String, Lane>,
    due: BTreeSet<(Timestamp, String)>,
    walks: usize,
    /// The store failed, and every lane would find the same: one walk is begun then, and none before.
    resumes: Option<Timestamp>,
    /// Since when the application is owed a notice of what was too old.
    expired_since: Option<tokio::time::Instant>,
    ended: mpsc::UnboundedReceiver<(String, Walked)>,
    end: mpsc::UnboundedSender<(String, Walked)>,
}

impl Engine {
    fn new(outbox: Outbox, stopped: watch::Receiver<bool>) -> Self {
        let (end, ended) = mpsc::unbounded_channel();
        Self {
            outbox,
            stopped,
            lanes: HashMap::new(),
            due: BTreeSet::new(),
            walks: 0,
            resumes: None,
            expired_since: None,
            ended,
            end,
        }
    }

    async fn run(mut self) {
        self.find_lanes().await;
        let mut searched = tokio::time::Instant::now();
        let mut stopped = self.stopped.clone();
        loop {
            let is_stopped = *stopped.borrow();
            if is_stopped && self.walks == 0 {
                return;
            }
            if !is_stopped && searched.elapsed() >= SEARCH_EVERY {
                searched = tokio::time::Instant::now();
                self.search().await;
            }
            let now = self.outbox.now();
            for (lane, why) in self.outbox.inner.wakes.take() {
                match why {
                    Wake::Appended => self.look_for_the_first(lane, now),
                    Wake::HeadChanged => self.look_at(lane, now),
                }
            }
            if !is_stopped {
                self.send_due(now);
            }
            self.tell_expired().await;
            // What is due waits for the next start; until then only the end of a walk counts.
            let sleep = if is_stopped { LONGEST_SLEEP } else { self.sleep(now).min(SEARCH_EVERY) };
            let inner = Arc::clone(&self.outbox.inner);
            tokio::select! {
                biased;
                Some((lane, walked)) = self.ended.recv() => self.walk_ended(lane, walked),
                () = inner.wakes.notify.notified() => {}
                _ = stopped.changed(), if !is_stopped => {}
                () = tokio::time::sleep(sleep) => {}
            }
        }
    }

    /// Tells of what was too old: once nothing is being sent any more, so that one notice speaks of all that went in one go,
    /// and soon in any case.
    async fn tell_expired(&mut self) {
        let inner = &self.outbox.inner;
        let expired = {
            let mut expired = inner.expired.lock().unwrap_or_else(PoisonError::into_inner);
            if expired.is_empty() {
                self.expired_since = None;
                return;
            }
            let since = *self.expired_since.get_or_insert_with(tokio::time::Instant::now);
            if self.walks > 0 && since.elapsed() < EXPIRED_TOLD_WITHIN {
                return;
            }
            std::mem::take(&mut *expired)
        };
        self.expired_since = None;
        for some in expired.chunks(expiry::MESSAGES_MAX) {
            // Where it cannot be written, the next start tells of them.
            let noted = inner.store.note(EXPIRY, expiry::detail(some), self.outbox.now()).await;
            if let Err(error) = noted {
                tracing::warn!(%error, "failed to note what expired");
            }
        }
        inner.settings.hooks.expired(&expired);
    }

    /// Every lane in which something waits.
    async fn find_lanes(&mut self) {
        loop {
            match self.outbox.inner.store.live_lanes().await {
                Ok(lanes) => {
                    let now = self.outbox.now();
                    lanes.into_iter().for_each(|lane| self.look_at(lane, now));
                    return;
                }
                Err(error) => {
                    tracing::error!(%error, "failed to read the lanes");
                    tokio::time::sleep(AFTER_FAILURE).await;
                }
            }
        }
    }

    /// Lanes in which something waits and which are not known here, or are known to be stuck: whoever was to tell that
    /// something has changed may have gone away. Most of them still wait for a person or a credential.
    async fn search(&mut self) {
        match self.outbox.inner.store.live_lanes().await {
            Ok(mut lanes) => {
                self.lanes.retain(|_, lane| !matches!(lane, Lane::Stuck));
                lanes.retain(|lane| !self.lanes.contains_key(lane));
                let now = self.outbox.now();
                lanes.into_iter().for_each(|lane| self.look_at(lane, now));
            }
            Err(error) => tracing::warn!(%error, "failed to look for lanes"),
        }
    }

    fn look_at(&mut self, lane: String, at: Timestamp) {
        match self.lanes.get_mut(&lane) {
            Some(Lane::Walked(heard)) => *heard = Some(Wake::HeadChanged),
            Some(Lane::Due(before)) if *before <= at => {}
            Some(Lane::Due(before)) => {
                self.due.remove(&(*before, lane.clone()));
                *before = at;
                self.due.insert((at, lane));
            }
            Some(Lane::Stuck) | None => {
                self.lanes.insert(lane.clone(), Lane::Due(at));
                self.due.insert((at, lane));
            }
        }
    }

    /// A message came. Behind a head that waits, it changes nothing.
    fn look_for_the_first(&mut self, lane: String, at: Timestamp) {
        match self.lanes.get_mut(&lane) {
            Some(Lane::Walked(heard)) => *heard = (*heard).max(Some(Wake::Appended)),
            Some(Lane::Due(_) | Lane::Stuck) => {}
            None => self.look_at(lane, at),
        }
    }

    fn send_due(&mut self, now: Timestamp) {
        while !self.is_full() && self.resumes.is_none_or(|at| at <= now) {
            if self.due.first().is_none_or(|(at, _)| *at > now) {
                return;
            }
            let Some((_, lane)) = self.due.pop_first() else { return };
            // The next one a while later, unless this one finds that the store works.
            self.resumes = self.resumes.map(|_| now.plus(AFTER_FAILURE));
            self.lanes.insert(lane.clone(), Lane::Walked(None));
            self.walks += 1;
            let walk = Walk { outbox: self.outbox.clone(), stopped: self.stopped.clone() };
            let (name, end) = (lane.clone(), self.end.clone());
            let walking = tokio::spawn(async move { walk.walk(&name).await });
            tokio::spawn(async move {
                // A walk that panicked leaves its row to its lease.
                let walked = walking.await.unwrap_or(Walked::Late);
                let _ = end.send((lane, walked));
            });
        }
    }

    fn walk_ended(&mut self, lane: String, walked: Walked) {
        self.walks -= 1;
        let heard = match self.lanes.remove(&lane) {
            Some(Lane::Walked(heard)) => heard,
            Some(Lane::Due(_) | Lane::Stuck) | None => None,
        };
        let now = self.outbox.now();
        self.resumes = match walked {
            Walked::Failed => Some(now.plus(AFTER_FAILURE)),
            _ => None,
        };
        match (walked, heard) {
            (Walked::More, _)
            | (Walked::Until(_) | Walked::Stuck | Walked::Empty, Some(Wake::HeadChanged))
            | (Walked::Empty, Some(Wake::Appended)) => self.look_at(lane, now),
            (Walked::Until(at), None | Some(Wake::Appended)) => self.look_at(lane, at),
            (Walked::Stuck, None | Some(Wake::Appended)) => {
                self.lanes.insert(lane, Lane::Stuck);
            }
            (Walked::Empty, None) => {}
            (Walked::Failed | Walked::Late, _) => self.look_at(lane, now.plus(AFTER_FAILURE)),
        }
    }

    fn is_full(&self) -> bool {
        self.walks >= self.outbox.inner.settings.parallel
    }

    fn sleep(&self, now: Timestamp) -> Duration {
        match self.due.first() {
            // Nothing is due while every walk is taken: the end of one wakes us.
            Some((at, _)) if !self.is_full() => {
                let at = self.resumes.map_or(*at, |resumes| resumes.max(*at));
                let wait = u64::try_from(at.millis_since(now)).unwrap_or(0).max(1);
                // The wall clock may be set meanwhile: look at it now and then.
                Duration::from_millis(wait).min(LONGEST_SLEEP)
            }
            Some(_) | None => LONGEST_SLEEP,
        }
    }
}

/// What time does: credentials become fresh, leases end, bodies are purged.
async fn maintain(outbox: Outbox, mut stopped: watch::Receiver<bool>) {
    let mut last = None;
    loop {
        if *stopped.borrow() {
            return keep_time(&outbox).await;
        }
        let is_anybody_refused = look_for_credentials(&outbox).await;
        let is_due = last.is_none_or(|last: tokio::time::Instant| last.elapsed() >= MAINTAIN_EVERY);
        if is_due {
            last = Some(tokio::time::Instant::now());
            tidy_up(&outbox).await;
        }
        let pause = if is_anybody_refused { LOOK_AGAIN } else { MAINTAIN_EVERY };
        tokio::select! {
            biased;
            _ = stopped.changed() => {}
            () = outbox.inner.refusals.news.notified() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

async fn tidy_up(outbox: &Outbox) {
    keep_time(outbox).await;
    let now = outbox.now();
    match outbox.inner.store.end_leases(now).await {
        Ok(lanes) if !lanes.is_empty() => outbox.inner.wakes.wake(lanes),
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "failed to end leases"),
    }
    // Nothing goes by a time that nothing explains.
    if outbox.clock_jump().is_some() {
        return;
    }
    if let Err(error) = expire_held(outbox).await {
        tracing::warn!(%error, "failed to look at what is held");
    }
    let before = Timestamp::from_millis(now.millis().saturating_sub(millis_of(outbox.inner.settings.keep)));
    if let Err(error) = outbox.inner.store.purge(before).await {
        tracing::warn!(%error, "failed to purge");
    }
}

/// Keeps the time for the next process.
async fn keep_time(outbox: &Outbox) {
    if let Err(error) = outbox.inner.store.keep_time(outbox.inner.time.mark()).await {
        tracing::warn!(%error, "failed to keep the time");
    }
}

/// Gives up what was held until it was too old.
async fn expire_held(outbox: &Outbox) -> Result<(), StoreError> {
    let filter = Filter { status: Some(Status::Held), limit: LIST_ROWS_MAX, ..Filter::default() };
    let held = outbox.inner.store.list(filter).await?;
    rebuild::begin_again(outbox, &held);
    for row in held {
        let Some(verdict) = attempt::expired(outbox, &row) else { continue };
        if let FencedWrite::Done(row) = outbox.inner.store.give_up(row.id, verdict).await? {
            outbox.inner.meters.outcome(&row, "expired");
            outbox.finished(row.id);
            let lane = row.lane.clone();
            outbox.inner.expired.lock().unwrap_or_else(PoisonError::into_inner).push(*row);
            outbox.inner.wakes.wake([lane]);
        }
    }
    Ok(())
}

/// Releases principals whose credential is another one now, or who need none. Returns whether some are still refused.
async fn look_for_credentials(outbox: &Outbox) -> bool {
    for Refusal { principal, origin, digest } in outbox.inner.refusals.due() {
        let found = outbox.inner.credential(&principal, &origin).await;
        // Where there is none, none is sent: that differs from one that could not be had.
        let is_fresh = found.is_ok_and(|credential| credential.unwrap_or_default().digest() != digest);
        if is_fresh && let Err(error) = outbox.release_by_itself(&principal, Some(&origin)).await {
            tracing::warn!(%error, "failed to release a principal");
        }
    }
    !outbox.inner.refusals.is_empty()
}

//! One line: read its stream, keep what comes, then say so; again and again. Owns the order of these, and the pauses.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use tokio::sync::watch;

use super::event::came;
use super::frames::Frames;
use super::link::{Link, Stream, Unlinked};
use super::meters::Meters;
use super::{LineView, State};
use crate::inbox::Inbox;
use crate::message::Came;
use crate::outbox::Outbox;

/// Events that are kept by one transaction.
const TOGETHER_MAX: usize = 500;
/// Their bytes.
const TOGETHER_BYTES_MAX: usize = 4 << 20;
/// How long a stream may be silent. A broker gives a sign of life every 15 s.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// The pause after a first failure; each further one doubles it.
const PAUSE_FIRST: Duration = Duration::from_millis(200);
/// The longest pause: whoever is let in again, or finds the broker back, waits no longer.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How often an inbox that is full is looked at, besides being told.
const FULL_PAUSE: Duration = Duration::from_secs(1);
/// Between two acknowledgements of a line.
const ACK_PAUSE: Duration = Duration::from_millis(100);
/// How long a last acknowledgement may take.
const ACK_LAST: Duration = Duration::from_secs(1);

/// Follows one line.
pub(super) struct Follower {
    pub(super) outbox: Outbox,
    pub(super) inbox: Inbox,
    pub(super) link: Arc<dyn Link>,
    pub(super) mesh: String,
    pub(super) line: String,
    pub(super) view: Arc<Mutex<LineView>>,
    pub(super) meters: Arc<Meters>,
}

/// Why a stream ended.
struct Ended {
    state: State,
    why: String,
    /// Whether something came of it.
    has_come: bool,
}

impl Follower {
    /// Follows the line until it is told to stop.
    pub(super) async fn run(self, mut stopped: watch::Receiver<bool>) {
        let (kept, told) = watch::channel(None);
        let telling = watch::Sender::new(None);
        tokio::select! {
            _ = stopped.wait_for(|stopped| *stopped) => {}
            () = self.follow(&kept) => {}
            () = self.acknowledge(told, &telling) => {}
        }
        let (last, told) = (kept.borrow().clone(), telling.borrow().clone());
        if let Some(last) = last.filter(|last| told.as_ref() != Some(last)) {
            // The next start says it again.
            let _ = tokio::time::timeout(ACK_LAST, self.link.acknowledge(&last)).await;
        }
    }

    async fn follow(&self, kept: &watch::Sender<Option<String>>) {
        let mut failures = 0_u32;
        loop {
            let Ended { state, why, has_come } = self.read_stream(kept).await;
            failures = if has_come { 0 } else { failures.saturating_add(1) };
            self.show(state, Some(why));
            let random = self.outbox.settings().entropy.unit();
            tokio::time::sleep(pause(failures, random)).await;
        }
    }

    /// Reads one stream to its end.
    async fn read_stream(&self, kept: &watch::Sender<Option<String>>) -> Ended {
        let ended = |state, why, has_come| Ended { state, why, has_come };
        self.wait_for_room().await;
        let cursor = match self.inbox.line_cursor(&self.mesh, &self.line).await {
            Ok(cursor) => cursor,
            Err(error) => return ended(State::Failed, error.to_string(), false),
        };
        let mut stream = match self.link.open(cursor.as_deref().unwrap_or("0")).await {
            Ok(stream) => stream,
            Err(Unlinked::Refused(why) | Unlinked::Malformed(why)) => {
                return ended(State::Refused, why, false);
            }
            Err(Unlinked::Away(why)) => return ended(State::Away, why, false),
        };
        // What was kept before a crash may not have been told.
        if cursor.is_some() {
            kept.send_replace(cursor);
        }
        self.meters.streams.fetch_add(1, Relaxed);
        self.show(State::Live, None);
        let mut frames = Frames::default();
        let mut has_come = false;
        loop {
            let end = read_some(&mut stream, &mut frames).await;
            match self.keep(&mut frames, kept).await {
                Ok(some) => has_come |= some,
                Err(error) => return Ended { has_come, ..error },
            }
            if let Some(why) = end {
                return ended(State::Away, why, has_come);
            }
        }
    }

    /// Keeps what is whole, and lets the broker be told. Says whether there was something.
    async fn keep(&self, frames: &mut Frames, kept: &watch::Sender<Option<String>>) -> Result<bool, Ended> {
        let ended = |state, why| Ended { state, why, has_come: false };
        let came = came(&self.mesh, &self.line, frames.take(), self.outbox.now())
            .map_err(|why| ended(State::Away, why))?;
        if came.cursor.is_empty() {
            return Ok(false);
        }
        if self.wait_for_room().await {
            self.show(State::Live, None);
        }
        let (cursor, messages) = (came.cursor.clone(), came.messages.len() as u64);
        self.say_gaps(&came);
        let failed = |error: crate::outbox::OutboxError| ended(State::Failed, error.to_string());
        let new = self.inbox.receive_line(came).await.map_err(failed)?;
        self.meters.waiting_most.fetch_add(new, Relaxed);
        self.meters.new.fetch_add(new, Relaxed);
        self.meters.known.fetch_add(messages.saturating_sub(new), Relaxed);
        kept.send_replace(Some(cursor));
        Ok(true)
    }

    fn say_gaps(&self, came: &Came) {
        for gap in &came.gaps {
            self.meters.gaps.fetch_add(1, Relaxed);
            let (mesh, line, reason) = (&self.mesh, &self.line, &gap.reason);
            tracing::warn!(
                mesh,
                line,
                reason,
                since = gap.since,
                oldest = gap.oldest,
                "messages of a line cannot be had any more: the broker did not keep them"
            );
        }
    }

    /// Waits while the inbox is full. Says whether it was.
    async fn wait_for_room(&self) -> bool {
        let most = self.outbox.settings().rows_max;
        if self.meters.waiting_most.load(Relaxed) < most {
            return false;
        }
        let mut told = self.inbox.watch();
        let mut was_full = false;
        loop {
            told.mark_unchanged();
            let waiting = self.inbox.depth().await.map_or(0, |depth| depth.waiting);
            self.meters.waiting_most.store(waiting, Relaxed);
            if waiting < most {
                return was_full;
            }
            if !was_full {
                let why =
                    format!("{most} messages wait to be acknowledged: semel inbox list, semel inbox ack");
                self.show(State::Full, Some(why));
            }
            was_full = true;
            let _ = tokio::time::timeout(FULL_PAUSE, told.changed()).await;
        }
    }

    /// Tells the broker how far the line is kept, and again where that fails.
    async fn acknowledge(
        &self,
        mut kept: watch::Receiver<Option<String>>,
        told: &watch::Sender<Option<String>>,
    ) {
        let mut failures = 0_u32;
        loop {
            let up_to = kept.borrow_and_update().clone();
            if let Some(up_to) = up_to.filter(|up_to| told.borrow().as_ref() != Some(up_to)) {
                match self.link.acknowledge(&up_to).await {
                    Ok(()) => {
                        self.meters.acknowledged.fetch_add(1, Relaxed);
                        told.send_replace(Some(up_to));
                        failures = 0;
                        tokio::time::sleep(ACK_PAUSE).await;
                    }
                    Err(Unlinked::Malformed(why)) => {
                        tracing::debug!(why, up_to, "the broker does not know this event");
                        told.send_replace(Some(up_to));
                    }
                    Err(Unlinked::Refused(_) | Unlinked::Away(_)) => {
                        failures = failures.saturating_add(1);
                        tokio::time::sleep(pause(failures, self.outbox.settings().entropy.unit())).await;
                        continue;
                    }
                }
            }
            if kept.changed().await.is_err() {
                return;
            }
        }
    }

    fn show(&self, state: State, why: Option<String>) {
        let mut view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        if view.state == state && view.why == why {
            return;
        }
        let (mesh, line) = (&self.mesh, &self.line);
        match (state, &why) {
            (State::Live, _) => tracing::info!(mesh, line, "the line is live"),
            (_, Some(why)) => tracing::warn!(mesh, line, state = state.name(), why, "the line is not live"),
            (_, None) => {}
        }
        (view.state, view.why, view.since) = (state, why, self.outbox.now());
    }
}

/// Waits for bytes, and takes along what is there already. Says why the stream ended, where it did.
async fn read_some(stream: &mut Stream, frames: &mut Frames) -> Option<String> {
    let over = || "the broker ended the stream".to_owned();
    let mut next = match tokio::time::timeout(SILENCE_MAX, stream.next()).await {
        Ok(next) => next,
        Err(_) => return Some(format!("the broker was silent for {SILENCE_MAX:?}")),
    };
    loop {
        let pushed = match next {
            Some(Ok(bytes)) => frames.push(&bytes),
            Some(Err(why)) => Err(why),
            None => Err(over()),
        };
        if let Err(why) = pushed {
            return Some(why);
        }
        if frames.count() >= TOGETHER_MAX || frames.bytes() >= TOGETHER_BYTES_MAX {
            return None;
        }
        match stream.next().now_or_never() {
            Some(more) => next = more,
            None => return None,
        }
    }
}

/// How long to wait after so many failures in a row. Spread, so that many daemons do not come back at once.
fn pause(failures: u32, random: f64) -> Duration {
    let whole = PAUSE_MAX.min(PAUSE_FIRST * 2_u32.saturating_pow(failures.saturating_sub(1).min(16)));
    whole.mul_f64(0.5 + random / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_an_end() {
        let millis: Vec<u128> = (0..8).map(|failures| pause(failures, 1.0).as_millis()).collect();
        assert_eq!(millis, [200, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(pause(u32::MAX, 0.0), PAUSE_MAX / 2);
    }
}

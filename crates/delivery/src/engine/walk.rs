//! One walk along a lane: claim, send, settle, and the next one.

use std::sync::PoisonError;
use std::time::Duration;

use semel_contract::record::Fence;
use semel_contract::time::Timestamp;
use tokio::sync::watch;

use super::AFTER_FAILURE;
use super::attempt::attempt;
use super::rebuild;
use crate::judge::{To, Verdict};
use crate::message::{HeldFor, Row};
use crate::outbox::{Outbox, Refusal};
use crate::store::{FencedWrite, Head, Terms};

/// Messages of one lane that are sent before other lanes have their turn.
const MESSAGES_MAX: usize = 16;
/// How much longer than an attempt its claim holds: what begins within it ends before the claim does.
const LEASE_MARGIN: Duration = Duration::from_secs(60);

/// How a walk ended.
pub(super) enum Walked {
    /// There may be more to send.
    More,
    /// There is something to send then.
    Until(Timestamp),
    /// There is nothing to send until something changes.
    Stuck,
    /// There is nothing.
    Empty,
    /// The store failed, and nothing was claimed.
    Failed,
    /// What was claimed is somebody else's by now, or nobody knows what became of it.
    Late,
}

pub(super) struct Walk {
    pub(super) outbox: Outbox,
    pub(super) stopped: watch::Receiver<bool>,
}

impl Walk {
    pub(super) async fn walk(&self, lane: &str) -> Walked {
        let inner = &self.outbox.inner;
        for _ in 0..MESSAGES_MAX {
            if *self.stopped.borrow() {
                return Walked::Stuck;
            }
            let now = self.outbox.now();
            let terms = Terms {
                now,
                lease_until: now.plus(inner.settings.attempt_timeout + LEASE_MARGIN),
                nonce: inner.settings.entropy.bits() as u64,
            };
            let (row, request) = match inner.store.claim(lane, terms).await {
                Ok(Head::Claimed(row, request)) => (row, request),
                Ok(Head::Wait(at)) => return Walked::Until(at),
                Ok(Head::Stuck) => return Walked::Stuck,
                Ok(Head::Empty) => return Walked::Empty,
                Err(error) => {
                    tracing::warn!(%error, "failed to claim; nothing was sent");
                    return Walked::Failed;
                }
            };
            let Some(fence) = row.fence else { return Walked::Late };
            let attempted = attempt(&self.outbox, &row, request, now.plus(LEASE_MARGIN)).await;
            let settled = self.settle(row.id, fence, &attempted.verdict).await;
            if let Some((origin, digest)) = attempted.refused {
                // Also where it is not known whether it was written down: then it may be, and holds the principal.
                let refusal = Refusal { principal: row.principal.clone(), origin, digest };
                match attempted.is_news {
                    true => inner.refusals.add(refusal),
                    false => inner.refusals.repeat(refusal),
                }
            }
            let Some(settled) = settled else { return Walked::Late };
            // The refusal of a credential is news once, not for every message that waits for another.
            if attempted.is_news {
                self.tell(&settled, &attempted.verdict);
            }
            if let To::Retry(at) = attempted.verdict.to {
                return Walked::Until(at);
            }
        }
        Walked::More
    }

    /// Writes what became of an attempt, as often as it takes: what was sent cannot be taken back.
    async fn settle(&self, row: i64, fence: Fence, verdict: &Verdict) -> Option<Row> {
        let mut stopped = self.stopped.clone();
        loop {
            match self.outbox.inner.store.settle(row, fence, verdict.clone()).await {
                Ok(FencedWrite::Done(row)) => return Some(*row),
                Ok(FencedWrite::Stale) => return None,
                Err(error) => tracing::warn!(%error, row, "failed to write down an outcome; trying again"),
            }
            if *stopped.borrow() {
                return None;
            }
            tokio::select! {
                biased;
                _ = stopped.changed() => {}
                () = tokio::time::sleep(AFTER_FAILURE) => {}
            }
        }
    }

    /// Tells whoever wants to know.
    fn tell(&self, row: &Row, verdict: &Verdict) {
        let inner = &self.outbox.inner;
        let hooks = &inner.settings.hooks;
        let error = row.last_error.as_deref().unwrap_or_default();
        if let Some(ended) = &verdict.ended {
            inner.meters.attempt(ended.outcome);
        }
        let outcome = match &verdict.to {
            To::Done(_) => "done",
            To::Retry(_) => return,
            To::Held(HeldFor::Auth) => {
                hooks.refused(&row.principal, &row.url);
                tracing::warn!(
                    principal = row.principal,
                    "the credential was refused: its lanes wait for a fresh one"
                );
                return;
            }
            To::Held(HeldFor::Rebuild) => return rebuild::begin(&self.outbox, row),
            To::Dead => {
                tracing::error!(row = row.id, lane = row.lane, error, "given up: requeue or abort it");
                "dead"
            }
            To::Dropped => {
                // A conflict of keys or a malformed request is a bug of somebody's, and said loudly.
                tracing::error!(row = row.id, lane = row.lane, error, "dropped");
                hooks.dropped(row, error);
                "dropped"
            }
            To::Expired(_) => {
                tracing::warn!(row = row.id, lane = row.lane, "expired");
                inner.expired.lock().unwrap_or_else(PoisonError::into_inner).push(row.clone());
                "expired"
            }
        };
        inner.meters.outcome(row, outcome);
        self.outbox.finished(row.id);
    }
}

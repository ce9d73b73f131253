//! Those who look after the outbox: they pause lanes, take messages back, requeue what was given up, and log in again.

use std::sync::Arc;
use std::time::Duration;

use semel_delivery::{OutboxError, Requeue, Row, Status};
use tokio::time::{sleep, timeout};

use crate::coverage::Met;
use crate::delivery_faults::DeliveryFault;
use crate::outbox::people::People;

/// How long somebody waits for the outbox to do it.
const PATIENCE: Duration = Duration::from_secs(90);
/// How often lanes are resumed in a row.
const RESUMES_MAX: usize = 1000;

impl People {
    /// Does something to some message or lane now and then.
    pub(super) async fn operates(self: Arc<Self>) {
        loop {
            sleep(self.world.rng(|rng| rng.millis(500, 30_000))).await;
            if self.world.strikes(DeliveryFault::Paused) {
                self.on_the_side(Arc::clone(&self).pauses());
            }
            if self.world.strikes(DeliveryFault::Aborted) {
                self.aborts(Status::Pending).await;
            }
            if self.world.strikes(DeliveryFault::Requeued) {
                let status = self.world.rng(|rng| *rng.pick(&[Status::Dead, Status::Pending, Status::Held]));
                if let Some(row) = self.some(status) {
                    self.requeues(row).await;
                }
            }
            if self.world.strikes(DeliveryFault::Believed)
                && let Some(row) = self.some_undelivered()
            {
                self.requeues(row).await;
            }
        }
    }

    /// One message at random with this status.
    fn some(&self, status: Status) -> Option<Row> {
        let mut rows = self.world.rows(Some(status));
        // Those that may have been delivered are the ones to be careful with.
        if rows.iter().any(|row| row.ambiguous) && self.world.rng(|rng| rng.chance(700)) {
            rows.retain(|row| row.ambiguous);
        }
        (!rows.is_empty()).then(|| self.world.rng(|rng| rng.pick(&rows).clone()))
    }

    /// One message at random that was given up and of which the receipt says that it was not delivered.
    fn some_undelivered(&self) -> Option<Row> {
        let mut rows = self.world.rows(Some(Status::Dead));
        rows.retain(|row| !row.is_possibly_delivered() && row.superseded_by.is_none());
        (!rows.is_empty()).then(|| self.world.rng(|rng| rng.pick(&rows).clone()))
    }

    async fn pauses(self: Arc<Self>) {
        let lane = format!("lane-{}", self.world.rng(|rng| rng.below(self.world.plan.lanes)));
        let Some(outbox) = self.house.outbox() else { return };
        let paused = timeout(PATIENCE, outbox.pause(&lane)).await;
        self.world.note(None, format!("somebody pauses {lane}: {}", matches!(paused, Ok(Ok(())))));
        sleep(self.world.rng(|rng| rng.millis(100, 60_000))).await;
        if let Some(outbox) = self.house.outbox() {
            let _ = timeout(PATIENCE, outbox.resume(&lane)).await;
        }
    }

    async fn aborts(&self, status: Status) {
        let (Some(row), Some(outbox)) = (self.some(status), self.house.outbox()) else { return };
        let aborted = timeout(PATIENCE, outbox.abort(row.id, "somebody changed their mind")).await;
        let slot = self.world.slot(&row.client_message_id);
        let text = format!("somebody aborts {}: {}", row.client_message_id, matches!(aborted, Ok(Ok(_))));
        self.world.note(Some(slot), text);
    }

    /// Requeues a message, never by force: where it may have been delivered, the outbox says so and does nothing.
    async fn requeues(&self, row: Row) {
        let Some(outbox) = self.house.outbox() else { return };
        let id = &row.client_message_id;
        if self.world.plan.rates.has(DeliveryFault::Rotated) && self.world.rng(|rng| rng.chance(300)) {
            // Somebody who looks after a message logs in first.
            self.world.log_in(&row.principal);
            self.world.note(None, format!("{} has a new credential", row.principal));
        }
        let requeued = timeout(PATIENCE, outbox.requeue(&row, Requeue::default())).await;
        let (what, text) = match requeued {
            Ok(Ok(done)) if done.is_sealed => {
                ("requeue-sealed", format!("now {}", done.new.client_message_id))
            }
            Ok(Ok(done)) => ("requeue-unsealed", format!("now {}", done.new.client_message_id)),
            Ok(Err(OutboxError::State(why))) => ("requeue-refused", why),
            Ok(Err(error)) => ("requeue-failed", error.to_string()),
            Err(_) => ("requeue-failed", "no answer".to_owned()),
        };
        self.world.count(Met::Decision, what);
        self.world.note(Some(self.world.slot(id)), format!("somebody requeues {id}: {text}"));
    }

    /// Credentials are revoked, and some time later somebody logs in again.
    pub(super) async fn logs_in(self: Arc<Self>) {
        loop {
            sleep(self.world.rng(|rng| rng.millis(200, 20_000))).await;
            let principal = format!("person-{}", self.world.rng(|rng| rng.below(self.world.plan.principals)));
            if self.world.strikes(DeliveryFault::Unauthorized) {
                let token = self.world.token(&principal);
                self.world.server().revoke(&token);
                self.world.note(None, format!("the credential {token} is revoked"));
            } else if self.world.strikes(DeliveryFault::Rotated) {
                // The one before stays good for what is on its way.
                self.world.log_in(&principal);
                self.world.note(None, format!("{principal} has a new credential"));
            } else if self.world.rng(|rng| rng.chance(300)) {
                self.log_in(&principal).await;
            }
        }
    }

    async fn log_in(&self, principal: &str) {
        if !self.world.server().is_revoked(&self.world.token(principal)) {
            return;
        }
        self.world.log_in(principal);
        self.world.note(None, format!("{principal} logs in again"));
        // The outbox is told, or finds out.
        let outbox = self.house.outbox().filter(|_| self.world.rng(|rng| rng.chance(500)));
        if let Some(outbox) = outbox {
            let _ = timeout(PATIENCE, outbox.refreshed(principal)).await;
        }
    }

    /// Does whatever a person must do so that everything can go on.
    pub(super) async fn set_right(&self) {
        for number in 0..self.world.plan.principals {
            self.log_in(&format!("person-{number}")).await;
        }
        let Some(outbox) = self.house.outbox() else { return };
        // After hours without a process nothing but a person explains the wall clock.
        if outbox.clock_jump().is_some() {
            let _ = timeout(PATIENCE, outbox.confirm_clock("the wall clock is right")).await;
        }
        // Behind one dead head there may be another.
        for _ in 0..RESUMES_MAX {
            let lanes = timeout(PATIENCE, outbox.lanes()).await.ok().and_then(Result::ok).unwrap_or_default();
            let stopped = lanes.iter().filter(|lane| lane.is_paused || lane.blocked_by.is_some());
            let stopped: Vec<&str> = stopped.map(|lane| lane.lane.as_str()).collect();
            if stopped.is_empty() {
                return;
            }
            for lane in stopped {
                let _ = timeout(PATIENCE, outbox.resume(lane)).await;
            }
            sleep(Duration::from_secs(1)).await;
        }
    }
}

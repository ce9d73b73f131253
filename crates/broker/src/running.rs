//! What a broker does by itself while it runs: looks for changes, follows the commits, wakes other brokers, sends to webhooks, sweeps, and looks for
//! orphans. Each of them may fail at any time and goes on at its next turn.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

use crate::broker::Broker;
use crate::webhook;

/// How often lines are looked for that another broker, or a crash, left behind.
const FOLLOW_ALL_EVERY: Duration = Duration::from_secs(30);
/// How long new messages are collected before they are followed.
const FOLLOW_PAUSE: Duration = Duration::from_millis(200);
/// How often what has expired is removed.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// How long after the start orphans are looked for, and how often from then on.
const ORPHANS_FIRST: Duration = Duration::from_secs(60);
const ORPHANS_EVERY: Duration = Duration::from_secs(3600);

/// A broker at work. Dropped, it stops without waiting.
#[derive(Debug)]
pub struct Running {
    broker: Broker,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Running {
    /// Stops: no more messages are taken, streams end at their cursors, and what is being sent to webhooks is finished.
    pub async fn stop(mut self) {
        self.broker.drain();
        for task in std::mem::take(&mut self.tasks) {
            // A task that panicked has said so where it did.
            let _ = task.await;
        }
    }
}

impl Broker {
    /// Begins to work by itself.
    pub fn start(&self) -> Running {
        let tasks = vec![
            tokio::spawn(until_drained(self.clone(), watch_changes(self.clone()))),
            tokio::spawn(until_drained(self.clone(), follow(self.clone()))),
            tokio::spawn(until_drained(self.clone(), sweep(self.clone()))),
            tokio::spawn(until_drained(self.clone(), look_for_orphans(self.clone()))),
            tokio::spawn(until_drained(self.clone(), wake_others(self.clone()))),
            tokio::spawn(webhook::run(self.clone())),
        ];
        Running { broker: self.clone(), tasks }
    }
}

async fn until_drained(broker: Broker, work: impl Future<Output = ()>) {
    let mut draining = broker.0.draining.subscribe();
    tokio::select! {
        biased;
        () = work => {}
        () = draining.wait_for(true) => {}
    }
}

async fn watch_changes(broker: Broker) {
    let mut ticks = interval(broker.settings().poll);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Err(error) = broker.0.directory.refresh().await {
            tracing::debug!(%error, "who belongs to what could not be looked at");
        }
    }
}

/// Tells other brokers of commits, and hears of theirs.
async fn wake_others(broker: Broker) {
    let (wakes, db) = (&broker.0.wakes, &*broker.0.store.db);
    tokio::join!(wakes.tell(db), wakes.hear(db, Arc::clone(&broker.0.hub)));
}

async fn follow(broker: Broker) {
    loop {
        if let Err(error) = broker.follow_all().await {
            tracing::debug!(%error, "commits could not be followed");
        }
        let all = tokio::time::sleep(FOLLOW_ALL_EVERY);
        tokio::pin!(all);
        loop {
            tokio::select! {
                biased;
                () = &mut all => break,
                () = broker.0.follower.came.notified() => follow_new(&broker).await,
            }
        }
    }
}

async fn follow_new(broker: &Broker) {
    // Others that come meanwhile are followed together: what follows is not in a hurry, and publishing is.
    tokio::time::sleep(FOLLOW_PAUSE).await;
    let lines = {
        let mut lines = broker.0.follower.lines.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        std::mem::take(&mut *lines)
    };
    for line in lines {
        if let Err(error) = broker.0.store.follow(line).await {
            tracing::debug!(%error, line, "a line could not be followed");
        }
    }
}

async fn sweep(broker: Broker) {
    let mut ticks = interval(SWEEP_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Err(error) = broker.sweep().await {
            tracing::warn!(%error, "what has expired could not be removed");
        }
    }
}

/// Looks whether any row is missing, so that the alert rings without anybody asking.
async fn look_for_orphans(broker: Broker) {
    tokio::time::sleep(ORPHANS_FIRST).await;
    loop {
        match broker.orphans().await {
            Ok(found) if found.findings.is_empty() => {}
            Ok(found) => {
                tracing::error!(findings = ?found.findings, "rows are without those that belong to them")
            }
            Err(error) => tracing::warn!(%error, "orphans could not be looked for"),
        }
        tokio::time::sleep(ORPHANS_EVERY).await;
    }
}

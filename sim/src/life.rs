//! Whether a machine runs, stands still or is gone. Everything that a node does to the outside passes through its life: a
//! dead node's calls never come back and never go out, which is what a crash looks like from outside.

use std::future::pending;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// The life of one incarnation of a node.
#[derive(Debug)]
pub struct Life {
    /// The node's name, with the number of its incarnation.
    pub name: String,
    is_mortal: bool,
    frozen_until: Mutex<Instant>,
    dead: AtomicBool,
    /// Wakes in the order of waiting. A watch channel would not: it spreads its waiters by random numbers.
    dies: Notify,
}

impl Life {
    /// The life of a machine that may crash.
    pub fn new(name: String) -> Self {
        Self {
            name,
            is_mortal: true,
            frozen_until: Mutex::new(Instant::now()),
            dead: AtomicBool::new(false),
            dies: Notify::new(),
        }
    }

    /// The life of somebody who never crashes.
    pub fn immortal(name: &str) -> Self {
        Self { is_mortal: false, ..Self::new(name.to_owned()) }
    }

    /// Whether it may crash.
    pub fn is_mortal(&self) -> bool {
        self.is_mortal
    }

    /// Ends it.
    pub fn kill(&self) {
        self.dead.store(true, Ordering::Relaxed);
        self.dies.notify_waiters();
    }

    /// Whether it has ended.
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    /// Stands still for a while.
    pub fn freeze(&self, time: Duration) {
        *self.frozen_until.lock().expect("setting a time does not panic") = Instant::now() + time;
    }

    /// Goes on.
    pub fn unfreeze(&self) {
        self.freeze(Duration::ZERO);
    }

    /// Until when it stands still.
    pub fn frozen_until(&self) -> Instant {
        *self.frozen_until.lock().expect("reading a time does not panic")
    }

    /// Waits until the node runs. Never comes back when it is dead.
    pub async fn awake(&self) {
        loop {
            if self.is_dead() {
                return pending().await;
            }
            let until = self.frozen_until();
            if until <= Instant::now() {
                return;
            }
            sleep_until(until).await;
        }
    }

    /// Waits until the node runs, or is dead: says which.
    pub async fn awake_or_dead(&self) -> bool {
        tokio::select! {
            biased;
            () = self.died() => false,
            () = self.awake() => true,
        }
    }

    /// Waits until the node is dead.
    pub async fn died(&self) {
        let dies = self.dies.notified();
        if !self.is_dead() {
            dies.await;
        }
    }
}

//! The process that owns the outbox: started, killed, stopped for a while, started again on what the disk has kept.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_contract::profile::presets;
use semel_delivery::url::Target;
use semel_delivery::{Entropy, Outbox, Sending, Settings};
use tokio::time::sleep;

use crate::delivery_faults::DeliveryFault;
use crate::life::Life;
use crate::outbox::disk::Disk;
use crate::outbox::plan::MAX_AGE;
use crate::outbox::wire::Wire;
use crate::outbox::world::OutboxWorld;
use crate::rng::Rng;
use crate::stage::lock;

/// One life of the process.
struct Node {
    life: Arc<Life>,
    outbox: Outbox,
    _sending: Sending,
}

/// Where the process runs.
pub(super) struct House {
    world: Arc<OutboxWorld>,
    node: Mutex<Option<Node>>,
    lives: AtomicU32,
    /// Held by whoever starts the process: the file has one owner.
    starting: tokio::sync::Mutex<()>,
}

impl House {
    pub(super) fn new(world: &Arc<OutboxWorld>) -> Self {
        Self {
            world: Arc::clone(world),
            node: Mutex::new(None),
            lives: AtomicU32::new(1),
            starting: tokio::sync::Mutex::default(),
        }
    }

    /// The outbox, while its process runs. It may die at any moment.
    pub(super) fn outbox(&self) -> Option<Outbox> {
        lock(&self.node).as_ref().filter(|node| !node.life.is_dead()).map(|node| node.outbox.clone())
    }

    fn life(&self) -> Option<Arc<Life>> {
        lock(&self.node).as_ref().map(|node| Arc::clone(&node.life))
    }

    fn kill(&self, why: &str) {
        if let Some(life) = self.life().filter(|life| !life.is_dead()) {
            self.world.note(None, format!("{} {why}", life.name));
            life.kill();
        }
    }

    /// Starts a process on what the disk has kept, as often as it takes. Does nothing where one runs.
    pub(super) async fn start(&self) {
        let _alone = self.starting.lock().await;
        while self.outbox().is_none() {
            let life = Arc::new(Life::new(format!("p{}", self.lives.fetch_add(1, Ordering::Relaxed))));
            self.world.note(None, format!("{} starts", life.name));
            let store = self.world.reopen();
            let disk = Disk { world: Arc::clone(&self.world), life: Arc::clone(&life), store };
            let started = tokio::select! {
                biased;
                () = life.died() => None,
                started = Outbox::with_store(Arc::new(disk), self.settings(&life)) => started.ok(),
            };
            if let Some(outbox) = started {
                let sending = outbox.start();
                *lock(&self.node) = Some(Node { life, outbox, _sending: sending });
            } else {
                life.kill();
                sleep(Duration::from_millis(700)).await;
            }
        }
    }

    fn settings(&self, life: &Arc<Life>) -> Settings {
        let plan = &self.world.plan;
        let mut profile = presets::ietf();
        profile.schedule.max_age = Some(MAX_AGE);
        let wire = Wire { world: Arc::clone(&self.world), life: Arc::clone(life) };
        let numbers = Mutex::new(Rng::new(self.world.rng(Rng::draw)));
        Settings {
            profile,
            upstream: Some(Target::absolute("http://server.test").expect("the address is one")),
            head: plan.head,
            parallel: plan.parallel,
            clock: Arc::clone(&self.world.clock) as _,
            entropy: Entropy::from_fn(move || {
                let mut numbers = lock(&numbers);
                u128::from(numbers.draw()) << 64 | u128::from(numbers.draw())
            }),
            transport: Arc::new(wire.clone()),
            credentials: Arc::new(wire),
            ..Settings::default()
        }
    }

    /// Kills the process now and then.
    pub(super) async fn crashes(self: Arc<Self>) {
        loop {
            sleep(self.world.rng(|rng| rng.millis(2000, 40_000))).await;
            if self.world.strikes(DeliveryFault::Crash) {
                self.kill("crashes");
            }
        }
    }

    /// Starts it again, after a while; sometimes after a long one.
    pub(super) async fn restarts(self: Arc<Self>) {
        loop {
            sleep(self.world.rng(|rng| rng.millis(100, 5000))).await;
            if self.world.is_doubtful() {
                self.kill("ends: its file cannot be relied on");
            }
            if self.life().is_some_and(|life| life.is_dead()) {
                if self.world.strikes(DeliveryFault::LongDowntime) {
                    let time = self.world.rng(|rng| rng.millis(600_000, 9_000_000));
                    self.world.note(None, format!("nobody starts it for {time:?}"));
                    sleep(time).await;
                }
                self.start().await;
            }
        }
    }

    /// Lets it stand still now and then, often for longer than a lease.
    pub(super) async fn freezes(self: Arc<Self>) {
        loop {
            sleep(self.world.rng(|rng| rng.millis(2000, 40_000))).await;
            if self.world.strikes(DeliveryFault::Freeze)
                && let Some(life) = self.life()
            {
                let time = self.world.rng(|rng| rng.millis(500, 200_000));
                self.world.note(None, format!("{} stands still for {time:?}", life.name));
                life.freeze(time);
            }
        }
    }

    /// Everything runs again.
    pub(super) async fn heal(&self) {
        if self.world.is_doubtful() {
            self.kill("ends: its file cannot be relied on");
        }
        match self.life() {
            Some(life) if !life.is_dead() => life.unfreeze(),
            Some(_) | None => self.start().await,
        }
    }
}

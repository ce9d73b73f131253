//! The replicas of the relay: the production engine and worker, killed, stopped for a while and started again.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_delivery::Entropy;
use semel_delivery::relay::meters::Meters;
use semel_delivery::relay::store::sweep::Retention;
use semel_delivery::relay::{Engine, RelayStore, Target, Worker};
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::delivery_faults::DeliveryFault;
use crate::life::Life;
use crate::relay::plan::{Home, LATE_WINDOW, TIMEOUT};
use crate::relay::upstream::SimUpstream;
use crate::relay::world::{RelayWorld, TARGET};
use crate::rng::Rng;
use crate::stage::lock;
use crate::way::{Ground as _, Way};

/// One life of one replica.
#[derive(Clone)]
pub(super) struct Replica {
    pub(super) way: Way<RelayWorld>,
    pub(super) engine: Arc<Engine>,
    pub(super) worker: Arc<Worker>,
}

/// All replicas.
pub(super) struct Replicas {
    world: Arc<RelayWorld>,
    all: Mutex<Vec<Replica>>,
    lives: AtomicU32,
    /// Held by whoever starts replicas: a file has one owner.
    starting: tokio::sync::Mutex<()>,
}

impl Replicas {
    /// Starts all of them.
    pub(super) async fn start(world: &Arc<RelayWorld>) -> Self {
        let count = match world.plan.home {
            Home::File => 1,
            Home::Shared(count) => count,
        };
        let replicas = Self {
            world: Arc::clone(world),
            all: Mutex::default(),
            lives: AtomicU32::new(1),
            starting: tokio::sync::Mutex::default(),
        };
        for _ in 0..count {
            let replica = replicas.begin().await;
            lock(&replicas.all).push(replica);
        }
        replicas
    }

    /// One of them at random. It may be dead.
    pub(super) fn any(&self) -> Replica {
        let all = lock(&self.all);
        self.world.rng(|rng| rng.pick(&all).clone())
    }

    /// Starts a replica, as often as it takes.
    async fn begin(&self) -> Replica {
        loop {
            let life = Arc::new(Life::new(format!("r{}", self.lives.fetch_add(1, Ordering::Relaxed))));
            self.world.note(None, format!("{} starts", life.name));
            let replica = self.build(&life).await;
            let started = tokio::select! {
                biased;
                () = life.died() => false,
                started = replica.engine.store.start() => started.is_ok(),
            };
            if started {
                tokio::spawn(Arc::clone(&replica.worker).run());
                return replica;
            }
            replica.way.crash("cannot start");
            sleep(Duration::from_millis(900)).await;
        }
    }

    async fn build(&self, life: &Arc<Life>) -> Replica {
        let world = &self.world;
        let way = Way {
            world: Arc::clone(world),
            life: Arc::clone(life),
            base: world.reopen().await,
            connections: Arc::default(),
        };
        let upstream = SimUpstream { world: Arc::clone(world), life: Arc::clone(life) };
        let plan = &world.plan;
        let mut target = Target::new(TARGET, Arc::new(upstream.clone()), plan.tier);
        target.reducer = plan.reducer;
        target.late_window = LATE_WINDOW;
        target.timeout = TIMEOUT;
        target.debounce = plan.debounce;
        target.batch_max = plan.batch_max;
        target.blocked = vec!["418".to_owned()];
        target.limit_scope = plan.limit_scope;
        target.check().expect("the simulated target is safe");
        let numbers = Mutex::new(Rng::new(world.rng(Rng::draw)));
        let engine = Arc::new(Engine {
            store: RelayStore::new(Arc::new(way.clone())),
            targets: [(TARGET.to_owned(), Arc::new(target))].into(),
            credentials: Arc::new(upstream),
            entropy: Entropy::from_fn(move || {
                let mut numbers = lock(&numbers);
                u128::from(numbers.draw()) << 64 | u128::from(numbers.draw())
            }),
            clock: Arc::clone(&world.clock) as _,
            owner: life.name.clone(),
            meters: Meters::default(),
            settled: Notify::new(),
        });
        let worker = Worker::new(Arc::clone(&engine), Retention::default(), 4);
        Replica { way, engine, worker }
    }

    fn dead(&self) -> Vec<usize> {
        let is_dead = |(at, replica): (usize, &Replica)| replica.way.life.is_dead().then_some(at);
        lock(&self.all).iter().enumerate().filter_map(is_dead).collect()
    }

    /// A process whose file can no longer be relied on ends.
    fn end_broken(&self) {
        if self.world.is_broken() {
            let replica = self.any();
            if !replica.way.life.is_dead() {
                replica.way.crash("ends: its file cannot be relied on");
            }
        }
    }

    async fn revive(&self) {
        let _alone = self.starting.lock().await;
        for at in self.dead() {
            let replica = self.begin().await;
            lock(&self.all)[at] = replica;
        }
    }

    /// Kills replicas now and then.
    pub(super) async fn crashes(self: Arc<Self>) {
        loop {
            sleep(self.world.rng(|rng| rng.millis(2000, 40_000))).await;
            if self.world.strikes(DeliveryFault::Crash) {
                let replica = self.any();
                if !replica.way.life.is_dead() {
                    replica.way.crash("crashes");
                }
            }
        }
    }

    /// Starts dead replicas again, after a while.
    pub(super) async fn restarts(self: Arc<Self>) {
        loop {
            sleep(self.world.rng(|rng| rng.millis(100, 8000))).await;
            self.end_broken();
            self.revive().await;
        }
    }

    /// Lets replicas stand still now and then, often for longer than a lease.
    pub(super) async fn freezes(self: Arc<Self>) {
        loop {
            sleep(self.world.rng(|rng| rng.millis(2000, 40_000))).await;
            if self.world.strikes(DeliveryFault::Freeze) {
                let life = self.any().way.life;
                let time = self.world.rng(|rng| rng.millis(500, 100_000));
                self.world.note(None, format!("{} stands still for {time:?}", life.name));
                life.freeze(time);
            }
        }
    }

    /// Everything runs again.
    pub(super) async fn heal(&self) {
        self.end_broken();
        self.revive().await;
        for replica in lock(&self.all).iter() {
            replica.way.life.unfreeze();
        }
    }
}

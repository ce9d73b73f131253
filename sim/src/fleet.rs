//! The replicas: built from the production gate, killed and started again, and told to follow another configuration. A new
//! life knows nothing of the one before; a gate that is replaced in its life claims nothing any more.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use semel_gate::{GateLayer, GateService};
use semel_store::ClaimStore;
use tokio::time::{Instant, sleep};
use tower::Layer;

use crate::faults::Fault;
use crate::faulty::FaultyStore;
use crate::life::Life;
use crate::operator::LedgerProbe;
use crate::rng::Rng;
use crate::routes::{UPLOAD_BYTES_MAX, UPLOAD_TIME_MAX, UPLOADS_MAX};
use crate::upstream::Upstream;
use crate::world::World;

/// One life of one replica.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its life.
    pub life: Arc<Life>,
    layer: GateLayer,
    /// Its configuration, by number.
    edition: usize,
    /// The gate and what is behind it.
    pub service: GateService<Upstream>,
}

/// All replicas.
#[derive(Debug)]
pub struct Fleet {
    world: Arc<World>,
    nodes: Mutex<Vec<Node>>,
    lives: AtomicU32,
}

impl Fleet {
    /// Starts all of them.
    pub fn start(world: &Arc<World>) -> Self {
        let nodes = (0..world.plan.nodes).map(|number| build(world, &new_life(number, 1), None, 0)).collect();
        Self { world: Arc::clone(world), nodes: Mutex::new(nodes), lives: AtomicU32::new(2) }
    }

    /// The number of one of them.
    pub fn any_number(&self) -> usize {
        usize::try_from(self.world.rng(|rng| rng.below(self.world.plan.nodes as u64))).unwrap_or(0)
    }

    /// The number of some configuration.
    pub fn any_edition(&self) -> usize {
        usize::try_from(self.world.rng(|rng| rng.below(self.world.plan.editions.len() as u64))).unwrap_or(0)
    }

    fn nodes(&self) -> MutexGuard<'_, Vec<Node>> {
        self.nodes.lock().expect("nothing that holds this lock panics")
    }

    /// One of them, by number. It may be dead.
    pub fn node(&self, number: usize) -> Node {
        self.nodes()[number].clone()
    }

    /// One of them at random. It may be dead.
    pub fn any(&self) -> Node {
        self.node(self.any_number())
    }

    fn restart(&self, number: usize) {
        let lives = self.lives.fetch_add(1, Ordering::Relaxed);
        let before = self.node(number).edition;
        let edition = if self.world.strikes(Fault::Rolled) { self.any_edition() } else { before };
        let node = build(&self.world, &new_life(number, lives), None, edition);
        self.world.note(None, format!("{} starts with configuration {edition}", node.life.name));
        self.nodes()[number] = node;
    }

    /// A running replica follows another configuration from the next request on.
    pub fn reload(&self, number: usize, edition: usize) {
        let Node { life, layer, .. } = self.node(number);
        let gate = self.lives.fetch_add(1, Ordering::Relaxed);
        self.world.note(None, format!("{} is told to follow configuration {edition}, as /{gate}", life.name));
        // Closed before the next one is asked, as the gateway does it.
        layer.close();
        let next = build(&self.world, &life, Some(gate), edition);
        self.nodes()[number] = next;
    }

    /// Whether a replica could be told something now.
    pub fn is_well(&self, number: usize) -> bool {
        let life = self.node(number).life;
        !life.is_dead() && life.frozen_until() <= Instant::now()
    }

    /// Everything goes down now and then, the wall clock is set meanwhile, and the machine may have been started again.
    pub async fn blackouts(self: Arc<Self>) {
        let Some(uptime) = self.world.uptime.clone() else { return };
        loop {
            sleep(self.world.rng(|rng| rng.millis(3000, 40_000))).await;
            if !self.world.strikes(Fault::ClockWhileDown) {
                continue;
            }
            self.world.note(None, "everything goes down");
            uptime.close();
            for number in 0..self.world.plan.nodes {
                self.world.crash(&self.node(number).life);
            }
            if self.world.rng(|rng| rng.chance(500)) {
                self.world.clock.start_machine();
            }
            crate::weather::set_clock(&self.world);
            sleep(self.world.rng(|rng| rng.millis(100, 30_000))).await;
            uptime.open();
            self.world.note(None, "the store is opened again");
        }
    }

    /// Kills replicas now and then.
    pub async fn crashes(self: Arc<Self>) {
        loop {
            sleep(self.world.rng(|rng| rng.millis(2000, 25_000))).await;
            if self.world.strikes(Fault::Crash) {
                self.world.crash(&self.any().life);
            }
        }
    }

    /// Starts dead replicas again, after a while.
    pub async fn restarts(self: Arc<Self>) {
        loop {
            sleep(self.world.rng(|rng| rng.millis(100, 5000))).await;
            self.revive();
        }
    }

    fn revive(&self) {
        if self.world.is_dark() {
            return;
        }
        for number in 0..self.world.plan.nodes {
            if self.node(number).life.is_dead() {
                self.restart(number);
            }
        }
    }

    /// Lets replicas stand still now and then, often for longer than a lease.
    pub async fn freezes(self: Arc<Self>) {
        loop {
            sleep(self.world.rng(|rng| rng.millis(2000, 25_000))).await;
            if self.world.strikes(Fault::Freeze) {
                let life = self.any().life;
                let time = self.world.rng(|rng| rng.millis(200, 25_000));
                self.world.note(None, format!("{} stands still for {time:?}", life.name));
                life.freeze(time);
            }
        }
    }

    /// Everything runs again, with one configuration.
    pub fn heal(&self) {
        if let Some(uptime) = &self.world.uptime {
            uptime.open();
        }
        self.revive();
        let edition = self.any_edition();
        for number in 0..self.world.plan.nodes {
            if self.node(number).edition != edition {
                self.reload(number, edition);
            }
        }
        for node in self.nodes().iter() {
            node.life.unfreeze();
        }
    }
}

fn new_life(number: usize, lives: u32) -> Arc<Life> {
    Arc::new(Life::new(format!("n{number}.{lives}")))
}

/// Builds one replica from the production gate, with this configuration; `gate` tells those of one life apart.
fn build(world: &Arc<World>, life: &Arc<Life>, gate: Option<u32>, edition: usize) -> Node {
    let name = gate.map_or_else(|| life.name.clone(), |gate| format!("{}/{gate}", life.name));
    let store = Arc::new(FaultyStore::new(Arc::clone(world), Arc::clone(life), name));
    let nonces = Mutex::new(Rng::new(world.rng(Rng::draw)));
    let (waiters, waiters_per_key) = world.plan.max_waiters;
    let gate = GateLayer::builder(Arc::clone(&store) as Arc<dyn ClaimStore>)
        .name("shop")
        .clock(world.clock_for_gate())
        .entropy(move || nonces.lock().expect("drawing does not panic").draw())
        .probe(LedgerProbe::new(Arc::clone(world)))
        .max_in_flight(world.plan.max_in_flight)
        .max_waiters(waiters)
        .max_waiters_per_key(waiters_per_key)
        .max_body_bytes_in_memory(UPLOADS_MAX * UPLOAD_BYTES_MAX)
        .max_body_time(UPLOAD_TIME_MAX);
    let configuration = &world.plan.editions[edition];
    let mut gate = configuration.tell(gate);
    for endpoint in &world.plan.endpoints {
        gate = gate.route(configuration.route(*endpoint, world.plan.has_mixed_leases()));
    }
    let layer = gate.build().expect("the simulated routes are safe");
    let upstream = Upstream::new(Arc::clone(world), Arc::clone(life), store);
    let service = layer.layer(upstream);
    Node { life: Arc::clone(life), layer, edition, service }
}

//! The replicas: built from the production gate, killed and started again. A new life knows nothing of the one before.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use semel_contract::identity::Identity;
use semel_gate::{GateLayer, GateService};
use semel_store::ClaimStore;
use tokio::time::sleep;
use tower::Layer;

use crate::faults::Fault;
use crate::faulty::FaultyStore;
use crate::life::Life;
use crate::operator::LedgerProbe;
use crate::plan::Recognised;
use crate::rng::Rng;
use crate::upstream::Upstream;
use crate::world::World;

/// One life of one replica.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its life.
    pub life: Arc<Life>,
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
        let nodes = (0..world.plan.nodes).map(|number| build(world, &format!("n{number}"), 1)).collect();
        Self { world: Arc::clone(world), nodes: Mutex::new(nodes), lives: AtomicU32::new(2) }
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
        let number = self.world.rng(|rng| rng.below(self.world.plan.nodes as u64));
        self.node(usize::try_from(number).unwrap_or(0))
    }

    fn restart(&self, number: usize) {
        let lives = self.lives.fetch_add(1, Ordering::Relaxed);
        let node = build(&self.world, &format!("n{number}"), lives);
        self.world.note(None, format!("{} starts", node.life.name));
        self.nodes()[number] = node;
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

    /// Everything runs again.
    pub fn heal(&self) {
        self.revive();
        for node in self.nodes().iter() {
            node.life.unfreeze();
        }
    }
}

/// Builds one replica from the production gate.
fn build(world: &Arc<World>, name: &str, life: u32) -> Node {
    let life = Arc::new(Life::new(format!("{name}.{life}")));
    let store = Arc::new(FaultyStore::new(Arc::clone(world), Arc::clone(&life)));
    let identity = match world.plan.recognised {
        Recognised::ByProxy => Identity::Trusted("x-user".to_owned()),
        Recognised::ByCredential => Identity::Authorization,
    };
    let nonces = Mutex::new(Rng::new(world.rng(Rng::draw)));
    let (waiters, waiters_per_key) = world.plan.waiters_max;
    let mut gate = GateLayer::builder(Arc::clone(&store) as Arc<dyn ClaimStore>)
        .identity(identity)
        .clock(world.clock_for_gate())
        .entropy(move || nonces.lock().expect("drawing does not panic").draw())
        .probe(LedgerProbe::new(Arc::clone(world)))
        .max_in_flight(world.plan.detached_max)
        .max_waiters(waiters)
        .max_waiters_per_key(waiters_per_key);
    for endpoint in &world.plan.endpoints {
        gate = gate.route(endpoint.route(world.plan.has_mixed_leases()));
    }
    let layer = gate.build().expect("the simulated routes are safe");
    let upstream = Upstream::new(Arc::clone(world), Arc::clone(&life), store);
    Node { life, service: layer.layer(upstream) }
}

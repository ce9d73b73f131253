//! The brokers: the production code behind its own routers, killed, stopped for a while and started again. What a dead one was asked
//! is never answered, and its streams break off.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum_core::body::Body;
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use semel_broker::{Broker, Identity, MeshWish, Parts, Role, Running, Settings, listen_router};
use semel_delivery::Entropy;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::time::{sleep, timeout};
use tower::ServiceExt;

use crate::broker::mesh::{MESH, Mesh, QUIET, member, token, topic};
use crate::broker::plan::Home;
use crate::delivery_faults::DeliveryFault;
use crate::life::Life;
use crate::rng::Rng;
use crate::stage::lock;
use crate::way::{Ground as _, Way};

/// How long somebody waits for an answer.
const PATIENCE: Duration = Duration::from_secs(25);

/// One life of one broker.
#[derive(Clone)]
pub(super) struct Server {
    pub(super) way: Way<Mesh>,
    pub(super) broker: Broker,
    router: Router,
    /// Dropped with the last of it, and before that when it dies.
    running: Arc<Mutex<Option<Running>>>,
}

/// An answer.
pub(super) struct Told {
    pub(super) status: StatusCode,
    pub(super) body: Value,
}

impl Server {
    fn crash(&self, why: &str) {
        self.way.crash(why);
        drop(lock(&self.running).take());
    }

    /// Begins a request. Nothing where no answer comes.
    pub(super) async fn open(&self, request: Request<Body>) -> Option<axum::response::Response> {
        let life = &self.way.life;
        life.awake_or_dead().await.then_some(())?;
        let answered = timeout(PATIENCE, self.router.clone().oneshot(request));
        tokio::select! {
            biased;
            () = life.died() => None,
            answered = answered => answered.ok()?.ok(),
        }
    }

    /// Asks, and reads the whole answer.
    pub(super) async fn ask(
        &self,
        (method, path): (Method, &str),
        who: &str,
        key: Option<&str>,
        body: &str,
    ) -> Option<Told> {
        let mesh = &self.way.world;
        let patience = match mesh.strikes(DeliveryFault::Impatient) {
            true => mesh.rng(|rng| rng.millis(0, 30)),
            false => PATIENCE,
        };
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("authorization", format!("Bearer {}", token(who)))
            .header("content-type", "application/json");
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let request = request.body(Body::from(body.to_owned())).expect("a request can be built");
        // Whoever does not wait closes the connection, and the work goes on without it.
        let response = timeout(patience, self.open(request)).await.ok()??;
        let (parts, body) = response.into_parts();
        let bytes = timeout(PATIENCE, body.collect()).await.ok()?.ok()?.to_bytes();
        if mesh.strikes(DeliveryFault::AnswerLost) {
            return None;
        }
        if mesh.strikes(DeliveryFault::SlowAnswer) {
            sleep(mesh.rng(|rng| rng.millis(100, 6000))).await;
        }
        let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        Some(Told { status: parts.status, body })
    }
}

/// All brokers.
pub(super) struct Servers {
    mesh: Arc<Mesh>,
    all: Mutex<Vec<Server>>,
    lives: AtomicU32,
    /// Held by whoever starts brokers: a file has one owner.
    starting: tokio::sync::Mutex<()>,
}

impl Servers {
    /// Starts all of them, and makes the mesh.
    pub(super) async fn start(mesh: &Arc<Mesh>) -> Self {
        let count = match mesh.plan.home {
            Home::File => 1,
            Home::Shared(count) => count,
        };
        let servers = Self {
            mesh: Arc::clone(mesh),
            all: Mutex::default(),
            lives: AtomicU32::new(1),
            starting: tokio::sync::Mutex::default(),
        };
        for _ in 0..count {
            let server = servers.begin().await;
            lock(&servers.all).push(server);
        }
        servers.make_mesh().await;
        servers
    }

    /// One of them at random. It may be dead.
    pub(super) fn any(&self) -> Server {
        let all = lock(&self.all);
        self.mesh.rng(|rng| rng.pick(&all).clone())
    }

    async fn make_mesh(&self) {
        let broker = self.any().broker;
        let world = "a database without faults does it";
        broker.put_mesh(MESH, MeshWish { bytes_max: None, search: false }).await.expect(world);
        let plan = &self.mesh.plan;
        for number in 0..plan.members {
            let (name, role) = (member(number), if number == 0 { Role::Owner } else { Role::Member });
            let hash = semel_contract::hex::hex(&Sha256::digest(token(&name).as_bytes()));
            broker.put_member(MESH, &name, role, &[hash]).await.expect(world);
        }
        broker.put_topic(MESH, QUIET, "subscribers").await.expect(world);
        for number in 0..plan.topics {
            // The last topic takes messages of every member.
            let publish = if number + 1 == plan.topics { "members" } else { "subscribers" };
            broker.put_topic(MESH, &topic(number), publish).await.expect(world);
            for subscriber in 0..plan.members {
                broker.put_subscription(MESH, &topic(number), &member(subscriber)).await.expect(world);
            }
        }
    }

    /// Starts a broker, as often as it takes.
    async fn begin(&self) -> Server {
        loop {
            let life = Arc::new(Life::new(format!("b{}", self.lives.fetch_add(1, Ordering::Relaxed))));
            self.mesh.note(None, format!("{} starts", life.name));
            if let Some(server) = self.build(&life).await {
                return server;
            }
            life.kill();
            self.mesh.note(None, format!("{} cannot start", life.name));
            sleep(Duration::from_millis(900)).await;
        }
    }

    async fn build(&self, life: &Arc<Life>) -> Option<Server> {
        let mesh = &self.mesh;
        let way = Way {
            world: Arc::clone(mesh),
            life: Arc::clone(life),
            base: mesh.reopen().await,
            connections: Arc::default(),
        };
        let numbers = Mutex::new(Rng::new(mesh.rng(Rng::draw)));
        let mut parts = Parts::new(Arc::new(way.clone()));
        parts.clock = Arc::clone(&mesh.clock) as _;
        parts.entropy = Entropy::from_fn(move || {
            let mut numbers = lock(&numbers);
            u128::from(numbers.draw()) << 64 | u128::from(numbers.draw())
        });
        let plan = &mesh.plan;
        let settings = Settings { budget: plan.budget, poll: plan.poll, ..Settings::default() };
        let broker = tokio::select! {
            biased;
            () = life.died() => return None,
            opened = Broker::open(parts, settings) => opened.ok()?,
        };
        let running = Arc::new(Mutex::new(Some(broker.start())));
        let router = listen_router(broker.clone(), Identity::Tokens, None);
        Some(Server { way, broker, router, running })
    }

    fn end_broken(&self) {
        let all: Vec<Server> = lock(&self.all).clone();
        for server in all.iter().filter(|server| self.mesh.is_broken() && !server.way.life.is_dead()) {
            server.crash("ends: its file cannot be relied on");
        }
        // One that died at a write has not been taken apart yet.
        all.iter()
            .filter(|server| server.way.life.is_dead())
            .for_each(|server| drop(lock(&server.running).take()));
    }

    async fn revive(&self) {
        let _alone = self.starting.lock().await;
        let is_dead = |(at, server): (usize, &Server)| server.way.life.is_dead().then_some(at);
        let dead: Vec<usize> = lock(&self.all).iter().enumerate().filter_map(is_dead).collect();
        for at in dead {
            let server = self.begin().await;
            lock(&self.all)[at] = server;
        }
    }

    /// All of them end.
    pub(super) fn end_all(&self) {
        let all: Vec<Server> = lock(&self.all).clone();
        all.iter().filter(|server| !server.way.life.is_dead()).for_each(|server| server.crash("ends"));
    }

    /// Kills brokers now and then.
    pub(super) async fn crashes(self: Arc<Self>) {
        loop {
            sleep(self.mesh.rng(|rng| rng.millis(1000, 15_000))).await;
            if self.mesh.strikes(DeliveryFault::Crash) {
                let server = self.any();
                if !server.way.life.is_dead() {
                    server.crash("crashes");
                }
            }
        }
    }

    /// Starts dead brokers again, after a while.
    pub(super) async fn restarts(self: Arc<Self>) {
        loop {
            sleep(self.mesh.rng(|rng| rng.millis(100, 6000))).await;
            self.end_broken();
            self.revive().await;
        }
    }

    /// Lets brokers stand still now and then.
    pub(super) async fn freezes(self: Arc<Self>) {
        loop {
            sleep(self.mesh.rng(|rng| rng.millis(1000, 20_000))).await;
            if self.mesh.strikes(DeliveryFault::Freeze) {
                let life = self.any().way.life;
                let time = self.mesh.rng(|rng| rng.millis(200, 40_000));
                self.mesh.note(None, format!("{} stands still for {time:?}", life.name));
                life.freeze(time);
            }
        }
    }

    /// Everything runs again.
    pub(super) async fn heal(&self) {
        self.end_broken();
        self.revive().await;
        lock(&self.all).iter().for_each(|server| server.way.life.unfreeze());
    }
}

//! A gateway in this process, before a scripted service, and clients that speak plain TCP.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use semel_contract::identity::Identity;
use semel_contract::key::Presence;
use semel_contract::profile::{Profile, presets};
use semel_gate::{GateBuilder, GateLayer, Route};
use semel_gateway::{AccessLog, Callers, Gateway, Limits, Peers, Plan, Upstream as Behind};
use semel_http::Cores;
use semel_store::ClaimStore;
use semel_store::memory::MemoryStore;
use tokio::net::TcpListener;

pub(crate) use crate::client::{Answer, Client, keyed, post};
use crate::upstream::Upstream;

/// A gateway that runs.
pub(crate) struct World {
    pub(crate) gateway: Gateway,
    pub(crate) address: SocketAddr,
    pub(crate) store: Arc<MemoryStore>,
}

/// What a test wants otherwise.
pub(crate) struct Wish {
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) identity: Identity,
    pub(crate) peers: Peers,
    pub(crate) limits: Limits,
    pub(crate) behind: Behind,
    pub(crate) profile: Profile,
    pub(crate) tls: Option<semel_gateway::Certificates>,
    pub(crate) cors: Option<semel_gateway::Cors>,
    pub(crate) log: AccessLog,
    pub(crate) traces: Option<semel_gateway::Traces>,
    pub(crate) lease: Duration,
    pub(crate) gate: fn(GateBuilder) -> GateBuilder,
    /// Cores of its own; without any, it runs in the runtime of the test.
    pub(crate) cores: Option<NonZeroUsize>,
}

impl Wish {
    pub(crate) fn behind(url: &str) -> Self {
        let mut behind = Behind::at(url.parse().unwrap());
        behind.timeout = Duration::from_secs(5);
        behind.connect_timeout = Duration::from_secs(1);
        let mut profile = presets::ietf();
        profile.key.presence = Presence::Optional;
        Self {
            store: Arc::new(MemoryStore::new()),
            identity: "authorization".parse().unwrap(),
            peers: Peers::default(),
            limits: Limits::default(),
            behind,
            profile,
            tls: None,
            cors: None,
            log: AccessLog::off(),
            traces: None,
            lease: Duration::from_secs(30),
            gate: |gate| gate,
            cores: None,
        }
    }

    pub(crate) fn plan(self) -> Plan {
        let callers = Callers::new(&self.identity, self.peers.clone()).unwrap();
        let trusted = match &self.identity {
            Identity::Trusted(name) => vec![(name.parse().unwrap(), self.peers)],
            _ => Vec::new(),
        };
        let store: Arc<dyn ClaimStore> = self.store;
        let route = Route::any().lease(self.lease).deadline(Duration::from_secs(20)).profile(self.profile);
        let gate = (self.gate)(GateLayer::builder(store).identity(callers).route(route)).build().unwrap();
        Plan {
            gate,
            upstream: self.behind,
            tls: self.tls,
            limits: self.limits,
            trusted,
            cors: self.cors,
            log: self.log,
            traces: self.traces,
        }
    }

    pub(crate) async fn start(self) -> World {
        let store = Arc::clone(&self.store);
        let cores = self.cores.map(|count| Cores::start(count, || Box::pin(async {})).unwrap());
        let gateway = match cores {
            Some(cores) => Gateway::on(cores, self.plan()).unwrap(),
            None => Gateway::new(self.plan()).unwrap(),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = gateway.clone();
        tokio::spawn(async move { serving.serve(listener).await });
        World { gateway, address, store }
    }
}

/// A gateway with everything as usual.
pub(crate) async fn before(upstream: &Upstream) -> World {
    Wish::behind(&upstream.url()).start().await
}

impl World {
    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.address).await
    }

    /// One request on a connection of its own.
    pub(crate) async fn ask(&self, request: impl AsRef<[u8]>) -> Answer {
        self.client().await.ask(request).await
    }
}

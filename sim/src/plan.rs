//! What a seed decides before anything happens: how many machines, which routes, which faults, how often.

use crate::delivery_faults::DeliveryFault;
use crate::edition::{Edition, May, Recognised};
use crate::faults::{Fault, Rates, Swarm};
use crate::part::Part;
use crate::planted::Bug;
use crate::rng::Rng;
use crate::routes::Endpoint;

/// What somebody asked for.
#[derive(Clone, Debug)]
pub struct Options {
    /// The engine.
    pub part: Part,
    /// The seed.
    pub seed: u64,
    /// Which faults may happen.
    pub swarm: Swarm,
    /// At least so many steps.
    pub steps_min: usize,
    /// A bug that is built in on purpose, to see that it is found.
    pub planted: Option<Bug>,
    /// Faults of the gate that happen as often as they can.
    pub with: Vec<Fault>,
    /// The same for the delivery engines.
    pub with_delivery_faults: Vec<DeliveryFault>,
}

impl Options {
    /// The usual run of a seed, on the gate.
    pub fn new(seed: u64) -> Self {
        Self::of(Part::Gate, seed)
    }

    /// The usual run of a seed, on this engine.
    pub fn of(part: Part, seed: u64) -> Self {
        Self {
            part,
            seed,
            swarm: Swarm::Mixed,
            steps_min: 500,
            planted: None,
            with: Vec::new(),
            with_delivery_faults: Vec::new(),
        }
    }

    /// The command that runs the same again.
    pub fn command(&self) -> String {
        let mut command =
            format!("cargo run -p semel-sim -- --part {} --seed {}", self.part.name(), self.seed);
        if self.swarm != Swarm::Mixed {
            command += &format!(" --profile {}", self.swarm.name());
        }
        if self.steps_min != Self::new(0).steps_min {
            command += &format!(" --steps {}", self.steps_min);
        }
        let faults = self.with.iter().map(|fault| fault.name());
        for name in faults.chain(self.with_delivery_faults.iter().map(|fault| fault.name())) {
            command += &format!(" --with {name}");
        }
        if let Some(bug) = self.planted {
            command += &format!(" --planted {}", bug.name());
        }
        command
    }
}

/// Whether somebody looks after unknown outcomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operated {
    /// Nobody does: they stay.
    No,
    /// An operator resolves them.
    Yes,
}

/// What was decided.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What was asked for.
    pub options: Options,
    /// How often each fault happens.
    pub rates: Rates,
    /// Replicas.
    pub nodes: usize,
    /// Different callers.
    pub people: usize,
    /// The routes in use.
    pub endpoints: Vec<Endpoint>,
    /// The hosts behind the gate.
    pub hosts: usize,
    /// The configurations that its replicas have one after another.
    pub editions: Vec<Edition>,
    /// Whether the store is embedded in the one process that has it.
    pub is_embedded: bool,
    /// Whether somebody looks after unknown outcomes.
    pub operated: Operated,
    /// Requests that one replica runs at a time.
    pub max_in_flight: usize,
    /// Requests that wait at one replica, in all and for one key.
    pub max_waiters: (usize, usize),
    /// Logical requests in each of the two phases.
    pub intents: usize,
    /// The longest pause between two new logical requests, in milliseconds.
    pub gap_millis: u64,
}

impl Plan {
    /// Draws everything.
    pub fn draw(options: &Options, rng: &mut Rng) -> Self {
        let mut rates = Rates::draw(options.swarm, rng);
        rates.ask_for(&options.with);
        let mut endpoints: Vec<Endpoint> =
            Endpoint::ALL.iter().copied().filter(|_| rng.chance(600)).collect();
        if endpoints.len() < 3 {
            endpoints = vec![Endpoint::Hold, Endpoint::Probe, Endpoint::Rerun];
        }
        let hosts = if rates.has(Fault::TwoHosts) { 2 } else { 1 };
        let first = Edition::first(rng, hosts);
        let is_changed = rates.has(Fault::Reloaded) || rates.has(Fault::Rolled);
        let is_embedded = rng.chance(300);
        let nodes = if is_embedded { 1 } else { usize::try_from(rng.between(1, 4)).unwrap_or(1) };
        let may = May {
            change_hosts: hosts == 1,
            change_identity: !rates.has(Fault::Rotated),
            change_often: is_embedded,
        };
        let editions = if is_changed { Edition::draw(first, may, rng) } else { vec![first] };
        let operated = if rng.chance(800) { Operated::Yes } else { Operated::No };
        Self {
            options: options.clone(),
            rates,
            nodes,
            people: usize::try_from(rng.between(1, 3)).unwrap_or(1),
            endpoints,
            hosts,
            editions,
            is_embedded,
            operated,
            max_in_flight: usize::try_from(rng.between(4, 10)).unwrap_or(4),
            max_waiters: (6, usize::try_from(rng.between(1, 4)).unwrap_or(1)),
            intents: usize::try_from(rng.between(42, 50)).unwrap_or(42),
            gap_millis: *rng.pick(&[150, 600, 1500, 2500]),
        }
    }

    /// Whether routes have different leases.
    pub fn has_mixed_leases(&self) -> bool {
        self.rates.has(Fault::MixedLeases)
    }

    /// Whether a new credential makes another caller.
    pub fn is_hashed(&self) -> bool {
        self.editions.iter().all(|edition| edition.recognised == Recognised::ByCredential)
    }

    /// Whether one key at two endpoints is one key, in some configuration.
    pub fn shares_endpoints(&self) -> bool {
        self.editions.iter().any(Edition::shares_endpoints)
    }

    /// Whether nothing in this run can make a holder lose its lease.
    pub fn is_healthy(&self) -> bool {
        use crate::faults::Family::{Client, Clock, Node, Operator, Store, Upstream};
        let disturbs = |fault: &Fault| match fault.family() {
            Store | Node | Clock => true,
            Upstream | Client | Operator => false,
        };
        self.options.planted.is_none()
            && !Fault::ALL.iter().filter(|f| disturbs(f)).any(|f| self.rates.has(*f))
    }

    /// One line that says what kind of run this is.
    pub fn describe(&self) -> String {
        let endpoints: Vec<&str> = self.endpoints.iter().map(|endpoint| endpoint.name()).collect();
        format!(
            "{} nodes{}, {} people at {} hosts, configurations {:?}, operated {:?}, routes {}, faults {}",
            self.nodes,
            if self.is_embedded { " with its own store" } else { "" },
            self.people,
            self.hosts,
            self.editions,
            self.operated,
            endpoints.join(" "),
            self.rates.names().join(" ")
        )
    }
}

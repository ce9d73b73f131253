//! One run: faults, then quiet, then a long pause in which records expire, then all of it once more. Everything happens
//! in one thread, in virtual time, from one seed.

use std::sync::Arc;
use std::time::Duration;

use semel_contract::decide::Standing;
use semel_contract::time::millis_of;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::client::{Clients, Intent, Upload};
use crate::coverage::Met;
use crate::faults::Fault;
use crate::fleet::Fleet;
use crate::operator::Operator;
use crate::part::Part;
use crate::plan::{Operated, Options};
use crate::report::{EFFECTS_MIN, Report};
use crate::routes::{CAP, Endpoint, RETRY_WINDOW};
use crate::weather;
use crate::world::{Owner, World};

/// How long it takes until a healed fleet has nothing left to do: leases, late windows, background settlements.
const SETTLING: Duration = Duration::from_secs(400);
/// So many ask again long after a change of the configuration.
const LONG_AFTER: usize = 12;
/// A pause in which every record expires.
const LONG_PAUSE: Duration = Duration::from_secs(4800);

/// Runs a seed once.
pub fn run(options: &Options) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without threads can be built");
    runtime.block_on(async {
        match options.part {
            Part::Gate => simulate(options).await,
            Part::Outbox => crate::outbox::simulate(options).await,
            Part::Relay => crate::relay::simulate(options).await,
            Part::Broker => crate::broker::simulate(options).await,
        }
    })
}

/// Runs a seed twice. Two runs that differ are a failure of their own.
///
/// # Errors
/// Where the two runs part.
pub fn run_twice(options: &Options) -> Result<Report, String> {
    let (one, two) = (run(options), run(options));
    match one.log().first_difference(two.log()) {
        None if one.hash == two.hash => Ok(one),
        difference => Err(format!("seed {} does not repeat itself: {difference:?}", options.seed)),
    }
}

async fn simulate(options: &Options) -> Report {
    let world = Arc::new(World::new(options));
    let fleet = Arc::new(Fleet::start(&world));
    let operator = Arc::new(Operator::new(&world));
    let clients = Arc::new(Clients::new(&world, &fleet, &operator));
    let mut story = Story { clients, past: Vec::new(), next: 0, old: 0 };
    tokio::select! {
        biased;
        () = world.failed() => {}
        () = story.tell() => {}
    }
    world.end();
    let effects = world.ledger().uses();
    Report::of(options, &world, effects)
}

/// What happens in a run, from its first request to its last check.
struct Story {
    clients: Arc<Clients>,
    past: Vec<Intent>,
    next: usize,
    /// Keys up to this one were first used before the long pause.
    old: usize,
}

impl Story {
    fn world(&self) -> &Arc<World> {
        &self.clients.world
    }

    /// What goes on around the clients in a phase.
    fn surroundings(&self) -> Vec<JoinHandle<()>> {
        let Clients { world, fleet, operator, .. } = &*self.clients;
        let mut around = vec![
            tokio::spawn(Arc::clone(fleet).crashes()),
            tokio::spawn(Arc::clone(fleet).restarts()),
            tokio::spawn(Arc::clone(fleet).freezes()),
            tokio::spawn(Arc::clone(&self.clients).reloads()),
            tokio::spawn(Arc::clone(fleet).blackouts()),
            tokio::spawn(Arc::clone(operator).sweeps()),
            tokio::spawn(weather::outages(Arc::clone(world))),
            tokio::spawn(weather::clocks(Arc::clone(world))),
        ];
        if world.plan.operated == Operated::Yes {
            around.push(tokio::spawn(Arc::clone(operator).resolves()));
        }
        around
    }

    async fn tell(&mut self) {
        let steps_min = self.world().plan.options.steps_min;
        self.phase(steps_min / 2).await;
        sleep(LONG_PAUSE).await;
        self.phase(steps_min).await;
        self.clients.check_bounds().await;
        while self.world().ledger().uses() < EFFECTS_MIN || self.world().steps() < steps_min {
            self.launch();
            self.clients.done().await;
        }
        sleep(SETTLING).await;
        self.world().check_settled();
    }

    /// Requests and faults, then quiet until everything is settled.
    async fn phase(&mut self, steps: usize) {
        self.world().set_quiet(false);
        let around = self.surroundings();
        self.old = self.next;
        let mut launched = 0;
        while launched < self.world().plan.intents || self.world().steps() < steps {
            self.launch();
            launched += 1;
            let gap = self.world().plan.gap_millis;
            sleep(self.world().rng(|rng| rng.millis(0, gap))).await;
        }
        sleep(self.world().rng(|rng| rng.millis(0, 20_000))).await;
        self.world().set_quiet(true);
        self.clients.fleet.heal();
        self.clients.done().await;
        sleep(SETTLING).await;
        if self.world().plan.editions.len() > 1 {
            // By now nobody claims in a former form any more; what was recorded in one is still known.
            self.retry_long_after();
            self.clients.done().await;
            sleep(SETTLING).await;
        }
        around.iter().for_each(JoinHandle::abort);
        self.world().check_settled();
        self.world().check_acknowledged();
    }

    fn pursue(&self, intent: Intent) {
        self.clients.on_the_side(Arc::clone(&self.clients).pursue(intent));
    }

    /// Somebody wants something.
    fn launch(&mut self) {
        let intent = match self.again() {
            Some(intent) => intent,
            None => self.new_intent(),
        };
        if self.world().strikes(Fault::LateRetry)
            && let Some(old) = self.recent()
        {
            self.pursue(old);
        }
        if self.world().strikes(Fault::Altered) {
            self.pursue(self.altered(&intent));
        }
        self.past.push(intent.clone());
        self.pursue(intent);
    }

    /// A request that was sent before, and may be sent again.
    fn recent(&self) -> Option<Intent> {
        let world = self.world();
        let is_over = |old: &&Intent| {
            world.clock.true_time().millis_since(old.first_sent) > millis_of(RETRY_WINDOW) / 2
                || old.generation != world.current_use(old.slot)
        };
        let recent: Vec<&Intent> = self.past.iter().filter(|old| !is_over(old)).collect();
        (!recent.is_empty()).then(|| world.rng(|rng| (*rng.pick(&recent)).clone()))
    }

    /// Some who have long had their answer ask once more, and some come for the first time.
    fn retry_long_after(&mut self) {
        for _ in 0..LONG_AFTER {
            if let Some(old) = self.recent() {
                self.pursue(old);
            }
        }
        for _ in 0..LONG_AFTER / 4 {
            self.launch();
        }
    }

    /// Another request under the same key: another body, or another path.
    fn altered(&self, intent: &Intent) -> Intent {
        let body = format!("{}-altered", intent.body);
        match self.world().rng(|rng| rng.chance(500)) {
            true => Intent { body, ..intent.clone() },
            false => Intent { item: "other", ..intent.clone() },
        }
    }

    fn new_intent(&mut self) -> Intent {
        self.next += 1;
        let world = self.world();
        let plan = &world.plan;
        let person = usize::try_from(world.rng(|rng| rng.below(plan.people as u64))).unwrap_or(0);
        let endpoint = world.rng(|rng| *rng.pick(&plan.endpoints));
        // Some keys are used by several people, or at several routes, for different things.
        let shared = world.rng(|rng| rng.chance(200)) && self.next > self.old + 1;
        let key = if shared { self.next - 1 } else { self.next };
        let host = usize::try_from(world.rng(|rng| rng.below(plan.hosts as u64))).unwrap_or(0);
        if host > 0 {
            world.count(Met::Fault, Fault::TwoHosts.name());
        }
        // Where endpoints share their keys, each has keys of its own here: two requests under one key are another story.
        let place = if plan.shares_endpoints() { endpoint as usize } else { 0 };
        let key = format!("00000000-0000-4000-80{place:02}-{key:012}");
        let slot = world.slot(Owner { person, rotation: 0, host }, endpoint, &key);
        let ahead = endpoint == Endpoint::Aged && world.strikes(Fault::ClockAhead);
        let stale = endpoint == Endpoint::Guarded && world.strikes(Fault::StaleAction);
        let wrong = Duration::from_secs(if ahead { 300 } else { 0 });
        Intent {
            slot,
            generation: world.current_use(slot),
            body: format!("e{}", self.next),
            item: "usual",
            first_sent: world.clock.true_time().plus(wrong),
            age: if stale { 2 * CAP } else { Duration::ZERO },
            takes_its_time: false,
            upload: Upload::Usual,
        }
    }

    /// An old key for a new purpose, or an old request that comes too late where that is refused.
    fn again(&mut self) -> Option<Intent> {
        let world = Arc::clone(self.world());
        let old = world
            .rng(|rng| (!self.past.is_empty() && rng.chance(250)).then(|| rng.pick(&self.past).clone()))?;
        let slot = world.slot_of(old.slot);
        let (entries, now) = world.peek_slot(old.slot);
        let is_over = world.clock.true_time().millis_since(old.first_sent) > 4_000_000;
        let mut standings = entries.iter().map(|entry| Standing::of(Some(&entry.record), now));
        // Under whichever name it still stands, if it does.
        match standings.find(|standing| *standing != Standing::Expired).unwrap_or(Standing::Absent) {
            Standing::Absent | Standing::Expired if is_over && old.generation == slot.generation => {
                if slot.endpoint == Endpoint::Aged && world.rng(|rng| rng.chance(500)) {
                    return Some(old);
                }
                world.use_again(old.slot);
                self.next += 1;
                let body = format!("e{}", self.next);
                Some(Intent {
                    generation: old.generation + 1,
                    body,
                    first_sent: world.clock.true_time(),
                    ..old
                })
            }
            Standing::Absent
            | Standing::Expired
            | Standing::Claimed
            | Standing::Abandoned
            | Standing::Unknown
            | Standing::Settled
            | Standing::Unkept
            | Standing::Released
            | Standing::Sealed => None,
        }
    }
}

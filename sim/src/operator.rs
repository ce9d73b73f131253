//! Those who look after the store: an operator who resolves unknown outcomes by the ledger, the probe that does the same
//! for the gate, and the sweeper. They say only what is true, and "not applied" only when it can no longer change.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use semel_contract::decide::Standing;
use semel_contract::profile::{Sweep, SweepWhen};
use semel_contract::record::State;
use semel_gate::{Finding, Probe, sweep_now};
use semel_store::{Answer, ClaimStore, Entry, Filter, Resolution, Resolved};
use tokio::time::sleep;

use crate::coverage::Met;
use crate::faults::Fault;
use crate::faulty::FaultyStore;
use crate::handling::words;
use crate::life::Life;
use crate::log::SlotNumber;
use crate::world::{Invariant, World};

/// What the ledger says about the request that a record is about: the answer of its effect, if there is one.
fn truth(world: &World, slot: SlotNumber, entry: &Entry) -> Option<Answer> {
    let send = entry.about.request_id.parse().ok()?;
    let ledger = world.ledger();
    let (used, effect) = ledger.effect_of_send(slot, send).map(|(used, effect)| (used, effect.clone()))?;
    drop(ledger);
    let who = world.slot_of(slot).who();
    Some(Answer {
        status: 201,
        headers: vec![("x-tag".to_owned(), b"looked up".to_vec())].into(),
        body: words(world, used, &effect.name, who, effect.fence),
        outcome_unknown: false,
    })
}

/// Answers the gate's question from the ledger.
#[derive(Debug)]
pub struct LedgerProbe {
    world: Arc<World>,
}

impl LedgerProbe {
    /// A probe of this world's ledger.
    pub fn new(world: Arc<World>) -> Self {
        Self { world }
    }

    async fn look(&self, entry: &Entry) -> Finding {
        let world = &self.world;
        world.count(Met::Decision, "probe");
        let slot = world.number_of(&entry.id);
        sleep(world.rng(|rng| rng.millis(1, 200))).await;
        let found = slot.and_then(|slot| truth(world, slot, entry));
        let is_over = world.peek(&entry.id).1 >= entry.late_until;
        let finding = match found {
            Some(answer) if world.rng(|rng| rng.chance(700)) => Finding::Applied(Some(answer)),
            Some(_) => Finding::Applied(None),
            None if is_over => Finding::NotApplied,
            // It says what it sees, though what it sees may change before anybody acts on it.
            None if world.strikes(Fault::SlowProbe) => {
                sleep(world.rng(|rng| rng.millis(1000, 20_000))).await;
                Finding::NotApplied
            }
            None => Finding::Unknown,
        };
        world.note(slot, format!("the probe says {}", finding_name(&finding)));
        finding
    }
}

fn finding_name(finding: &Finding) -> &'static str {
    match finding {
        Finding::Applied(Some(_)) => "applied, with its answer",
        Finding::Applied(None) => "applied",
        Finding::NotApplied => "not applied",
        Finding::Unknown => "unknown",
    }
}

impl Probe for LedgerProbe {
    fn ask<'a>(&'a self, entry: &'a Entry) -> Pin<Box<dyn Future<Output = Finding> + Send + 'a>> {
        Box::pin(self.look(entry))
    }
}

/// Whether a record may be, or become, an unknown outcome.
fn is_open(entry: &Entry) -> bool {
    match entry.record.state {
        State::Claimed | State::Unknown => true,
        State::Settled | State::Unkept | State::Released | State::Sealed => false,
    }
}

/// One who resolves and sweeps.
#[derive(Debug)]
pub struct Operator {
    world: Arc<World>,
    store: FaultyStore,
}

impl Operator {
    /// An operator at a desk that never fails.
    pub fn new(world: &Arc<World>) -> Self {
        let life = Arc::new(Life::immortal("operator"));
        let store = FaultyStore::new(Arc::clone(world), life, "operator".to_owned());
        Self { world: Arc::clone(world), store }
    }

    /// Resolves what is unknown, now and then; when it is quiet, everything.
    pub async fn resolves(self: Arc<Self>) {
        loop {
            sleep(self.world.rng(|rng| rng.millis(1000, 20_000))).await;
            let listed = self.store.list(&Filter { limit: 1000, ..Filter::default() }).await;
            for entry in listed.unwrap_or_default().iter().filter(|entry| is_open(entry)) {
                if self.world.is_quiet() || self.world.rng(|rng| rng.chance(300)) {
                    self.consider(entry).await;
                }
            }
        }
    }

    async fn consider(&self, entry: &Entry) {
        let Ok((Some(entry), now)) = self.store.look_up(&entry.id).await else { return };
        if Standing::of(Some(&entry.record), now) != Standing::Unknown {
            return;
        }
        let Some(slot) = self.world.number_of(&entry.id) else { return };
        let may_say_not = now >= entry.late_until;
        let resolution = match truth(&self.world, slot, &entry) {
            Some(answer) if self.world.rng(|rng| rng.chance(700)) => Resolution::Applied(Some(answer)),
            Some(_) => Resolution::Applied(None),
            None if may_say_not => Resolution::NotApplied,
            None if self.world.strikes(Fault::TooEarly) => return self.too_early(&entry).await,
            None => return,
        };
        let lifetime = self.world.slot_of(slot).endpoint.profile().lifetime;
        // A resolution that did not arrive is made again at the next round.
        let _ = self
            .store
            .resolve(&entry.id, entry.record.fence, resolution, &lifetime, "operator", "the ledger says so")
            .await;
    }

    /// Says "not applied" before its time, which must be refused. Asks the store itself, so that no delay can make it right.
    async fn too_early(&self, entry: &Entry) {
        let world = &self.world;
        let (Some(slot), (Some(entry), now)) = (world.number_of(&entry.id), world.peek(&entry.id)) else {
            return;
        };
        let lifetime = world.slot_of(slot).endpoint.profile().lifetime;
        if world.is_dark()
            || now >= entry.late_until
            || Standing::of(Some(&entry.record), now) != Standing::Unknown
        {
            return;
        }
        let fence = entry.record.fence;
        let resolved =
            world.store_resolve("operator", &entry.id, fence, Resolution::NotApplied, &lifetime, "a guess");
        if !matches!(resolved, Resolved::TooEarly { .. }) {
            world.fail(
                Invariant::I1,
                Some(slot),
                format!("too early a resolution was answered {resolved:?}"),
            );
        }
    }

    /// Sweeps now and then, with the production sweeper.
    pub async fn sweeps(self: Arc<Self>) {
        let sweep = Sweep { when: SweepWhen::Every(Duration::from_secs(60)), batch: 7, log: false };
        loop {
            sleep(self.world.rng(|rng| rng.millis(5000, 60_000))).await;
            // A sweep that did not succeed is made again at the next round.
            let _ = sweep_now(&self.store, &sweep, Duration::ZERO).await;
        }
    }
}

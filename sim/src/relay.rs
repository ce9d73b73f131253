//! The relay under simulation: the production engine, worker and store, one process on its own file or several on one
//! database, and an upstream that keeps a ledger. The upstream's total is the sum of what was accepted, whatever crashes,
//! is lost or comes late.

mod check;
pub mod plan;
mod replicas;
mod senders;
pub mod service;
mod upstream;
pub mod world;

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::delivery_faults::DeliveryFault;
use crate::plan::Options;
use crate::relay::plan::LATE_WINDOW;
use crate::relay::replicas::Replicas;
use crate::relay::senders::Senders;
use crate::relay::world::RelayWorld;
use crate::report::{EFFECTS_MIN, Report};
use crate::stage::{Invariant, lock};
use crate::weather;

/// How often it is looked whether everything has come to rest, and how long apart.
const LOOKS: usize = 120;
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// So many more requests are sent at most where a run was too small.
const MORE_MAX: usize = 1000;

/// Plays one seed.
pub(crate) async fn simulate(options: &Options) -> Report {
    let world = Arc::new(RelayWorld::new(options));
    world.set_quiet(true);
    let replicas = Arc::new(Replicas::start(&world).await);
    let senders = Arc::new(Senders::new(&world, &replicas));
    tokio::select! {
        biased;
        () = world.failed() => {}
        () = tell(&senders) => {}
    }
    world.end();
    let effects = *lock(&world.checked);
    Report::of(options, &world, effects)
}

async fn tell(senders: &Arc<Senders>) {
    let world = &senders.world;
    let steps_min = world.plan.options.steps_min;
    phase(senders, steps_min / 2).await;
    phase(senders, steps_min).await;
    for _ in 0..MORE_MAX {
        let is_enough = *lock(&world.checked) >= EFFECTS_MIN && world.steps() >= steps_min;
        if is_enough || world.failure().is_some() {
            return;
        }
        senders.submit();
        senders.done().await;
        rest(senders).await;
        world.check_everything().await;
    }
}

/// Entries and faults, then quiet until everything is applied or given up.
async fn phase(senders: &Arc<Senders>, steps: usize) {
    let world = &senders.world;
    world.set_quiet(false);
    let around = surroundings(senders);
    let mut launched = 0;
    // While nothing can be written nothing is a step, and more would be submitted than can be written afterwards.
    let most = world.plan.requests * 3;
    while launched < world.plan.requests || (world.steps() < steps && launched < most) {
        senders.submit();
        launched += 1;
        sleep(world.rng(|rng| rng.millis(0, world.plan.gap_millis))).await;
    }
    sleep(world.rng(|rng| rng.millis(0, 60_000))).await;
    world.set_quiet(true);
    senders.replicas.heal().await;
    senders.done().await;
    rest(senders).await;
    around.iter().for_each(JoinHandle::abort);
    world.check_everything().await;
}

fn surroundings(senders: &Arc<Senders>) -> Vec<JoinHandle<()>> {
    let (world, replicas) = (&senders.world, &senders.replicas);
    let clocks = [DeliveryFault::ClockForward, DeliveryFault::ClockBack, DeliveryFault::ClockSteps];
    let rates = clocks.map(|fault| (world.plan.rates.of(fault), fault.name()));
    let away = (world.plan.rates.of(DeliveryFault::StoreAway), DeliveryFault::StoreAway.name());
    vec![
        tokio::spawn(Arc::clone(replicas).crashes()),
        tokio::spawn(Arc::clone(replicas).restarts()),
        tokio::spawn(Arc::clone(replicas).freezes()),
        tokio::spawn(Arc::clone(senders).operates()),
        tokio::spawn(Arc::clone(senders).logs_in()),
        tokio::spawn(weather::clock(Arc::clone(world), rates)),
        tokio::spawn(weather::outage(Arc::clone(world), away)),
    ]
}

/// Waits until nothing is left that could still be done. Whatever a person has to do for that is done.
async fn rest(senders: &Arc<Senders>) {
    let world = &senders.world;
    for _ in 0..LOOKS {
        senders.replicas.heal().await;
        senders.set_right().await;
        let left = world.left();
        if left.is_some_and(|left| left.pending + left.parked + left.in_doubt + left.blocked == 0) {
            // What is still on its way arrives.
            return sleep(LATE_WINDOW * 2).await;
        }
        sleep(LOOK_EVERY).await;
    }
    world.fail(Invariant::I15, None, format!("it never comes to rest after the faults: {:?}", world.left()));
}

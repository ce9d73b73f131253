//! The relay under simulation: the production engine, worker and store, one process on its own file or several on one
//! database, and an upstream that keeps a ledger. The upstream's total is the sum of what was accepted, whatever crashes,
//! is lost or comes late.

mod check;
mod line;
pub mod plan;
mod replicas;
mod senders;
pub mod service;
pub mod works;

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::mishap::Mishap;
use crate::plan::Options;
use crate::relay::plan::LATE_WINDOW;
use crate::relay::replicas::Replicas;
use crate::relay::senders::Senders;
use crate::relay::works::Works;
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
    let works = Arc::new(Works::new(options));
    works.set_quiet(true);
    let replicas = Arc::new(Replicas::start(&works).await);
    let senders = Arc::new(Senders::new(&works, &replicas));
    tokio::select! {
        biased;
        () = works.failed() => {}
        () = tell(&senders) => {}
    }
    works.end();
    let effects = *lock(&works.checked);
    Report::of(options, &works, effects)
}

async fn tell(senders: &Arc<Senders>) {
    let works = &senders.works;
    let steps_min = works.plan.options.steps_min;
    phase(senders, steps_min / 2).await;
    phase(senders, steps_min).await;
    for _ in 0..MORE_MAX {
        let is_enough = *lock(&works.checked) >= EFFECTS_MIN && works.steps() >= steps_min;
        if is_enough || works.failure().is_some() {
            return;
        }
        senders.submit();
        senders.done().await;
        rest(senders).await;
        works.check_everything().await;
    }
}

/// Entries and faults, then quiet until everything is applied or given up.
async fn phase(senders: &Arc<Senders>, steps: usize) {
    let works = &senders.works;
    works.set_quiet(false);
    let around = surroundings(senders);
    let mut launched = 0;
    // While nothing can be written nothing is a step, and more would be submitted than can be written afterwards.
    let most = works.plan.requests * 3;
    while launched < works.plan.requests || (works.steps() < steps && launched < most) {
        senders.submit();
        launched += 1;
        sleep(works.rng(|rng| rng.millis(0, works.plan.gap_millis))).await;
    }
    sleep(works.rng(|rng| rng.millis(0, 60_000))).await;
    works.set_quiet(true);
    senders.replicas.heal().await;
    senders.done().await;
    rest(senders).await;
    around.iter().for_each(JoinHandle::abort);
    works.check_everything().await;
}

fn surroundings(senders: &Arc<Senders>) -> Vec<JoinHandle<()>> {
    let (works, replicas) = (&senders.works, &senders.replicas);
    let clocks = [Mishap::ClockForward, Mishap::ClockBack, Mishap::ClockSteps];
    let rates = clocks.map(|mishap| (works.plan.rates.of(mishap), mishap.name()));
    let away = (works.plan.rates.of(Mishap::StoreAway), Mishap::StoreAway.name());
    vec![
        tokio::spawn(Arc::clone(replicas).crashes()),
        tokio::spawn(Arc::clone(replicas).restarts()),
        tokio::spawn(Arc::clone(replicas).freezes()),
        tokio::spawn(Arc::clone(senders).operates()),
        tokio::spawn(Arc::clone(senders).logs_in()),
        tokio::spawn(weather::clock(Arc::clone(works), rates)),
        tokio::spawn(weather::outage(Arc::clone(works), away)),
    ]
}

/// Waits until nothing is left that could still be done. Whatever a person has to do for that is done.
async fn rest(senders: &Arc<Senders>) {
    let works = &senders.works;
    for _ in 0..LOOKS {
        senders.replicas.heal().await;
        senders.set_right().await;
        let left = works.left();
        if left.is_some_and(|left| left.pending + left.parked + left.in_doubt + left.blocked == 0) {
            // What is still on its way arrives.
            return sleep(LATE_WINDOW * 2).await;
        }
        sleep(LOOK_EVERY).await;
    }
    works.fail(Invariant::I15, None, format!("it never comes to rest after the faults: {:?}", works.left()));
}

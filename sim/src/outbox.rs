//! The outbox under simulation: the production engine and its production store in memory, one process that crashes, a
//! network that loses, delays and repeats, and a server that keeps a ledger. A message that was acknowledged takes effect
//! once, in the order of its lane, or is given up where a person can see it.

mod check;
mod disk;
mod node;
mod operator;
mod people;
pub mod plan;
pub mod server;
mod wire;
pub mod yard;

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::mishap::Mishap;
use crate::outbox::node::House;
use crate::outbox::people::People;
use crate::outbox::yard::Yard;
use crate::plan::Options;
use crate::report::{EFFECTS_MIN, Report};
use crate::stage::Invariant;
use crate::weather;

/// A pause after which every message that waited is too old.
const LONG_PAUSE: Duration = Duration::from_secs(3 * 3600);
/// How often it is looked whether everything has come to rest, and how long apart.
const LOOKS: usize = 240;
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// So many more messages are sent at most where a run was too small.
const MORE_MAX: usize = 1000;

/// Plays one seed.
pub(crate) async fn simulate(options: &Options) -> Report {
    let yard = Arc::new(Yard::new(options));
    let house = Arc::new(House::new(&yard));
    let people = Arc::new(People::new(&yard, &house));
    tokio::select! {
        biased;
        () = yard.failed() => {}
        () = tell(&people) => {}
    }
    yard.end();
    let effects = yard.server().delivered();
    Report::of(options, &yard, effects)
}

async fn tell(people: &Arc<People>) {
    let yard = &people.yard;
    people.house.start().await;
    let steps_min = yard.plan.options.steps_min;
    phase(people, steps_min / 2).await;
    sleep(LONG_PAUSE).await;
    phase(people, steps_min).await;
    for _ in 0..MORE_MAX {
        let is_enough = yard.server().delivered() >= EFFECTS_MIN && yard.steps() >= steps_min;
        if is_enough || yard.failure().is_some() {
            break;
        }
        people.intend();
        people.done().await;
        rest(people).await;
    }
    yard.check_everything();
}

/// Messages and faults, then quiet until everything is delivered or given up.
async fn phase(people: &Arc<People>, steps: usize) {
    let yard = &people.yard;
    yard.set_quiet(false);
    let around = surroundings(people);
    let mut launched = 0;
    // While nobody starts the daemon nothing is a step, and people would go on for hours.
    let most = yard.plan.messages * 4;
    while launched < yard.plan.messages || (yard.steps() < steps && launched < most) {
        people.intend();
        launched += 1;
        sleep(yard.rng(|rng| rng.millis(0, yard.plan.gap_millis))).await;
    }
    sleep(yard.rng(|rng| rng.millis(0, 60_000))).await;
    yard.set_quiet(true);
    people.house.heal().await;
    people.done().await;
    rest(people).await;
    around.iter().for_each(JoinHandle::abort);
    yard.check_everything();
}

fn surroundings(people: &Arc<People>) -> Vec<JoinHandle<()>> {
    let (yard, house) = (&people.yard, &people.house);
    let clocks = [Mishap::ClockForward, Mishap::ClockBack, Mishap::ClockSteps];
    let rates = clocks.map(|mishap| (yard.plan.rates.of(mishap), mishap.name()));
    vec![
        tokio::spawn(Arc::clone(house).crashes()),
        tokio::spawn(Arc::clone(house).restarts()),
        tokio::spawn(Arc::clone(house).freezes()),
        tokio::spawn(Arc::clone(people).operates()),
        tokio::spawn(Arc::clone(people).logs_in()),
        tokio::spawn(weather::clock(Arc::clone(yard), rates)),
    ]
}

/// Waits until nothing is left that could still be sent. Whatever a person has to do for that is done.
async fn rest(people: &Arc<People>) {
    let yard = &people.yard;
    for _ in 0..LOOKS {
        people.house.heal().await;
        people.set_right().await;
        if yard.live() == 0 {
            // What is still on its way arrives.
            return sleep(plan::ON_ITS_WAY_MAX).await;
        }
        sleep(LOOK_EVERY).await;
    }
    for row in yard.rows(None).iter().filter(|row| row.status.is_live()) {
        let (id, status) = (&row.client_message_id, row.status.name());
        let due = row.next_attempt_at;
        yard.note(
            None,
            format!("{id} of {} is {status} after {} attempts, due {due}", row.lane, row.attempts),
        );
    }
    let why = format!("{} messages never come to an end after the faults", yard.live());
    yard.fail(Invariant::I15, None, why);
}

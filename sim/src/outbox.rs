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
pub mod world;

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::delivery_faults::DeliveryFault;
use crate::outbox::node::House;
use crate::outbox::people::People;
use crate::outbox::world::OutboxWorld;
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
    let world = Arc::new(OutboxWorld::new(options));
    let house = Arc::new(House::new(&world));
    let people = Arc::new(People::new(&world, &house));
    tokio::select! {
        biased;
        () = world.failed() => {}
        () = tell(&people) => {}
    }
    world.end();
    let effects = world.server().delivered();
    Report::of(options, &world, effects)
}

async fn tell(people: &Arc<People>) {
    let world = &people.world;
    people.house.start().await;
    let steps_min = world.plan.options.steps_min;
    phase(people, steps_min / 2).await;
    sleep(LONG_PAUSE).await;
    phase(people, steps_min).await;
    for _ in 0..MORE_MAX {
        let is_enough = world.server().delivered() >= EFFECTS_MIN && world.steps() >= steps_min;
        if is_enough || world.failure().is_some() {
            break;
        }
        people.intend();
        people.done().await;
        rest(people).await;
    }
    world.check_everything();
}

/// Messages and faults, then quiet until everything is delivered or given up.
async fn phase(people: &Arc<People>, steps: usize) {
    let world = &people.world;
    world.set_quiet(false);
    let around = surroundings(people);
    let mut launched = 0;
    // While nobody starts the daemon nothing is a step, and people would go on for hours.
    let most = world.plan.messages * 4;
    while launched < world.plan.messages || (world.steps() < steps && launched < most) {
        people.intend();
        launched += 1;
        sleep(world.rng(|rng| rng.millis(0, world.plan.gap_millis))).await;
    }
    sleep(world.rng(|rng| rng.millis(0, 60_000))).await;
    world.set_quiet(true);
    people.house.heal().await;
    people.done().await;
    rest(people).await;
    around.iter().for_each(JoinHandle::abort);
    world.check_everything();
}

fn surroundings(people: &Arc<People>) -> Vec<JoinHandle<()>> {
    let (world, house) = (&people.world, &people.house);
    let clocks = [DeliveryFault::ClockForward, DeliveryFault::ClockBack, DeliveryFault::ClockSteps];
    let rates = clocks.map(|fault| (world.plan.rates.of(fault), fault.name()));
    vec![
        tokio::spawn(Arc::clone(house).crashes()),
        tokio::spawn(Arc::clone(house).restarts()),
        tokio::spawn(Arc::clone(house).freezes()),
        tokio::spawn(Arc::clone(people).operates()),
        tokio::spawn(Arc::clone(people).logs_in()),
        tokio::spawn(weather::clock(Arc::clone(world), rates)),
    ]
}

/// Waits until nothing is left that could still be sent. Whatever a person has to do for that is done.
async fn rest(people: &Arc<People>) {
    let world = &people.world;
    for _ in 0..LOOKS {
        people.house.heal().await;
        people.set_right().await;
        if world.live() == 0 {
            // What is still on its way arrives.
            return sleep(plan::ON_ITS_WAY_MAX).await;
        }
        sleep(LOOK_EVERY).await;
    }
    for row in world.rows(None).iter().filter(|row| row.status.is_live()) {
        let (id, status) = (&row.client_message_id, row.status.name());
        let due = row.next_attempt_at;
        world.note(
            None,
            format!("{id} of {} is {status} after {} attempts, due {due}", row.lane, row.attempts),
        );
    }
    let why = format!("{} messages never come to an end after the faults", world.live());
    world.fail(Invariant::I15, None, why);
}

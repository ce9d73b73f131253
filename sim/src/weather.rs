//! What happens to everybody at once: the store goes away, the wall clock is set.

use std::ops::Deref;
use std::sync::Arc;

use tokio::time::sleep;

use crate::faults::Fault;
use crate::stage::Stage;
use crate::world::World;

/// A jump: anything over a minute, which is no correction any more.
const JUMP_MILLIS_MIN: u64 = 60_001;
/// How far small corrections may set the clock back in all: within what callers' clocks may differ.
const BACK_MILLIS_MAX: i64 = 50_000;

/// Sends a gate's store away now and then.
pub async fn outages(world: Arc<World>) {
    let rate = (world.plan.rates.of(Fault::StoreAway), Fault::StoreAway.name());
    outage(world, rate).await;
}

/// Sends the store away now and then, at this rate.
pub async fn outage<S>(stage: Arc<S>, (rate, name): (u32, &'static str))
where
    S: Deref<Target = Stage> + Send + Sync,
{
    loop {
        sleep(stage.rng(|rng| rng.millis(2000, 25_000))).await;
        if stage.happens(rate, name) {
            let time = stage.rng(|rng| rng.millis(200, 40_000));
            stage.send_store_away(time);
        }
    }
}

/// Sets the wall clock of a gate's machines now and then.
pub async fn clocks(world: Arc<World>) {
    let faults = [Fault::ClockForward, Fault::ClockBack, Fault::ClockSteps];
    let rates = faults.map(|fault| (world.plan.rates.of(fault), fault.name()));
    clock(world, rates).await;
}

/// Sets the wall clock to anything, or right.
pub fn set_clock(stage: &Stage) {
    let (creep, _) = stage.clock.wrong_millis();
    let by = signed(stage.rng(|rng| rng.between(0, 200_000_000)));
    let jump = match stage.rng(|rng| rng.below(4)) {
        0 => 0,
        1 => -by,
        _ => by,
    };
    stage.clock.set_wrong_millis((creep, jump));
    stage.note(None, format!("the wall clock is wrong by {} ms", creep + jump));
}

/// Sets the wall clock now and then, at these rates: ahead, back, by a little.
pub async fn clock<S>(stage: Arc<S>, [forward, back, steps]: [(u32, &'static str); 3])
where
    S: Deref<Target = Stage> + Send + Sync,
{
    let strikes = |(rate, name)| stage.happens(rate, name);
    loop {
        sleep(stage.rng(|rng| rng.millis(2000, 25_000))).await;
        let before = stage.clock.wrong_millis();
        let (mut creep, mut jump) = before;
        if strikes(forward) {
            jump = signed(stage.rng(|rng| rng.between(JUMP_MILLIS_MIN, 200_000_000)));
        } else if strikes(back) {
            if stage.rng(|rng| rng.chance(500)) {
                jump = -signed(stage.rng(|rng| rng.between(JUMP_MILLIS_MIN, 200_000_000)));
            } else {
                creep = (creep - signed(stage.rng(|rng| rng.between(1, 20_000)))).max(-BACK_MILLIS_MAX);
            }
        } else if strikes(steps) {
            // Below a minute a step is taken for a correction and is believed.
            let step = signed(stage.rng(|rng| rng.between(1, 59_000)));
            creep += if stage.rng(|rng| rng.chance(500)) { step } else { -step };
        } else if stage.rng(|rng| rng.chance(400)) {
            jump = 0;
        }
        if before != (creep, jump) {
            stage.clock.set_wrong_millis((creep, jump));
            stage.note(None, format!("the wall clock is wrong by {} ms", creep + jump));
        }
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(0)
}

//! What happens to everybody at once: the store goes away, the wall clock is set.

use std::sync::Arc;

use tokio::time::sleep;

use crate::faults::Fault;
use crate::world::World;

/// How far small corrections may set the clock back in all: within what callers' clocks may differ.
const BACK_MILLIS_MAX: i64 = 50_000;

/// Sends the store away now and then.
pub async fn outages(world: Arc<World>) {
    loop {
        sleep(world.rng(|rng| rng.millis(2000, 25_000))).await;
        if world.strikes(Fault::StoreAway) {
            let time = world.rng(|rng| rng.millis(200, 40_000));
            world.send_store_away(time);
        }
    }
}

/// Sets the wall clock now and then.
pub async fn clocks(world: Arc<World>) {
    loop {
        sleep(world.rng(|rng| rng.millis(2000, 25_000))).await;
        let before = world.clock.wrong_millis();
        let (mut creep, mut jump) = before;
        if world.strikes(Fault::ClockForward) {
            jump = signed(world.rng(|rng| rng.between(120_000, 200_000_000)));
        } else if world.strikes(Fault::ClockBack) {
            if world.rng(|rng| rng.chance(500)) {
                jump = -signed(world.rng(|rng| rng.between(120_000, 200_000_000)));
            } else {
                creep = (creep - signed(world.rng(|rng| rng.between(1, 20_000)))).max(-BACK_MILLIS_MAX);
            }
        } else if world.strikes(Fault::ClockSteps) {
            // Below a minute a step is taken for a correction and is believed.
            let step = signed(world.rng(|rng| rng.between(1, 59_000)));
            creep += if world.rng(|rng| rng.chance(500)) { step } else { -step };
        } else if world.rng(|rng| rng.chance(400)) {
            jump = 0;
        }
        if before != (creep, jump) {
            world.clock.set_wrong_millis((creep, jump));
            world.note(None, format!("the wall clock is wrong by {} ms", creep + jump));
        }
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(0)
}

//! Lets contestants take turns: A B C, A B C, … so that a slow minute of the machine is everybody's.

use std::thread;
use std::time::Duration;

use semel_testbed::failure::Failure;

use super::Asked;
use super::contestant::{Contestant, Sends};
use super::load::{self, REPLAYED_KEYS, Shot};
use super::result::{Outcome, Row, Sample};
use super::targets::Target;
use super::world::{Running, World};

/// Below this part of nginx, the plain proxy tells that the machine is busy with something else.
pub(crate) const QUIET_AT_LEAST: f64 = 0.7;
/// Between two runs, so that what one left to the disk is less the next one's burden.
const PAUSE: Duration = Duration::from_millis(200);

/// Starts all, plays the rounds and judges them. Rounds whose ratios do not agree are played a second time, and count no more.
/// A contestant that cannot start is absent, with its reason.
pub(crate) fn play(
    world: &mut World,
    asked: &Asked,
    contestants: &[Contestant],
    targets: &[Target],
) -> Result<Outcome, Failure> {
    let mut outcome = Outcome::default();
    let mut running = Vec::new();
    for contestant in contestants {
        match world.start(contestant).and_then(|started| filled(started, contestant, asked)) {
            Ok(started) => {
                outcome.ready.push((contestant.name.to_owned(), started.ready_after));
                running.push((contestant, started));
            }
            Err(Failure::Interrupted(signal)) => return Err(Failure::Interrupted(signal)),
            Err(failure) => {
                eprintln!("xtask: {} cannot take part: {failure}", contestant.name);
                outcome.absent.push((contestant.name.to_owned(), failure.to_string()));
            }
        }
    }
    let row = |contestant: &Contestant| Row {
        name: contestant.name.to_owned(),
        durability: contestant.durability().to_owned(),
        samples: vec![],
    };
    outcome.rows = running.iter().map(|(contestant, _)| row(contestant)).collect();
    play_rounds(world, asked, &running, &mut outcome, 0)?;
    if outcome.is_unsteady(targets) && !asked.quick {
        eprintln!("xtask: the ratios of the rounds do not agree: played again");
        outcome.rows.iter_mut().for_each(|row| row.samples.clear());
        play_rounds(world, asked, &running, &mut outcome, asked.rounds())?;
        let still = if outcome.is_unsteady(targets) { ", and do not agree either" } else { "" };
        outcome
            .notes
            .push(format!("The ratios of a first run did not agree; these are the second's{still}."));
    }
    outcome.judge(targets);
    Ok(outcome)
}

/// All rounds, their numbers from `first` on: keys follow from them.
fn play_rounds(
    world: &World,
    asked: &Asked,
    running: &[(&Contestant, Running)],
    outcome: &mut Outcome,
    first: usize,
) -> Result<(), Failure> {
    for round in first..first + asked.rounds() {
        for (place, (contestant, started)) in running.iter().enumerate() {
            let rate = match contestant.sends {
                Sends::HalfOf(other) => {
                    outcome.row(other).and_then(|row| row.samples.last()).map(|s| s.rate / 2.0)
                }
                _ => None,
            };
            let sample = shoot(world, asked, contestant, started, round, rate)?;
            progress(round - first, asked.rounds(), contestant.name, &sample);
            outcome.rows[place].samples.push(sample);
            thread::sleep(PAUSE);
        }
    }
    Ok(())
}

fn shoot(
    world: &World,
    asked: &Asked,
    contestant: &Contestant,
    running: &Running,
    round: usize,
    rate: Option<f64>,
) -> Result<Sample, Failure> {
    let shot = Shot {
        sends: contestant.sends,
        connections: contestant.connections,
        streams: contestant.streams,
        seconds: asked.seconds(),
        seed: 1000 + round as u64,
        rate,
        keys: keys(asked),
        running,
        folder: world.folder(),
    };
    shot.fire()
}

/// Gives a contestant that replays something to replay.
fn filled(running: Running, contestant: &Contestant, asked: &Asked) -> Result<Running, Failure> {
    if contestant.sends == Sends::Replays {
        load::seed_replays(&running, keys(asked))?;
    }
    Ok(running)
}

fn keys(asked: &Asked) -> u64 {
    if asked.quick { REPLAYED_KEYS / 2 } else { REPLAYED_KEYS }
}

fn progress(round: usize, rounds: usize, name: &str, sample: &Sample) {
    let p99 = sample.p99_ms.map(|ms| format!(", p99 {ms:.1} ms")).unwrap_or_default();
    eprintln!("xtask: round {}/{rounds}  {name:38} {:>8.0}/s{p99}", round + 1, sample.rate);
}

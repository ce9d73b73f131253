//! Seeds, many of them: every promise holds, every run repeats itself, everything that can be met is met, and every
//! planted mistake is found.

use semel_sim::coverage::Coverage;
use semel_sim::faults::{Family, Fault, Swarm};
use semel_sim::plan::Options;
use semel_sim::planted::Bug;
use semel_sim::report::{Report, too_small};
use semel_sim::run::{run, run_twice};
use semel_sim::world::Invariant;

/// How many seeds are played.
const SEEDS: u64 = 240;
/// Every so many of them are played twice here; the program plays all of them twice.
const TWICE_EVERY: u64 = 15;
/// Within so many seeds a planted mistake is found.
const PLANTED_SEEDS: u64 = 50;
/// So many seeds are played under each fault that once broke something.
const SEEDS_OF_ONE_FAULT: u64 = 8;

/// Seeds that once broke a promise, with the swarm that did.
const REGRESSIONS: [(u64, Swarm); 6] = [
    (205, Swarm::Mixed),
    (299, Swarm::Mixed),
    (384, Swarm::Mixed),
    (610, Swarm::Mixed),
    (2559, Swarm::Mixed),
    (2596, Swarm::Mixed),
];

fn assert_held(report: &Report) {
    if let Some(explained) = report.explain() {
        panic!("{explained}");
    }
    if let Some(small) = too_small(report) {
        panic!("seed {}: {small}", report.options.seed);
    }
}

/// Plays seeds and gives back what they met.
fn play(seeds: impl Iterator<Item = u64>) -> Coverage {
    let mut coverage = Coverage::default();
    for seed in seeds {
        let report = run(&Options::new(seed));
        assert_held(&report);
        coverage.add(&report.coverage);
    }
    coverage
}

#[test]
fn every_promise_holds_and_everything_is_met() {
    // Two threads, each with its own seeds: a seed does the same wherever it runs.
    let (even, odd) = std::thread::scope(|scope| {
        let even = scope.spawn(|| play((1..=SEEDS).filter(|seed| seed % 2 == 0)));
        let odd = scope.spawn(|| play((1..=SEEDS).filter(|seed| seed % 2 == 1)));
        (even.join(), odd.join())
    });
    let mut coverage = even.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    coverage.add(&odd.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
    let missing = coverage.missing();
    assert!(missing.is_empty(), "never met in {SEEDS} seeds: {missing:#?}\n{}", coverage.table());
}

#[test]
fn the_simulation_repeats_itself() {
    for seed in (1..=SEEDS).step_by(usize::try_from(TWICE_EVERY).unwrap_or(1)) {
        run_twice(&Options::new(seed)).unwrap_or_else(|difference| panic!("{difference}"));
    }
    let (one, two) = (run(&Options::new(1)), run(&Options::new(2)));
    assert_ne!(one.hash, two.hash, "seeds differ");
}

#[test]
fn every_kind_of_weather_is_stood() {
    for (_, swarm) in Swarm::ALL {
        for seed in 1..=3 {
            assert_held(&run(&Options { swarm: *swarm, ..Options::new(seed) }));
        }
    }
}

#[test]
fn seeds_that_once_failed_hold() {
    for (seed, swarm) in REGRESSIONS {
        assert_held(&run(&Options { swarm, ..Options::new(seed) }));
    }
}

/// The promises that a planted mistake may be found by.
fn broken_by(bug: Bug) -> &'static [Invariant] {
    match bug {
        Bug::FencelessSettle => &[Invariant::I7],
        Bug::WonTwice | Bug::LateDispatch => &[Invariant::I4],
        Bug::LostOnCrash => &[Invariant::I12],
        Bug::ChangedByte => &[Invariant::I2, Invariant::I5],
        Bug::SweptLiveClaim => &[Invariant::I4, Invariant::I8],
        Bug::WallExpiry => &[Invariant::I13],
    }
}

#[test]
fn every_planted_mistake_is_found() {
    for bug in Bug::ALL {
        let options = |seed| Options { planted: Some(*bug), ..Options::new(seed) };
        let failures = (1..=PLANTED_SEEDS).filter_map(|seed| Some((seed, run(&options(seed)).failure?)));
        let mut expected = failures.filter(|(_, failure)| broken_by(*bug).contains(&failure.invariant));
        match expected.next() {
            Some((seed, failure)) => println!("{}: seed {seed}, {failure}", bug.name()),
            None => panic!("{} is not found within {PLANTED_SEEDS} seeds", bug.name()),
        }
    }
}

#[test]
fn faults_that_once_broke_the_gate_no_longer_do() {
    // Each under the faults of one kind alone, so that it strikes often.
    let once = [
        (Fault::ClockSteps, Swarm::Mixed),
        (Fault::ClockForward, Swarm::Only(Family::Clock)),
        (Fault::StaleAction, Swarm::Only(Family::Store)),
        (Fault::MixedLeases, Swarm::Calm),
        (Fault::TimedOut, Swarm::Only(Family::Upstream)),
    ];
    for (fault, swarm) in once {
        for seed in 1..=SEEDS_OF_ONE_FAULT {
            let options = Options { swarm, with: vec![fault], ..Options::new(seed) };
            if let Some(failure) = run(&options).failure {
                panic!("{failure}\nagain: {}", options.command());
            }
        }
    }
}

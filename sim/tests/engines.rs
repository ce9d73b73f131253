//! Seeds on the delivery engines: every promise holds and every run repeats itself. With `SEMEL_SIM_SEEDS=60` or more,
//! everything that can be met is met, too. `cargo xtask sim` plays many more, optimised.

use semel_sim::coverage::{Coverage, Met};
use semel_sim::delivery_faults::DeliveryFault;
use semel_sim::faults::Swarm;
use semel_sim::part::Part;
use semel_sim::plan::Options;
use semel_sim::report::{Report, too_small};
use semel_sim::run::{run, run_twice};

/// How many seeds are played on each engine where `SEMEL_SIM_SEEDS` does not say.
const SEEDS: u64 = 1;
/// So many seeds meet everything that can be met.
const SEEDS_OF_EVERYTHING: u64 = 60;
/// So many of them are played twice here; the program plays all of them twice.
const TWICE: u64 = 1;
const ENGINES: [Part; 3] = [Part::Outbox, Part::Relay, Part::Broker];

/// Seeds that once broke a promise, with the swarm that did.
const REGRESSIONS: [(Part, u64, Swarm); 18] = [
    (Part::Outbox, 5, Swarm::Mixed),
    (Part::Outbox, 17, Swarm::Mixed),
    (Part::Outbox, 1226, Swarm::Mixed),
    (Part::Outbox, 851, Swarm::Mixed),
    (Part::Outbox, 1685, Swarm::Mixed),
    (Part::Outbox, 1814, Swarm::Mixed),
    (Part::Outbox, 20066, Swarm::Mixed),
    (Part::Outbox, 20135, Swarm::Mixed),
    (Part::Relay, 99, Swarm::Mixed),
    (Part::Relay, 127, Swarm::Mixed),
    (Part::Relay, 1212, Swarm::Mixed),
    (Part::Relay, 1500, Swarm::Mixed),
    (Part::Relay, 2301, Swarm::Mixed),
    (Part::Relay, 2385, Swarm::Mixed),
    (Part::Broker, 452, Swarm::Mixed),
    (Part::Broker, 482, Swarm::Mixed),
    (Part::Broker, 663, Swarm::Mixed),
    (Part::Broker, 703, Swarm::Mixed),
];

fn assert_held(report: &Report) {
    if let Some(explained) = report.explain() {
        panic!("{explained}");
    }
    if let Some(small) = too_small(report) {
        panic!("{} seed {}: {small}", report.options.part.name(), report.options.seed);
    }
}

fn seeds() -> u64 {
    std::env::var("SEMEL_SIM_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(SEEDS)
}

fn play(part: Part) -> Coverage {
    let mut coverage = Coverage::default();
    for seed in 1..=seeds() {
        let report = run(&Options::of(part, seed));
        assert_held(&report);
        coverage.add(&report.coverage);
    }
    coverage
}

/// What should have been met on an engine and was not.
fn missing(part: Part, coverage: &Coverage) -> Vec<&'static str> {
    let faults = DeliveryFault::ALL
        .iter()
        .filter(|fault| fault.concerns(part))
        .map(|fault| (Met::Fault, fault.name()));
    let outbox = [
        (Met::Standing, "pending"),
        (Met::Standing, "done"),
        (Met::Decision, "alias"),
        (Met::Decision, "requeue-sealed"),
        (Met::Decision, "requeue-refused"),
        (Met::Word, "done"),
        (Met::Word, "dead"),
        (Met::Word, "aborted"),
        (Met::Word, "possibly-delivered"),
    ];
    let relay = [
        (Met::Decision, "sent"),
        (Met::Decision, "sent-again"),
        (Met::Decision, "resolved"),
        (Met::Word, "applied"),
        (Met::Word, "parked"),
        (Met::Word, "dead"),
        (Met::Word, "released"),
        (Met::Word, "requeued"),
        (Met::Word, "in-doubt"),
        (Met::Word, "resolved"),
        (Met::Word, "blocked"),
    ];
    let broker = [
        (Met::Decision, "stream"),
        (Met::Decision, "gap"),
        (Met::Decision, "acknowledged"),
        (Met::Decision, "subscribed"),
        (Met::Decision, "unsubscribed"),
        (Met::Word, "accepted"),
        (Met::Word, "duplicate"),
        (Met::Word, "sealed"),
        (Met::Word, "reused"),
        (Met::Word, "limited"),
        (Met::Word, "destination-unknown"),
        (Met::Word, "not-subscribed"),
        (Met::Word, "not-subscribed-now"),
    ];
    let states: &[(Met, &'static str)] = match part {
        Part::Outbox => &outbox,
        Part::Broker => &broker,
        Part::Relay | Part::Gate => &relay,
    };
    let expected = faults.chain(states.iter().copied());
    expected.filter(|(met, name)| coverage.of(*met, name) == 0).map(|(_, name)| name).collect()
}

fn assert_holds(part: Part) {
    let coverage = play(part);
    let missing = missing(part, &coverage);
    let is_long = seeds() >= SEEDS_OF_EVERYTHING;
    assert!(!is_long || missing.is_empty(), "never met: {missing:#?}\n{}", coverage.table());
}

#[test]
fn every_promise_of_the_outbox_holds() {
    assert_holds(Part::Outbox);
}

#[test]
fn every_promise_of_the_relay_holds() {
    assert_holds(Part::Relay);
}

#[test]
fn every_promise_of_the_broker_holds() {
    assert_holds(Part::Broker);
}

#[test]
fn the_engines_repeat_themselves() {
    for part in ENGINES {
        for seed in 1..=TWICE {
            run_twice(&Options::of(part, seed)).unwrap_or_else(|difference| panic!("{difference}"));
        }
        let (one, two) = (run(&Options::of(part, 1)), run(&Options::of(part, 2)));
        assert_ne!(one.hash, two.hash, "seeds differ");
    }
}

#[test]
fn the_engines_stand_every_kind_of_weather() {
    for part in ENGINES {
        for (_, swarm) in Swarm::ALL {
            assert_held(&run(&Options { swarm: *swarm, ..Options::of(part, 1) }));
        }
    }
}

#[test]
fn seeds_that_once_failed_hold() {
    for (part, seed, swarm) in REGRESSIONS {
        assert_held(&run(&Options { swarm, ..Options::of(part, seed) }));
    }
}

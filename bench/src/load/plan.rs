//! Which key the next request of a thread carries. Pure: the numbers of keys go in and come out.

use super::keys::mix;
use super::{Args, Load};

/// The plan of one thread among several.
#[derive(Debug)]
pub(super) struct Plan {
    load: Load,
    thread: u64,
    threads: u64,
    keys: u64,
    repeats: u32,
    seed: u64,
    sent: u64,
    fresh: u64,
    /// The last fresh key of this thread, until it is repeated.
    repeatable: Option<u64>,
}

/// A request to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Next {
    /// The number of its key.
    pub(super) number: u64,
    /// Whether its key was not sent before.
    pub(super) is_fresh: bool,
}

impl Plan {
    pub(super) fn new(thread: usize, threads: usize, args: &Args) -> Plan {
        Plan {
            load: args.load,
            thread: thread as u64,
            threads: threads as u64,
            keys: args.keys.max(1),
            repeats: args.repeats,
            seed: args.seed,
            sent: 0,
            fresh: 0,
            repeatable: None,
        }
    }

    /// What is sent next.
    pub(super) fn next(&mut self) -> Next {
        let sent = self.sent;
        self.sent += 1;
        match self.load {
            Load::Fresh => self.fresh(),
            Load::Replay => {
                // A step that shares no factor with the number of keys passes through all of them before it repeats one.
                let step = scatter(self.keys);
                let turn = u128::from(self.thread + sent * self.threads);
                let number = (turn * u128::from(step) % u128::from(self.keys)) as u64;
                Next { number, is_fresh: false }
            }
            Load::Storm => {
                let roll = mix(self.seed ^ 0x57_0a, self.thread + sent * self.threads) % 100;
                match self.repeatable.take_if(|_| roll < u64::from(self.repeats)) {
                    Some(number) => Next { number, is_fresh: false },
                    None => {
                        let next = self.fresh();
                        self.repeatable = Some(next.number);
                        next
                    }
                }
            }
        }
    }

    fn fresh(&mut self) -> Next {
        let number = self.thread + self.fresh * self.threads;
        self.fresh += 1;
        Next { number, is_fresh: true }
    }
}

/// A step near the golden section of `keys` that shares no factor with it.
fn scatter(keys: u64) -> u64 {
    let near = (keys as f64 * 0.618) as u64;
    (near.max(1)..).find(|step| shares_no_factor(*step, keys)).unwrap_or(1)
}

fn shares_no_factor(mut a: u64, mut b: u64) -> bool {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a == 1
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn plans(line: &str) -> Vec<Plan> {
        let line = format!("load --target 127.0.0.1:1 {line}");
        let args = Line::parse_from(line.split_whitespace()).args;
        (0..2).map(|thread| Plan::new(thread, 2, &args)).collect()
    }

    #[test]
    fn fresh_keys_are_never_sent_twice() {
        let mut seen = HashSet::new();
        for mut plan in plans("--load fresh") {
            assert!((0..1000).all(|_| seen.insert(plan.next().number)));
        }
    }

    #[test]
    fn replays_go_through_every_key_that_a_fresh_run_sent() {
        let mut fresh: Vec<u64> = plans("--load fresh")
            .iter_mut()
            .flat_map(|plan| (0..500).map(|_| plan.next().number).collect::<Vec<_>>())
            .collect();
        let mut replayed: Vec<u64> = plans("--load replay --keys 1000")
            .iter_mut()
            .flat_map(|plan| (0..500).map(|_| plan.next().number).collect::<Vec<_>>())
            .collect();
        fresh.sort_unstable();
        replayed.sort_unstable();
        assert_eq!(fresh, replayed);
    }

    #[test]
    fn a_storm_repeats_about_as_many_as_it_should() {
        let mut plan = plans("--load storm --repeats 10").remove(0);
        let sent: Vec<Next> = (0..10_000).map(|_| plan.next()).collect();
        let repeats = sent.iter().filter(|next| !next.is_fresh).count();
        assert!((800..1200).contains(&repeats), "{repeats}");
        // Each repeats the one sent just before it, which is in flight on another connection.
        assert!(sent.windows(2).all(|pair| pair[1].is_fresh || pair[0].number == pair[1].number));
    }
}

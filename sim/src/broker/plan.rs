//! What a seed decides about a run of the broker before anything happens.

use std::time::Duration;

use semel_contract::profile::Rate;

use crate::delivery_faults::{DeliveryFault, Rates};
use crate::plan::Options;
use crate::rng::Rng;

/// Where the broker keeps its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// In a file of its own: one process.
    File,
    /// In a database that so many brokers share.
    Shared(usize),
}

/// What was decided.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What was asked for.
    pub options: Options,
    /// How often each fault happens.
    pub rates: Rates,
    /// Where messages are kept.
    pub home: Home,
    /// Members. The first of them owns the mesh.
    pub members: u64,
    /// Topics.
    pub topics: u64,
    /// Readers; each is one member's.
    pub readers: u64,
    /// New messages of the mesh in a window.
    pub budget: Option<Rate>,
    /// How often brokers look for what nobody told them.
    pub poll: Duration,
    /// Messages in each of the two phases.
    pub messages: usize,
    /// The longest pause between two of them, in milliseconds.
    pub gap_millis: u64,
}

impl Plan {
    /// Draws everything.
    pub fn draw(options: &Options, rng: &mut Rng) -> Self {
        let rates = Rates::draw(options.part, options.swarm, &options.with_delivery_faults, rng);
        let home = match rng.below(10) {
            0..=2 => Home::File,
            _ => Home::Shared(usize::try_from(rng.between(1, 3)).unwrap_or(1)),
        };
        let budget =
            Rate { count: u32::try_from(rng.between(5, 20)).unwrap_or(5), window: Duration::from_secs(10) };
        Self {
            options: options.clone(),
            rates,
            home,
            members: rng.between(2, 4),
            topics: rng.between(1, 2),
            readers: rng.between(2, 5),
            budget: rng.chance(300).then_some(budget),
            poll: *rng.pick(&[Duration::from_millis(500), Duration::from_secs(2), Duration::from_secs(10)]),
            messages: usize::try_from(rng.between(40, 60)).unwrap_or(40),
            gap_millis: *rng.pick(&[50, 400, 2000]),
        }
    }

    /// Whether who is subscribed changes.
    pub fn has_changes(&self) -> bool {
        self.rates.has(DeliveryFault::Subscribed)
    }

    /// One line that says what kind of run this is.
    pub fn describe(&self) -> String {
        format!(
            "{:?}, {} members, {} topics, {} readers, budget {:?}, faults {}",
            self.home,
            self.members,
            self.topics,
            self.readers,
            self.budget,
            self.rates.names().join(" ")
        )
    }
}

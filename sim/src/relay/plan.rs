//! What a seed decides about a run of the relay before anything happens.

use std::time::Duration;

use semel_delivery::relay::debounce::Debounce;
use semel_delivery::relay::policy::Scope;
use semel_delivery::relay::recovery::{Blind, Capability};
use semel_delivery::relay::reduce::Reducer;

use crate::delivery_faults::{DeliveryFault, Rates};
use crate::plan::Options;
use crate::rng::Rng;

/// How late after its sending a write may still be applied, as the target declares it.
pub const LATE_WINDOW: Duration = Duration::from_secs(120);
/// How long one call may take.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// Where the relay keeps its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// In a file of its own: one process.
    File,
    /// In a database that so many replicas share.
    Shared(usize),
}

/// What was decided.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What was asked for.
    pub options: Options,
    /// How often each fault happens.
    pub rates: Rates,
    /// Where entries are kept.
    pub home: Home,
    /// What the upstream offers.
    pub tier: Capability,
    /// Whether its value can be read.
    pub reads: bool,
    /// How entries become one.
    pub reducer: Reducer,
    /// Lanes.
    pub lanes: u64,
    /// Who submits.
    pub principals: u64,
    /// How long background entries wait.
    pub debounce: Debounce,
    /// Entries of one batch.
    pub batch_max: usize,
    /// What a 429 pauses.
    pub limit_scope: Scope,
    /// Requests in each of the two phases.
    pub requests: usize,
    /// The longest pause between two of them, in milliseconds.
    pub gap_millis: u64,
}

fn tier(rng: &mut Rng) -> Capability {
    match rng.below(20) {
        0..=2 => Capability::Key { retention: Duration::from_secs(30 * 86_400) },
        3..=4 => Capability::Key { retention: Duration::from_secs(1200) },
        5..=8 => Capability::Marker,
        9..=12 => Capability::CompareAndSet,
        13..=16 => Capability::ReadBack,
        17..=18 => Capability::Blind(Blind::AtMostOnce),
        _ => Capability::Blind(Blind::AtLeastOnce),
    }
}

impl Plan {
    /// Draws everything.
    pub fn draw(options: &Options, rng: &mut Rng) -> Self {
        let mut rates = Rates::draw(options.part, options.swarm, &options.with_delivery_faults, rng);
        let tier = tier(rng);
        let is_asked = options.with_delivery_faults.contains(&DeliveryFault::Interference);
        // Where others write, less can be said: few runs have them.
        if !(rng.chance(200) || is_asked) || !tier.looks() {
            rates.spare(DeliveryFault::Interference);
        }
        let home = if rng.chance(400) {
            Home::File
        } else {
            Home::Shared(usize::try_from(rng.between(1, 3)).unwrap_or(1))
        };
        let quiet = Duration::from_secs(rng.between(1, 20));
        Self {
            options: options.clone(),
            rates,
            home,
            tier,
            reads: tier.looks() || (matches!(tier, Capability::Key { .. }) && rng.chance(500)),
            reducer: *rng.pick(&[Reducer::Sum, Reducer::Sum, Reducer::Sum, Reducer::Max, Reducer::Last]),
            lanes: rng.between(1, 4),
            principals: rng.between(1, 3),
            debounce: Debounce { quiet, max_wait: quiet * 2 },
            batch_max: *rng.pick(&[2, 5, 1000]),
            limit_scope: *rng.pick(&[Scope::Credential, Scope::Target, Scope::Host]),
            requests: usize::try_from(rng.between(40, 50)).unwrap_or(40),
            gap_millis: *rng.pick(&[1000, 5000, 15_000]),
        }
    }

    /// Whether somebody else writes too.
    pub fn interferes(&self) -> bool {
        self.rates.has(DeliveryFault::Interference)
    }

    /// Whether a batch may be left to a person at all, for this reason. A target that is known by its keys may refuse for
    /// good what it may have applied before: then nobody can look, and nothing else is left to a person there.
    pub fn may_doubt(&self, why: &str) -> bool {
        let is_refused = matches!(self.tier, Capability::Key { .. })
            && self.rates.has(DeliveryFault::Rejected)
            && why.starts_with("refused with 422 ");
        let forgets =
            matches!(self.tier, Capability::Key { retention } if retention < Duration::from_secs(86_400));
        is_refused
            || forgets
            || matches!(self.tier, Capability::Blind(_))
            || self.interferes()
            || self.rates.jumps()
    }

    /// One line that says what kind of run this is.
    pub fn describe(&self) -> String {
        format!(
            "{:?}, {:?}, {:?} of {} lanes, {} principals, batches of {}, faults {}",
            self.home,
            self.tier,
            self.reducer,
            self.lanes,
            self.principals,
            self.batch_max,
            self.rates.names().join(" ")
        )
    }
}

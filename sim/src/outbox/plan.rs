//! What a seed decides about a run of the outbox before anything happens.

use std::time::Duration;

use semel_delivery::HeadPolicy;

use crate::delivery_faults::{DeliveryFault, Rates};
use crate::plan::Options;
use crate::rng::Rng;

/// The longest time that a request is on its way.
pub const ON_ITS_WAY_MAX: Duration = Duration::from_secs(600);
/// The age at which a message is given up.
pub const MAX_AGE: Duration = Duration::from_secs(2400);
/// How long the server knows a key again.
pub const RETENTION: Duration = Duration::from_secs(4 * 3600);

/// What the server knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knows {
    /// Keys: it answers a repeated one from its record, and seals one that was never used.
    Keys,
    /// Nothing: whatever arrives takes effect.
    Nothing,
}

/// By what the server tells callers apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Callers {
    /// By who they are: a new credential is the same caller.
    Verified,
    /// By a hash of their credential: a new credential is another caller.
    Hashed,
}

/// What was decided.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What was asked for.
    pub options: Options,
    /// How often each fault happens.
    pub rates: Rates,
    /// What the server knows.
    pub knows: Knows,
    /// By what it tells callers apart.
    pub callers: Callers,
    /// Whether it forgets keys after the retention that it announces. Only where no clock is wrong: a message is then given
    /// up in time.
    pub forgets: bool,
    /// On whose behalf messages are sent.
    pub principals: u64,
    /// Queues.
    pub lanes: u64,
    /// What happens to a lane whose head was given up.
    pub head: HeadPolicy,
    /// Lanes that are sent from at once.
    pub parallel: usize,
    /// Messages in each of the two phases.
    pub messages: usize,
    /// The longest pause between two of them, in milliseconds.
    pub gap_millis: u64,
}

impl Plan {
    /// Draws everything.
    pub fn draw(options: &Options, rng: &mut Rng) -> Self {
        let mut rates = Rates::draw(options.part, options.swarm, &options.with_delivery_faults, rng);
        let knows = if rng.chance(800) { Knows::Keys } else { Knows::Nothing };
        if knows == Knows::Nothing {
            // Nobody could tell a repeated request from two.
            rates.spare(DeliveryFault::Duplicated);
        }
        Self {
            options: options.clone(),
            forgets: !rates.jumps(),
            rates,
            knows,
            callers: if rng.chance(400) { Callers::Hashed } else { Callers::Verified },
            principals: rng.between(1, 3),
            lanes: rng.between(2, 6),
            head: if rng.chance(500) { HeadPolicy::Skip } else { HeadPolicy::Block },
            parallel: usize::try_from(rng.between(1, 8)).unwrap_or(1),
            messages: usize::try_from(rng.between(60, 75)).unwrap_or(60),
            gap_millis: *rng.pick(&[300, 2000, 6000, 15_000]),
        }
    }

    /// One line that says what kind of run this is.
    pub fn describe(&self) -> String {
        format!(
            "{} principals, {} lanes, {:?} heads, {} at once, a server that knows {:?}{} and callers {:?}, faults {}",
            self.principals,
            self.lanes,
            self.head,
            self.parallel,
            self.knows,
            if self.forgets { " for a while" } else { "" },
            self.callers,
            self.rates.names().join(" ")
        )
    }
}

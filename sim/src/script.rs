//! What the upstream will do with one request, drawn before it does anything: when it acts, what it says, in which order.

use std::time::Duration;

use crate::faults::Fault;
use crate::routes::{DEADLINE, Endpoint};
use crate::world::World;

/// What the caller gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// An answer.
    Answer {
        /// The status.
        status: u16,
        /// What it says of the effect.
        told: Option<&'static str>,
        /// How its body comes.
        body: Piece,
    },
    /// The connection broke off after something was sent.
    Reset,
    /// No answer came in time.
    TimedOut,
    /// The service itself failed.
    Failed,
    /// The handler panicked.
    Panicked,
    /// Nothing, for ever.
    Nothing,
}

/// How a body comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// In one piece.
    Whole,
    /// In one piece that is too large to keep.
    Large,
    /// In two pieces, the second a while later.
    Slow,
    /// It breaks off after the first piece.
    Breaks,
    /// Its second piece never comes.
    Hangs,
}

/// When an effect comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acts {
    /// Not at all.
    Never,
    /// Before anything is said.
    Before,
    /// So long after it was said, within the declared window.
    After(Duration),
}

/// What the upstream will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Script {
    /// How long it works.
    pub work: Duration,
    /// When it acts.
    pub acts: Acts,
    /// What it says.
    pub said: Said,
}

fn answer(status: u16, told: Option<&'static str>) -> Said {
    Said::Answer { status, told, body: Piece::Whole }
}

impl Script {
    /// Draws what will be done with a request at this route.
    pub fn draw(world: &World, endpoint: Endpoint) -> Self {
        let work = if world.strikes(Fault::SlowAnswer) {
            let longest = u64::try_from(DEADLINE.as_millis()).unwrap_or(0) + 1000;
            world.rng(|rng| rng.millis(200, longest))
        } else {
            world.rng(|rng| rng.millis(2, 120))
        };
        match Self::trouble(world, endpoint) {
            Some((acts, said)) => Self { work, acts, said },
            None => Self { work, acts: Acts::Before, said: Self::success(world) },
        }
    }

    /// A request that takes two seconds and succeeds.
    pub fn slow() -> Self {
        Self { work: Duration::from_secs(2), acts: Acts::Before, said: answer(201, None) }
    }

    fn trouble(world: &World, endpoint: Endpoint) -> Option<(Acts, Said)> {
        use Acts::{After, Before, Never};
        let later = || After(world.rng(|rng| rng.millis(1, 20_000)));
        let sometimes = || if world.rng(|rng| rng.chance(500)) { Before } else { Never };
        // An upstream that says it rolls back on an error does so.
        let unless_rolled_back = |acts| if endpoint.rolls_back_on_error() { Never } else { acts };
        let fault = TROUBLES.iter().copied().find(|fault| world.strikes(*fault))?;
        Some(match fault {
            Fault::ResetBefore => (Never, Said::Reset),
            Fault::ResetAfter => (Before, Said::Reset),
            Fault::LateEffect => (later(), Said::Reset),
            Fault::ErrorBefore => (Never, answer(500, None)),
            Fault::ErrorAfter => (unless_rolled_back(Before), answer(500, None)),
            Fault::ErrorThenEffect => (unless_rolled_back(later()), answer(502, None)),
            Fault::ErrorToldApplied => (Before, answer(500, Some("applied"))),
            Fault::ErrorToldNotApplied => (Never, answer(500, Some("not-applied"))),
            Fault::Throttled => {
                (Never, answer(if world.rng(|rng| rng.chance(500)) { 429 } else { 503 }, None))
            }
            Fault::Rejected => (Never, answer(422, None)),
            Fault::ServiceFails => (sometimes(), Said::Failed),
            Fault::TimedOut => (later(), Said::TimedOut),
            Fault::Hang => (if sometimes() == Before { later() } else { Never }, Said::Nothing),
            Fault::Panic => (sometimes(), Said::Panicked),
            _ => return None,
        })
    }

    fn success(world: &World) -> Said {
        let pieces = [
            (Fault::LargeAnswer, Piece::Large),
            (Fault::SlowBody, Piece::Slow),
            (Fault::BodyBreaks, Piece::Breaks),
            (Fault::BodyHangs, Piece::Hangs),
        ];
        let piece = pieces.iter().find(|(fault, _)| world.strikes(*fault));
        let body = piece.map_or(Piece::Whole, |(_, piece)| *piece);
        Said::Answer { status: 201, told: None, body }
    }
}

/// The faults that change what a request leads to.
const TROUBLES: [Fault; 14] = [
    Fault::ResetBefore,
    Fault::ResetAfter,
    Fault::LateEffect,
    Fault::ErrorBefore,
    Fault::ErrorAfter,
    Fault::ErrorThenEffect,
    Fault::ErrorToldApplied,
    Fault::ErrorToldNotApplied,
    Fault::Throttled,
    Fault::Rejected,
    Fault::ServiceFails,
    Fault::TimedOut,
    Fault::Hang,
    Fault::Panic,
];

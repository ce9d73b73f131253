//! What a limiter says. Owns the two answers; how they look in headers is in `fields`.

use std::time::Duration;

use semel_contract::profile::Rate;

/// Whether there is room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There was, and it is taken.
    Allowed {
        /// How much is left.
        remaining: u32,
        /// When more comes back: the end of the window, or the moment the oldest charge leaves it.
        reset: Duration,
    },
    /// There was not, and nothing was taken.
    Denied {
        /// When the same wish may be granted.
        retry_after: Duration,
        /// The limit it met.
        limit: Rate,
        /// Which rule refused it.
        why: Why,
    },
}

/// Which rule refused a wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The budget of the window is spent.
    OverLimit,
    /// This id was tried too often for its one unit.
    TooManyAttempts,
    /// The limiter itself is full of live subjects and cannot count another one. What cannot be counted is refused.
    Crowded,
}

//! How old a message is, by clocks that may be wrong. Never reads a clock: times and corrections are arguments.

use std::time::Duration;

use semel_contract::time::{Timestamp, millis_of};

use crate::limits::SKEW_MAX;

/// A time on the local clock, and how many milliseconds the servers' clocks were ahead then, as far as known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local {
    /// The time.
    pub at: Timestamp,
    /// The correction.
    pub ahead: Option<i64>,
}

impl Local {
    /// The time on the servers' clocks, as far as known.
    pub fn corrected(self) -> Timestamp {
        Timestamp::from_millis(self.at.millis().saturating_add(self.ahead.unwrap_or(0)))
    }
}

/// How old something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Age {
    /// So old.
    Known(Duration),
    /// The clock was wrong when it was stamped, and nothing tells whether it still is: send, and let the server judge.
    Unknown,
}

/// The age of something stamped at `then`.
pub fn age(then: Local, now: Local) -> Age {
    let passed = match (then.ahead, now.ahead) {
        (Some(_), Some(_)) => now.corrected().millis_since(then.corrected()),
        // As far as anyone knows it is the same clock at both ends.
        (None, _) => now.at.millis_since(then.at),
        (Some(ahead), None) if ahead.abs() <= millis_of(SKEW_MAX) => now.at.millis_since(then.at),
        (Some(_), None) => return Age::Unknown,
    };
    Age::Known(Duration::from_millis(u64::try_from(passed).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 86_400_000;

    fn local(days: i64, ahead: Option<i64>) -> Local {
        Local { at: Timestamp::from_millis(days * DAY), ahead: ahead.map(|days| days * DAY) }
    }

    fn days(age: Age) -> Option<u64> {
        match age {
            Age::Known(age) => Some(age.as_secs() / 86_400),
            Age::Unknown => None,
        }
    }

    #[test]
    fn a_clock_that_was_wrong_and_was_put_right_makes_nothing_old() {
        // Stamped with a clock 30 days behind, which a server showed; read with the right clock.
        assert_eq!(days(age(local(70, Some(30)), local(101, Some(0)))), Some(1));
        assert_eq!(days(age(local(70, Some(30)), local(101, None))), None, "let the server judge");
    }

    #[test]
    fn without_a_server_the_local_clock_counts() {
        assert_eq!(days(age(local(100, None), local(108, None))), Some(8));
        assert_eq!(days(age(local(100, None), local(108, Some(30)))), Some(8), "wrong at both ends");
        assert_eq!(days(age(local(100, Some(0)), local(108, None))), Some(8));
        assert_eq!(days(age(local(100, None), local(99, None))), Some(0), "never younger than new");
    }
}

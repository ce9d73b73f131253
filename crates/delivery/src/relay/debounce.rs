//! When a lane is due. Pure arithmetic on milliseconds.

use std::time::Duration;

use semel_contract::time::millis_of;

/// How a sender wants its entries treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// At once, with an answer that waits for it.
    Interactive,
    /// After the debounce, together with what others send meanwhile.
    Background,
}

impl Mode {
    /// The mode's name.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Interactive => "interactive",
            Mode::Background => "background",
        }
    }

    /// The mode of this name.
    pub fn parse(name: &str) -> Option<Self> {
        [Mode::Interactive, Mode::Background].into_iter().find(|mode| mode.name().eq_ignore_ascii_case(name))
    }
}

/// How long background entries wait for company.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Debounce {
    /// After the last entry.
    pub quiet: Duration,
    /// After the first one, whatever comes later.
    pub max_wait: Duration,
}

impl Default for Debounce {
    fn default() -> Self {
        Self { quiet: Duration::from_secs(15), max_wait: Duration::from_secs(15) }
    }
}

/// When a lane waits, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// When its first waiting entry came.
    pub since: i64,
    /// When it may be written.
    pub at: i64,
}

/// When the lane is due now that an entry has come. An interactive entry makes it due at once and takes along what waits. A
/// background entry moves the time on, never past the maximum since the first; a time that stands for another reason, such
/// as a failed attempt, is not made earlier by it.
pub fn due(known: Option<Due>, mode: Mode, debounce: Debounce, now: i64) -> Due {
    let since = known.map_or(now, |known| known.since);
    let at = match (mode, known) {
        (Mode::Interactive, None) => now,
        (Mode::Interactive, Some(known)) => known.at.min(now),
        (Mode::Background, None) => now + millis_of(debounce.quiet.min(debounce.max_wait)),
        (Mode::Background, Some(known)) => {
            let rolled = now + millis_of(debounce.quiet);
            let latest = since + millis_of(debounce.max_wait);
            known.at.max(rolled.min(latest))
        }
    };
    Due { since, at }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1000;

    fn rolling(quiet: u64, max: u64) -> Debounce {
        Debounce { quiet: Duration::from_secs(quiet), max_wait: Duration::from_secs(max) }
    }

    // S2-109
    #[test]
    fn background_entries_join_the_first() {
        let first = due(None, Mode::Background, Debounce::default(), 0);
        assert_eq!(first, Due { since: 0, at: 15 * S });
        assert_eq!(due(Some(first), Mode::Background, Debounce::default(), 5 * S), first, "one call at 15 s");
    }

    #[test]
    fn a_rolling_debounce_ends_at_the_maximum() {
        let mut known = None;
        let mut ends = Vec::new();
        for at in [0, 8, 16, 24, 29] {
            known = Some(due(known, Mode::Background, rolling(10, 30), at * S));
            ends.push(known.unwrap().at / S);
        }
        assert_eq!(ends, [10, 18, 26, 30, 30]);
    }

    #[test]
    fn an_interactive_entry_takes_along_what_waits() {
        let waiting = due(None, Mode::Background, Debounce::default(), 0);
        assert_eq!(
            due(Some(waiting), Mode::Interactive, Debounce::default(), 2 * S),
            Due { since: 0, at: 2 * S }
        );
        assert_eq!(due(None, Mode::Interactive, Debounce::default(), 3 * S).at, 3 * S);
        let overdue = Due { since: 0, at: S };
        assert_eq!(due(Some(overdue), Mode::Interactive, Debounce::default(), 9 * S).at, S);
        assert_eq!(due(Some(overdue), Mode::Background, Debounce::default(), 9 * S).at, 15 * S);
    }

    #[test]
    fn a_later_time_is_not_made_earlier_by_a_background_entry() {
        let backing_off = Due { since: 0, at: 600 * S };
        assert_eq!(due(Some(backing_off), Mode::Background, Debounce::default(), S).at, 600 * S);
    }

    #[test]
    fn modes_have_names() {
        for mode in [Mode::Interactive, Mode::Background] {
            assert_eq!(Mode::parse(mode.name()), Some(mode));
        }
        assert_eq!(Mode::parse("BACKGROUND"), Some(Mode::Background));
        assert_eq!(Mode::parse("later"), None);
    }
}

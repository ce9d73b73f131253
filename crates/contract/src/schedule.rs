//! When to try again. Pure arithmetic: the caller brings the progress so far and a random number.

use std::time::Duration;

use crate::limits::RETRY_AFTER_MAX;

/// How delays are spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Jitter {
    /// Not at all.
    None,
    /// By this share to either side, never past the cap.
    Ratio(f64),
    /// Anywhere between nothing and the whole delay.
    Full,
}

/// A retry schedule.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// The first delay.
    pub base: Duration,
    /// What each delay is multiplied by.
    pub factor: f64,
    /// The longest delay.
    pub cap: Duration,
    /// How delays are spread.
    pub jitter: Jitter,
    /// Attempts in one burst, the first included.
    pub burst_attempts: Option<u32>,
    /// How long one burst may last.
    pub burst_budget: Option<Duration>,
    /// The pause after a burst.
    pub period: Duration,
    /// Attempts in all.
    pub max_attempts: Option<u32>,
    /// The age at which a message is given up.
    pub max_age: Option<Duration>,
    /// The pause after the receiver says that it blocks us.
    pub blocked: Duration,
}

/// How far a message has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Attempts so far, the failed one included.
    pub attempts: u32,
    /// Attempts in this burst, the failed one included.
    pub attempts_in_burst: u32,
    /// Time since the burst began.
    pub burst_elapsed: Duration,
    /// Time since the message was enqueued.
    pub age: Duration,
}

/// Why another attempt is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The attempt failed.
    Failed,
    /// The receiver said when to come back. Costs no attempt.
    Told(Duration),
    /// The receiver blocks us. Costs no attempt.
    Blocked,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Try again after this long.
    After(Duration),
    /// The burst is over: begin a new one after this long.
    NextPeriod(Duration),
    /// Stop trying.
    GiveUp(GiveUpReason),
}

/// Why a message is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GiveUpReason {
    /// It used up its attempts.
    Attempts,
    /// The next attempt would come too late.
    Age,
}

impl Schedule {
    /// When to try again. `random` lies in [0, 1).
    pub fn next(&self, progress: &Progress, cause: Cause, random: f64) -> Next {
        let next = match cause {
            // A receiver that says "at once" again and again must not be hammered for it.
            Cause::Told(wait) => Next::After(wait.clamp(self.base.min(RETRY_AFTER_MAX), RETRY_AFTER_MAX)),
            Cause::Blocked => Next::After(self.blocked),
            Cause::Failed => self.after_failure(progress, random),
        };
        match (next, self.max_age) {
            (Next::After(wait) | Next::NextPeriod(wait), Some(max))
                if progress.age.saturating_add(wait) > max =>
            {
                Next::GiveUp(GiveUpReason::Age)
            }
            (next, _) => next,
        }
    }

    fn after_failure(&self, progress: &Progress, random: f64) -> Next {
        if self.max_attempts.is_some_and(|max| progress.attempts >= max) {
            return Next::GiveUp(GiveUpReason::Attempts);
        }
        let delay = self.delay(progress.attempts_in_burst, random);
        let burst_is_over = self.burst_attempts.is_some_and(|max| progress.attempts_in_burst >= max)
            || self.burst_budget.is_some_and(|max| progress.burst_elapsed.saturating_add(delay) > max);
        if burst_is_over { Next::NextPeriod(self.period) } else { Next::After(delay) }
    }

    /// The delay after the `attempt`-th failure of a burst, counted from 1.
    pub fn delay(&self, attempt: u32, random: f64) -> Duration {
        let cap = self.cap.as_millis() as f64;
        let mut nominal = (self.base.as_millis() as f64).min(cap);
        // Multiplying step by step gives the same bits in every language; pow does not. A factor above one reaches the
        // cap within a few steps, and one of exactly one never moves.
        for _ in 1..attempt {
            if nominal >= cap || self.factor <= 1.0 {
                break;
            }
            nominal = (nominal * self.factor).min(cap);
        }
        let spread = match self.jitter {
            Jitter::None => nominal,
            Jitter::Ratio(ratio) => (nominal * (1.0 - ratio + 2.0 * ratio * random)).min(cap),
            Jitter::Full => nominal * random,
        };
        Duration::from_millis(spread.max(0.0) as u64)
    }
}

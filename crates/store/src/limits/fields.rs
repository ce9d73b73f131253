//! Verdicts as HTTP field values: `RateLimit` and `RateLimit-Policy` as the IETF draft on rate-limit headers writes
//! them, and `Retry-After`. Writes text only; which response carries it is the gate's business.

use std::time::Duration;

use semel_contract::profile::Rate;

use super::Verdict;

impl Verdict {
    /// The value of `RateLimit`, as in `"default";r=50;t=30`.
    pub fn rate_limit(&self, policy: &str) -> String {
        let (remaining, until) = match self {
            Verdict::Allowed { remaining, reset } => (*remaining, *reset),
            Verdict::Denied { retry_after, .. } => (0, *retry_after),
        };
        format!("{};r={remaining};t={}", quoted(policy), whole_seconds(until))
    }

    /// The value of `Retry-After`, rounded up and never zero: zero would invite the same request at once.
    pub fn retry_after_seconds(&self) -> Option<u64> {
        match self {
            Verdict::Allowed { .. } => None,
            Verdict::Denied { retry_after, .. } => Some(whole_seconds(*retry_after).max(1)),
        }
    }
}

/// The value of `RateLimit-Policy`, as in `"default";q=100;w=60`.
pub fn rate_limit_policy(policy: &str, rate: Rate) -> String {
    format!("{};q={};w={}", quoted(policy), rate.count, whole_seconds(rate.window).max(1))
}

/// Seconds, rounded up: a client that waits them never comes too early.
fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0))
}

/// A structured-field string. What such a string cannot hold becomes a question mark, so that a policy's name can never
/// break out of its field.
fn quoted(name: &str) -> String {
    let mut text = String::with_capacity(name.len() + 2);
    text.push('"');
    for character in name.chars() {
        match character {
            '"' | '\\' => text.extend(['\\', character]),
            ' '..='~' => text.push(character),
            _ => text.push('?'),
        }
    }
    text.push('"');
    text
}

#[cfg(test)]
mod tests {
    use super::super::Why;
    use super::*;

    const RATE: Rate = Rate { count: 1000, window: Duration::from_secs(3600) };

    fn denied(retry_after: Duration) -> Verdict {
        Verdict::Denied { retry_after, limit: RATE, why: Why::OverLimit }
    }

    #[test]
    fn field_values_are_as_the_draft_writes_them() {
        let allowed = Verdict::Allowed { remaining: 50, reset: Duration::from_millis(29_001) };
        assert_eq!(allowed.rate_limit("default"), r#""default";r=50;t=30"#);
        assert_eq!(denied(Duration::from_secs(7)).rate_limit("default"), r#""default";r=0;t=7"#);
        assert_eq!(rate_limit_policy("default", RATE), r#""default";q=1000;w=3600"#);
        let short = Rate { count: 3, window: Duration::from_millis(250) };
        assert_eq!(rate_limit_policy("default", short), r#""default";q=3;w=1"#);
    }

    #[test]
    fn retry_after_is_rounded_up_and_never_zero() {
        for (millis, seconds) in [(0, 1), (1, 1), (999, 1), (1000, 1), (1001, 2), (59_999, 60)] {
            assert_eq!(
                denied(Duration::from_millis(millis)).retry_after_seconds(),
                Some(seconds),
                "{millis}"
            );
        }
        let allowed = Verdict::Allowed { remaining: 0, reset: Duration::ZERO };
        assert_eq!(allowed.retry_after_seconds(), None);
    }

    #[test]
    fn a_policy_name_cannot_break_out_of_its_field() {
        assert_eq!(quoted("a\"b\\c\r\né"), r#""a\"b\\c???""#);
    }
}

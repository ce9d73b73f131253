//! What a broker is told at its start, and may be told again while it runs. Refuses what is unsafe. Reads no file.

use std::fmt;
use std::time::Duration;

use semel_contract::profile::Rate;
use semel_http::BodyBounds;

use crate::limits::INLINE_BYTES_MOST;

const DAY: Duration = Duration::from_secs(86_400);
/// The shortest time for which ids are remembered.
pub(crate) const RETENTION_LEAST: Duration = Duration::from_secs(7 * 86_400);
/// By how much senders give up before their ids are forgotten.
pub(crate) const MARGIN: Duration = DAY;

/// How a broker behaves.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// How long ids are remembered, and messages kept.
    pub dedupe_retention: Duration,
    /// The largest payload, in bytes.
    pub inline_bytes: usize,
    /// For how long a destination that is not there yet is a reason to come back, rather than to give up.
    pub b2_retry: Duration,
    /// New messages of one mesh in a window.
    pub budget: Option<Rate>,
    /// Unknown ids of one member in a window.
    pub request_limit: Option<Rate>,
    /// How often one id may be tried in a window for its one unit of the budget.
    pub attempts_per_id: u32,
    /// Room for the bodies of requests, in all, and how long one may take.
    pub bodies: BodyBounds,
    /// Whether webhooks may lead to this machine itself.
    pub allow_loopback: bool,
    /// How often a silent stream is written to.
    pub heartbeat: Duration,
    /// How often lines with readers, and who belongs to what, are looked at.
    pub poll: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            dedupe_retention: RETENTION_LEAST,
            inline_bytes: 64 << 10,
            b2_retry: Duration::ZERO,
            budget: None,
            request_limit: None,
            attempts_per_id: 100,
            bodies: BodyBounds::default(),
            allow_loopback: false,
            heartbeat: Duration::from_secs(15),
            poll: Duration::from_millis(250),
        }
    }
}

/// A setting that is refused, with the number to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadSetting(pub String);

impl fmt::Display for BadSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadSetting {}

impl Settings {
    /// Refuses what is unsafe.
    ///
    /// # Errors
    /// A number is outside of what it may be.
    pub fn check(&self) -> Result<(), BadSetting> {
        if self.dedupe_retention < RETENTION_LEAST {
            return Err(BadSetting(format!(
                "dedupe_retention_days is {}: ids must be remembered for at least 7 days, since senders retry for 6",
                self.dedupe_retention.as_secs() / DAY.as_secs()
            )));
        }
        if !(1..=INLINE_BYTES_MOST).contains(&self.inline_bytes) {
            return Err(BadSetting(format!(
                "max_payload.inline_bytes is {}: it must lie between 1 and {INLINE_BYTES_MOST}",
                self.inline_bytes
            )));
        }
        for (name, rate) in [("budget", self.budget), ("request_limit", self.request_limit)] {
            if rate.is_some_and(|rate| rate.count == 0 || rate.window < Duration::from_secs(1)) {
                return Err(BadSetting(format!("{name} must allow at least one in at least a second")));
            }
        }
        if self.attempts_per_id == 0 {
            return Err(BadSetting("attempts_per_id must be at least 1".to_owned()));
        }
        let is_pause = |pause: Duration| (Duration::from_millis(10)..=DAY).contains(&pause);
        if !is_pause(self.heartbeat) || !is_pause(self.poll) {
            return Err(BadSetting("heartbeat and poll must be at least 10 ms".to_owned()));
        }
        Ok(())
    }

    /// Where webhooks may lead.
    pub(crate) fn webhook_addresses(&self) -> semel_http::Addresses {
        if self.allow_loopback {
            semel_http::Addresses::PublicAndLoopback
        } else {
            semel_http::Addresses::Public
        }
    }

    /// What senders are told: for so long a retry is surely known again.
    pub fn announced_retention(&self) -> Duration {
        self.dedupe_retention.saturating_sub(MARGIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retention_of_six_days_is_refused_and_seven_is_not() {
        let days = |days: u64| Settings { dedupe_retention: DAY * days as u32, ..Settings::default() };
        let error = days(6).check().unwrap_err().to_string();
        assert!(error.contains("dedupe_retention_days is 6") && error.contains("at least 7"), "{error}");
        assert_eq!(days(7).check(), Ok(()));
        assert_eq!(days(7).announced_retention(), DAY * 6);
    }

    #[test]
    fn payloads_are_at_most_a_mebibyte() {
        for (bytes, is_fine) in [(0, false), (1, true), (1 << 20, true), ((1 << 20) + 1, false)] {
            let settings = Settings { inline_bytes: bytes, ..Settings::default() };
            assert_eq!(settings.check().is_ok(), is_fine, "{bytes}");
        }
    }
}

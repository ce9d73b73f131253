//! Refuses profiles under which a late retry could run again, or a key could belong to nobody. Every refusal names the
//! number to change.

use std::fmt;
use std::time::Duration;

use super::{InFlight, Mismatch, Profile};
use crate::fingerprint::Input;
use crate::limits::IN_FLIGHT_WAIT_MAX;
use crate::time::format_duration;

/// One reason why a profile is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsafe {
    /// The setting to change.
    pub setting: &'static str,
    /// What is wrong and what would be right.
    pub reason: String,
}

impl fmt::Display for Unsafe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.setting, self.reason)
    }
}

/// One line of the retention arithmetic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// What is compared, in words with its numbers.
    pub rule: String,
    /// The setting to change when it fails.
    pub setting: &'static str,
    /// Whether it holds.
    pub holds: bool,
}

impl Profile {
    /// The retention arithmetic, line by line.
    pub fn arithmetic(&self) -> Vec<Bound> {
        let life = &self.lifetime;
        let record = life.record();
        let show = format_duration;
        let mut bounds = vec![Bound {
            rule: format!(
                "record lifetime {} ≥ retry_window {} + 2 × skew {} + margin {} = {}",
                show(record),
                show(life.retry_window),
                show(life.skew),
                show(life.margin),
                show(life.derived())
            ),
            setting: "record_lifetime",
            holds: record >= life.derived(),
        }];
        if let Some(guard) = &self.guard {
            let needed = guard.bounds.cap.saturating_add(guard.bounds.grace.saturating_mul(2));
            bounds.push(Bound {
                rule: format!(
                    "record lifetime {} ≥ guard cap {} + 2 × grace {} = {}",
                    show(record),
                    show(guard.bounds.cap),
                    show(guard.bounds.grace),
                    show(needed)
                ),
                setting: "retry_window",
                holds: record >= needed,
            });
        }
        if let Some(age) = self.schedule.max_age {
            bounds.push(Bound {
                rule: format!("sender's max_age {} ≤ retry_window {}", show(age), show(life.retry_window)),
                setting: "max_age",
                holds: age <= life.retry_window,
            });
            let needed = age.saturating_add(life.skew.saturating_mul(2)).saturating_add(life.margin);
            bounds.push(Bound {
                rule: format!(
                    "sender's max_age {} + 2 × skew {} + margin {} = {} ≤ record lifetime {}",
                    show(age),
                    show(life.skew),
                    show(life.margin),
                    show(needed),
                    show(record)
                ),
                setting: "max_age",
                holds: needed <= record,
            });
        }
        bounds.extend(self.least_bounds(record));
        bounds
    }

    fn least_bounds(&self, record: Duration) -> Vec<Bound> {
        let life = &self.lifetime;
        let mut bounds = Vec::new();
        if !life.least.is_zero() {
            bounds.push(Bound {
                rule: format!(
                    "record lifetime {} ≥ {}, which profile {} demands",
                    format_duration(record),
                    format_duration(life.least),
                    self.name
                ),
                setting: "retry_window",
                holds: record >= life.least,
            });
        }
        if !life.least_margin.is_zero() {
            bounds.push(Bound {
                rule: format!(
                    "margin {} ≥ {}, which profile {} demands",
                    format_duration(life.margin),
                    format_duration(life.least_margin),
                    self.name
                ),
                setting: "margin",
                holds: life.margin >= life.least_margin,
            });
        }
        bounds
    }

    /// Every reason to refuse this profile; empty means that it is safe.
    pub fn unsafeties(&self) -> Vec<Unsafe> {
        let failed = self.arithmetic().into_iter().filter(|bound| !bound.holds);
        let mut found: Vec<Unsafe> = failed
            .map(|bound| Unsafe {
                setting: bound.setting,
                reason: format!("must hold, but does not: {}", bound.rule),
            })
            .collect();
        let mut refuse = |setting, reason: &str| found.push(Unsafe { setting, reason: reason.to_owned() });
        let has = |input| self.fingerprint.as_ref().is_some_and(|recipe| recipe.inputs.contains(&input));
        if !self.scope.principal && !has(Input::Principal) {
            refuse(
                "scope",
                "leaves out the principal, so the fingerprint must have it: add \"principal\" to its inputs",
            );
        }
        if !self.scope.principal && !self.scope.tenant {
            refuse("scope", "has neither tenant nor principal: keys would belong to nobody; add one of them");
        }
        match (&self.fingerprint, self.mismatch) {
            (None, Mismatch::Refuse { .. }) => {
                refuse(
                    "fingerprint",
                    "is none, so nothing can be compared: say mismatch = \"ignore\", or give it inputs",
                );
            }
            (Some(recipe), _) if recipe.inputs.is_empty() => {
                refuse("fingerprint", "has no inputs: name some, or say \"none\"")
            }
            (Some(recipe), _) if !has(Input::Body) && recipe.include.len() + recipe.exclude.len() > 0 => {
                refuse(
                    "fingerprint",
                    "has pointers into the body but not the body: add \"body\" to its inputs",
                );
            }
            (Some(_) | None, Mismatch::Refuse { .. } | Mismatch::Ignore) => {}
        }
        match self.in_flight {
            InFlight::Wait { deadline } if deadline.is_zero() || deadline > IN_FLIGHT_WAIT_MAX => {
                refuse("in_flight", "must wait more than 0s and at most 10m");
            }
            InFlight::Wait { .. } | InFlight::Reject { .. } | InFlight::Accepted => {}
        }
        if self.key.sources.is_empty() {
            refuse("key_sources", "is empty: name at least one header");
        }
        if self.lifetime.retry_window.is_zero() {
            refuse("retry_window", "is zero: no retry could ever be recognised");
        }
        found
    }
}

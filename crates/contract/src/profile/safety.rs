//! Refuses profiles under which a late retry could run again, or a key could belong to nobody. Every refusal names the
//! number to change.

use std::fmt;
use std::time::Duration;

use super::{FailedKey, InFlight, Mismatch, Profile};
use crate::fingerprint::{Input, Recipe};
use crate::limits::IN_FLIGHT_WAIT_MAX;
use crate::time::format_duration as show;

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

impl Bound {
    fn new(setting: &'static str, holds: bool, rule: String) -> Self {
        Self { rule, setting, holds }
    }
}

impl Profile {
    /// The retention arithmetic, line by line.
    pub fn arithmetic(&self) -> Vec<Bound> {
        let life = &self.lifetime;
        let record = life.record();
        let slack = life.skew.saturating_mul(2).saturating_add(life.margin);
        let mut bounds = vec![Bound::new(
            "record_lifetime",
            record >= life.derived(),
            format!(
                "record lifetime {} ≥ retry_window {} + 2 × skew {} + margin {} = {}",
                show(record),
                show(life.retry_window),
                show(life.skew),
                show(life.margin),
                show(life.derived())
            ),
        )];
        bounds.extend(self.guard_bound(record));
        if let Some(age) = self.schedule.max_age {
            let (window, needed) = (life.retry_window, age.saturating_add(slack));
            let rule = format!("sender's max_age {} ≤ retry_window {}", show(age), show(window));
            bounds.push(Bound::new("max_age", age <= window, rule));
            let rule = format!(
                "sender's max_age {} + 2 × skew {} + margin {} = {} ≤ record lifetime {}",
                show(age),
                show(life.skew),
                show(life.margin),
                show(needed),
                show(record)
            );
            bounds.push(Bound::new("max_age", needed <= record, rule));
        }
        bounds.extend(self.least_bounds(record));
        bounds
    }

    /// The number that a lifetime follows from.
    fn lifetime_setting(&self) -> &'static str {
        if self.lifetime.record.is_some() { "record_lifetime" } else { "retry_window" }
    }

    fn guard_bound(&self, record: Duration) -> Option<Bound> {
        let (bounds, margin) = (&self.guard.as_ref()?.bounds, self.lifetime.margin);
        let needed = bounds.cap.saturating_add(bounds.grace.saturating_mul(2)).saturating_add(margin);
        let rule = format!(
            "record lifetime {} ≥ guard cap {} + 2 × grace {} + margin {} = {}",
            show(record),
            show(bounds.cap),
            show(bounds.grace),
            show(margin),
            show(needed)
        );
        Some(Bound::new(self.lifetime_setting(), record >= needed, rule))
    }

    fn least_bounds(&self, record: Duration) -> Vec<Bound> {
        let (life, name) = (&self.lifetime, &self.name);
        let mut bounds = Vec::new();
        if !life.least.is_zero() {
            let rule = format!(
                "record lifetime {} ≥ {}, which profile {name} demands",
                show(record),
                show(life.least)
            );
            bounds.push(Bound::new(self.lifetime_setting(), record >= life.least, rule));
        }
        if !life.least_margin.is_zero() {
            let rule = format!(
                "margin {} ≥ {}, which profile {name} demands",
                show(life.margin),
                show(life.least_margin)
            );
            bounds.push(Bound::new("margin", life.margin >= life.least_margin, rule));
        }
        if self.failed_key == FailedKey::Sealed {
            let kept = life.released.unwrap_or_default();
            let rule = format!(
                "released_lifetime {} ≥ record lifetime {}, since failed_key = \"sealed\" lasts as long as its row",
                show(kept),
                show(record)
            );
            bounds.push(Bound::new("released_lifetime", kept >= record, rule));
        }
        bounds
    }

    /// Every reason to refuse this profile; empty means that it is safe.
    pub fn unsafeties(&self) -> Vec<Unsafe> {
        let failed = self.arithmetic().into_iter().filter(|bound| !bound.holds);
        let failed = failed.map(|bound| (bound.setting, format!("must hold, but does not: {}", bound.rule)));
        let others =
            self.scope_faults().into_iter().chain(self.fingerprint_faults()).chain(self.other_faults());
        let others = others.map(|(setting, reason)| (setting, reason.to_owned()));
        failed.chain(others).map(|(setting, reason)| Unsafe { setting, reason }).collect()
    }

    fn scope_faults(&self) -> Vec<(&'static str, &'static str)> {
        let mut faults = Vec::new();
        let compares_principal = match self.mismatch {
            Mismatch::Refuse { .. } => self.has_input(Input::Principal),
            Mismatch::Ignore => false,
        };
        if !self.scope.principal && !compares_principal {
            faults.push(("scope", "leaves out the principal, so the fingerprint must have it and be compared: add \"principal\" to its inputs and do not ignore mismatches"));
        }
        if !self.scope.principal && !self.scope.tenant {
            faults.push((
                "scope",
                "has neither tenant nor principal: keys would belong to nobody; add one of them",
            ));
        }
        faults
    }

    fn has_input(&self, input: Input) -> bool {
        self.fingerprint.as_ref().is_some_and(|recipe| recipe.inputs.contains(&input))
    }

    fn fingerprint_faults(&self) -> Vec<(&'static str, &'static str)> {
        let mut faults = Vec::new();
        let mut refuse = |reason| faults.push(("fingerprint", reason));
        match (&self.fingerprint, self.mismatch) {
            (None, Mismatch::Refuse { .. }) => {
                refuse("is none, so nothing can be compared: say mismatch = \"ignore\", or give it inputs");
            }
            (None, Mismatch::Ignore) => {}
            (Some(Recipe { inputs, include, exclude }), Mismatch::Refuse { .. } | Mismatch::Ignore) => {
                if inputs.is_empty() {
                    refuse("has no inputs: name some, or say \"none\"");
                }
                if !inputs.contains(&Input::Body) && include.len() + exclude.len() > 0 {
                    refuse("has pointers into the body but not the body: add \"body\" to its inputs");
                }
                if exclude.iter().any(|pointer| pointer.is_root()) {
                    refuse(
                        "excludes the whole body, so that all bodies are alike: leave \"body\" out of its inputs instead",
                    );
                }
            }
        }
        faults
    }

    fn other_faults(&self) -> Vec<(&'static str, &'static str)> {
        let mut faults = Vec::new();
        match self.in_flight {
            InFlight::Wait { deadline } if deadline.is_zero() || deadline > IN_FLIGHT_WAIT_MAX => {
                faults.push(("in_flight", "must wait more than 0s and at most 10m"));
            }
            InFlight::Wait { .. } | InFlight::Reject { .. } | InFlight::Accepted => {}
        }
        match self.mismatch {
            Mismatch::Refuse { status, .. } if !(400..500).contains(&status) => {
                faults.push(("mismatch", "must be refused with a status from 400 to 499"));
            }
            Mismatch::Refuse { .. } | Mismatch::Ignore => {}
        }
        if self.key.sources.is_empty() {
            faults.push(("key_sources", "is empty: name at least one header"));
        }
        if self.lifetime.retry_window.is_zero() {
            faults.push(("retry_window", "is zero: no retry could ever be recognised"));
        }
        if self.stored.max_body_bytes == 0 {
            faults.push(("max_body", "is zero: no request with a body could pass"));
        }
        faults
    }
}

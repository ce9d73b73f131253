//! A target: an upstream with what is declared about it. Refuses declarations that would not be safe.

use std::sync::Arc;
use std::time::Duration;

use semel_contract::key::Source;
use semel_contract::profile::settings::values::Word;
use semel_contract::profile::{Profile, presets};
use semel_contract::time::format_duration;

use super::debounce::Debounce;
use super::policy::Scope;
use super::recovery::Capability;
use super::reduce::Reducer;
use super::upstream::Upstream;
use crate::Invalid;

/// How long a lane is held for one write. Both calls of a write must end within it.
pub const LEASE: Duration = Duration::from_secs(30);

/// What to do when the value is not the one that we left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Interference {
    /// Count it, and build upon the value as it is.
    #[default]
    Accept,
    /// Stop the lane until an operator opens it.
    Hold,
}

impl Word for Interference {
    const WORDS: &'static [(&'static str, Self)] =
        &[("accept", Interference::Accept), ("hold", Interference::Hold)];
}

/// A target.
#[derive(Clone)]
pub struct Target {
    /// Its name.
    pub name: String,
    /// Where it is written to.
    pub upstream: Arc<dyn Upstream>,
    /// Whether one name in two groups is two lanes. Where the upstream does not hear of groups it is one, and its group is
    /// the last that was said.
    pub groups: bool,
    /// How waiting entries become one.
    pub reducer: Reducer,
    /// What the upstream offers by which a write is known again.
    pub tier: Capability,
    /// How late after its sending a write may still be applied.
    pub late_window: Duration,
    /// How long background entries wait.
    pub debounce: Debounce,
    /// How long an interactive answer waits.
    pub sync_deadline: Duration,
    /// How long one call may take.
    pub timeout: Duration,
    /// Entries of one batch.
    pub batch_max: usize,
    /// Items of one request.
    pub items_max: usize,
    /// Answers that mean "blocked".
    pub blocked: Vec<String>,
    /// What a 429 pauses.
    pub limit_scope: Scope,
    /// What to do when somebody else changed the value.
    pub interference: Interference,
    /// How keys, answers and schedules are read.
    pub profile: Profile,
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Target").field("name", &self.name).field("tier", &self.tier).finish_non_exhaustive()
    }
}

impl Target {
    /// A target with what holds unless it is said otherwise.
    pub fn new(name: &str, upstream: Arc<dyn Upstream>, tier: Capability) -> Self {
        Self {
            name: name.to_owned(),
            upstream,
            groups: true,
            reducer: Reducer::Sum,
            tier,
            late_window: Duration::from_secs(60),
            debounce: Debounce::default(),
            sync_deadline: Duration::from_secs(10),
            timeout: Duration::from_secs(10),
            batch_max: 1000,
            items_max: 100,
            blocked: Vec::new(),
            limit_scope: Scope::default(),
            interference: Interference::default(),
            profile: usual_profile(),
        }
    }

    /// Refuses what would be unsafe.
    ///
    /// # Errors
    /// Says what to change.
    pub fn check(&self) -> Result<(), Invalid> {
        if self.timeout * 2 >= LEASE {
            return Err(format!(
                "timeout {} must be below {}: two calls must end while the lane is held",
                format_duration(self.timeout),
                format_duration(LEASE / 2)
            )
            .into());
        }
        if self.tier.looks() && !self.upstream.reads() {
            return Err(
                format!("tier {} needs `read`: where the current value is found", self.tier.name()).into()
            );
        }
        if self.batch_max == 0
            || self.batch_max as i64 > super::store::settle::MEMBERS_MAX
            || self.items_max == 0
        {
            return Err("batch_max is from 1 to 10000, items_max at least 1".into());
        }
        if self.debounce.max_wait < self.debounce.quiet {
            return Err("max_wait must not be below debounce".into());
        }
        Ok(())
    }
}
/// The profile of a target that names none: its senders' keys are read by either of their usual names, refusals are
/// problems, and a failed write is tried again after 1, 2, 4, 8 and 16 s, then every five minutes.
pub fn usual_profile() -> Profile {
    let scores = presets::scores();
    let mut profile = presets::ietf();
    profile.name = "relay".into();
    profile.key.sources =
        ["Idempotency-Key", "X-Idempotency-Key"].map(|name| Source::Header(name.to_owned())).into();
    profile.key.format = scores.key.format;
    profile.classify = scores.classify;
    profile.schedule = scores.schedule;
    profile.lane = scores.lane;
    profile
}

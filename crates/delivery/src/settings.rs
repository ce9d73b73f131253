//! What an outbox is told: its profile, its limits, its bounds. Refuses what would be unsafe, naming the number to change.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use semel_contract::json::Pointer;
use semel_contract::profile::settings::values::Word;
use semel_contract::profile::{Profile, presets};
use semel_contract::time::format_duration;
use semel_store::clock::{Clock, SystemClock};

use crate::credentials::{Credentials, NoCredentials};
use crate::hooks::{Hooks, NoHooks};
use crate::http1::Http1;
use crate::limits::PAYLOAD_BYTES_MAX;
use crate::transport::Transport;
use crate::url::Target;
use crate::{Entropy, Invalid};

/// What happens to a lane whose head was given up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeadPolicy {
    /// The lane goes on. A message that waits for its next attempt is never passed.
    #[default]
    Skip,
    /// The lane waits until somebody requeues or aborts it, or resumes the lane.
    Block,
}

impl Word for HeadPolicy {
    const WORDS: &'static [(&'static str, Self)] = &[("skip", Self::Skip), ("block", Self::Block)];
}

/// What an outbox is told.
#[derive(Clone)]
pub struct Settings {
    /// How answers are read, attempts timed and keys minted.
    pub profile: Profile,
    /// Where paths lead.
    pub upstream: Option<Target>,
    /// What happens to a lane whose head was given up.
    pub head: HeadPolicy,
    /// Lanes that are sent from at once.
    pub parallel: usize,
    /// How long one attempt may take.
    pub attempt_timeout: Duration,
    /// Messages that may wait.
    pub rows_max: u64,
    /// Bytes of bodies that may wait.
    pub bytes_max: u64,
    /// Largest body of one message.
    pub payload_bytes_max: usize,
    /// How long bodies of finished messages are kept.
    pub keep: Duration,
    /// Whether somebody chose the profile's `max_age`. One that nobody chose follows what servers announce; one that
    /// somebody chose is refused where they do not cover it.
    pub max_age_is_chosen: bool,
    /// An operator takes the risk of an age beyond the server's retention.
    pub unsafe_max_age: bool,
    /// Ids to read from answers: name and pointer.
    pub ids: Vec<(String, Pointer)>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub entropy: Entropy,
    /// How requests are sent.
    pub transport: Arc<dyn Transport>,
    /// Where credentials come from.
    pub credentials: Arc<dyn Credentials>,
    /// What the application does about what happens.
    pub hooks: Arc<dyn Hooks>,
}

impl Default for Settings {
    fn default() -> Self {
        let pointer = |text: &str| Pointer::parse(text).expect("the pointer is well formed");
        Self {
            profile: presets::ietf(),
            upstream: None,
            head: HeadPolicy::default(),
            parallel: 32,
            attempt_timeout: Duration::from_secs(30),
            rows_max: 1_000_000,
            bytes_max: 1 << 30,
            payload_bytes_max: PAYLOAD_BYTES_MAX,
            keep: Duration::from_secs(7 * 86_400),
            max_age_is_chosen: false,
            unsafe_max_age: false,
            ids: vec![
                ("broker_message_id".to_owned(), pointer("/broker_message_id")),
                ("history_id".to_owned(), pointer("/history_id")),
            ],
            clock: Arc::new(SystemClock),
            entropy: Entropy::system(),
            transport: Arc::new(Http1::new()),
            credentials: Arc::new(NoCredentials),
            hooks: Arc::new(NoHooks),
        }
    }
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings")
            .field("profile", &self.profile.name)
            .field("upstream", &self.upstream)
            .finish_non_exhaustive()
    }
}

impl Settings {
    /// The profile of a message: its own, or the outbox's.
    pub fn profile_of(&self, name: &str) -> Cow<'_, Profile> {
        match name {
            "" => Cow::Borrowed(&self.profile),
            // The name was checked when the message was accepted; a name that a later release lost is read as ours.
            name => presets::preset(name).map_or(Cow::Borrowed(&self.profile), Cow::Owned),
        }
    }

    /// Refuses an age at which servers would have forgotten the key.
    pub fn check(&self) -> Result<(), Invalid> {
        if self.unsafe_max_age {
            return Ok(());
        }
        let window = self.profile.lifetime.retry_window;
        match self.profile.schedule.max_age {
            Some(age) if age > window => {
                let why = format!(
                    "max_age {} is longer than the {} for which servers of profile {} know a key again: a later retry \
                     could take effect twice; lower max_age, or take the risk with unsafe_max_age",
                    format_duration(age),
                    format_duration(window),
                    self.profile.name
                );
                Err(why.into())
            }
            None => {
                let why = "max_age must be set: without one a retry could come after the server has forgotten the key";
                Err(why.into())
            }
            Some(_) => Ok(()),
        }
    }

    /// Refuses an age that a server's announced retention does not cover.
    pub fn check_against(&self, origin: &str, retention: Duration) -> Result<(), Invalid> {
        let is_safe = |age| age < retention || self.profile.lifetime.covers(age, retention);
        match self.profile.schedule.max_age {
            Some(age) if !is_safe(age) && !self.unsafe_max_age => {
                let why = format!(
                    "max_age {} is not covered by the {} for which {origin} knows a key again (its Semel-Retention)",
                    format_duration(age),
                    format_duration(retention),
                );
                Err(why.into())
            }
            Some(_) | None => Ok(()),
        }
    }
}

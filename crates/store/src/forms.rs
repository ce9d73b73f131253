//! The forms in which gates make the ids and fingerprints of requests, as a store keeps them: which there were, and since
//! when. What a form means is the gate's own matter.

use std::time::Duration;

use semel_contract::time::Timestamp;

/// A form in which a gate makes the ids and fingerprints of requests, as the gate itself describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Form {
    /// The description. The store compares it, and reads nothing out of it.
    pub text: String,
    /// How long records in this form live.
    pub kept: Duration,
    /// For how long from now others may claim in this form without saying so.
    pub ahead: Duration,
}

/// A form whose records may still live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownForm {
    /// The form's description.
    pub text: String,
    /// How long its records live.
    pub kept: Duration,
    /// When it was registered for the first time.
    pub first_at: Timestamp,
    /// Since when it is registered without a pause of [`FORM_PAUSE`].
    pub since: Timestamp,
    /// When it was last registered.
    pub last_at: Timestamp,
}

impl KnownForm {
    /// Whether its last record should have expired by now.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.last_at.plus(self.kept).plus(FORM_MARGIN) <= now
    }

    /// Until when keys were claimed in it at the latest.
    pub fn claimed_until(&self) -> Timestamp {
        self.last_at.plus(FORM_PAUSE)
    }

    /// Keeps it, because a record in it may live; it is due again after [`FORM_MARGIN`].
    pub fn keep_until(&mut self, now: Timestamp) {
        self.kept = Duration::from_millis(u64::try_from(now.millis_since(self.last_at)).unwrap_or(0));
    }
}

/// The forms that are known, and the store's time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forms {
    /// The oldest first.
    pub known: Vec<KnownForm>,
    /// The store's time.
    pub now: Timestamp,
}

impl Default for Forms {
    fn default() -> Self {
        Self { known: Vec::new(), now: Timestamp::from_millis(0) }
    }
}

/// A form that was not registered for so long is claimed in by no gate that runs.
pub const FORM_PAUSE: Duration = Duration::from_secs(300);
/// A form is remembered for so long after its last record has expired.
pub const FORM_MARGIN: Duration = Duration::from_secs(3600);

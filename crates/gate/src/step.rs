//! The steps of the walk, by name. With the feature `failpoints` a test can stop a process at any of them; without it they
//! cost nothing.

/// A step of the walk that was just taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The request matched a route.
    Accepted,
    /// Its caller is known.
    Identified,
    /// The request limiter was asked.
    Limited,
    /// Its key is read.
    Keyed,
    /// Its fingerprint is made.
    Fingerprinted,
    /// The record was looked up.
    LookedUp,
    /// The admission limiter was asked.
    Admitted,
    /// The staleness guard was asked.
    Guarded,
    /// The key is claimed.
    Claimed,
    /// The handler is about to be called.
    Dispatched,
    /// The handler's answer is read.
    Captured,
    /// The record is settled.
    Settled,
    /// The answer is on its way.
    Answered,
    /// A handler's own transaction has entered its key.
    Entered,
    /// The handler's statements have run in it.
    Worked,
    /// It has left its key, and is not committed.
    Left,
    /// It is committed.
    Committed,
}

impl Step {
    /// Every step, in the order of the walk.
    pub const ALL: [Step; 13] = [
        Step::Accepted,
        Step::Identified,
        Step::Limited,
        Step::Keyed,
        Step::Fingerprinted,
        Step::LookedUp,
        Step::Admitted,
        Step::Guarded,
        Step::Claimed,
        Step::Dispatched,
        Step::Captured,
        Step::Settled,
        Step::Answered,
    ];

    /// The steps of a handler's own transaction on PostgreSQL, in their order.
    pub const OF_TRANSACTION: [Step; 4] = [Step::Entered, Step::Worked, Step::Left, Step::Committed];

    /// The step's name.
    pub fn name(self) -> &'static str {
        match self {
            Step::Accepted => "accepted",
            Step::Identified => "identified",
            Step::Limited => "limited",
            Step::Keyed => "keyed",
            Step::Fingerprinted => "fingerprinted",
            Step::LookedUp => "looked-up",
            Step::Admitted => "admitted",
            Step::Guarded => "guarded",
            Step::Claimed => "claimed",
            Step::Dispatched => "dispatched",
            Step::Captured => "captured",
            Step::Settled => "settled",
            Step::Answered => "answered",
            Step::Entered => "entered",
            Step::Worked => "worked",
            Step::Left => "left",
            Step::Committed => "committed",
        }
    }

    /// Tells whoever listens that the step was taken.
    #[inline]
    pub(crate) fn reached(self) {
        #[cfg(feature = "failpoints")]
        if let Some(hook) = hook::HOOK.get() {
            hook(self);
        }
    }
}

#[cfg(feature = "failpoints")]
mod hook {
    use super::Step;
    use std::sync::OnceLock;

    pub(super) type Hook = Box<dyn Fn(Step) + Send + Sync>;
    pub(super) static HOOK: OnceLock<Hook> = OnceLock::new();
}

/// Calls a function at every step, in the task that takes it. Once a process.
#[cfg(feature = "failpoints")]
pub fn on_step(hook: impl Fn(Step) + Send + Sync + 'static) {
    assert!(hook::HOOK.set(Box::new(hook)).is_ok(), "a process listens to its steps once");
}

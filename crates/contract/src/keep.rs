//! Which answers are kept, by their status.

/// What a profile records of a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Settle.
    Settle,
    /// Release.
    Release,
}

/// One rule: these statuses are kept so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepRule {
    /// The lowest status it speaks of.
    pub from: u16,
    /// The highest.
    pub to: u16,
    /// What to do.
    pub keep: Keep,
}

impl KeepRule {
    /// A rule for a range of statuses.
    pub const fn range(from: u16, to: u16, keep: Keep) -> Self {
        Self { from, to, keep }
    }

    /// A rule for one status.
    pub const fn one(status: u16, keep: Keep) -> Self {
        Self::range(status, status, keep)
    }
}

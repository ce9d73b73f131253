//! What a bench must show, as data. Ratios are medians of the ratios of each round: both sides met the same minute.

/// How far the middle half of a target's ratios may lie apart, as a part of their median, before the rounds are played again.
pub(crate) const STEADY_AT_MOST: f64 = 0.25;

/// One thing that must hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    pub(crate) of: &'static str,
    pub(crate) demand: Demand,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Demand {
    /// The rate is at least so many times another's; `goal` is wished for.
    Ratio { to: &'static str, at_least: f64, goal: Option<f64> },
    /// No time without an answer is longer, in milliseconds.
    StallBelow(f64),
    /// The resident memory is below so many megabytes.
    MegabytesBelow(f64),
    /// So many bytes are written to the disk for each request.
    BytesAtMost { bytes: f64, goal: f64 },
}

impl Target {
    pub(crate) const fn at_least(of: &'static str, to: &'static str, at_least: f64) -> Target {
        Target { of, demand: Demand::Ratio { to, at_least, goal: None } }
    }

    pub(crate) const fn stall_below(of: &'static str, milliseconds: f64) -> Target {
        Target { of, demand: Demand::StallBelow(milliseconds) }
    }

    pub(crate) const fn megabytes_below(of: &'static str, megabytes: f64) -> Target {
        Target { of, demand: Demand::MegabytesBelow(megabytes) }
    }

    pub(crate) const fn bytes_at_most(of: &'static str, bytes: f64, goal: f64) -> Target {
        Target { of, demand: Demand::BytesAtMost { bytes, goal } }
    }

    /// The same with a number that is wished for beyond what must hold.
    pub(crate) const fn goal(self, goal: f64) -> Target {
        match self.demand {
            Demand::Ratio { to, at_least, .. } => {
                Target { of: self.of, demand: Demand::Ratio { to, at_least, goal: Some(goal) } }
            }
            Demand::StallBelow(_) | Demand::MegabytesBelow(_) | Demand::BytesAtMost { .. } => self,
        }
    }
}

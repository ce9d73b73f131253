//! Counts what a run met: faults, states, decisions, problems. A simulation that never gets somewhere proves nothing
//! about it, so the tests demand that every one of these was met.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use semel_contract::decide::Standing;
use semel_contract::problem::Kind;

use crate::faults::Fault;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Met {
    /// A fault happened.
    Fault,
    /// A record had this standing when the gate asked.
    Standing,
    /// The gate decided so.
    Decision,
    /// A client was refused so.
    Problem,
    /// A client's last word was this.
    Word,
}

/// How the gate's decisions are called in the table.
pub const DECISIONS: [&str; 10] = [
    "execute-new",
    "execute-take-over",
    "execute-supersede",
    "execute-reclaim",
    "execute-forward",
    "execute-rerun",
    "replay",
    "wait",
    "accepted",
    "probe",
];

/// The refusals that the simulated requests can meet.
pub const PROBLEMS: [Kind; 20] = [
    Kind::TooOld,
    Kind::FingerprintMismatch,
    Kind::InFlight,
    Kind::TooManyWaiters,
    Kind::OutcomeUnknown,
    Kind::Superseded,
    Kind::KeySealed,
    Kind::CredentialChanged,
    Kind::AnswerNotKept,
    Kind::Overloaded,
    Kind::StoreUnavailable,
    Kind::SettlementPending,
    Kind::UpstreamUnreachable,
    Kind::UpstreamReset,
    Kind::UpstreamTimeout,
    Kind::HandlerTimeout,
    Kind::FirstSentInFuture,
    Kind::IdentityMissing,
    Kind::RequestLimited,
    Kind::AdmissionLimited,
];

/// How often everything was met.
#[derive(Clone, Debug, Default)]
pub struct Coverage(BTreeMap<(Met, &'static str), u64>);

impl Coverage {
    /// Counts one.
    pub fn count(&mut self, met: Met, name: &'static str) {
        *self.0.entry((met, name)).or_default() += 1;
    }

    /// Adds what another run met.
    pub fn add(&mut self, other: &Self) {
        for (what, times) in &other.0 {
            *self.0.entry(*what).or_default() += times;
        }
    }

    /// How often this was met.
    pub fn of(&self, met: Met, name: &'static str) -> u64 {
        self.0.get(&(met, name)).copied().unwrap_or(0)
    }

    /// How many of a kind were met in all.
    pub fn total(&self, met: Met) -> u64 {
        self.0.iter().filter(|((kind, _), _)| *kind == met).map(|(_, times)| times).sum()
    }

    /// What should have been met and was not, given the faults that are spared.
    pub fn missing(&self) -> Vec<String> {
        let expected = Fault::ALL
            .iter()
            .map(|fault| (Met::Fault, fault.name()))
            .chain(Standing::ALL.iter().map(|standing| (Met::Standing, standing.name())))
            .chain(DECISIONS.iter().map(|decision| (Met::Decision, *decision)))
            .chain(PROBLEMS.iter().map(|kind| (Met::Problem, kind.slug())));
        expected
            .filter(|(met, name)| self.of(*met, name) == 0)
            .map(|(met, name)| format!("{met:?} {name}"))
            .collect()
    }

    /// The table, one line for each thing that was met.
    pub fn table(&self) -> String {
        let mut text = String::new();
        for ((met, name), times) in &self.0 {
            // Writing to a string does not fail.
            let _ = writeln!(text, "  {:<9} {name:<34} {times:>10}", format!("{met:?}").to_lowercase());
        }
        text
    }
}

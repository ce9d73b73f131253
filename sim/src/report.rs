//! What came of a run, for programs and for people. Judges nothing but whether the run was large enough.

use crate::coverage::Coverage;
use crate::log::Log;
use crate::plan::Options;
use crate::stage::{Failure, Invariant, Stage};

/// At least so many effects are checked in a run.
pub const EFFECTS_MIN: u64 = 100;

/// What came of a run.
#[derive(Debug)]
pub struct Report {
    /// What was asked for.
    pub options: Options,
    /// The hash of everything that happened.
    pub hash: u64,
    /// How many things happened.
    pub steps: usize,
    /// Effects that were checked.
    pub effects: u64,
    /// Virtual time, in milliseconds.
    pub millis: u64,
    /// What was met.
    pub coverage: Coverage,
    /// The first promise that was broken.
    pub failure: Option<Failure>,
    log: Log,
}

impl Report {
    /// What came of a run that has ended on this stage.
    pub(crate) fn of(options: &Options, stage: &Stage, effects: u64) -> Self {
        let (steps, millis) = (stage.steps(), stage.now());
        let log = stage.take_log();
        Self {
            options: options.clone(),
            hash: log.hash(),
            steps,
            effects,
            millis,
            coverage: stage.coverage(),
            failure: stage.failure(),
            log,
        }
    }

    /// Everything that happened.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// A failure for people: what broke, how to see it again, and what happened before.
    pub fn explain(&self) -> Option<String> {
        let failure = self.failure.as_ref()?;
        let (seed, command) = (self.options.seed, self.options.command());
        let trace = self.log.trace(failure.slot);
        Some(format!("seed {seed} breaks {failure}\nagain: {command}\n{trace}"))
    }
}

/// A promise that a run was too small to check.
pub fn too_small(report: &Report) -> Option<Failure> {
    let is_small =
        report.failure.is_none() && (report.effects < EFFECTS_MIN || report.steps < report.options.steps_min);
    let why = format!("only {} steps and {} effects", report.steps, report.effects);
    is_small.then_some(Failure { invariant: Invariant::I15, why, slot: None })
}

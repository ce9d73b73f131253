//! What a bench found: rows of samples, their medians, ratios and verdicts. Pure arithmetic.

use std::time::Duration;

use serde_json::{Value, json};

use super::targets::{Demand, STEADY_AT_MOST, Target};

/// One run of one contestant. What could not be measured is none.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Sample {
    pub(crate) rate: f64,
    pub(crate) p50_ms: Option<f64>,
    pub(crate) p99_ms: Option<f64>,
    pub(crate) stall_ms: Option<f64>,
    /// Processor time of the contestant and its database for each request, in microseconds.
    pub(crate) cpu_us: Option<f64>,
    /// Calls of fsync and fdatasync by them for each request.
    pub(crate) syncs: Option<f64>,
    /// Bytes that they sent to the disk for each request.
    pub(crate) disk_bytes: Option<f64>,
    /// Their resident memory at the end, in megabytes.
    pub(crate) resident_mb: Option<f64>,
}

/// One contestant with all its runs.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) durability: String,
    pub(crate) samples: Vec<Sample>,
}

/// Whether a target holds.
#[derive(Debug, Clone)]
pub(crate) struct Verdict {
    pub(crate) what: String,
    pub(crate) found: String,
    pub(crate) holds: bool,
}

/// All of a bench.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outcome {
    pub(crate) rows: Vec<Row>,
    pub(crate) verdicts: Vec<Verdict>,
    /// Who could not take part, and why.
    pub(crate) absent: Vec<(String, String)>,
    /// How long those that say so took until they answered.
    pub(crate) ready: Vec<(String, Duration)>,
    /// Facts that a reader must know.
    pub(crate) notes: Vec<String>,
    /// The machine was too busy for the figures to mean anything.
    pub(crate) noisy: bool,
}

impl Row {
    /// The median of what `of` picks from each sample.
    pub(crate) fn median(&self, of: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
        median(self.samples.iter().filter_map(of).collect())
    }

    pub(crate) fn rate(&self) -> f64 {
        self.median(|sample| Some(sample.rate)).unwrap_or(0.0)
    }

    /// The longest of all stalls.
    pub(crate) fn stall_ms(&self) -> Option<f64> {
        self.samples.iter().filter_map(|sample| sample.stall_ms).reduce(f64::max)
    }

    /// How far the rates lie apart, as a part of their median.
    pub(crate) fn spread(&self) -> f64 {
        let rates = || self.samples.iter().map(|sample| sample.rate);
        let (low, high) = (rates().fold(f64::INFINITY, f64::min), rates().fold(0.0, f64::max));
        if self.rate() > 0.0 { (high - low) / self.rate() } else { 0.0 }
    }
}

impl Outcome {
    pub(crate) fn row(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name)
    }

    /// The rate of one to another: the median of the ratios of each round.
    pub(crate) fn ratio(&self, of: &str, to: &str) -> Option<f64> {
        let (of, to) = (self.row(of)?, self.row(to)?);
        let pairs = of.samples.iter().zip(&to.samples).filter(|(_, to)| to.rate > 0.0);
        median(pairs.map(|(of, to)| of.rate / to.rate).collect())
    }

    /// How far the middle half of the ratios of each round lies apart, as a part of their median.
    fn ratio_spread(&self, of: &str, to: &str) -> Option<f64> {
        let (of, to) = (self.row(of)?, self.row(to)?);
        let pairs = of.samples.iter().zip(&to.samples).filter(|(_, to)| to.rate > 0.0);
        let mut ratios: Vec<f64> = pairs.map(|(of, to)| of.rate / to.rate).collect();
        ratios.sort_by(f64::total_cmp);
        let (low, high) = (ratios.get(ratios.len() / 4)?, ratios.get(ratios.len() * 3 / 4)?);
        Some((high - low) / ratios[ratios.len() / 2])
    }

    /// Whether the rounds do not agree on what is judged.
    pub(crate) fn is_unsteady(&self, targets: &[Target]) -> bool {
        let spread = |target: &Target| match target.demand {
            Demand::Ratio { to, .. } => self.ratio_spread(target.of, to),
            Demand::StallBelow(_) | Demand::MegabytesBelow(_) | Demand::BytesAtMost { .. } => None,
        };
        targets.iter().filter_map(spread).any(|spread| spread > STEADY_AT_MOST)
    }

    /// Holds the rows against these targets. One whose contestants did not run is not judged.
    pub(crate) fn judge(&mut self, targets: &[Target]) {
        let judged: Vec<Verdict> = targets.iter().filter_map(|target| self.judge_one(target)).collect();
        self.verdicts.extend(judged);
    }

    fn judge_one(&self, target: &Target) -> Option<Verdict> {
        let of = target.of;
        match target.demand {
            Demand::Ratio { to, at_least, goal } => {
                let (ratio, spread) = (self.ratio(of, to)?, self.ratio_spread(of, to)?);
                let goal = goal.map(|goal| format!(" (goal {goal:.2})")).unwrap_or_default();
                Some(Verdict {
                    what: format!("{of}: at least {at_least:.2}{goal} of {to}"),
                    found: format!("{ratio:.2}, spread {:.0} %", spread * 100.0),
                    holds: ratio >= at_least,
                })
            }
            Demand::StallBelow(limit) => {
                let stall = self.row(of)?.stall_ms()?;
                Some(Verdict {
                    what: format!("{of}: longest stall below {limit:.0} ms"),
                    found: format!("{stall:.0} ms"),
                    holds: stall < limit,
                })
            }
            Demand::MegabytesBelow(limit) => {
                let resident = self.row(of)?.median(|sample| sample.resident_mb)?;
                Some(Verdict {
                    what: format!("{of}: resident below {limit:.0} MB"),
                    found: format!("{resident:.0} MB"),
                    holds: resident < limit,
                })
            }
            Demand::BytesAtMost { bytes, goal } => {
                let written = self.row(of)?.median(|sample| sample.disk_bytes)?;
                Some(Verdict {
                    what: format!("{of}: at most {bytes:.0} bytes (goal {goal:.0}) written for each request"),
                    found: format!("{written:.0}"),
                    holds: written <= bytes,
                })
            }
        }
    }

    pub(crate) fn json(&self, bench: &str) -> Value {
        let rows: Vec<Value> = self.rows.iter().map(row_json).collect();
        let verdicts: Vec<Value> = self
            .verdicts
            .iter()
            .map(|verdict| json!({"target": verdict.what, "found": verdict.found, "holds": verdict.holds}))
            .collect();
        let absent: Vec<Value> =
            self.absent.iter().map(|(name, why)| json!({"name": name, "why": why})).collect();
        json!({
            "bench": bench, "noisy": self.noisy, "rows": rows, "targets": verdicts, "absent": absent,
            "notes": self.notes,
        })
    }
}

fn row_json(row: &Row) -> Value {
    let rounded = |value: Option<f64>| value.map(|value| (value * 1000.0).round() / 1000.0);
    json!({
        "name": row.name,
        "durability": row.durability,
        "rate": row.rate().round(),
        "rates": row.samples.iter().map(|sample| sample.rate.round()).collect::<Vec<_>>(),
        "spread": rounded(Some(row.spread())),
        "p50_ms": rounded(row.median(|sample| sample.p50_ms)),
        "p99_ms": rounded(row.median(|sample| sample.p99_ms)),
        "stall_ms": rounded(row.stall_ms()),
        "cpu_us": rounded(row.median(|sample| sample.cpu_us)),
        "syncs": rounded(row.median(|sample| sample.syncs)),
        "disk_bytes": rounded(row.median(|sample| sample.disk_bytes)),
        "resident_mb": rounded(row.median(|sample| sample.resident_mb)),
    })
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[odd / 2]),
        even => Some(f64::midpoint(values[even / 2 - 1], values[even / 2])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, rates: &[f64]) -> Row {
        let sample = |rate: &f64| Sample { rate: *rate, stall_ms: Some(rate / 10.0), ..Sample::default() };
        Row { name: name.to_owned(), durability: String::new(), samples: rates.iter().map(sample).collect() }
    }

    #[test]
    fn a_ratio_is_that_of_the_rounds_and_not_of_the_medians() {
        // The machine was half as fast in the second round: both felt it.
        let outcome = Outcome {
            rows: vec![row("a", &[90.0, 45.0, 91.0]), row("b", &[100.0, 50.0, 100.0])],
            ..Outcome::default()
        };
        assert!((outcome.ratio("a", "b").unwrap() - 0.9).abs() < 1e-9);
        assert_eq!(outcome.ratio("a", "absent"), None);
    }

    #[test]
    fn targets_are_judged_and_those_of_absent_contestants_are_not() {
        let mut outcome = Outcome { rows: vec![row("a", &[90.0]), row("b", &[100.0])], ..Outcome::default() };
        outcome.judge(&[
            Target::at_least("a", "b", 0.9),
            Target::at_least("a", "b", 0.91),
            Target::at_least("a", "absent", 0.1),
            Target::stall_below("b", 10.0),
            Target::stall_below("a", 10.0),
        ]);
        assert_eq!(outcome.verdicts.iter().map(|v| v.holds).collect::<Vec<_>>(), [true, false, false, true]);
    }

    #[test]
    fn rounds_whose_ratios_do_not_agree_are_not_steady() {
        let calm = [100.0, 101.0, 99.0, 100.0, 500.0];
        let wild = [100.0, 140.0, 60.0, 70.0, 130.0];
        let even = row("b", &[100.0; 5]);
        let targets = [Target::at_least("a", "b", 0.9)];
        let unsteady = |rates: &[f64]| {
            let outcome = Outcome { rows: vec![row("a", rates), even.clone()], ..Outcome::default() };
            outcome.is_unsteady(&targets)
        };
        assert!(!unsteady(&calm) && unsteady(&wild));
    }

    #[test]
    fn medians_and_spreads() {
        let row = row("a", &[10.0, 30.0, 20.0, 40.0]);
        assert!((row.rate() - 25.0).abs() < 1e-9 && (row.spread() - 30.0 / 25.0).abs() < 1e-9);
        assert_eq!(row.stall_ms(), Some(4.0));
        assert_eq!(median(vec![]), None);
    }
}

//! What the gate has counted, read from its metrics in Prometheus' text form. Pure.

use serde::Serialize;

/// Problems that a key leads to: used for something else, in use, cancelled, or of unknown outcome.
const CONFLICTS: [&str; 8] = [
    "answer-not-kept",
    "credential-changed",
    "fingerprint-mismatch",
    "in-flight",
    "key-sealed",
    "outcome-unknown",
    "superseded",
    "too-many-waiters",
];

/// What the page shows of a gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    /// Requests under a key.
    pub(crate) requests: u64,
    /// Those that were run.
    pub(crate) executed: u64,
    /// Those that were answered from the record.
    pub(crate) replays: u64,
    /// Those that were refused for their key.
    pub(crate) conflicts: u64,
    /// Those that waited for another with their key.
    pub(crate) waits: u64,
}

impl Counts {
    fn answered(&mut self, how: Option<&str>, count: u64) {
        match how {
            Some("executed") => self.executed += count,
            Some("replayed") => self.replays += count,
            Some("refused") => {}
            // Without a key, or of a later release.
            Some(_) | None => return,
        }
        self.requests += count;
    }
}

/// Reads counts out of metrics.
pub(crate) fn counts(metrics: &str) -> Counts {
    let mut counts = Counts::default();
    for line in metrics.lines().filter(|line| !line.starts_with('#')) {
        let Some((series, value)) = line.rsplit_once(' ') else { continue };
        let Ok(value) = value.parse::<f64>() else { continue };
        // A count is never negative, and far below where floating point loses whole numbers.
        let value = value as u64;
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let is_conflict = || label(labels, "problem").is_some_and(|problem| CONFLICTS.contains(&problem));
        match name {
            "semel_gate_answers_total" => counts.answered(label(labels, "answer"), value),
            "semel_gate_problems_total" if is_conflict() => counts.conflicts += value,
            "semel_gate_waits_total" => counts.waits += value,
            _ => {}
        }
    }
    counts
}

/// The value of a label. Names of routes and problems need no escapes.
fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = labels.split_once(&format!("{name}=\""))?;
    rest.split_once('"').map(|(value, _)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_summed_over_routes() {
        let metrics = "\
# TYPE semel_gate_answers_total counter
semel_gate_answers_total{route=\"any\",answer=\"executed\"} 3
semel_gate_answers_total{route=\"other\",answer=\"executed\"} 1
semel_gate_answers_total{route=\"any\",answer=\"replayed\"} 5
semel_gate_answers_total{route=\"any\",answer=\"refused\"} 2
semel_gate_answers_total{route=\"any\",answer=\"passed\"} 9
semel_gate_problems_total{route=\"any\",problem=\"fingerprint-mismatch\"} 1
semel_gate_problems_total{route=\"any\",problem=\"key-missing\"} 1
semel_gate_waits_total{route=\"any\"} 4
semel_gate_store_seconds_sum{call=\"claim\"} 0.25
";
        let expected = Counts { requests: 11, executed: 4, replays: 5, conflicts: 1, waits: 4 };
        assert_eq!(counts(metrics), expected);
        assert_eq!(counts(""), Counts::default());
    }

    #[test]
    fn every_conflict_is_a_problem_that_exists() {
        use semel_contract::problem::Kind;
        for slug in CONFLICTS {
            assert!(Kind::ALL.iter().any(|kind| kind.slug() == slug), "{slug}");
        }
    }
}

//! How much a run may do, and which way. Owns the variables by which `cargo xtask fuzz` says so.

use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Executions of a plain `cargo test`, beside the corpus.
const TEST_EXECUTIONS: u64 = 300;
/// The longest run, whatever number of executions is asked for of a slow target.
const SLOW_TIME_MAX: Duration = Duration::from_secs(30);

/// What is asked for.
pub(crate) struct Plan {
    pub(crate) budget: Budget,
    pub(crate) seed: u64,
    pub(crate) keep: bool,
    pub(crate) replay: Option<PathBuf>,
}

/// When a run ends.
pub(crate) enum Budget {
    Seconds(Duration),
    Executions { count: u64, time_max: Option<Duration> },
}

impl Plan {
    /// Reads the variables.
    pub(crate) fn read() -> Self {
        let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let budget = match (number("SEMEL_FUZZ_SECONDS"), number("SEMEL_FUZZ_EXECUTIONS")) {
            (Some(seconds), _) => Budget::Seconds(Duration::from_secs(seconds)),
            (None, Some(count)) => {
                let is_slow = std::env::var_os("SEMEL_FUZZ_SLOW").is_some();
                Budget::Executions { count, time_max: is_slow.then_some(SLOW_TIME_MAX) }
            }
            (None, None) => Budget::Executions { count: TEST_EXECUTIONS, time_max: None },
        };
        Self {
            budget,
            seed: number("SEMEL_FUZZ_SEED").unwrap_or(1),
            keep: std::env::var_os("SEMEL_FUZZ_KEEP").is_some(),
            replay: std::env::var_os("SEMEL_FUZZ_REPLAY").map(PathBuf::from),
        }
    }
}

impl Budget {
    /// Whether one more is allowed.
    pub(crate) fn allows(&self, executions: u64, started: Instant) -> bool {
        match self {
            Budget::Seconds(lasts) => started.elapsed() < *lasts,
            Budget::Executions { count, time_max } => {
                executions < *count && time_max.is_none_or(|max| started.elapsed() < max)
            }
        }
    }
}

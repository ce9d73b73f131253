//! The program's own log: to standard error, one line for each event. `SEMEL_LOG` chooses how much.

use tracing_subscriber::filter::LevelFilter;

/// Starts the log. A second start changes nothing.
pub(crate) fn start() {
    let level = std::env::var("SEMEL_LOG").ok().and_then(|level| level.parse().ok());
    let log = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false)
        .with_max_level(level.unwrap_or(LevelFilter::INFO));
    // There is one already.
    let _ = log.try_init();
}

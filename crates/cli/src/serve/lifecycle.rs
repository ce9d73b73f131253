//! The life of a part that is served: opened, said to be ready, read anew when it is told to, drained and ended. Owns the order,
//! the signals and what the service manager hears; what is opened, read and drained is the part's own.

use std::future::Future;
use std::io::Write;
use std::time::Duration;

use super::notify;
use super::signals::{Reload, Signals};
use crate::exit::{Exit, Stop};

/// How long what blocks a thread may take once everything else has ended.
const BLOCKING_MAX: Duration = Duration::from_secs(1);

/// A part of semel that runs.
pub(crate) trait RunningPart: Reload {
    /// What is logged when it begins to end.
    const ENDING: &'static str;

    /// What is printed once it is ready.
    fn announcement(&self) -> String;

    /// Takes nothing new, and waits for what is under way.
    async fn stop(self);
}

/// Runs a part from its start until it is told to end. A second signal ends it at once.
pub(crate) fn run<P: RunningPart>(start: impl Future<Output = Result<P, Stop>>) -> Result<Exit, Stop> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Stop::new(Exit::Io, format!("failed to start: {error}")))?;
    let ended = runtime.block_on(live(start));
    runtime.shutdown_timeout(BLOCKING_MAX);
    ended
}

async fn live<P: RunningPart>(start: impl Future<Output = Result<P, Stop>>) -> Result<Exit, Stop> {
    // Before anything is opened: whoever is told to end while it starts ends as after a crash, which costs nothing.
    let mut signals = Signals::listen()
        .map_err(|error| Stop::new(Exit::Io, format!("failed to listen to signals: {error}")))?;
    let mut part = tokio::select! {
        part = start => part?,
        () = signals.end() => {
            tracing::info!("told to end while it started");
            return Ok(Exit::Success);
        }
    };
    let mut out = std::io::stdout();
    // It serves already: that nobody reads the announcement is no reason to end.
    if let Err(error) = out.write_all(part.announcement().as_bytes()).and_then(|()| out.flush()) {
        tracing::warn!(%error, "failed to write to standard output");
    }
    notify::tell(notify::READY);
    signals.until_end(&mut part).await;
    notify::tell(notify::STOPPING);
    tracing::info!("shutting down: {}; a second signal ends it at once", P::ENDING);
    tokio::select! {
        () = part.stop() => {}
        () = signals.end() => tracing::warn!("ended at once by a second signal"),
    }
    Ok(Exit::Success)
}

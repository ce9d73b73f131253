//! How far a storm has come, on standard error: a bar on a terminal, a line now and then elsewhere, nothing when asked.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

const BAR_CELLS: u64 = 30;

/// How progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Bar,
    Lines,
    Silent,
}

impl Style {
    /// What fits standard error.
    pub(crate) fn fitting() -> Self {
        if std::io::stderr().is_terminal() { Style::Bar } else { Style::Lines }
    }

    fn pause(self) -> Duration {
        match self {
            Style::Bar => Duration::from_millis(100),
            Style::Lines | Style::Silent => Duration::from_secs(2),
        }
    }
}

/// What is counted on the way.
#[derive(Debug)]
pub(crate) struct Progress {
    name: String,
    total: u64,
    done: AtomicU64,
    sent: AtomicU64,
    started: Instant,
}

impl Progress {
    pub(crate) fn new(name: &str, total: u64) -> Arc<Self> {
        let (done, sent) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Self { name: name.to_owned(), total, done, sent, started: Instant::now() })
    }

    pub(crate) fn request_done(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn sent(&self) {
        self.sent.fetch_add(1, Ordering::Relaxed);
    }

    fn line(&self) -> String {
        let (done, sent) = (self.done.load(Ordering::Relaxed), self.sent.load(Ordering::Relaxed));
        let seconds = self.started.elapsed().as_secs_f32();
        format!("{}: {done} of {} requests, {sent} sent, {seconds:.1} s", self.name, self.total)
    }

    fn bar(&self) -> String {
        let done = self.done.load(Ordering::Relaxed);
        let full = (done * BAR_CELLS).checked_div(self.total).unwrap_or(BAR_CELLS).min(BAR_CELLS);
        let cells: String = (0..BAR_CELLS).map(|cell| if cell < full { '█' } else { '·' }).collect();
        format!("\r{cells} {}\x1b[K", self.line())
    }
}

/// Shows progress until it is ended.
#[derive(Debug)]
pub(crate) struct Shown {
    task: JoinHandle<()>,
    style: Style,
}

/// Begins to show.
pub(crate) fn show(progress: Arc<Progress>, style: Style) -> Shown {
    let task = tokio::spawn(async move {
        loop {
            match style {
                Style::Bar => write(&progress.bar()),
                Style::Lines => write(&format!("{}\n", progress.line())),
                Style::Silent => {}
            }
            tokio::time::sleep(style.pause()).await;
        }
    });
    Shown { task, style }
}

impl Shown {
    /// Leaves a clean line behind.
    pub(crate) fn end(self) {
        self.task.abort();
        if self.style == Style::Bar {
            write("\r\x1b[K");
        }
    }
}

/// Progress that cannot be shown is no reason to stop.
fn write(text: &str) {
    let mut stderr = std::io::stderr();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_is_full_when_all_is_done() {
        let progress = Progress::new("bare", 2);
        assert!(progress.bar().contains(&"·".repeat(30)));
        progress.sent();
        progress.request_done();
        progress.request_done();
        let bar = progress.bar();
        assert!(bar.contains(&"█".repeat(30)) && bar.contains("2 of 2 requests, 1 sent"), "{bar}");
    }
}

//! The thread that reads the keys of a file after it was opened, for [`super::key_search`]: a few rows at a time, with pauses as
//! long as the reading and behind everything else, so that requests and lists go on as if it were not there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::shared::StoreShared;

/// What is opened is ready first. A search does not wait for this.
const BEFORE: Duration = Duration::from_secs(1);
/// Rows that are read at once: some milliseconds, in which the log cannot begin anew.
const ROWS_AT_ONCE: usize = 2_000;
/// The shortest pause between two times.
const PAUSE_LEAST: Duration = Duration::from_millis(1);
/// The pause after the file could not be read, and where it must not be read.
const PAUSE_OF_FAILURE: Duration = Duration::from_millis(100);
/// How long a search waits for the end, which a small file reaches sooner.
const PATIENCE: Duration = Duration::from_millis(250);
/// How far the thread stands behind others.
#[cfg(target_os = "linux")]
const NICENESS: libc::c_int = 10;

/// The thread that reads keys.
#[derive(Debug)]
pub(super) struct KeyReader {
    is_stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl KeyReader {
    /// Starts it.
    pub(super) fn start(shared: Arc<StoreShared>) -> std::io::Result<Self> {
        let is_stopping = Arc::new(AtomicBool::new(false));
        let stopping = Arc::clone(&is_stopping);
        let read = move || {
            let _closed = Closes(&shared);
            stand_behind();
            std::thread::park_timeout(BEFORE);
            while !stopping.load(Ordering::SeqCst) && read_on(&shared) {}
        };
        let thread = std::thread::Builder::new().name("semel-sqlite-keys".to_owned()).spawn(read)?;
        Ok(Self { is_stopping, thread: Some(thread) })
    }

    /// Somebody waits for it: its pause ends.
    pub(super) fn hurry(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }

    /// Ends it, wherever it is.
    pub(super) fn stop(&mut self) {
        self.is_stopping.store(true, Ordering::SeqCst);
        self.hurry();
        if let Some(thread) = self.thread.take() {
            // It has nothing to say; a panic in it was reported where it happened.
            let _ = thread.join();
        }
    }
}

/// However the thread ends, nobody waits for it any more.
struct Closes<'a>(&'a StoreShared);

impl Drop for Closes<'_> {
    fn drop(&mut self) {
        self.0.index.keys.close();
        self.0.engine.end_aside();
    }
}

/// Reads some rows and pauses. Says whether there may be others.
fn read_on(shared: &StoreShared) -> bool {
    let keys = &shared.index.keys;
    let began = Instant::now();
    let read = match shared.engine.faults().reads_keys() {
        true => shared.read_aside(|connection| keys.read_some(connection, ROWS_AT_ONCE)).ok(),
        false => None,
    };
    keys.release(PATIENCE);
    match read {
        Some(false) => return false,
        Some(true) => std::thread::park_timeout(began.elapsed().max(PAUSE_LEAST)),
        // The store recovers, or the disk fails: it goes on where it was.
        None => std::thread::park_timeout(PAUSE_OF_FAILURE),
    }
    true
}

/// Lets the threads of requests and lists go first.
#[cfg(target_os = "linux")]
fn stand_behind() {
    // SAFETY: the call takes numbers only. On Linux the process that is meant by 0 is the calling thread alone.
    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICENESS) };
}

/// Elsewhere a priority would be that of the whole process.
#[cfg(not(target_os = "linux"))]
fn stand_behind() {}

//! The thread that lists: a list may read a lot, and must not stand in the way of the caller's other work.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use super::shared::StoreShared;
use crate::claims::StoreError;

/// Lists that may wait.
const LISTS_WAITING_MAX: usize = 64;

type Task = Box<dyn FnOnce(&StoreShared) + Send>;

/// The thread that lists.
#[derive(Debug)]
pub(super) struct Lister {
    tasks: Option<SyncSender<Task>>,
    thread: Option<JoinHandle<()>>,
}

impl Lister {
    /// Starts it.
    pub(super) fn start(shared: Arc<StoreShared>) -> std::io::Result<Self> {
        let (tasks, waiting) = sync_channel(LISTS_WAITING_MAX);
        let serve = move |waiting: Receiver<Task>| waiting.iter().for_each(|task| task(&shared));
        let thread =
            std::thread::Builder::new().name("semel-sqlite-list".to_owned()).spawn(move || serve(waiting))?;
        Ok(Self { tasks: Some(tasks), thread: Some(thread) })
    }

    /// Hands it a task, or refuses.
    pub(super) fn ask(&self, task: Task) -> Result<(), StoreError> {
        match self.tasks.as_ref().map(|tasks| tasks.try_send(task)) {
            Some(Ok(())) => Ok(()),
            Some(Err(TrySendError::Full(_))) => {
                Err(StoreError::Unavailable("too many lists wait".to_owned()))
            }
            Some(Err(TrySendError::Disconnected(_))) | None => {
                Err(StoreError::Unavailable("the store has stopped".to_owned()))
            }
        }
    }

    /// Ends it, once it has done what waits.
    pub(super) fn stop(&mut self) {
        self.tasks = None;
        if let Some(thread) = self.thread.take() {
            // It has nothing to say; a panic in it was reported where it happened.
            let _ = thread.join();
        }
    }
}

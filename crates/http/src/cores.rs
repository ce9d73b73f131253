//! The cores of this process: on each a thread with a runtime of its own, so that what is done for one connection is done
//! where its memory is at hand and wakes nobody else. Owns the threads, and on which of them a connection is served: the one
//! that serves fewest. Refuses to move what has begun: a connection ends where it began.

use std::cell::Cell;
use std::io;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// What runs on a core from its beginning to its end, beside the connections.
pub type Beside = Pin<Box<dyn Future<Output = ()> + Send>>;

thread_local! {
    static HERE: Cell<usize> = const { Cell::new(0) };
}

/// Which core the caller runs on, from 1; 0 on a thread that is none of them.
pub(crate) fn here() -> usize {
    HERE.get()
}

/// The cores. They end with this, and what still runs on them is dropped.
#[derive(Debug)]
pub struct Cores(Vec<Core>);

#[derive(Debug)]
struct Core {
    runtime: Handle,
    /// Tasks that were given to it and have not ended.
    tasks: Arc<AtomicUsize>,
    /// Its thread ends when this is dropped.
    _end: oneshot::Sender<()>,
}

/// A task, as long as it is there.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Cores {
    /// Starts so many. What `beside` makes is made on each of their threads and runs there to the end.
    ///
    /// # Errors
    /// The system has no thread, or no descriptor to wait with, for one of them.
    pub fn start(count: NonZeroUsize, beside: fn() -> Beside) -> io::Result<Self> {
        (0..count.get()).map(|number| Core::start(number, beside)).collect::<io::Result<_>>().map(Self)
    }

    /// Runs a task on the core that has fewest.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let load = |core: &&Core| core.tasks.load(Ordering::Relaxed);
        let core = self.0.iter().min_by_key(load).expect("there is at least one");
        core.tasks.fetch_add(1, Ordering::Relaxed);
        let counted = Counted(Arc::clone(&core.tasks));
        core.runtime.spawn(async move {
            task.await;
            drop(counted);
        });
    }
}

impl Core {
    fn start(number: usize, beside: fn() -> Beside) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel();
        let serve = move || {
            HERE.set(number + 1);
            runtime.block_on(async {
                // As a task: one that panics takes no core along.
                tokio::spawn(beside());
                let _ = ended.await;
            });
            // What blocks in a thread beside it is not waited for.
            runtime.shutdown_background();
        };
        std::thread::Builder::new().name(format!("semel-core-{number}")).spawn(serve)?;
        Ok(Self { runtime: handle, tasks: Arc::default(), _end: end })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, mpsc};
    use std::time::Duration;

    use super::*;

    fn start(count: usize) -> Cores {
        Cores::start(NonZeroUsize::new(count).unwrap(), || Box::pin(async {})).unwrap()
    }

    #[test]
    fn tasks_are_spread_evenly_and_stay_on_their_core() {
        let cores = start(3);
        let (seen, all) = mpsc::channel();
        let (go, gone) = tokio::sync::watch::channel(false);
        for _ in 0..12 {
            let (seen, mut gone) = (seen.clone(), gone.clone());
            cores.spawn(async move {
                let before = here();
                let _ = gone.wait_for(|gone| *gone).await;
                seen.send((before, here())).unwrap();
            });
        }
        go.send_replace(true);
        let mut counts = [0; 3];
        for (before, after) in all.iter().take(12) {
            assert_eq!(before, after);
            counts[after - 1] += 1;
        }
        assert_eq!(counts, [4, 4, 4]);
    }

    #[test]
    fn a_core_whose_tasks_have_ended_gets_the_next() {
        let cores = start(2);
        let (end, ended) = oneshot::channel::<()>();
        cores.spawn(std::future::pending());
        cores.spawn(async { drop(ended.await) });
        drop(end);
        while cores.0[1].tasks.load(Ordering::Relaxed) > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let (seen, where_it_ran) = mpsc::channel();
        cores.spawn(async move { seen.send(here()).unwrap() });
        assert_eq!(where_it_ran.recv(), Ok(2));
    }

    #[test]
    fn what_panics_takes_no_core_along() {
        let cores = Cores::start(NonZeroUsize::MIN, || Box::pin(async { panic!("on purpose") })).unwrap();
        cores.spawn(async { panic!("on purpose") });
        let (seen, ran) = mpsc::channel();
        cores.spawn(async move { seen.send(()).unwrap() });
        assert_eq!(ran.recv(), Ok(()));
        while cores.0[0].tasks.load(Ordering::Relaxed) > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn cores_end_with_what_started_them() {
        let cores = start(2);
        let held = Arc::new(Mutex::new(()));
        let kept = Arc::clone(&held);
        cores.spawn(async move {
            std::future::pending::<()>().await;
            drop(kept);
        });
        drop(cores);
        while Arc::strong_count(&held) > 1 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

//! The writer: one thread, one batch after the other. A batch is whatever queued while the last commit was syncing, and no
//! job is answered before the commit. Jobs have no savepoints: one costs a copy of every page that a job touches.
//!
//! A batch is one transaction. A job that breaks takes it back; it runs again without that job, which then runs alone, so
//! that it harms only itself. Where nobody can say whether a batch was committed, all its jobs are told so, and the store
//! recovers before it goes on.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::Connection;

use super::core::{Core, TIME_UNWRITTEN_MAX};
use super::error::{CommitError, EngineError, Fault};
use super::job::{BatchTx, WriteJob};
use super::queue::{Next, Queue};
use super::shared::Shared;

/// How often a file without room is tried again where nothing is written.
const FULL_TRIED_EVERY: Duration = Duration::from_secs(1);
/// Jobs that may break one batch; after so many the rest run one by one as well.
const BROKEN_MAX: usize = 8;

/// What a store keeps in memory beside its rows. The writer alone changes it, and it follows the commits.
pub trait BatchState: Send + 'static {
    /// A transaction has begun.
    ///
    /// # Errors
    /// What it writes itself cannot be written.
    fn begin(&mut self, connection: &Connection) -> rusqlite::Result<()>;
    /// What the jobs changed since is durable: it becomes visible to others.
    fn publish(&mut self);
    /// Nothing of what the jobs changed since is there.
    fn take_back(&mut self);
    /// What the jobs changed since may be there or not: the file tells.
    ///
    /// # Errors
    /// It cannot be read.
    fn rebuild(&mut self, connection: &Connection) -> rusqlite::Result<()>;
}

/// The writer's own state.
pub(super) struct Writer<S> {
    pub(super) core: Core,
    pub(super) state: S,
}

type Jobs<S> = Vec<Box<dyn WriteJob<S>>>;

/// Starts the writer's thread. However it ends, no caller waits for it in vain.
pub(super) fn start<S: BatchState>(
    writer: Writer<S>,
    queue: Arc<Queue<S>>,
) -> std::io::Result<JoinHandle<()>> {
    let ended = Ended { shared: Arc::clone(&writer.core.shared), queue };
    let serve = move || {
        writer.serve(&ended.queue);
        drop(ended);
    };
    std::thread::Builder::new().name("semel-sqlite-writer".to_owned()).spawn(serve)
}

struct Ended<S> {
    shared: Arc<Shared>,
    queue: Arc<Queue<S>>,
}

impl<S> Drop for Ended<S> {
    fn drop(&mut self) {
        self.shared.health.fail("the writer has stopped".to_owned());
        self.queue.close();
        drop(self.queue.drain());
    }
}

/// How an attempt to commit some jobs ended.
enum Attempt {
    /// Durable.
    Committed,
    /// Nothing of it is there.
    NotCommitted(Fault, Culprit),
    /// It may be there or not.
    Unknown(String),
}

/// What kept a batch from being committed.
enum Culprit {
    /// This job: without it, the others may succeed.
    Job(usize),
    /// This job; its answer says that nothing was written, and holds.
    Answered(usize),
    /// The transaction itself.
    Transaction,
}

/// Why the writer stopped serving.
enum End {
    Closed,
    Doubt(String),
}

/// The commit may or may not have happened.
struct Doubt(String);

impl<S: BatchState> Writer<S> {
    /// Serves the queue until it is closed. Then the log is copied into the file.
    fn serve(mut self, queue: &Queue<S>) {
        loop {
            match self.serve_batches(queue) {
                End::Closed => break,
                End::Doubt(why) => {
                    if !self.recover(&why, &|why| refuse_waiting(queue, why)) {
                        return;
                    }
                }
            }
        }
        self.core.close();
    }

    fn recover(&mut self, why: &str, refuse: &dyn Fn(&str)) -> bool {
        let Self { core, state } = self;
        core.recover(why, &mut |connection| state.rebuild(connection), refuse)
    }

    fn serve_batches(&mut self, queue: &Queue<S>) -> End {
        loop {
            self.core.shared.faults.apply_limit(self.core.connection());
            let is_full = self.core.shared.health.is_full();
            let patience = if is_full { FULL_TRIED_EVERY } else { TIME_UNWRITTEN_MAX };
            let ended = match queue.next(patience) {
                Next::Batch(jobs) => self.run_batch(jobs),
                Next::Idle => match self.core.tick() {
                    Err(CommitError::Unknown(why)) => Err(Doubt(why)),
                    Ok(()) | Err(CommitError::NotCommitted(_)) => Ok(()),
                },
                Next::Closed => return End::Closed,
            };
            if let Err(Doubt(why)) = ended {
                return End::Doubt(why);
            }
            self.core.keep_log();
        }
    }

    /// Runs one job on the calling thread, for a store in memory.
    pub(super) fn run_one(&mut self, job: Box<dyn WriteJob<S>>) {
        if let Err(Doubt(why)) = self.run_batch(vec![job]) {
            self.recover(&why, &|_| {});
        }
    }

    fn run_batch(&mut self, mut jobs: Jobs<S>) -> Result<(), Doubt> {
        let mut broken = Jobs::new();
        while !jobs.is_empty() {
            match self.attempt(&mut jobs) {
                Attempt::Committed => jobs.drain(..).for_each(|job| job.answer(Ok(()))),
                Attempt::NotCommitted(_, Culprit::Answered(at)) => jobs.remove(at).answer(Ok(())),
                Attempt::NotCommitted(fault, _) if jobs.len() == 1 => {
                    jobs.drain(..).for_each(|job| job.answer(Err(fault.clone().into())));
                }
                Attempt::NotCommitted(_, Culprit::Job(at)) if broken.len() < BROKEN_MAX => {
                    broken.push(jobs.remove(at));
                }
                Attempt::NotCommitted(_, Culprit::Job(_) | Culprit::Transaction) => {
                    broken.splice(..0, jobs.drain(..));
                }
                Attempt::Unknown(why) => {
                    let unknown = || Err(EngineError::Unknown(why.clone()));
                    jobs.into_iter().for_each(|job| job.answer(unknown()));
                    refuse(broken, &why);
                    return Err(Doubt(why));
                }
            }
        }
        self.run_singly(broken)
    }

    /// Runs jobs of a batch that did not commit again, each in a transaction of its own.
    fn run_singly(&mut self, jobs: Jobs<S>) -> Result<(), Doubt> {
        let mut jobs = jobs.into_iter();
        while let Some(mut job) = jobs.next() {
            match self.attempt(std::slice::from_mut(&mut job)) {
                Attempt::Committed | Attempt::NotCommitted(_, Culprit::Answered(_)) => job.answer(Ok(())),
                Attempt::NotCommitted(fault, Culprit::Job(_) | Culprit::Transaction) => {
                    job.answer(Err(fault.into()));
                }
                Attempt::Unknown(why) => {
                    job.answer(Err(EngineError::Unknown(why.clone())));
                    // Nothing of these was written: their batch was rolled back, and they did not run again.
                    refuse(jobs, &why);
                    return Err(Doubt(why));
                }
            }
        }
        Ok(())
    }

    /// Runs jobs one after the other in one transaction, and commits it.
    fn attempt(&mut self, jobs: &mut [Box<dyn WriteJob<S>>]) -> Attempt {
        match self.run_all(jobs) {
            Ok(()) => {}
            Err((fault, culprit)) => {
                self.core.roll_back(Some(&fault));
                self.state.take_back();
                return Attempt::NotCommitted(fault, culprit);
            }
        }
        match self.core.commit() {
            Ok(()) => {
                self.state.publish();
                Attempt::Committed
            }
            Err(CommitError::NotCommitted(fault)) => {
                self.state.take_back();
                Attempt::NotCommitted(fault, Culprit::Transaction)
            }
            Err(CommitError::Unknown(why)) => Attempt::Unknown(why),
        }
    }

    /// Runs jobs in a transaction that is left open. `Err`: the transaction is of no use.
    fn run_all(&mut self, jobs: &mut [Box<dyn WriteJob<S>>]) -> Result<(), (Fault, Culprit)> {
        let failed = |error: rusqlite::Error| (Fault::from(error), Culprit::Transaction);
        self.core.begin().map_err(failed)?;
        let Self { core, state } = self;
        let connection = core.connection();
        state.begin(connection).map_err(failed)?;
        for (at, job) in jobs.iter_mut().enumerate() {
            let mut tx = BatchTx::new(connection, &core.shared, state);
            let run = catch_unwind(AssertUnwindSafe(|| job.run(&mut tx)));
            let answer_stands = tx.answer_stands();
            let result = run.unwrap_or_else(|_| Err(Fault::Failed("the store panicked".to_owned())));
            // Checked after every job: one whose statement rolled everything back must not go on alone.
            if connection.is_autocommit() {
                let early = || Fault::Failed("the transaction was rolled back".to_owned());
                let culprit = if answer_stands { Culprit::Answered(at) } else { Culprit::Job(at) };
                return Err((result.err().unwrap_or_else(early), culprit));
            }
            result.map_err(|fault| (fault, Culprit::Job(at)))?;
        }
        Ok(())
    }
}

/// Those who came in between are told that nothing of theirs was written.
fn refuse_waiting<S>(queue: &Queue<S>, why: &str) {
    refuse(queue.drain(), why);
}

fn refuse<S>(jobs: impl IntoIterator<Item = Box<dyn WriteJob<S>>>, why: &str) {
    jobs.into_iter().for_each(|job| job.answer(Err(EngineError::Unavailable(why.to_owned()))));
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::clock::SystemClock;
    use crate::sqlite::engine::open::{Examine, Options, open_memory};
    use crate::sqlite::engine::schema::{Migration, Schema};

    static SCHEMA: Schema = Schema {
        table: "meta",
        version: "version",
        migrations: &[Migration {
            name: "first",
            sql: "CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER); CREATE TABLE numbers (number INTEGER)",
            works_for: 1,
        }],
        time: None,
    };

    /// How many rows there are, as the jobs count.
    #[derive(Default)]
    struct Rows {
        counted: u64,
        durable: u64,
        commits: u32,
    }

    impl BatchState for Rows {
        fn begin(&mut self, _: &Connection) -> rusqlite::Result<()> {
            Ok(())
        }

        fn publish(&mut self) {
            self.durable = self.counted;
            self.commits += 1;
        }

        fn take_back(&mut self) {
            self.counted = self.durable;
        }

        fn rebuild(&mut self, connection: &Connection) -> rusqlite::Result<()> {
            let rows: i64 = connection.query_row("SELECT count(*) FROM numbers", [], |row| row.get(0))?;
            self.counted = rows.cast_unsigned();
            self.durable = self.counted;
            Ok(())
        }
    }

    type Log<T> = Arc<Mutex<Vec<T>>>;
    /// A number to insert, and how the job ends.
    type Asked = (i64, fn() -> Result<(), Fault>);

    /// Inserts a number, then does as it was told.
    struct Inserts {
        number: i64,
        ends: fn() -> Result<(), Fault>,
        answers: Log<(i64, bool)>,
        ran: Log<i64>,
    }

    impl WriteJob<Rows> for Inserts {
        fn bytes(&self) -> usize {
            0
        }

        fn run(&mut self, tx: &mut BatchTx<'_, Rows>) -> Result<(), Fault> {
            self.ran.lock().unwrap().push(self.number);
            if self.number > 0 {
                tx.state.counted += 1;
                tx.connection().execute("INSERT INTO numbers VALUES (?1)", [self.number])?;
            }
            (self.ends)()
        }

        fn answer(self: Box<Self>, verdict: Result<(), EngineError>) {
            self.answers.lock().unwrap().push((self.number, verdict.is_ok()));
        }
    }

    struct World {
        writer: Writer<Rows>,
        answers: Log<(i64, bool)>,
        ran: Log<i64>,
    }

    impl World {
        fn new() -> Self {
            let options = Options {
                schema: &SCHEMA,
                clock: Arc::new(SystemClock),
                cache_kibibytes: 100,
                page_bytes: 4096,
                examine: Examine::Nothing,
            };
            let connection = Connection::open_in_memory().unwrap();
            let opened = open_memory(connection, options, |_| Ok(()), |_, _| Ok(Rows::default()));
            let (core, state) = opened.unwrap();
            Self { writer: Writer { core, state }, answers: Arc::default(), ran: Arc::default() }
        }

        fn run(&mut self, jobs: &[Asked]) -> Result<(), String> {
            let (answers, ran) = (&self.answers, &self.ran);
            let job = |(number, ends): &Asked| -> Box<dyn WriteJob<Rows>> {
                let (answers, ran) = (Arc::clone(answers), Arc::clone(ran));
                Box::new(Inserts { number: *number, ends: *ends, answers, ran })
            };
            self.writer.run_batch(jobs.iter().map(job).collect()).map_err(|Doubt(why)| why)
        }

        fn kept(&self) -> Vec<i64> {
            let connection = self.writer.core.connection();
            let mut kept = connection.prepare("SELECT number FROM numbers ORDER BY number").unwrap();
            kept.query_map([], |row| row.get(0)).unwrap().collect::<rusqlite::Result<_>>().unwrap()
        }
    }

    fn fine() -> Result<(), Fault> {
        Ok(())
    }

    fn broken() -> Result<(), Fault> {
        Err(Fault::Failed("as a test wished".to_owned()))
    }

    #[test]
    fn one_that_writes_nothing_leaves_the_others_in_their_batch() {
        let mut world = World::new();
        world.run(&[(1, fine), (0, fine), (3, fine)]).unwrap();
        assert_eq!(*world.answers.lock().unwrap(), [(1, true), (0, true), (3, true)]);
        assert_eq!(
            (world.kept(), world.writer.state.commits, world.writer.state.durable),
            (vec![1, 3], 1, 2)
        );
        assert_eq!(world.ran.lock().unwrap().len(), 3, "none ran again");
    }

    #[test]
    fn one_that_breaks_harms_only_itself() {
        for ends in [broken, || panic!("as a test wished")] {
            let mut world = World::new();
            world.run(&[(1, fine), (2, ends), (3, fine)]).unwrap();
            assert_eq!(*world.answers.lock().unwrap(), [(1, true), (3, true), (2, false)]);
            let state = &world.writer.state;
            assert_eq!((world.kept(), state.commits, state.counted), (vec![1, 3], 1, 2), "the others share");
        }
    }

    #[test]
    fn many_that_break_are_not_tried_again_and_again() {
        let mut world = World::new();
        let jobs: Vec<_> = (1..=100).map(|number| (number, broken as fn() -> _)).collect();
        world.run(&jobs).unwrap();
        assert_eq!(world.answers.lock().unwrap().len(), 100);
        assert!(world.ran.lock().unwrap().len() <= 100 + BROKEN_MAX + 1);
        assert_eq!(world.kept(), Vec::<i64>::new());
    }

    #[test]
    fn a_batch_that_cannot_be_committed_is_not_there() {
        let mut world = World::new();
        world.writer.core.shared.faults.fill_disk(true);
        world.run(&[(1, fine), (2, fine)]).unwrap();
        assert_eq!(*world.answers.lock().unwrap(), [(1, false), (2, false)]);
        let state = &world.writer.state;
        assert_eq!((world.kept(), state.commits, state.counted), (vec![], 0, 0));
        assert!(matches!(world.writer.core.shared.health.ready(), Err(EngineError::Full(_))));
    }
}

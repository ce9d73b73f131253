//! One batch, one transaction. Members have no savepoints: one costs a copy of every page that a member touches. A
//! member that refuses has written nothing, so the others go on beside it; one that breaks takes the whole batch back, which
//! runs again without it, and then it runs alone: it harms only itself.

use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::Connection;

use super::turn::{Fault, Turn};
use super::writer::Member;
use crate::store::StoreError;

/// Faults on demand, for tests.
#[derive(Debug, Default)]
pub struct Faults {
    disk_full: AtomicBool,
}

impl Faults {
    /// From now on, or no longer, every commit finds the disk full.
    pub fn fill_disk(&self, is_full: bool) {
        self.disk_full.store(is_full, Ordering::Relaxed);
    }
}

/// Why nothing of a batch was written.
enum Broken {
    /// This one of its members failed: without it, the others may succeed.
    Member(usize, Fault),
    /// The transaction itself failed.
    Transaction(Fault),
}

/// Runs members and answers each once what it did is on disk, or once it is certain that it is not. `Err`: a commit
/// failed in a way that leaves open what is on disk; everybody was told.
pub(super) fn run(
    connection: &Connection,
    turn: &mut Turn,
    mut members: Vec<Box<dyn Member>>,
    faults: &Faults,
    committed: &mut dyn FnMut(&Turn),
) -> Result<(), String> {
    let mut broken = Vec::new();
    let ended = loop {
        match attempt(connection, turn, &mut members, faults) {
            Ok(()) => {
                committed(turn);
                break Ok(());
            }
            Err(Broken::Member(at, _)) if members.len() > 1 => broken.push(members.remove(at)),
            Err(Broken::Member(_, fault)) => {
                answer(members, &Err(fault.into()));
                return singly(connection, turn, broken, faults, committed);
            }
            Err(Broken::Transaction(fault)) => break Err(fault),
        }
    };
    let doubt = match &ended {
        Err(Fault::Sqlite(why)) => Err(why.clone()),
        Ok(()) | Err(Fault::Refused(_) | Fault::DiskFull(_)) => Ok(()),
    };
    answer(members, &ended.map_err(StoreError::from));
    match doubt {
        Ok(()) => singly(connection, turn, broken, faults, committed),
        Err(why) => {
            // Nothing of these was written: their batch was taken back, and they did not run again.
            answer(broken, &Err(StoreError::Failed(why.clone())));
            Err(why)
        }
    }
}

fn answer(members: Vec<Box<dyn Member>>, ended: &Result<(), StoreError>) {
    members.into_iter().for_each(|member| member.answer(ended.clone()));
}

/// Runs members that broke their batch again, each in a transaction of its own.
fn singly(
    connection: &Connection,
    turn: &mut Turn,
    members: Vec<Box<dyn Member>>,
    faults: &Faults,
    committed: &mut dyn FnMut(&Turn),
) -> Result<(), String> {
    let mut doubt = Ok(());
    for member in members {
        match &doubt {
            Ok(()) => doubt = run(connection, turn, vec![member], faults, &mut *committed),
            // Nothing of this one was written: its batch was taken back, and it did not run again.
            Err(why) => member.answer(Err(StoreError::Failed(why.clone()))),
        }
    }
    doubt
}

/// Runs members in one transaction and commits it. `Err`: nothing of it was written, and the counts are as before.
fn attempt(
    connection: &Connection,
    turn: &mut Turn,
    members: &mut [Box<dyn Member>],
    faults: &Faults,
) -> Result<(), Broken> {
    let before = *turn;
    let ran = run_all(connection, turn, members, faults);
    if ran.is_err() {
        *turn = before;
        if !connection.is_autocommit() {
            // A rollback that fails leaves a transaction that the next BEGIN will find and report.
            let _ = connection.execute_batch("ROLLBACK");
        }
    }
    ran
}

fn run_all(
    connection: &Connection,
    turn: &mut Turn,
    members: &mut [Box<dyn Member>],
    faults: &Faults,
) -> Result<(), Broken> {
    let failed = |error: rusqlite::Error| Broken::Transaction(error.into());
    connection.prepare_cached("BEGIN IMMEDIATE").and_then(|mut begin| begin.execute([])).map_err(failed)?;
    for (at, member) in members.iter_mut().enumerate() {
        let counted = *turn;
        let written = connection.total_changes();
        match member.run(connection, turn) {
            Ok(()) => {}
            Err(Fault::Refused(_)) if connection.total_changes() == written => *turn = counted,
            Err(fault) => return Err(Broken::Member(at, fault)),
        }
        if connection.is_autocommit() {
            let why = "the transaction was rolled back".to_owned();
            return Err(Broken::Transaction(Fault::DiskFull(why)));
        }
    }
    if faults.disk_full.load(Ordering::Relaxed) {
        return Err(Broken::Transaction(Fault::DiskFull("as a test wished".to_owned())));
    }
    connection.prepare_cached("COMMIT").and_then(|mut commit| commit.execute([])).map_err(failed)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Inserts a number, then does as it was told.
    struct Inserts {
        number: i64,
        ends: fn() -> Result<(), Fault>,
        writes_first: bool,
        answers: Arc<Mutex<Vec<(i64, bool)>>>,
        ran: Arc<Mutex<Vec<i64>>>,
        fault: bool,
    }

    impl Member for Inserts {
        fn run(&mut self, connection: &Connection, turn: &mut Turn) -> Result<(), Fault> {
            self.ran.lock().unwrap().push(self.number);
            self.fault = false;
            if self.writes_first {
                turn.rows += 1;
                connection.execute("INSERT INTO numbers VALUES (?1)", [self.number])?;
            }
            (self.ends)().inspect_err(|_| self.fault = true)
        }

        fn answer(self: Box<Self>, committed: Result<(), StoreError>) {
            self.answers.lock().unwrap().push((self.number, committed.is_ok() && !self.fault));
        }
    }

    struct World {
        connection: Connection,
        turn: Turn,
        answers: Arc<Mutex<Vec<(i64, bool)>>>,
        ran: Arc<Mutex<Vec<i64>>>,
        commits: u32,
    }

    impl World {
        fn new() -> Self {
            let connection = Connection::open_in_memory().unwrap();
            connection.execute_batch("CREATE TABLE numbers (number INTEGER)").unwrap();
            let turn = Turn { rows: 0, bytes: 0, fence: 0, last_event: 0, has_aliases: false };
            Self { connection, turn, answers: Arc::default(), ran: Arc::default(), commits: 0 }
        }

        fn member(
            &self,
            number: i64,
            writes_first: bool,
            ends: fn() -> Result<(), Fault>,
        ) -> Box<dyn Member> {
            let (answers, ran) = (Arc::clone(&self.answers), Arc::clone(&self.ran));
            Box::new(Inserts { number, ends, writes_first, answers, ran, fault: false })
        }

        fn run(&mut self, members: Vec<Box<dyn Member>>, faults: &Faults) {
            let ended = run(&self.connection, &mut self.turn, members, faults, &mut |_| self.commits += 1);
            ended.unwrap();
        }

        fn kept(&self) -> Vec<i64> {
            let mut kept = self.connection.prepare("SELECT number FROM numbers ORDER BY number").unwrap();
            kept.query_map([], |row| row.get(0)).unwrap().collect::<rusqlite::Result<_>>().unwrap()
        }
    }

    fn full() -> Result<(), Fault> {
        Err(Fault::Refused(StoreError::QueueFull("as a test wished".to_owned())))
    }

    fn broken() -> Result<(), Fault> {
        Err(Fault::Sqlite("as a test wished".to_owned()))
    }

    #[test]
    fn one_that_refuses_leaves_the_others_in_their_batch() {
        let mut world = World::new();
        let members = vec![
            world.member(1, true, || Ok(())),
            world.member(2, false, full),
            world.member(3, true, || Ok(())),
        ];
        world.run(members, &Faults::default());
        assert_eq!(*world.answers.lock().unwrap(), [(1, true), (2, false), (3, true)]);
        assert_eq!((world.kept(), world.commits, world.turn.rows), (vec![1, 3], 1, 2));
        assert_eq!(world.ran.lock().unwrap().len(), 3, "nobody ran again");
    }

    #[test]
    fn one_that_breaks_harms_only_itself() {
        // What a refusal has written all the same is taken back as well.
        for ends in [broken, full] {
            let mut world = World::new();
            let members = vec![
                world.member(1, true, || Ok(())),
                world.member(2, true, ends),
                world.member(3, true, || Ok(())),
            ];
            world.run(members, &Faults::default());
            assert_eq!(*world.answers.lock().unwrap(), [(1, true), (3, true), (2, false)]);
            assert_eq!(
                (world.kept(), world.commits, world.turn.rows),
                (vec![1, 3], 1, 2),
                "the others share"
            );
        }
    }

    #[test]
    fn a_batch_that_cannot_be_committed_is_nobodys() {
        let mut world = World::new();
        let faults = Faults::default();
        faults.fill_disk(true);
        let members = vec![world.member(1, true, || Ok(())), world.member(2, true, || Ok(()))];
        world.run(members, &faults);
        assert_eq!(*world.answers.lock().unwrap(), [(1, false), (2, false)]);
        assert_eq!((world.kept(), world.commits, world.turn.rows), (vec![], 0, 0));
    }
}

//! Runs test programs two at a time and shows what each said in one piece. Owns which of them may run side by side: those that
//! need a server share it, so they take turns; the rest need nothing of each other.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use semel_testbed::failure::Failure;
use semel_testbed::process;
use semel_testbed::services::seconds;

/// Programs that run at once.
const AT_ONCE: usize = 2;

/// A test program, ready to run.
pub(crate) struct Program {
    pub(crate) name: String,
    pub(crate) command: Command,
    /// Whether it talks to a server that others talk to.
    pub(crate) is_live: bool,
}

/// What is left to run, and whether a live one runs now.
struct Queue {
    left: Vec<Program>,
    has_live: bool,
}

/// How many tests passed and failed, as the programs said themselves.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

/// Runs all of them, a failed one too, and says how many tests passed; fails in the end if one did. `folder` holds their output meanwhile.
pub(crate) fn run_all(programs: Vec<Program>, folder: &Path) -> Result<Count, Failure> {
    let queue = Mutex::new(Queue { left: programs, has_live: false });
    let (count, failed) = (Mutex::new(Count::default()), Mutex::new(Vec::new()));
    let work = |worker: usize| -> Result<(), Failure> {
        while let Some(mut program) = next(&queue) {
            let log = folder.join(format!("tests-{worker}"));
            let began = Instant::now();
            let result = run(&mut program.command, &log);
            if program.is_live {
                lock(&queue).has_live = false;
            }
            let said = fs::read(&log).unwrap_or_default();
            let said = String::from_utf8_lossy(&said);
            let mut count = lock(&count);
            println!("\n     Running {} ({})\n{}", program.name, seconds(began.elapsed()), said.trim_end());
            count.add(&said);
            match result {
                Ok(()) => {}
                Err(Failure::Failed(why)) => lock(&failed).push(format!("{}: {why}", program.name)),
                Err(stop @ (Failure::Usage(_) | Failure::Interrupted(_))) => return Err(stop),
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        let work = &work;
        let workers: Vec<_> = (0..AT_ONCE).map(|worker| scope.spawn(move || work(worker))).collect();
        workers.into_iter().try_for_each(|worker| {
            worker.join().map_err(|_| Failure::Failed("a runner of tests panicked".to_owned()))?
        })
    })?;
    let count = count.into_inner().unwrap_or_else(PoisonError::into_inner);
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner).as_slice() {
        [] => Ok(count),
        some => {
            Err(Failure::Failed(format!("{} test programs failed:\n  {}", some.len(), some.join("\n  "))))
        }
    }
}

/// The next program that may run now; nothing when the queue is empty.
fn next(queue: &Mutex<Queue>) -> Option<Program> {
    loop {
        let mut queue = lock(queue);
        let free = queue.left.iter().position(|program| !program.is_live || !queue.has_live);
        match free {
            Some(index) => {
                let program = queue.left.remove(index);
                queue.has_live |= program.is_live;
                return Some(program);
            }
            None if queue.left.is_empty() => return None,
            None => {}
        }
        drop(queue);
        thread::sleep(process::POLL);
    }
}

fn run(command: &mut Command, log: &Path) -> Result<(), Failure> {
    let failed = |error| format!("cannot write {}: {error}", log.display());
    let output = File::create(log).map_err(failed)?;
    let errors = output.try_clone().map_err(failed)?;
    process::supervise(command.stdout(output).stderr(errors), None)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Count {
    /// Adds what the closing lines of a program's output say: `test result: ok. 3 passed; 0 failed; …`.
    fn add(&mut self, said: &str) {
        for line in said.lines().filter(|line| line.starts_with("test result: ")) {
            let number = |word: &str| {
                let (before, _) = line.split_once(word)?;
                before.split_whitespace().next_back()?.parse::<u64>().ok()
            };
            self.passed += number(" passed").unwrap_or(0);
            self.failed += number(" failed").unwrap_or(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(name: &str, script: &str, is_live: bool) -> Program {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Program { name: name.to_owned(), command, is_live }
    }

    /// A folder that is gone with the test.
    struct Folder(std::path::PathBuf);

    impl Folder {
        fn named(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("semel-programs-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Folder(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_failed_program_is_named_and_the_others_still_run() {
        let folder = Folder::named("failed");
        let mark = folder.0.join("mark");
        let programs = vec![
            shell("bad", "echo 'test result: FAILED. 1 passed; 2 failed; 0 ignored'; exit 101", false),
            shell("good", &format!("echo x > {}", mark.display()), false),
        ];
        let failure = run_all(programs, &folder.0).unwrap_err().to_string();
        assert!(failure.contains("1 test programs failed") && failure.contains("bad:"), "{failure}");
        assert!(mark.exists(), "the second program ran");
    }

    #[test]
    fn live_programs_take_turns_and_others_run_beside_them() {
        let folder = Folder::named("live");
        // Each live one fails if another is at work; the other two wait for each other.
        let alone = format!("mkdir {0}/live || exit 1; sleep 0.2; rmdir {0}/live", folder.0.display());
        let beside = |mine: &str, other: &str| {
            let path = folder.0.display();
            format!(
                "touch {path}/{mine}; i=0; while [ ! -e {path}/{other} ]; do i=$((i+1)); [ $i -gt 500 ] && exit 1; sleep 0.02; done"
            )
        };
        let programs = vec![shell("a", &alone, true), shell("b", &alone, true), shell("c", &alone, true)];
        assert_eq!(run_all(programs, &folder.0), Ok(Count::default()));
        let programs = vec![shell("a", &beside("a", "b"), true), shell("b", &beside("b", "a"), false)];
        assert_eq!(run_all(programs, &folder.0), Ok(Count::default()));
    }

    #[test]
    fn closing_lines_are_added_up() {
        let mut count = Count::default();
        count.add("test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured\nx\ntest result: FAILED. 1 passed; 2 failed; 0 ignored\n");
        assert_eq!(count, Count { passed: 4, failed: 2 });
    }
}

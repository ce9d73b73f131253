//! What stands between a process and the C library: syncs that fail, and a wall clock that is set, while it runs or while it does
//! not. Nothing of it where no compiler makes the library.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The library.
pub(crate) struct Preload {
    folder: PathBuf,
    library: Option<PathBuf>,
}

/// One process's share: its clock and its disk.
#[derive(Clone)]
pub(crate) struct Machine {
    library: Option<PathBuf>,
    /// While this file is there, its syncs fail.
    sync_fails: PathBuf,
    /// By how many milliseconds its wall clock is off.
    clock: PathBuf,
}

impl Preload {
    /// Makes the library, where there is a compiler.
    pub(crate) fn make(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), library: compile(folder) }
    }

    /// The machine of the process with this name. Its clock is right.
    pub(crate) fn machine(&self, name: &str) -> Machine {
        let file = |what: &str| self.folder.join(format!("{name}.{what}"));
        let (sync_fails, clock) = (file("syncs-fail"), file("clock"));
        let is_there = fs::write(&clock, 0_i64.to_ne_bytes()).is_ok();
        Machine { library: self.library.clone().filter(|_| is_there), sync_fails, clock }
    }
}

impl Machine {
    /// Starts this program on it.
    pub(crate) fn take(&self, program: &mut Command) {
        if let Some(library) = &self.library {
            program.env("LD_PRELOAD", library);
            program.env("CHAOS_SYNC_FAILS", &self.sync_fails).env("CHAOS_CLOCK", &self.clock);
        }
    }

    /// Syncs fail from now on, or work again. `false`: that cannot be done here.
    pub(crate) fn fail_syncs(&self, fails: bool) -> bool {
        let _ = if fails { fs::write(&self.sync_fails, "") } else { fs::remove_file(&self.sync_fails) };
        self.library.is_some()
    }

    /// Sets the wall clock so far from the right time. `false`: that cannot be done here.
    pub(crate) fn set_clock(&self, off_by_millis: i64) -> bool {
        // In place: it is mapped into the process.
        let file = OpenOptions::new().write(true).open(&self.clock);
        let set = file.and_then(|file| file.write_all_at(&off_by_millis.to_ne_bytes(), 0));
        set.is_ok() && self.library.is_some()
    }
}

fn compile(folder: &Path) -> Option<PathBuf> {
    let library = folder.join("chaos.so");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library);
    for (name, source) in [("fsync.c", include_str!("fsync.c")), ("clock.c", include_str!("clock.c"))] {
        fs::write(folder.join(name), source).ok()?;
        compiler.arg(folder.join(name));
    }
    let made = compiler.arg("-ldl").status().ok()?;
    made.success().then_some(library)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_set_is_read_otherwise_and_back() {
        let folder = std::env::temp_dir().join(format!("semel-chaos-clock-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let machine = Preload::make(&folder).machine("one");
        let year = |machine: &Machine| {
            let mut date = Command::new("date");
            machine.take(&mut date);
            let output = date.args(["-u", "+%Y"]).output().unwrap();
            String::from_utf8(output.stdout).unwrap().trim().parse::<i32>().unwrap()
        };
        let now = year(&machine);
        let is_possible = machine.set_clock(-20 * 366 * 86_400_000);
        assert_eq!(year(&machine) < now - 18, is_possible);
        machine.set_clock(0);
        assert_eq!(year(&machine), now);
        fs::remove_dir_all(folder).unwrap();
    }
}

//! Programs of semel as real processes: killed, stopped, and started again at the same address.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use semel_testbed::{os, process};

/// How one is started, given the port at which it listens.
pub(crate) type Start = Box<dyn Fn(u16) -> Command + Send>;

/// Several processes of one kind.
pub(crate) struct Processes {
    members: Vec<Mutex<Member>>,
    ports: Vec<u16>,
}

struct Member {
    process: Child,
    start: Start,
    port: u16,
}

impl Processes {
    /// Starts them, each at a port of its own choice.
    pub(crate) fn start(starts: Vec<Start>) -> Result<Self, String> {
        let (mut members, mut ports) = (Vec::new(), Vec::new());
        for start in starts {
            let (process, port) = launch(start(0))?;
            members.push(Mutex::new(Member { process, start, port }));
            ports.push(port);
        }
        Ok(Self { members, ports })
    }

    /// Where they listen.
    pub(crate) fn ports(&self) -> &[u16] {
        &self.ports
    }

    fn member(&self, number: usize) -> MutexGuard<'_, Member> {
        self.members[number % self.members.len()].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a signal to one.
    pub(crate) fn signal(&self, number: usize, signal: i32) {
        // It may be gone, which is no harm here.
        let _ = os::send(self.member(number).process.id(), signal);
    }

    /// Kills one as `kill -9` does, and starts it again.
    pub(crate) fn kill_and_start(&self, number: usize) -> Result<(), String> {
        self.kill_and_start_after(number, || ()).map(drop)
    }

    /// The same, with something done while it is down.
    pub(crate) fn kill_and_start_after<T>(
        &self,
        number: usize,
        act: impl FnOnce() -> T,
    ) -> Result<T, String> {
        let mut member = self.member(number);
        let _ = member.process.kill();
        let _ = member.process.wait();
        let done = act();
        member.launch()?;
        Ok(done)
    }

    /// Starts again those that have ended by themselves, as a supervisor would, and says how many there were.
    pub(crate) fn revive(&self) -> Result<u64, String> {
        let mut revived = 0;
        for number in 0..self.members.len() {
            let mut member = self.member(number);
            if let Ok(Some(status)) = member.process.try_wait() {
                eprintln!("xtask: {} ended by itself: {status}", what(&(member.start)(member.port)));
                member.launch()?;
                revived += 1;
            }
        }
        Ok(revived)
    }
}

impl Member {
    fn launch(&mut self) -> Result<(), String> {
        (self.process, _) = launch((self.start)(self.port))?;
        Ok(())
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for number in 0..self.members.len() {
            let mut member = self.member(number);
            let _ = member.process.kill();
            let _ = member.process.wait();
        }
    }
}

/// What a command starts: `serve gate`.
fn what(command: &Command) -> String {
    let words: Vec<_> = command.get_args().take(2).map(std::ffi::OsStr::to_string_lossy).collect();
    words.join(" ")
}

/// A command of the program that was built, its complaints in a log, to be killed with this process.
pub(crate) fn semel(log: &Path, planted: Option<&str>) -> Command {
    let mut command = Command::new(process::target().join("debug").join("semel"));
    let log = std::fs::OpenOptions::new().create(true).append(true).open(log);
    command.stdout(Stdio::piped()).stderr(log.map_or_else(|_| Stdio::null(), Stdio::from));
    if let Some(bug) = planted {
        command.env("SEMEL_PLANTED", bug);
    }
    os::die_with_parent(&mut command, libc::SIGKILL);
    command
}

/// Starts a process and waits until it says where it listens. One that finds its database away is started again.
fn launch(mut command: Command) -> Result<(Child, u16), String> {
    for _ in 0..300 {
        let mut process = command.spawn().map_err(|error| format!("failed to start {command:?}: {error}"))?;
        let output = process.stdout.take().ok_or("a process without output")?;
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        let port = lines
            .find_map(|line| line.trim().strip_prefix("listening")?.rsplit_once(':')?.1.trim().parse().ok());
        if let Some(port) = port {
            // What it says later is read, so that it is never held up.
            std::thread::spawn(move || lines.for_each(drop));
            return Ok((process, port));
        }
        let _ = process.kill();
        let _ = process.wait();
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    Err(format!("it does not start: {command:?}"))
}

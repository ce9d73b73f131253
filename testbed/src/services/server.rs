//! One throw-away server process: spawned on a free loopback port, awaited, moved to another port when the
//! first was taken meanwhile, and stopped. Knows no server in particular; a [`Recipe`] says how to run one.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::{os, process};

const READY_SECONDS_MAX: u64 = 60;
const PORT_ATTEMPTS_MAX: u32 = 25;
const LOG_TAIL_LINES: usize = 25;
/// Where developers' own servers listen. A test must never be one typing error away from them.
const DEFAULT_PORTS: [u16; 2] = [5432, 6379];

/// How to run one server.
pub struct Recipe {
    pub name: &'static str,
    pub binary: PathBuf,
    /// Builds the command for a port. Output and the bond to this process are added by [`Server::spawn`].
    pub command: Box<dyn Fn(u16) -> Command>,
    pub log: PathBuf,
    /// What the server logs once it accepts connections.
    pub ready_line: &'static str,
    /// The signal that ends the server at once. Its data is thrown away, so nothing needs to be saved.
    pub stop_signal: i32,
}

/// A running server. Dropping it stops it.
pub struct Server {
    recipe: Recipe,
    child: Child,
    port: u16,
}

/// Why a server is not ready.
enum NotReady {
    PortTaken,
    Other(Failure),
}

impl Server {
    /// Starts the process and returns at once. Nothing is known to work before [`Server::settle`] returns.
    pub fn spawn(recipe: Recipe) -> Result<Server, Failure> {
        let port = free_port()?;
        let child = spawn(&recipe, port)?;
        Ok(Server { recipe, child, port })
    }

    /// Waits until the server accepts connections. When it ended because another process took the port
    /// between our choice and its bind, another port is tried.
    pub fn settle(&mut self) -> Result<(), Failure> {
        for _ in 0..PORT_ATTEMPTS_MAX {
            match self.wait_until_ready() {
                Ok(()) => return Ok(()),
                Err(NotReady::Other(failure)) => return Err(failure),
                Err(NotReady::PortTaken) => {
                    eprintln!("xtask: port {} was taken, trying another for {}", self.port, self.recipe.name);
                    self.port = free_port()?;
                    self.child = spawn(&self.recipe, self.port)?;
                }
            }
        }
        Err(self.failed(&format!("found its port taken {PORT_ATTEMPTS_MAX} times")))
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn binary(&self) -> &Path {
        &self.recipe.binary
    }

    /// Ends the process and returns when it is gone. Calling it again does nothing.
    pub fn stop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            // It may end between these two lines, which is what is wanted.
            let _ = os::send(self.child.id(), self.recipe.stop_signal);
            process::wait_or_kill(&mut self.child);
        }
    }

    /// Ends the process at once and starts it again at the same port, with the same data.
    pub fn restart(&mut self) -> Result<(), Failure> {
        self.stop();
        // The log speaks of readiness again, once it is there again.
        fs::write(&self.recipe.log, "").map_err(|error| format!("failed to clear a log: {error}"))?;
        self.child = spawn(&self.recipe, self.port)?;
        self.settle()
    }

    fn wait_until_ready(&mut self) -> Result<(), NotReady> {
        let deadline = Instant::now() + Duration::from_secs(READY_SECONDS_MAX);
        while Instant::now() < deadline {
            if let Some(signal) = os::interrupted() {
                return Err(NotReady::Other(Failure::Interrupted(signal)));
            }
            match self.child.try_wait() {
                Ok(None) => {}
                Ok(Some(_)) if self.log().contains("Address already in use") => {
                    return Err(NotReady::PortTaken);
                }
                Ok(Some(status)) => {
                    return Err(NotReady::Other(self.failed(&format!("ended early ({status})"))));
                }
                Err(error) => return Err(NotReady::Other(self.failed(&error.to_string()))),
            }
            // The log speaks first: until it does, whoever answers on the port may be somebody else.
            if self.log().contains(self.recipe.ready_line) && accepts(self.port) {
                return Ok(());
            }
            thread::sleep(process::POLL);
        }
        Err(NotReady::Other(self.failed(&format!("did not accept connections within {READY_SECONDS_MAX} s"))))
    }

    fn log(&self) -> String {
        fs::read(&self.recipe.log)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    fn failed(&self, what: &str) -> Failure {
        let Recipe { name, log, binary, .. } = &self.recipe;
        let (binary, tail) = (binary.display(), log_tail(log));
        Failure::Failed(format!("{name} {what}. It was started as {binary}; the end of its log:\n{tail}"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The last lines of a log, indented, for an error message.
pub(crate) fn log_tail(log: &Path) -> String {
    let text = fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let tail = &lines[lines.len().saturating_sub(LOG_TAIL_LINES)..];
    match tail {
        [] => "  (it is empty)".to_owned(),
        lines => lines.iter().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n"),
    }
}

/// Runs a program that works in silence to its end; when it fails, what it said is in the failure.
pub(crate) fn run_logged(command: &mut Command, what: &str, log: &Path) -> Result<(), Failure> {
    log_to(command, log)?;
    process::supervise(command, Some(what)).map_err(|failure| match failure {
        Failure::Failed(text) => Failure::Failed(format!("{text}; it said:\n{}", log_tail(log))),
        Failure::Usage(_) | Failure::Interrupted(_) => failure,
    })
}

/// Sends both outputs of a command to a fresh log file.
fn log_to(command: &mut Command, log: &Path) -> Result<(), Failure> {
    let failed = |error| format!("cannot write {}: {error}", log.display());
    let output = File::create(log).map_err(failed)?;
    let errors = output.try_clone().map_err(failed)?;
    command.stdin(Stdio::null()).stdout(output).stderr(errors);
    Ok(())
}

fn spawn(recipe: &Recipe, port: u16) -> Result<Child, Failure> {
    let mut command = (recipe.command)(port);
    log_to(&mut command, &recipe.log)?;
    // A group of its own: Ctrl-C at the terminal is for us, and we stop the servers after the tests.
    command.process_group(0);
    os::die_with_parent(&mut command, recipe.stop_signal);
    command.spawn().map_err(|error| {
        Failure::Failed(format!("cannot start {} ({}): {error}", recipe.name, recipe.binary.display()))
    })
}

/// A port of 127.0.0.1 that is free now. It may be taken a moment later; [`Server::settle`] knows.
fn free_port() -> Result<u16, Failure> {
    loop {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .map_err(|error| format!("no free port on 127.0.0.1: {error}"))?;
        let port = listener.local_addr().map_err(|error| error.to_string())?.port();
        if !DEFAULT_PORTS.contains(&port) {
            return Ok(port);
        }
    }
}

fn accepts(port: u16) -> bool {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::services::scratch::Scratch;

    fn shell(scratch: &Scratch, command: Box<dyn Fn(u16) -> Command>) -> Recipe {
        Recipe {
            name: "shell",
            binary: PathBuf::from("/bin/sh"),
            command,
            log: scratch.log("shell"),
            ready_line: "ready",
            stop_signal: libc::SIGKILL,
        }
    }

    #[test]
    fn a_server_that_ends_early_is_reported_with_its_log() {
        let _turn = os::one_at_a_time();
        let scratch = Scratch::named("server-early").unwrap();
        let command = |_| {
            let mut command = Command::new("sh");
            command.args(["-c", "echo the disk is full; exit 3"]);
            command
        };
        let mut server = Server::spawn(shell(&scratch, Box::new(command))).unwrap();
        let failure = server.settle().unwrap_err().to_string();
        assert!(failure.contains("ended early") && failure.contains("the disk is full"), "{failure}");
    }

    #[test]
    fn a_taken_port_is_tried_elsewhere_and_only_a_few_times() {
        let _turn = os::one_at_a_time();
        let scratch = Scratch::named("server-port").unwrap();
        let attempts = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&attempts);
        let command = move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            let mut command = Command::new("sh");
            command.args(["-c", "echo bind: Address already in use; exit 1"]);
            command
        };
        let mut server = Server::spawn(shell(&scratch, Box::new(command))).unwrap();
        assert!(server.settle().unwrap_err().to_string().contains("port taken"));
        assert_eq!(attempts.load(Ordering::SeqCst), 1 + PORT_ATTEMPTS_MAX);
    }

    #[test]
    fn a_dropped_server_is_gone() {
        let scratch = Scratch::named("server-drop").unwrap();
        let command = |_| {
            let mut command = Command::new("sleep");
            command.arg("600");
            command
        };
        let server = Server::spawn(shell(&scratch, Box::new(command))).unwrap();
        let pid = server.child.id();
        assert!(os::is_alive(pid));
        drop(server);
        assert!(!os::is_alive(pid));
    }

    #[test]
    fn the_tail_of_a_log_is_its_last_lines() {
        let scratch = Scratch::named("server-tail").unwrap();
        let log = scratch.log("long");
        let lines: Vec<String> = (1..=100).map(|n| format!("line {n}")).collect();
        fs::write(&log, lines.join("\n")).unwrap();
        let tail = log_tail(&log);
        assert!(tail.ends_with("line 100") && tail.starts_with("  line 76"), "{tail}");
        assert_eq!(log_tail(&scratch.log("absent")), "  (it is empty)");
    }
}

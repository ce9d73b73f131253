//! Runs other programs from the root of the repository. Owns how their output is read, how they are
//! interrupted and how a failed one is reported; knows nothing about what they do.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::os;

/// How long a child may take to obey a signal before it is killed.
const OBEY_SECONDS_MAX: u64 = 10;
/// How often a supervised child and the signals are looked at.
pub const POLL: Duration = Duration::from_millis(20);
/// How often a long silent step says that it is still at work.
const STILL_AT_WORK_SECONDS: u64 = 10;

/// The root of the repository: the folder above this crate's.
pub fn repository() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("this crate lives one folder below the root of the repository").to_path_buf()
}

/// Where cargo puts what it builds.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository().join("target"), PathBuf::from)
}

/// A cargo command at the root of the repository, with the cargo that runs us.
///
/// `cargo run` describes *this* package in the environment. Some build scripts watch those variables and
/// would rebuild on every change between `cargo test` and `cargo xtask test`, so they are not passed on.
pub fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        let about_this_package = name.to_str().is_some_and(|name| {
            name.starts_with("CARGO_PKG_")
                || name.starts_with("CARGO_MANIFEST_")
                || name == "CARGO_PRIMARY_PACKAGE"
        });
        if about_this_package {
            command.env_remove(name);
        }
    }
    command.args(args).current_dir(repository());
    command
}

/// Runs a program to its end with our own input and output.
pub fn run(command: &mut Command) -> Result<(), Failure> {
    let status = command.status().map_err(|error| cannot_start(command, &error))?;
    succeeded(command, status)
}

/// Runs a program and returns what it printed.
pub fn read(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| cannot_start(command, &error))?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        return Err(format!("`{}` failed ({}):\n{}", line(command), output.status, complaint.trim_end()));
    }
    String::from_utf8(output.stdout).map_err(|_| format!("`{}` printed what is not UTF-8", line(command)))
}

/// Runs a program and returns what it printed, or nothing when it did not end in time and was killed. It dies with us.
pub fn read_within(command: &mut Command, limit: Duration) -> Result<Option<Output>, String> {
    os::die_with_parent(command, libc::SIGKILL);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|error| cannot_start(command, &error))?;
    let mut pipe = child.stdout.take().ok_or("a child without its output")?;
    // Read beside the wait: a child that fills its pipe would not end before somebody reads.
    let reader = thread::spawn(move || {
        let mut said = Vec::new();
        std::io::Read::read_to_end(&mut pipe, &mut said).map(|_| said)
    });
    let deadline = Instant::now() + limit;
    let status = loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(status) => break Some(status),
            None if Instant::now() < deadline => thread::sleep(POLL),
            None => {
                // It fails only where the child has just ended.
                let _ = child.kill();
                let _ = child.wait();
                break None;
            }
        }
    };
    let Some(status) = status else { return Ok(None) };
    let stdout = reader.join().map_err(|_| "the reader of a child's output panicked")?;
    let stdout = stdout.map_err(|error| format!("cannot read what `{}` printed: {error}", line(command)))?;
    Ok(Some(Output { status, stdout, stderr: Vec::new() }))
}

/// Runs a program to its end while [`os::Interrupts`] watches: a signal that reaches us is passed to the
/// program and everything it started, which then gets a bounded time to end.
///
/// The program leads a process group of its own, so that one signal reaches the whole group and a Ctrl-C at
/// the terminal arrives exactly once. When we are killed, the whole group is too. `silent` names a step that prints nothing, to show that it goes on.
pub fn supervise(command: &mut Command, silent: Option<&str>) -> Result<(), Failure> {
    command.stdin(Stdio::null()).process_group(0);
    let mut child = command.spawn().map_err(|error| cannot_start(command, &error))?;
    let _watchdog = Watchdog::over(child.id());
    let started = Instant::now();
    let mut next_word = Duration::from_secs(STILL_AT_WORK_SECONDS);
    loop {
        if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
            return succeeded(command, status);
        }
        if let Some(signal) = os::interrupted() {
            end_group(&mut child, signal);
            return Err(Failure::Interrupted(signal));
        }
        if let Some(what) = silent.filter(|_| started.elapsed() >= next_word) {
            eprintln!("xtask: still {what} ({} s)", started.elapsed().as_secs());
            next_word += Duration::from_secs(STILL_AT_WORK_SECONDS);
        }
        thread::sleep(POLL);
    }
}

/// A process that kills a group when we are gone without a word, and is itself gone once this is dropped.
///
/// It waits for the end of a pipe whose other end only we hold. A test program is a grandchild of ours: no
/// signal of the kernel would tell it that we died.
struct Watchdog(Option<Child>);

impl Watchdog {
    fn over(group: u32) -> Watchdog {
        let mut shell = Command::new("sh");
        shell.args(["-c", "read -r never_sent; kill -s KILL -- \"-$0\"", &group.to_string()]);
        shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        // Without it everything works as well, except after a kill of ours.
        Watchdog(shell.spawn().ok())
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        if let Some(shell) = &mut self.0 {
            // Killed before its pipe is closed, it never gets to its second command.
            let _ = shell.kill();
            let _ = shell.wait();
        }
    }
}

/// Waits for a child that was told to end; kills it when it does not.
pub fn wait_or_kill(child: &mut Child) {
    let deadline = Instant::now() + Duration::from_secs(OBEY_SECONDS_MAX);
    while Instant::now() < deadline {
        match child.try_wait() {
            Ok(None) => thread::sleep(POLL),
            Ok(Some(_)) | Err(_) => return,
        }
    }
    // Both may fail only because the child has just ended, which is what is wanted.
    let _ = child.kill();
    let _ = child.wait();
}

/// The command as one would type it.
pub fn line(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| quoted(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,@+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

fn end_group(child: &mut Child, signal: i32) {
    let _ = os::send_to_group(child.id(), signal);
    wait_or_kill(child);
    // The leader is gone; whatever it left behind in its group goes too.
    let _ = os::send_to_group(child.id(), libc::SIGKILL);
}

fn succeeded(command: &Command, status: ExitStatus) -> Result<(), Failure> {
    match (status.success(), status.signal()) {
        (true, _) => Ok(()),
        (false, Some(signal)) => {
            Err(Failure::Failed(format!("`{}` was ended by signal {signal}", line(command))))
        }
        (false, None) => Err(Failure::Failed(format!("`{}` failed ({status})", line(command)))),
    }
}

fn cannot_start(command: &Command, error: &std::io::Error) -> String {
    format!("cannot start `{}`: {error}", line(command))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_one_would_type_it() {
        let mut command = Command::new("/usr/bin/cargo");
        command.args(["test", "--", "two words", "it's", ""]);
        assert_eq!(line(&command), r"cargo test -- 'two words' 'it'\''s' ''");
    }

    #[test]
    fn a_failed_command_is_named_with_its_complaint() {
        let error = read(Command::new("sh").args(["-c", "echo why >&2; exit 3"])).unwrap_err();
        assert!(error.contains("exit 3") && error.contains("why"), "{error}");
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = read(&mut Command::new("no-such-program-here")).unwrap_err();
        assert!(error.contains("cannot start `no-such-program-here`"), "{error}");
    }

    #[test]
    fn a_program_that_does_not_end_is_ended_and_one_that_does_is_read() {
        let mut endless = Command::new("sh");
        endless.args(["-c", "echo begun; exec sleep 600"]);
        assert_eq!(read_within(&mut endless, Duration::from_millis(200)), Ok(None));
        let mut long = Command::new("sh");
        long.args(["-c", "yes | head -c 300000; exit 3"]);
        let output = read_within(&mut long, Duration::from_secs(60)).unwrap().expect("it ends");
        assert_eq!((output.stdout.len(), output.status.code()), (300_000, Some(3)));
    }

    #[test]
    fn the_watchdog_kills_the_group_once_its_pipe_ends() {
        let mut child = Command::new("sleep").arg("600").process_group(0).spawn().unwrap();
        let mut watchdog = Watchdog::over(child.id());
        // What the end of our process does.
        drop(watchdog.0.as_mut().unwrap().stdin.take());
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    }

    #[test]
    fn a_dismissed_watchdog_kills_nothing() {
        let mut child = Command::new("sleep").arg("0.3").process_group(0).spawn().unwrap();
        drop(Watchdog::over(child.id()));
        assert!(child.wait().unwrap().success());
    }

    #[test]
    fn the_repository_holds_this_crate() {
        assert!(repository().join("testbed/src/process.rs").is_file());
    }
}

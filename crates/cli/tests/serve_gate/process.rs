//! The program as a child process in a folder of its own.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::client::{Answer, Client};

/// A gate that runs.
pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) listen: SocketAddr,
    pub(crate) admin: SocketAddr,
    /// What it said when it was ready.
    pub(crate) said: String,
    errors: Arc<Mutex<String>>,
}

/// A folder that is there as long as the test.
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// The command with these flags and no others.
    pub(crate) fn bare(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
        command.args(["serve", "gate"]).args(args);
        clean(&mut command);
        command.current_dir(self.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// The command, with free ports and without this environment's settings.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = self.bare(&["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        command.args(args);
        command
    }

    pub(crate) fn start(&self, args: &[&str]) -> Process {
        Process::of(self.command(args))
    }

    /// Runs it where it does not start, and gives its code and its words.
    pub(crate) fn fails(&self, args: &[&str]) -> (Option<i32>, String) {
        let output = self.command(args).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// Without this environment's settings.
pub(crate) fn clean(command: &mut Command) {
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SEMEL_")) {
        command.env_remove(name);
    }
}

impl Process {
    /// Waits until it is ready.
    pub(crate) fn of(mut command: Command) -> Self {
        let mut child = command.spawn().expect("semel starts");
        let errors = Arc::new(Mutex::new(String::new()));
        let writing = Arc::clone(&errors);
        if let Some(stderr) = child.stderr.take() {
            let mut stderr = BufReader::new(stderr);
            std::thread::spawn(move || {
                let mut line = String::new();
                while stderr.read_line(&mut line).is_ok_and(|count| count > 0) {
                    writing.lock().unwrap().push_str(&line);
                    line.clear();
                }
            });
        }
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut said = String::new();
        while !said.contains("\n  try") {
            let read = stdout.read_line(&mut said).unwrap();
            assert_ne!(read, 0, "it did not start: {said}{}", errors.lock().unwrap());
        }
        std::thread::spawn(move || stdout.read_to_end(&mut Vec::new()));
        let address = |name: &str| {
            let line = said.lines().find(|line| line.trim_start().starts_with(name)).expect(name);
            line.rsplit("//").next().unwrap().trim().parse().expect(line)
        };
        let (listen, admin) = (address("listening"), address("admin"));
        Self { child, listen, admin, said, errors }
    }

    /// What it has written to standard error so far.
    pub(crate) fn errors(&self) -> String {
        self.errors.lock().unwrap().clone()
    }

    /// Waits until it has written this.
    pub(crate) async fn until_said(&self, text: &str) {
        let started = Instant::now();
        while !self.errors().contains(text) {
            assert!(started.elapsed() < Duration::from_secs(10), "never said {text:?}: {}", self.errors());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status();
        assert!(status.unwrap().success());
    }

    /// Waits until it has ended.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(started.elapsed() < Duration::from_secs(20), "it does not end: {}", self.errors());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) async fn ask(&self, request: impl AsRef<[u8]>) -> Answer {
        Client::connect(self.listen).await.ask(request).await
    }

    /// A path of the admin address.
    pub(crate) async fn admin(&self, path: &str) -> Answer {
        Client::connect(self.admin).await.ask(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")).await
    }

    /// Kilobytes of memory that it has used at most.
    pub(crate) fn peak_memory_kb(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

//! A score service with bad habits, the relay as a child process, and a client.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

/// What the service does with a write.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Habit {
    /// Answers with this status and does nothing.
    Answers(u16),
    /// The same, with `Retry-After`.
    Limits(u64),
    /// Applies it, and says nothing for a while.
    AppliesAndHangs,
    /// Does nothing, and says nothing for a while.
    Hangs,
}

#[derive(Default)]
pub(crate) struct Books {
    pub(crate) scores: BTreeMap<String, i64>,
    pub(crate) writes: Vec<(String, i64)>,
    pub(crate) habits: VecDeque<Habit>,
    pub(crate) refused: BTreeSet<String>,
    pub(crate) tokens: Vec<String>,
}

/// The score service.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) address: SocketAddr,
    pub(crate) books: Arc<Mutex<Books>>,
}

impl Service {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let service = Self { address: listener.local_addr().unwrap(), books: Arc::default() };
        let serving = service.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let service = serving.clone();
                std::thread::spawn(move || while service.answer(&stream).is_some() {});
            }
        });
        service
    }

    pub(crate) fn next(&self, habits: &[Habit]) {
        self.books.lock().unwrap().habits.extend(habits);
    }

    pub(crate) fn score(&self, lane: &str) -> i64 {
        self.books.lock().unwrap().scores.get(lane).copied().unwrap_or(0)
    }

    pub(crate) fn writes(&self) -> Vec<(String, i64)> {
        self.books.lock().unwrap().writes.clone()
    }

    fn answer(&self, mut stream: &TcpStream) -> Option<()> {
        let (head, body) = read_message(stream)?;
        let mut words = head.split_whitespace();
        let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
        let lane = path.strip_prefix("/scores/")?.to_owned();
        let token = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("authorization").then(|| value.trim().to_owned())
        });
        let mut books = self.books.lock().unwrap();
        let token = token.unwrap_or_default();
        books.tokens.push(token.clone());
        let mut hang = false;
        let (status, retry_after, body) = if books.refused.contains(&token) {
            (401, None, "{}".to_owned())
        } else if method == "GET" {
            (200, None, format!(r#"{{"score":{}}}"#, books.scores.get(&lane).copied().unwrap_or(0)))
        } else {
            let score = serde_json::from_slice::<Value>(&body).unwrap()["score"].as_i64().unwrap();
            books.writes.push((lane.clone(), score));
            let habit = books.habits.pop_front();
            if matches!(habit, None | Some(Habit::AppliesAndHangs)) {
                books.scores.insert(lane, score);
            }
            hang = matches!(habit, Some(Habit::AppliesAndHangs | Habit::Hangs));
            match habit {
                Some(Habit::Answers(status)) => (status, None, "{}".to_owned()),
                Some(Habit::Limits(after)) => (429, Some(after), "{}".to_owned()),
                _ => (200, None, "{}".to_owned()),
            }
        };
        drop(books);
        if hang {
            std::thread::sleep(Duration::from_secs(60));
            return None;
        }
        let retry = retry_after.map_or_else(String::new, |after| format!("retry-after: {after}\r\n"));
        let head = format!(
            "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{retry}content-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(format!("{head}{body}").as_bytes()).ok()
    }
}

pub(crate) fn read_message(stream: &TcpStream) -> Option<(String, Vec<u8>)> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if line == "\r\n" {
            break;
        }
        head.push_str(&line);
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).ok()?;
    Some((head, body))
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("{self:?}"))
    }
}

pub(crate) fn call(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Answer {
    try_call(address, method, path, headers, body)
        .unwrap_or_else(|| panic!("{method} {path} was not answered"))
}

pub(crate) fn try_call(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Option<Answer> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\n{lines}content-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).ok()?;
    let (head, body) = read_message(&stream)?;
    let status = head.split_whitespace().nth(1)?.parse().ok()?;
    Some(Answer { status, head, text: String::from_utf8(body).ok()? })
}

/// What relays are told that their host is called.
pub(crate) const HOSTNAME: &str = "host-of-tests";

/// A folder with a configuration for this service.
pub(crate) struct Folder {
    dir: tempfile::TempDir,
}

impl Folder {
    pub(crate) fn for_service(service: &Service, more: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let profile = if more.contains("profile = ") { "" } else { "profile = \"scores\"" };
        let text = format!(
            r#"identity = "trusted:X-User"
[relay]
debounce = "1s"
at_rest = {{ keys = "relay.keys" }}
[relay.target.scores]
url = "http://{at}/scores/{{lane}}"
body = '{{{{"score":{{after}}}}}}'
tier = "read-back"
late_window = "1s"
sync_deadline = "20s"
timeout = "2s"
read = {{ url = "http://{at}/scores/{{lane}}", value = "/score" }}
blocked = ["418"]
{profile}
{more}
"#,
            at = service.address
        );
        std::fs::write(dir.path().join("semel.toml"), text).unwrap();
        let folder = Self { dir };
        let keys = folder.write("relay.keys", &format!("one {}=\n", "QUFB".repeat(10) + "QUE"));
        std::fs::set_permissions(keys, std::fs::Permissions::from_mode(0o600)).unwrap();
        folder
    }

    /// Changes the configuration.
    #[allow(dead_code)] // For those who share this file.
    pub(crate) fn rewrite(&self, change: impl Fn(String) -> String) {
        let path = self.path().join("semel.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(path, change(text)).unwrap();
    }

    /// A folder with this configuration.
    #[allow(dead_code)] // For those who share this file.
    pub(crate) fn with(text: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("semel.toml"), text).unwrap();
        Self { dir }
    }

    /// Sets a duration of the configuration.
    pub(crate) fn set(&self, name: &str, value: &str) {
        let text = std::fs::read_to_string(self.path().join("semel.toml")).unwrap();
        let line = |line: &str| match line.split_once(" = ") {
            Some((known, _)) if known == name => format!("{name} = \"{value}\"\n"),
            _ => format!("{line}\n"),
        };
        let set: String = text.lines().map(line).collect();
        assert_ne!(set, text, "{name} is there, and otherwise");
        self.write("semel.toml", &set);
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
        command.args(args).current_dir(self.path());
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("SEMEL_") {
                command.env_remove(name);
            }
        }
        command
    }

    /// Runs a command: its code and what it printed.
    pub(crate) fn run(&self, args: &[&str]) -> (Option<i32>, String, String) {
        let output = self.command(args).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }

    pub(crate) fn start(&self) -> Relay {
        self.start_with(&[])
    }

    pub(crate) fn start_with(&self, args: &[&str]) -> Relay {
        self.try_start_with(args).expect("it says where it listens")
    }

    /// Starts a relay; `None` where it ends before it listens.
    pub(crate) fn try_start_with(&self, args: &[&str]) -> Option<Relay> {
        let base = ["serve", "relay", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
        let mut command = self.command(&[&base, args].concat());
        command.env("HOSTNAME", HOSTNAME);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut address = |word: &str| -> Option<SocketAddr> {
            loop {
                let line = lines.next()?.ok()?;
                if line.trim().starts_with(word) {
                    return line.rsplit("http://").next()?.trim().parse().ok();
                }
            }
        };
        match (address("listening"), address("admin")) {
            (Some(listen), Some(admin)) => Some(Relay { listen, admin, child }),
            _ => {
                let _ = child.wait();
                None
            }
        }
    }
}

/// A relay that runs.
pub(crate) struct Relay {
    pub(crate) child: Child,
    pub(crate) listen: SocketAddr,
    pub(crate) admin: SocketAddr,
}

impl Relay {
    pub(crate) fn submit(&self, user: &str, key: &str, mode: &str, items: &str) -> Answer {
        let headers = [
            ("x-user", user),
            ("x-idempotency-key", key),
            ("x-sync-mode", mode),
            ("content-type", "application/json"),
        ];
        call(self.listen, "POST", "/v1/relay/scores", &headers, &format!(r#"{{"items":{items}}}"#))
    }

    /// The same of a request that says when it was first sent.
    pub(crate) fn submit_sent_at(&self, user: &str, key: &str, first_sent: &str, items: &str) -> Answer {
        let headers = [
            ("x-user", user),
            ("x-idempotency-key", key),
            ("idempotency-first-sent", first_sent),
            ("content-type", "application/json"),
        ];
        call(self.listen, "POST", "/v1/relay/scores", &headers, &format!(r#"{{"items":{items}}}"#))
    }

    pub(crate) fn get(&self, user: &str, path: &str) -> Answer {
        call(self.listen, "GET", path, &[("x-user", user)], "")
    }

    pub(crate) fn operator(&self, method: &str, path: &str, body: &str) -> Answer {
        call(self.admin, method, path, &[("content-type", "application/json")], body)
    }

    /// kill -9
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until something holds.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

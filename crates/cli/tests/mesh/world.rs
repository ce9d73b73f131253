//! A broker and daemons in a folder, asked by HTTP and by their own commands.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long anything is waited for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// A process that is killed with its test.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: i32) {
        // SAFETY: a plain system call on a child of this process.
        unsafe { libc::kill(self.0.id().cast_signed(), signal) };
    }

    /// Waits until it has ended by itself.
    pub(crate) fn wait(&mut self) {
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A broker with the mesh `team`, whose members have daemons.
pub(crate) struct World {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) port: u16,
    pub(crate) broker: Process,
}

/// A member's daemon.
pub(crate) struct Daemon {
    pub(crate) name: String,
    pub(crate) folder: PathBuf,
    pub(crate) process: Process,
}

/// Starts `semel …` in a folder, and waits until it says that it is ready.
pub(crate) fn start(folder: &Path, words: &[&str]) -> Process {
    // A file that its last owner has just left may be locked for a moment.
    let until = Instant::now() + PATIENCE;
    loop {
        let mut child = Command::new(env!("CARGO_BIN_EXE_semel"))
            .args(words)
            .current_dir(folder)
            .env_remove("SEMEL_CONFIG")
            .stdout(Stdio::piped())
            .stderr(std::fs::File::options().create(true).append(true).open(folder.join("log")).unwrap())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        if lines.next().is_some_and(|line| line.is_ok_and(|line| line.ends_with("is ready"))) {
            std::thread::spawn(move || lines.for_each(drop));
            return Process(child);
        }
        let _ = child.wait();
        assert!(Instant::now() < until, "{words:?}: {}", log(folder));
        std::thread::sleep(Duration::from_millis(100));
    }
}

pub(crate) fn log(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("log")).unwrap_or_default()
}

/// An address that nothing listens on.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Waits for something.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what} did not come about");
        std::thread::sleep(Duration::from_millis(50));
    }
}

pub(crate) fn semel(folder: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.args(words).current_dir(folder).env_remove("SEMEL_CONFIG").output().unwrap()
}

pub(crate) fn done(folder: &Path, words: &[&str]) -> String {
    let output = semel(folder, words);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

pub(crate) fn done_json(folder: &Path, words: &[&str]) -> Value {
    serde_json::from_str(&done(folder, &[words, &["--json"]].concat())).unwrap()
}

/// One exchange over HTTP/1.1; nothing where the peer is not there, or goes away.
fn exchange(mut stream: impl Read + Write, head: &str, body: &Value) -> Option<(u16, Value)> {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let request = format!(
        "{head}host: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.split(' ').nth(1)?.parse().ok()?;
    let (_, body) = answer.split_once("\r\n\r\n")?;
    let body = &body[body.find('{').unwrap_or(0)
        ..body.rfind('}').map_or(0, |end| end + 1).max(body.find('{').unwrap_or(0))];
    Some((status, serde_json::from_str(body).unwrap_or(Value::Null)))
}

impl World {
    /// A broker with a mesh, members and topics. Every member is subscribed to every topic.
    pub(crate) fn new(members: &[&str], topics: &[&str]) -> Self {
        Self::with(members, topics, "")
    }

    /// The same, with these settings of the broker.
    pub(crate) fn with(members: &[&str], topics: &[&str], settings: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("semel.toml"), format!("[broker]\n{settings}\n")).unwrap();
        let port = free_port();
        let broker = serve_broker(folder.path(), port);
        let world = Self { folder, port, broker };
        world.manage(&["meshes", "add", "team"]);
        for member in members {
            let token = world.manage(&["members", "add", member, "--mesh", "team", "--role", "owner"]);
            std::fs::write(world.token(member), token).unwrap();
        }
        for topic in topics {
            world.manage(&["topics", "add", topic, "--mesh", "team"]);
            for member in members {
                world.manage(&["subscriptions", "add", member, "--mesh", "team", "--topic", topic]);
            }
        }
        world
    }

    pub(crate) fn manage(&self, words: &[&str]) -> String {
        done(self.folder.path(), &[&["broker"], words, &["--store", "sqlite:broker.db"]].concat())
    }

    pub(crate) fn start_broker(&mut self) {
        self.broker = serve_broker(self.folder.path(), self.port);
    }

    pub(crate) fn token(&self, member: &str) -> PathBuf {
        self.folder.path().join(format!("{member}.token"))
    }

    /// Asks the broker as a member, with more header lines.
    pub(crate) fn ask(
        &self,
        member: &str,
        method: &str,
        path: &str,
        headers: &str,
        body: &Value,
    ) -> Option<(u16, Value)> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let token = std::fs::read_to_string(self.token(member)).unwrap();
        let head = format!("{method} {path} HTTP/1.1\r\nauthorization: Bearer {}\r\n{headers}", token.trim());
        exchange(stream, &head, body)
    }

    /// A member's daemon that publishes, and receives as these lines of the settings say.
    pub(crate) fn daemon(&self, member: &str, receives: &str) -> Daemon {
        let folder = self.folder.path().join(member);
        std::fs::create_dir_all(&folder).unwrap();
        let mut daemon = Daemon { name: member.to_owned(), folder, process: Process(idle()) };
        self.set(&daemon, receives);
        daemon.start();
        daemon
    }

    /// Writes a daemon's settings.
    pub(crate) fn set(&self, daemon: &Daemon, receives: &str) {
        let text = format!(
            "[outbox]\nbroker = \"http://127.0.0.1:{}\"\nmesh = \"team\"\n[[outbox.receive]]\n{receives}\ncredential = \"file:{}\"\n",
            self.port,
            self.token(&daemon.name).display(),
        );
        std::fs::write(daemon.folder.join("semel.toml"), text).unwrap();
    }
}

fn idle() -> Child {
    Command::new("true").spawn().unwrap()
}

fn serve_broker(folder: &Path, port: u16) -> Process {
    let listen = format!("127.0.0.1:{port}");
    start(
        folder,
        &["serve", "broker", "--listen", &listen, "--admin", "127.0.0.1:0", "--store", "sqlite:broker.db"],
    )
}

impl Daemon {
    pub(crate) fn start(&mut self) {
        self.process.kill();
        self.process = start(&self.folder, &["serve", "outbox"]);
    }

    /// Asks the daemon; nothing where it is not there.
    pub(crate) fn call(&self, method: &str, path: &str, body: &Value) -> Option<(u16, Value)> {
        let stream = UnixStream::connect(self.folder.join("outbox.db.d/outbox.sock")).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        exchange(stream, &format!("{method} {path} HTTP/1.1\r\n"), body)
    }

    /// What waits in the inbox, from the first on.
    pub(crate) fn inbox(&self) -> Vec<Value> {
        let (mut found, mut after) = (Vec::new(), 0);
        loop {
            let Some((200, page)) =
                self.call("GET", &format!("/v1/inbox?limit=1000&after={after}"), &Value::Null)
            else {
                return found;
            };
            found.extend(page["messages"].as_array().unwrap().iter().cloned());
            match page["next_after"].as_i64() {
                Some(next) => after = next,
                None => return found,
            }
        }
    }

    /// The inbox once so many messages are in it.
    pub(crate) fn inbox_of(&self, count: usize) -> Vec<Value> {
        until(&format!("an inbox of {count} for {}", self.name), || {
            let found = self.inbox();
            (found.len() >= count).then_some(found)
        })
    }
}

//! A Python service, gateways before it, and a database of its own, each a process that ends with the test.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run `cargo xtask test`"))
}

/// A file of the example.
pub(crate) fn example(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/agents");
    folder.join(name).display().to_string()
}

/// The interpreter with the packages of the example.
pub(crate) fn python() -> Command {
    let mut python = Command::new(variable("SEMEL_TEST_PYTHON"));
    python.current_dir(example("")).env("PYTHONDONTWRITEBYTECODE", "1");
    python
}

/// A folder with what `setup.sh` makes: the world's secret, and the keys of answers.
pub(crate) fn home() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a folder");
    let key = "one MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=\n";
    for (name, text) in
        [("world.secret", "a secret that only the world and its gateway know\n"), ("semel.keys", key)]
    {
        let file = folder.path().join(name);
        std::fs::write(&file, text).expect("a file");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("its mode");
    }
    folder
}

/// A random key.
pub(crate) fn uuid() -> String {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(&mut bytes))
        .expect("random bytes");
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// Status, head in lower case, and body as JSON or text. An error means that the connection broke.
pub(crate) fn answer(
    address: &str,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> std::io::Result<(u16, String, Value)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}");
    let content = "Content-Type: application/json\r\n";
    stream.write_all(format!("{head}{content}Content-Length: {length}\r\n\r\n{body}").as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let broken = || std::io::Error::other(format!("no answer: {text:?}"));
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(broken)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(broken)?;
    let body = serde_json::from_str(body).unwrap_or_else(|_| Value::String(body.to_owned()));
    Ok((status, head.to_ascii_lowercase(), body))
}

/// A process that is killed with this.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // Gone already, in some cases.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A Python service.
pub(crate) struct Service {
    pub(crate) address: String,
    process: Process,
}

impl Service {
    pub(crate) fn start(app: &str, environment: &[(String, String)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        drop(listener);
        Self::start_at(app, environment, port)
    }

    pub(crate) fn start_at(app: &str, environment: &[(String, String)], port: u16) -> Self {
        let mut command = python();
        command.args(["-m", "uvicorn", app, "--log-level", "warning", "--port", &port.to_string()]);
        command.envs(environment.iter().cloned());
        let process = Process(command.spawn().expect("Python runs"));
        let service = Self { address: format!("127.0.0.1:{port}"), process };
        let until = Instant::now() + PATIENCE;
        while TcpStream::connect(&service.address).is_err() {
            assert!(Instant::now() < until, "{app} does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        service
    }

    pub(crate) fn port(&self) -> u16 {
        let (_, port) = self.address.rsplit_once(':').expect("an address has a port");
        port.parse().expect("a number")
    }

    pub(crate) fn wait_for_death(&mut self) {
        let until = Instant::now() + PATIENCE;
        while self.process.0.try_wait().expect("a child of ours").is_none() {
            assert!(Instant::now() < until, "the service did not die");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// A running `semel serve gate`.
pub(crate) struct Gateway {
    pub(crate) address: String,
    admin: String,
    process: Process,
}

impl Gateway {
    pub(crate) fn start(home: &Path, config: &str, store: &str, upstream: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
        command.current_dir(home);
        let upstream = format!("http://{upstream}");
        command.args(["serve", "gate", "--config", config, "--store", store, "--upstream", &upstream]);
        command.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--access-log", "off"]);
        let mut process = Process(command.stdout(Stdio::piped()).spawn().expect("semel runs"));
        let mut output = BufReader::new(process.0.stdout.take().expect("its output is read"));
        let mut said = String::new();
        while !said.contains("\n  admin") {
            assert!(output.read_line(&mut said).expect("text") > 0, "it ended after saying {said:?}");
        }
        let place = |name: &str| {
            let place = said.lines().find_map(|line| line.trim().strip_prefix(name));
            place.expect("it says where it listens").trim().trim_start_matches("http://").to_owned()
        };
        let (address, admin) = (place("listening"), place("admin"));
        // What it says later is read, so that it is never held up.
        std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
        Self { address, admin, process }
    }

    /// How many keys it has claimed.
    pub(crate) fn claimed(&self) -> u64 {
        let (_, _, text) = answer(&self.admin, "GET", "/metrics", "", "").expect("the gateway answers");
        let lines = text.as_str().expect("text").lines();
        let counts = lines.filter(|line| line.starts_with("semel_gate_new_keys_total{"));
        counts.map(|line| line.rsplit(' ').next().unwrap_or("").parse::<u64>().expect("a count")).sum()
    }

    /// As `kill -9` does.
    pub(crate) fn kill(&mut self) {
        self.process.0.kill().expect("a child of ours");
        self.process.0.wait().expect("a child of ours");
    }
}

/// A database on the tests' server, by way of `psql`'s own protocol in Python.
pub(crate) struct Database {
    pub(crate) url: String,
}

impl Database {
    pub(crate) fn create(name: &str) -> Self {
        let server = variable("SEMEL_TEST_POSTGRES");
        let name = format!("agents_{name}_{}", std::process::id());
        sql(&server, &format!("CREATE DATABASE {name}"));
        let (place, _) = server.rsplit_once('/').expect("a URL with a database");
        Self { url: format!("{place}/{name}") }
    }

    pub(crate) fn run(&self, statement: &str) {
        sql(&self.url, statement);
    }

    pub(crate) fn number(&self, statement: &str) -> u32 {
        sql(&self.url, statement).trim().parse().expect("a number")
    }
}

fn sql(url: &str, statement: &str) -> String {
    let program = "import psycopg, sys
with psycopg.connect(sys.argv[1], autocommit=True) as database:
    cursor = database.execute(sys.argv[2])
    print(cursor.fetchone()[0] if cursor.description else '')";
    let output = python().args(["-c", program, url, statement]).output().expect("Python runs");
    assert!(output.status.success(), "{statement}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

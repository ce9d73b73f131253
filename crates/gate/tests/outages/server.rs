//! A PostgreSQL server of a test's own, for what no test may do to the server of the others: to end without warning, again
//! and again. It runs as an unprivileged user on loopback alone, with `fsync` on, and never outlives the test.

use std::fs::File;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const VARIABLE: &str = "SEMEL_TEST_POSTGRES_BIN";
const READY: &str = "database system is ready to accept connections";
const START_MAX: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Keeps the server for as long as its own input is open, then ends it at once: SIGQUIT is PostgreSQL's immediate
/// shutdown, which flushes nothing. The input closes when the test says so, and also when the test is killed.
const KEEPER: &str = r#""$@" & server=$!; read -r _; kill -QUIT "$server"; wait "$server""#;

/// A server in a folder of its own.
pub(crate) struct Server {
    folder: tempfile::TempDir,
    port: u16,
    running: Option<Child>,
    starts: u32,
}

impl Server {
    /// Makes a cluster and starts a server on it.
    pub(crate) async fn create() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        if let Some((uid, gid)) = account() {
            chown(folder.path(), Some(uid), Some(gid)).expect("the folder is the server's");
        }
        let made = command(&bin().join("initdb"), folder.path())
            .args(["--username=semel", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "-D"])
            .arg(folder.path().join("data"))
            .status();
        assert!(made.expect("initdb runs").success(), "initdb makes a cluster");
        let mut server = Self { folder, port: free_port(), running: None, starts: 0 };
        server.start();
        server.wait().await;
        server
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://semel@127.0.0.1:{}/postgres", self.port)
    }

    /// Starts it, and does not wait until it is ready.
    pub(crate) fn start(&mut self) {
        assert!(self.running.is_none(), "one at a time");
        self.starts += 1;
        let log = File::create(self.log()).expect("a log");
        let mut command = command(Path::new("/bin/sh"), self.folder.path());
        command.args(["-c", KEEPER, "keeper"]).arg(bin().join("postgres"));
        command.arg("-D").arg(self.folder.path().join("data"));
        for setting in self.settings() {
            command.arg("-c").arg(setting);
        }
        command.stdin(Stdio::piped()).stderr(log);
        self.running = Some(command.spawn().expect("the server starts"));
    }

    fn settings(&self) -> [String; 5] {
        [
            "listen_addresses=127.0.0.1".to_owned(),
            format!("port={}", self.port),
            format!("unix_socket_directories={}", self.folder.path().display()),
            "max_connections=100".to_owned(),
            "fsync=on".to_owned(),
        ]
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join(format!("log-{}", self.starts))
    }

    fn is_ready(&self) -> bool {
        std::fs::read_to_string(self.log()).is_ok_and(|log| log.contains(READY))
    }

    /// Waits until it is ready, and says when it surely was not yet.
    pub(crate) async fn wait(&self) -> Instant {
        let started = Instant::now();
        let mut not_yet = started;
        loop {
            let looked = Instant::now();
            if self.is_ready() {
                return not_yet;
            }
            not_yet = looked;
            assert!(started.elapsed() < START_MAX, "the server does not start: see {}", self.log().display());
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Ends it without warning, and returns when it is gone.
    pub(crate) fn shut_down_immediately(&mut self) {
        let Some(mut keeper) = self.running.take() else { return };
        drop(keeper.stdin.take());
        keeper.wait().expect("the server ends");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shut_down_immediately();
    }
}

fn bin() -> PathBuf {
    std::env::var_os(VARIABLE).map(PathBuf::from).unwrap_or_else(|| {
        panic!("{VARIABLE} is not set: run `cargo xtask test`, which says where PostgreSQL's programs are")
    })
}

fn command(program: &Path, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(folder).env("LC_ALL", "C");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if let Some((uid, gid)) = account() {
        command.uid(uid).gid(gid);
    }
    command
}

/// Whom the server runs as: PostgreSQL refuses to run as root.
fn account() -> Option<(u32, u32)> {
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    let users = std::fs::read_to_string("/etc/passwd").expect("this system has users");
    let of_name = |name: &&str| {
        let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut numbers = line.split(':').skip(2);
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    };
    is_root.then(|| ["postgres", "nobody"].iter().find_map(of_name).expect("a user that is not root"))
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").port()
}

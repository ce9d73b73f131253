//! A server of its own, for what one test may not do to the server of the others. Also used by the relay's tests.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const VARIABLE: &str = "SEMEL_TEST_POSTGRES_BIN";
/// How long a server may take to start.
const START_MAX: Duration = Duration::from_secs(30);

/// A server in a folder of its own. Killed with this.
pub(crate) struct Server {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) port: u16,
    pub(crate) child: Child,
}

/// Whom the server runs as: PostgreSQL refuses to run as root.
fn account() -> Option<(u32, u32)> {
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return None;
    }
    let users = std::fs::read_to_string("/etc/passwd").expect("this system has users");
    ["postgres", "nobody"].iter().find_map(|name| {
        let mut fields = users.lines().find(|line| line.starts_with(&format!("{name}:")))?.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    })
}

fn command(program: &str, folder: &Path) -> Command {
    let bin = std::env::var_os(VARIABLE).map(PathBuf::from).unwrap_or_else(|| {
        panic!("{VARIABLE} is not set: run `cargo xtask test`, which says where PostgreSQL's programs are")
    });
    let mut command = Command::new(bin.join(program));
    command.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if let Some((uid, gid)) = account() {
        command.uid(uid).gid(gid);
    }
    command
}

impl Server {
    pub(crate) async fn start(settings: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        if let Some((uid, gid)) = account() {
            std::os::unix::fs::chown(folder.path(), Some(uid), Some(gid))
                .expect("the folder is the server's");
        }
        let data = folder.path().join("data");
        let made = command("initdb", folder.path())
            .args(["--username=semel", "--auth=trust", "--no-sync", "-D"])
            .arg(&data)
            .status();
        assert!(made.expect("initdb runs").success(), "initdb makes a cluster");
        let port = free_port();
        let child = spawn(folder.path(), port, settings);
        let server = Self { folder, port, child };
        server.wait().await;
        server
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://semel@127.0.0.1:{}/postgres", self.port)
    }

    pub(crate) async fn wait(&self) {
        let started = Instant::now();
        while tokio_postgres::connect(&self.url(), tokio_postgres::NoTls).await.is_err() {
            assert!(started.elapsed() < START_MAX, "the server does not start");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Ends it without warning. SIGQUIT lets it take its own children along; nothing is flushed.
    pub(crate) fn kill(&mut self) {
        let pid = i32::try_from(self.child.id()).expect("a process id");
        // SAFETY: the child is ours and was not waited for yet.
        unsafe { libc::kill(pid, libc::SIGQUIT) };
        self.child.wait().expect("it ends");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.kill();
        }
    }
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").port()
}

pub(crate) fn spawn(folder: &Path, port: u16, settings: &[&str]) -> Child {
    let mut command = command("postgres", folder);
    command.arg("-D").arg(folder.join("data")).args(["-p", &port.to_string()]);
    command
        .args(["-c", "listen_addresses=127.0.0.1", "-c"])
        .arg(format!("unix_socket_directories={}", folder.display()));
    for setting in settings {
        command.args(["-c", setting]);
    }
    command.spawn().expect("the server runs")
}

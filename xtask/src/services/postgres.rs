//! How a throw-away PostgreSQL is made and run: as an unprivileged user, on loopback alone, with `fsync` on,
//! because semel refuses a database that may forget what it confirmed.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use super::scratch::Scratch;
use super::server::{self, Recipe, Server};
use crate::failure::Failure;
use crate::os::{self, Account};

const CONNECTIONS_MAX: u32 = 200;

/// Makes a cluster with `initdb` and spawns a server on it.
pub(crate) fn spawn(bin: &Path, scratch: &Scratch) -> Result<Server, Failure> {
    let account = account()?;
    let folder = scratch.path().join("postgres");
    let failed = |error| format!("cannot prepare {}: {error}", folder.display());
    std::fs::create_dir(&folder).map_err(failed)?;
    if let Some(Account { uid, gid }) = account {
        chown(&folder, Some(uid), Some(gid)).map_err(failed)?;
    }
    let data = folder.join("data");
    initdb(bin, &folder, &data, account, scratch)?;

    let binary = bin.join("postgres");
    let program = binary.clone();
    Server::spawn(Recipe {
        name: "postgres",
        binary,
        command: Box::new(move |port| {
            let mut command = as_account(&program, &folder, account);
            command.arg("-D").arg(&data);
            for setting in settings(port, &folder) {
                command.arg("-c").arg(setting);
            }
            command
        }),
        log: scratch.log("postgres"),
        ready_line: "database system is ready to accept connections",
        // "Immediate shutdown": unlike a kill it lets the server end its own children and shared memory.
        stop_signal: libc::SIGQUIT,
    })
}

pub(crate) fn url(port: u16) -> String {
    format!("postgres://semel@127.0.0.1:{port}/postgres")
}

fn settings(port: u16, folder: &Path) -> Vec<String> {
    vec![
        "listen_addresses=127.0.0.1".to_owned(),
        format!("port={port}"),
        format!("unix_socket_directories={}", folder.display()),
        format!("max_connections={CONNECTIONS_MAX}"),
        "fsync=on".to_owned(),
    ]
}

fn initdb(
    bin: &Path,
    folder: &Path,
    data: &Path,
    account: Option<Account>,
    scratch: &Scratch,
) -> Result<(), Failure> {
    let mut command = as_account(&bin.join("initdb"), folder, account);
    command.arg("-D").arg(data);
    command.args(["--username=semel", "--auth=trust", "--encoding=UTF8", "--locale=C"]);
    // Only the making of the empty cluster goes unsynced: it is thrown away if the machine stops now.
    command.arg("--no-sync");
    server::run_logged(&mut command, "making a PostgreSQL cluster", &scratch.log("initdb"))
}

/// A command that runs in `folder` as `account`, in English, untouched by the developer's own PG* settings.
fn as_account(program: &Path, folder: &Path, account: Option<Account>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(folder);
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("PG")) {
            command.env_remove(name);
        }
    }
    command.env("LC_ALL", "C");
    if let Some(Account { uid, gid }) = account {
        command.uid(uid).gid(gid);
    }
    command
}

/// The user to become: PostgreSQL refuses to run as root. Without root we stay who we are.
fn account() -> Result<Option<Account>, Failure> {
    if !os::is_root() {
        return Ok(None);
    }
    let account = os::account("postgres").or_else(|| os::account("nobody"));
    account.map(Some).ok_or_else(|| {
        Failure::Failed(
            "PostgreSQL refuses to run as root, and there is no user `postgres` or `nobody`: add one"
                .to_owned(),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_listens_on_loopback_and_keeps_fsync() {
        let settings = settings(40_001, Path::new("/tmp/x"));
        assert!(settings.contains(&"listen_addresses=127.0.0.1".to_owned()));
        assert!(settings.contains(&"fsync=on".to_owned()));
        assert!(settings.contains(&"port=40001".to_owned()));
    }
}

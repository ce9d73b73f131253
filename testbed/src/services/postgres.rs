//! How a throw-away PostgreSQL is made and run: as an unprivileged user, on loopback alone, with `fsync` on,
//! because semel refuses a database that may forget what it confirmed.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::scratch::Scratch;
use super::server::{self, Recipe, Server};
use crate::failure::Failure;
use crate::os::{self, Account};
use crate::process;

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

    run(bin, folder, data, account, scratch.log("postgres"))
}

/// Spawns a server on a cluster that is there.
fn run(
    bin: &Path,
    folder: PathBuf,
    data: PathBuf,
    account: Option<Account>,
    log: PathBuf,
) -> Result<Server, Failure> {
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
        log,
        // A standby says "… accept read-only connections".
        ready_line: "database system is ready to accept",
        // "Immediate shutdown": unlike a kill it lets the server end its own children and shared memory.
        stop_signal: libc::SIGQUIT,
    })
}

/// Copies the cluster of a running primary and runs the copy as its synchronous standby: from the return on, whatever the
/// primary confirms is on both.
pub(crate) fn stand_by(bin: &Path, scratch: &Scratch, primary: u16) -> Result<Server, Failure> {
    static NUMBER: AtomicU32 = AtomicU32::new(1);
    let (account, folder) = (account()?, scratch.path().join("postgres"));
    let name = format!("standby-{}", NUMBER.fetch_add(1, Ordering::SeqCst));
    let data = folder.join(&name);
    let mut copy = as_account(&bin.join("pg_basebackup"), &folder, account);
    copy.args(["-h", "127.0.0.1", "-U", "semel", "-R", "-X", "stream", "-c", "fast", "--no-sync", "-p"]);
    copy.arg(primary.to_string()).arg("-D").arg(&data);
    server::run_logged(&mut copy, "copying a PostgreSQL cluster", &scratch.log(&format!("{name}-copy")))?;
    let mut standby = run(bin, folder, data, account, scratch.log(&name))?;
    standby.settle()?;
    ask(bin, scratch, primary, "ALTER SYSTEM SET synchronous_standby_names = '*'")?;
    ask(bin, scratch, primary, "SELECT pg_reload_conf()")?;
    let is_sync =
        "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = 'sync'";
    until(|| Ok(ask(bin, scratch, primary, is_sync)?.trim() == "1"), "the standby is not synchronous")?;
    Ok(standby)
}

/// Makes a standby the primary. Its own primary is gone.
pub(crate) fn promote(bin: &Path, scratch: &Scratch, standby: u16) -> Result<(), Failure> {
    ask(bin, scratch, standby, "SELECT pg_promote(true, 60)")?;
    until(
        || Ok(ask(bin, scratch, standby, "SELECT pg_is_in_recovery()")?.trim() == "f"),
        "the standby was not promoted",
    )
}

/// One statement, by `psql`.
fn ask(bin: &Path, scratch: &Scratch, port: u16, sql: &str) -> Result<String, Failure> {
    let mut psql = as_account(&bin.join("psql"), scratch.path(), account()?);
    psql.args(["-h", "127.0.0.1", "-U", "semel", "-d", "postgres", "-Atc", sql, "-p"]).arg(port.to_string());
    Ok(process::read(&mut psql)?)
}

fn until(mut holds: impl FnMut() -> Result<bool, Failure>, otherwise: &str) -> Result<(), Failure> {
    for _ in 0..300 {
        if holds()? {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Err(Failure::Failed(otherwise.to_owned()))
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

//! How the parts of semel are started for a bench: as a user would, with nothing set that a bench does not need.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use semel_testbed::failure::Failure;
use semel_testbed::process;
use semel_testbed::services::Server;

use super::{Running, World, must};
use crate::contestant::Store;
use crate::install;

/// The token of an outbox on TCP, and the lane that messages wait in.
pub(crate) const TOKEN: &str = "3c1f0c6c5e8f4b5f9a7d2e1b0a9c8d7e";
const WAITING_LANE: &str = "0000000";
/// More than any bench leaves waiting.
const ROWS_MAX: &str = "3000000";

impl World {
    pub(super) fn gate(&mut self, upstream: u16, store: &str) -> Result<Server, Failure> {
        let (binary, upstream, store) =
            (install::semel_binary(), format!("http://127.0.0.1:{upstream}"), store.to_owned());
        let program = binary.clone();
        let command = move |port: u16| {
            let mut command = Command::new(&program);
            command.args(["serve", "gate", "--upstream", &upstream, "--store", &store]);
            command.args(["--admin", "127.0.0.1:0", "--listen", &format!("127.0.0.1:{port}")]);
            command
        };
        self.server("gate", binary, Box::new(command), "semel gate is ready", libc::SIGTERM)
    }

    /// An outbox whose one lane is paused.
    pub(super) fn outbox(&mut self, running: &mut Running, upstream: u16) -> Result<(), Failure> {
        running.counted = None;
        running.takes_messages(TOKEN);
        running.take(self.outbox_daemon(upstream)?);
        let head = format!(
            "POST /v1/lanes/{WAITING_LANE}/pause HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {TOKEN}\r\ncontent-type: application/json"
        );
        must(running.ports[0], &head, "{}")?;
        Ok(())
    }

    pub(crate) fn outbox_daemon(&mut self, upstream: u16) -> Result<Server, Failure> {
        let token = self.folder().join("token");
        fs::write(&token, TOKEN).map_err(|error| error.to_string())?;
        set_private(&token)?;
        let (binary, upstream) = (install::semel_binary(), format!("http://127.0.0.1:{upstream}"));
        let (program, store) = (binary.clone(), self.store(Store::Sqlite)?);
        let command = move |port: u16| {
            let mut command = Command::new(&program);
            command.args([
                "serve",
                "outbox",
                "--upstream",
                &upstream,
                "--store",
                &store,
                "--max-rows",
                ROWS_MAX,
            ]);
            command.args(["--listen", &format!("127.0.0.1:{port}"), "--token-file"]).arg(&token);
            command
        };
        self.server("outbox", binary, Box::new(command), "semel outbox is ready", libc::SIGTERM)
    }

    /// A relay whose background changes wait for company.
    pub(super) fn relay(&mut self, running: &mut Running, upstream: u16, store: &str) -> Result<(), Failure> {
        running.counted = None;
        let server = self.relay_daemon(upstream, store, "60s")?;
        running.request = relay_request();
        running.key = vec![];
        running.take(server);
        Ok(())
    }

    pub(crate) fn relay_daemon(
        &mut self,
        upstream: u16,
        store: &str,
        debounce: &str,
    ) -> Result<Server, Failure> {
        self.names += 1;
        let file = self.folder().join(format!("relay-{}.toml", self.names));
        let text = format!(
            "store = \"{store}\"\nidentity = \"trusted:X-User\"\n[relay]\ndebounce = \"{debounce}\"\n\
             [relay.target.scores]\nmethod = \"POST\"\nurl = \"http://127.0.0.1:{upstream}/scores/{{lane}}\"\n\
             body = '{{{{\"key\":\"{{key}}\",\"add\":{{delta}}}}}}'\ntier = \"key\"\nkey_retention = \"24h\"\nreducer = \"sum\"\n"
        );
        fs::write(&file, text).map_err(|error| error.to_string())?;
        let binary = install::semel_binary();
        let program = binary.clone();
        let command = move |port: u16| {
            let mut command = Command::new(&program);
            command.args([
                "serve",
                "relay",
                "--admin",
                "127.0.0.1:0",
                "--listen",
                &format!("127.0.0.1:{port}"),
            ]);
            command.arg("--config").arg(&file);
            command
        };
        self.server("relay", binary, Box::new(command), "semel relay", libc::SIGTERM)
    }

    /// The URL of a store that holds so many settled records. A file is filled once and then copied.
    pub(super) fn filled_store(&mut self, store: Store, records: u64) -> Result<String, Failure> {
        let url = self.store(store)?;
        if records == 0 {
            return Ok(url);
        }
        match store {
            Store::Sqlite => {
                let full = filled_file(records)?;
                let copy = PathBuf::from(url.trim_start_matches("sqlite:"));
                process::run(Command::new("cp").arg("--reflink=auto").arg(&full).arg(&copy))?;
                // What is copied is written to the disk now, and not during a measurement.
                process::run(Command::new("sync").arg(&copy))?;
            }
            Store::Postgres => fill(&url, records)?,
        }
        Ok(url)
    }
}

/// A relay is sent one item of one lane, with a key of its own.
pub(crate) fn relay_request() -> Vec<String> {
    let parts = [
        "--path",
        "/v1/relay/scores",
        "--header",
        "x-user: alice",
        "--header",
        "x-sync-mode: background",
        "--header",
        "x-idempotency-key: {key}",
        "--body",
        r#"{"items":[{"lane":"{lane}","value":1}]}"#,
    ];
    parts.map(str::to_owned).to_vec()
}

/// A file with so many records, made by this build. Filling ten million takes minutes, so it is kept.
pub(crate) fn filled_file(records: u64) -> Result<PathBuf, Failure> {
    let build = fs::metadata(install::bench_binary()).and_then(|file| file.modified());
    let build = build
        .ok()
        .and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok())
        .map_or(0, |d| d.as_secs());
    let folder = process::target().join("bench/filled");
    fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    let file = folder.join(format!("{records}-{build}.db"));
    if !file.exists() {
        // Those of earlier builds may have another schema, and are large.
        for old in fs::read_dir(&folder).into_iter().flatten().flatten() {
            if old.file_name().to_string_lossy().starts_with(&format!("{records}-")) {
                let _ = fs::remove_file(old.path());
            }
        }
        let partial = folder.join(format!("{records}-partial.db"));
        fill(&format!("sqlite:{}", partial.display()), records)?;
        fs::rename(&partial, &file).map_err(|error| error.to_string())?;
    }
    Ok(file)
}

fn fill(url: &str, records: u64) -> Result<(), Failure> {
    eprintln!("xtask: filling {records} records");
    let mut command = Command::new(install::bench_binary());
    command.args(["fill", "--store", url, "--records", &records.to_string()]);
    process::supervise(&mut command, Some("filling"))
}

fn set_private(file: &Path) -> Result<(), Failure> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(file, fs::Permissions::from_mode(0o600))
        .map_err(|error| Failure::Failed(error.to_string()))
}

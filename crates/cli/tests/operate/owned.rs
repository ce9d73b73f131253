//! On a file that a running gate owns: the program finds its admin address in the lock file.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::json;

use super::seed::Seed;
use super::*;

/// A gate before nothing, with its admin address. Ended when it is dropped.
struct Gate {
    process: Child,
    admin: String,
}

impl Gate {
    fn start(folder: &Path, more: &[&str]) -> Self {
        let args = ["serve", "gate", "--upstream", "http://127.0.0.1:1", "--listen", "127.0.0.1:0"];
        let args: Vec<&str> = args.iter().chain(more).copied().collect();
        let mut command = semel(folder, &args);
        let mut process =
            command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the gate starts");
        let lines = BufReader::new(process.stdout.take().expect("a pipe")).lines();
        let admin = lines
            .map_while(Result::ok)
            .find_map(|line| Some(line.trim().strip_prefix("admin")?.trim().to_owned()))
            .expect("the gate says its admin address");
        Self { process, admin }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn the_owner_of_the_file_is_asked() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let seed = Seed::at(&here.join("semel.db"));
    let id = seed.unknown("alice", "k", Duration::ZERO);
    drop(seed);
    let gate = Gate::start(here, &["--admin", "127.0.0.1:0"]);
    let lock = std::fs::read_to_string(here.join("semel.db.lock")).unwrap();
    let address = gate.admin.strip_prefix("http://").unwrap();
    assert_eq!(lock.lines().collect::<Vec<_>>(), [gate.process.id().to_string().as_str(), address]);
    assert_eq!(ids(&json(here, &["gate", "list", "--state", "unknown"])), std::slice::from_ref(&id));
    let resolved = json(here, &["gate", "resolve", &id, "--as", "applied", "--by", "dora"]);
    assert_eq!(resolved["state"], "unkept");
    let audit = json(here, &["gate", "audit", "--admin", &gate.admin]);
    assert_eq!(audit["audit"][0]["actor"], "dora (loopback)", "by the door of the running gate");
    let (code, why) = refused(here, &["migrate"]);
    assert!(code == 4 && why.contains("restart it"), "{why}");
    drop(gate);
    assert_eq!(json(here, &["gate", "show", &id])["records"][0]["state"], "unkept", "it was written");
}

#[test]
fn an_admin_address_with_a_token_asks_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    std::fs::write(here.join("full"), "the-full-token-of-this-test\n").unwrap();
    std::fs::write(here.join("read"), "the-read-token-of-this-test\n").unwrap();
    let (code, why) = refused(
        here,
        &[
            "serve",
            "gate",
            "--upstream",
            "http://127.0.0.1:1",
            "--listen",
            "127.0.0.1:0",
            "--admin",
            "0.0.0.0:0",
        ],
    );
    assert!(code == 3 && why.contains("--admin-token-file"), "{why}");
    let tokens = ["--admin-token-file", "full", "--admin-read-token-file", "read"];
    let gate = Gate::start(here, &[&["--admin", "0.0.0.0:0"][..], &tokens].concat());
    let (code, why) = refused(here, &["gate", "list"]);
    assert!(code == 5 && why.contains("--token-file"), "{why}");
    assert_eq!(ids(&json(here, &["gate", "list", "--token-file", "read"])), [] as [String; 0]);
    let (code, why) = refused(here, &["gate", "sweep", "--token-file", "read"]);
    assert!(code == 5 && why.contains("read-only"), "{why}");
    assert_eq!(json(here, &["gate", "sweep", "--token-file", "full"])["removed"], json!(0));
    std::fs::copy(here.join("full"), here.join("old")).unwrap();
    std::fs::write(here.join("full"), "another-full-token-of-this-test\n").unwrap();
    let hang_up = Command::new("kill").args(["-HUP", &gate.process.id().to_string()]).status();
    assert!(hang_up.is_ok_and(|status| status.success()));
    let is_in_force = || run(here, &["gate", "list", "--token-file", "full"]).status.code() == Some(0);
    let in_time = (0..50).any(|_| {
        is_in_force() || {
            std::thread::sleep(Duration::from_millis(100));
            false
        }
    });
    assert!(in_time, "a new token is in force once it is read anew");
    assert_eq!(refused(here, &["gate", "list", "--token-file", "old"]).0, 5, "and the old one no longer");
    drop(gate);
}

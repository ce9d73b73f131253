//! How a throw-away Redis is run. It keeps nothing on disk and listens on loopback alone.

use std::path::Path;
use std::process::Command;

use super::scratch::Scratch;
use super::server::{Recipe, Server};
use crate::failure::Failure;

pub(crate) fn spawn(binary: &Path, scratch: &Scratch) -> Result<Server, Failure> {
    let folder = scratch.path().join("redis");
    std::fs::create_dir(&folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    let program = binary.to_path_buf();
    Server::spawn(Recipe {
        name: "redis",
        binary: binary.to_path_buf(),
        command: Box::new(move |port| {
            let mut command = Command::new(&program);
            command.args(["--save", "", "--appendonly", "no", "--bind", "127.0.0.1"]);
            command.arg("--port").arg(port.to_string()).arg("--dir").arg(&folder).current_dir(&folder);
            command.env("LC_ALL", "C");
            command
        }),
        log: scratch.log("redis"),
        ready_line: "Ready to accept connections",
        stop_signal: libc::SIGKILL,
    })
}

pub(crate) fn url(port: u16) -> String {
    format!("redis://127.0.0.1:{port}")
}

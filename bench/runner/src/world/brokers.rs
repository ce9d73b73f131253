//! How a broker and its peers are started for a bench: as a user would, each syncing before it answers.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use semel_testbed::failure::Failure;
use semel_testbed::process;
use semel_testbed::programs;
use semel_testbed::services::Server;
use sha2::{Digest, Sha256};

use super::{Running, World, must};
use crate::contestant::{Store, Takes};
use crate::install;

/// What the members' tokens begin with; the member's number follows.
const TOKEN: &str = "bench-token";

/// A contestant that takes messages. It ends when this is dropped.
pub(crate) struct Publishing {
    pub(crate) port: u16,
    /// The processes whose cost is its cost, with their descendants.
    pub(crate) leaders: Vec<u32>,
    /// What the program that publishes is told of it.
    pub(crate) args: Vec<String>,
    _running: Running,
}

impl Publishing {
    fn of(running: Running, args: &[&str]) -> Publishing {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        Publishing { port: running.ports[0], leaders: running.leaders.clone(), args, _running: running }
    }
}

impl World {
    /// Starts what takes messages.
    pub(crate) fn publishing(&mut self, takes: Takes) -> Result<Publishing, Failure> {
        let mut running = Running::named("publishing", None);
        match takes {
            Takes::Broker { store, subscribers, topics } => {
                let url = self.store(store)?;
                running.take(self.broker(&url)?);
                running.leaders.extend(self.database(store));
                make_mesh(running.ports[0] + 1, subscribers, topics)?;
                let topics = topics.to_string();
                Ok(Publishing::of(running, &["--to", "broker", "--token", TOKEN, "--topics", &topics]))
            }
            Takes::Remembering { ids, order } => {
                let url = self.store(Store::Sqlite)?;
                let empty = self.broker(&url)?;
                make_mesh(empty.port() + 1, 1, 1)?;
                drop(empty);
                if ids > 0 {
                    let mut fill = Command::new(install::bench_binary());
                    fill.args(["remember", "--store", url.trim_start_matches("sqlite:"), "--order", order]);
                    process::supervise(fill.args(["--ids", &ids.to_string()]), None)?;
                }
                running.take(self.broker(&url)?);
                Ok(Publishing::of(running, &["--to", "broker", "--token", TOKEN, "--ids", order]))
            }
            Takes::Outbox => {
                let upstream = self.upstream()?;
                self.outbox(&mut running, upstream)?;
                Ok(Publishing::of(running, &["--to", "outbox", "--token", super::TOKEN]))
            }
            Takes::Jetstream => {
                running.take(self.jetstream()?);
                Ok(Publishing::of(running, &["--to", "jetstream"]))
            }
            Takes::Streams => {
                running.take(self.streams()?);
                Ok(Publishing::of(running, &["--to", "streams"]))
            }
        }
    }

    fn broker(&mut self, store: &str) -> Result<Server, Failure> {
        let (binary, store) = (install::semel_binary(), store.to_owned());
        let program = binary.clone();
        let command = move |port: u16| {
            let mut command = Command::new(&program);
            command.args(["serve", "broker", "--store", &store]);
            command.args(["--listen", &format!("127.0.0.1:{port}")]);
            command.args(["--admin", &format!("127.0.0.1:{}", port + 1)]);
            command
        };
        self.server("broker", binary, Box::new(command), "semel broker", libc::SIGTERM)
    }

    fn jetstream(&mut self) -> Result<Server, Failure> {
        let binary = install::nats()?;
        let (program, folder) = (binary.clone(), self.empty_folder("nats")?);
        let command = move |port: u16| {
            let file = folder.join("nats.conf");
            let text = format!(
                "listen: \"127.0.0.1:{port}\"\njetstream {{ store_dir: \"{}\", sync_interval: always }}\n",
                folder.display()
            );
            // Where it cannot be written, the server says so at once.
            let _ = fs::write(&file, text);
            let mut command = Command::new(&program);
            command.arg("-c").arg(&file);
            command
        };
        self.server("nats-server", binary, Box::new(command), "Server is ready", libc::SIGKILL)
    }

    fn streams(&mut self) -> Result<Server, Failure> {
        let binary = programs::program("redis-server", "redis-server")?;
        let (program, folder) = (binary.clone(), self.empty_folder("streams")?);
        let command = move |port: u16| {
            let mut command = Command::new(&program);
            command.args([
                "--save",
                "",
                "--appendonly",
                "yes",
                "--appendfsync",
                "always",
                "--bind",
                "127.0.0.1",
            ]);
            command.arg("--port").arg(port.to_string()).arg("--dir").arg(&folder).env("LC_ALL", "C");
            command
        };
        self.server("redis streams", binary, Box::new(command), "Ready to accept connections", libc::SIGKILL)
    }

    fn empty_folder(&mut self, name: &str) -> Result<PathBuf, Failure> {
        self.names += 1;
        let folder = self.folder().join(format!("{name}-{}", self.names));
        fs::create_dir(&folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
        Ok(folder)
    }
}

/// A mesh whose members are subscribed to every topic. The first of them publishes.
fn make_mesh(admin: u16, subscribers: usize, topics: usize) -> Result<(), Failure> {
    let put = |path: &str, body: &str| {
        let head = format!(
            "PUT /v1/meshes/bench{path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json"
        );
        must(admin, &head, body).map(drop)
    };
    put("", r#"{"search":false}"#)?;
    for number in 0..subscribers {
        let hash = semel_contract::hex::hex(&Sha256::digest(format!("{TOKEN}-{number}")));
        put(&format!("/members/m{number}"), &format!(r#"{{"role":"member","token_sha256":["{hash}"]}}"#))?;
    }
    for topic in 0..topics {
        put(&format!("/topics/t{topic}"), "{}")?;
        for number in 0..subscribers {
            put(&format!("/topics/t{topic}/subscriptions/m{number}"), "{}")?;
        }
    }
    Ok(())
}

//! Runs the load generator against a contestant and reads what it measured.

use std::process::Command;

use semel_testbed::failure::Failure;
use semel_testbed::{os, process};
use serde_json::Value;

use super::contestant::Sends;
use super::install;
use super::processes::{self, Syncs};
use super::result::Sample;
use super::world::Running;

/// How many keys a replay goes through.
pub(crate) const REPLAYED_KEYS: u64 = 20_000;
/// The seed of the keys that are replayed.
const REPLAYED_SEED: u64 = 7;
const WARMUP_SECONDS: &str = "0.5";

/// One run.
#[derive(Clone)]
pub(crate) struct Shot<'a> {
    pub(crate) sends: Sends,
    pub(crate) connections: usize,
    pub(crate) streams: usize,
    pub(crate) seconds: f64,
    /// Keys follow from it: another seed, other keys.
    pub(crate) seed: u64,
    /// Requests a second, for an open loop.
    pub(crate) rate: Option<f64>,
    pub(crate) keys: u64,
    pub(crate) running: &'a Running,
    pub(crate) folder: &'a std::path::Path,
}

impl Shot<'_> {
    /// Runs it, with what its processes used meanwhile.
    pub(crate) fn fire(&self) -> Result<Sample, Failure> {
        let pids = processes::families(&self.running.leaders);
        let syncs = Syncs::count(&pids, self.folder);
        let before = processes::used(&pids);
        let upstream_before = self.running.effects();
        let seen = generate(self.command())?;
        // Processes that came meanwhile, such as connections to a database, count from zero.
        let pids = processes::families(&self.running.leaders);
        let after = processes::used(&pids);
        let syncs = syncs.finish();
        self.check(&seen, upstream_before)?;
        let number = |name: &str| seen[name].as_f64();
        let sent = number("sent").unwrap_or(0.0).max(1.0);
        Ok(Sample {
            rate: number("rate").unwrap_or(0.0),
            p50_ms: number("p50_ms"),
            p99_ms: number("p99_ms"),
            stall_ms: number("stall_ms").filter(|_| self.streams == 0),
            cpu_us: Some((after.cpu_seconds - before.cpu_seconds) * 1e6 / sent),
            syncs: syncs.map(|syncs| syncs / sent),
            disk_bytes: Some((after.disk_bytes - before.disk_bytes) / sent),
            resident_mb: Some(processes::resident_mb(&pids)),
        })
    }

    fn command(&self) -> Command {
        let mut command = base(self.running, &self.running.request);
        command.args(["--connections", &self.connections.to_string(), "--warmup", WARMUP_SECONDS]);
        command.args(["--seconds", &self.seconds.to_string()]);
        let (load, seed) = match self.sends {
            Sends::Unkeyed | Sends::Fresh | Sends::Ordered | Sends::HalfOf(_) => ("fresh", self.seed),
            Sends::Replays => ("replay", REPLAYED_SEED),
            Sends::Storm => ("storm", self.seed),
        };
        command.args(["--load", load, "--seed", &seed.to_string(), "--keys", &self.keys.to_string()]);
        if !matches!(self.sends, Sends::Unkeyed) {
            command.args(&self.running.key);
        }
        if matches!(self.sends, Sends::Ordered) {
            command.args(["--ids", "ordered"]);
        }
        if self.streams > 0 {
            command.args(["--streams", &self.streams.to_string()]);
        }
        if let Some(rate) = self.rate {
            command.args(["--rate", &format!("{rate:.0}")]);
        }
        command
    }

    /// A figure is worth nothing when answers were wrong: all are 2xx, replays are replays, effects are as many as keys.
    fn check(&self, seen: &Value, effects_before: Option<u64>) -> Result<(), Failure> {
        let name = &self.running.name;
        if seen["failed"] != 0 {
            return Err(Failure::Failed(format!("{name}: not every answer was good: {}", seen["statuses"])));
        }
        if matches!(self.sends, Sends::Replays)
            && self.running.counts_effects()
            && seen["replayed"].as_f64().unwrap_or(0.0) < 0.999
        {
            return Err(Failure::Failed(format!("{name}: answers were not replays: {seen}")));
        }
        if let (Some(before), Some(after)) = (effects_before, self.running.effects()) {
            let expected = seen["fresh"].as_u64().unwrap_or(0);
            if after - before != expected {
                let effects = after - before;
                return Err(Failure::Failed(format!("{name}: {expected} keys took effect {effects} times")));
            }
        }
        Ok(())
    }
}

/// Sends the keys that a replay will send again.
pub(crate) fn seed_replays(running: &Running, keys: u64) -> Result<(), Failure> {
    send(running, &["--seed", &REPLAYED_SEED.to_string()], keys)
}

/// Sends exactly so many requests with fresh keys, all of which must be accepted.
pub(crate) fn send(running: &Running, arguments: &[&str], count: u64) -> Result<(), Failure> {
    let mut command = base(running, &running.request);
    command.args(&running.key).args(arguments).args(["--count", &count.to_string()]);
    accepted(running, &generate(command)?)
}

/// The same for messages, to lanes whose names begin with a `d`.
pub(crate) fn send_to_lanes(running: &Running, arguments: &[&str], count: u64) -> Result<(), Failure> {
    let request: Vec<String> =
        running.request.iter().map(|part| part.replace("\"{lane}\"", "\"d{lane}\"")).collect();
    let mut command = base(running, &request);
    command.args(arguments).args(["--count", &count.to_string()]);
    accepted(running, &generate(command)?)
}

fn accepted(running: &Running, seen: &Value) -> Result<(), Failure> {
    match seen["failed"] == 0 {
        true => Ok(()),
        false => Err(Failure::Failed(format!("{}: filling failed: {}", running.name, seen["statuses"]))),
    }
}

fn base(running: &Running, request: &[String]) -> Command {
    let mut command = Command::new(install::bench_binary());
    command.arg("load");
    for port in &running.ports {
        command.args(["--target", &format!("127.0.0.1:{port}")]);
    }
    command.args(request);
    command
}

fn generate(mut command: Command) -> Result<Value, Failure> {
    if let Some(signal) = os::interrupted() {
        return Err(Failure::Interrupted(signal));
    }
    os::die_with_parent(&mut command, libc::SIGKILL);
    let text = process::read(&mut command)?;
    serde_json::from_str(&text)
        .map_err(|error| Failure::Failed(format!("the load generator said {text:?}: {error}")))
}

//! The gateways: real processes, killed and stopped and started again at the same address.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::proxy::Proxy;
use crate::services::Services;
use crate::{os, process};

/// How many there are.
pub(crate) const GATES: usize = 2;

/// The gateways.
pub(crate) struct Gates {
    gates: Vec<Mutex<Gate>>,
    ports: Vec<u16>,
}

struct Gate {
    process: Child,
    command: Box<dyn Fn() -> Command + Send>,
}

impl Gates {
    pub(crate) fn start(
        services: &Services,
        postgres: &Proxy,
        redis: &Proxy,
        upstream: &Proxy,
        planted: Option<&str>,
    ) -> Result<Self, String> {
        let config = format!(
            "store = \"postgres://semel@127.0.0.1:{}/postgres\"\nidentity = \"authorization\"\n\
             [gate]\nredis = \"redis://127.0.0.1:{}\"\n\
             upstream = {{ url = \"http://127.0.0.1:{}\", timeout = \"3s\", connect_timeout = \"1s\" }}\n\
             [route.chaos]\nmatch = \"POST /chaos\"\nkey = \"required\"\nlease = \"2s\"\nlate_window = \"1s\"\n\
             in_flight = \"wait 5s\"\nrequest_limit = \"1000000/1s\"\n",
            postgres.port(),
            redis.port(),
            upstream.port()
        );
        let file = services.folder().join("chaos.toml");
        std::fs::write(&file, config)
            .map_err(|error| format!("failed to write {}: {error}", file.display()))?;
        let (mut gates, mut ports) = (Vec::new(), Vec::new());
        for number in 0..GATES {
            let (process, port) =
                launch(command(&file, services.folder().join(format!("gate-{number}.log")), 0, planted))?;
            let (file, planted) = (file.clone(), planted.map(str::to_owned));
            let log = services.folder().join(format!("gate-{number}.log"));
            let command = Box::new(move || command(&file, log.clone(), port, planted.as_deref()));
            gates.push(Mutex::new(Gate { process, command }));
            ports.push(port);
        }
        Ok(Self { gates, ports })
    }

    /// Where they listen.
    pub(crate) fn ports(&self) -> &[u16] {
        &self.ports
    }

    fn gate(&self, number: usize) -> MutexGuard<'_, Gate> {
        self.gates[number % GATES].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a signal to one.
    pub(crate) fn signal(&self, number: usize, signal: i32) {
        // It may be gone, which is no harm here.
        let _ = os::send(self.gate(number).process.id(), signal);
    }

    /// Kills one as `kill -9` does, and starts it again.
    pub(crate) fn kill_and_start(&self, number: usize) -> Result<(), String> {
        let mut gate = self.gate(number);
        let _ = gate.process.kill();
        let _ = gate.process.wait();
        (gate.process, _) = launch((gate.command)())?;
        Ok(())
    }
}

impl Drop for Gates {
    fn drop(&mut self) {
        for number in 0..GATES {
            let mut gate = self.gate(number);
            let _ = gate.process.kill();
            let _ = gate.process.wait();
        }
    }
}

fn command(config: &PathBuf, log: PathBuf, port: u16, planted: Option<&str>) -> Command {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| process::repository().join("target"), PathBuf::from);
    let mut command = Command::new(target.join("debug").join("semel"));
    command.args(["serve", "gate", "--access-log", "off", "--admin", "127.0.0.1:0", "--config"]).arg(config);
    command.args(["--listen", &format!("127.0.0.1:{port}")]).stdout(Stdio::piped());
    let log = std::fs::OpenOptions::new().create(true).append(true).open(log);
    command.stderr(log.map_or_else(|_| Stdio::null(), Stdio::from));
    if let Some(bug) = planted {
        command.env("SEMEL_PLANTED", bug);
    }
    os::die_with_parent(&mut command, libc::SIGKILL);
    command
}

/// Starts a gateway and waits until it says where it listens. One that finds its database away is started again.
fn launch(mut command: Command) -> Result<(Child, u16), String> {
    for _ in 0..200 {
        let mut process = command.spawn().map_err(|error| format!("failed to start a gateway: {error}"))?;
        let output = process.stdout.take().ok_or("a gateway without output")?;
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        let port = lines
            .find_map(|line| line.trim().strip_prefix("listening")?.rsplit_once(':')?.1.trim().parse().ok());
        if let Some(port) = port {
            // What it says later is read, so that it is never held up.
            std::thread::spawn(move || lines.for_each(drop));
            return Ok((process, port));
        }
        let _ = process.kill();
        let _ = process.wait();
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    Err("a gateway did not start".to_owned())
}

//! The gateways, before one service: two on one PostgreSQL and one Redis, one of them over HTTP/1.1 and the other over HTTP/2, and
//! one on an embedded store of its own, with a runtime for each core. Each has a configuration of its own, which is changed
//! while it runs, and a machine of its own, whose clock is set and whose disk fails.

use std::fs;
use std::path::PathBuf;

use semel_testbed::services::Services;

use super::preload::{Machine, Preload};
use super::processes::{Processes, Start, semel};
use super::proxy::Proxy;
use super::upstream::ANSWER_KEPT_MAX;

/// What is said of the route in each configuration: other names, scopes and fingerprints of the same requests.
const EDITIONS: [&str; 5] = [
    "[route.chaos]\n",
    "[route.chaos-renamed]\n",
    "[route.chaos-renamed]\nscope = [\"principal\"]\n",
    "[route.chaos]\nfingerprint = { inputs = [\"method\", \"body\"] }\n",
    "[route.chaos-again]\nwas = [\"chaos\"]\nfingerprint = { inputs = [\"method\", \"body\"] }\n",
];

/// How many there are, and which of them has a store of its own.
pub(crate) const GATES: usize = 3;
pub(crate) const ALONE: usize = 2;

/// The gateways and their configurations.
pub(crate) struct Gates {
    pub(crate) processes: Processes,
    /// Each file, and what it says in every configuration.
    files: Vec<(PathBuf, String)>,
    machines: Vec<Machine>,
}

impl Gates {
    /// Starts them before a service that speaks HTTP/1.1 and HTTP/2.
    pub(crate) fn start(
        services: &Services,
        preload: &Preload,
        [postgres, redis]: [&Proxy; 2],
        [plain, http2]: [&Proxy; 2],
        planted: Option<&str>,
    ) -> Result<Self, String> {
        let upstream = |proxy: &Proxy, http2: bool| {
            format!(
                "upstream = {{ url = \"http://127.0.0.1:{}\", timeout = \"3s\", connect_timeout = \"1s\", http2 = {http2} }}\n",
                proxy.port()
            )
        };
        let alone = services.folder().join("gate-alone");
        fs::create_dir_all(&alone).map_err(|error| format!("failed to make {}: {error}", alone.display()))?;
        let text = |number: usize| {
            if number == ALONE {
                return format!(
                    "store = \"sqlite:{}/semel.db\"\nidentity = \"authorization\"\n[gate]\nname = \"chaos\"\ncores = 2\n{}",
                    alone.display(),
                    upstream(plain, false)
                );
            }
            format!(
                "store = \"postgres://semel@127.0.0.1:{}/postgres\"\nidentity = \"authorization\"\n\
                 [gate]\nname = \"chaos\"\nredis = \"redis://127.0.0.1:{}\"\n{}",
                postgres.port(),
                redis.port(),
                if number == 1 { upstream(http2, true) } else { upstream(plain, false) }
            )
        };
        let file = |number: usize| services.folder().join(format!("chaos-{number}.toml"));
        let files: Vec<_> = (0..GATES).map(|number| (file(number), text(number))).collect();
        for (file, text) in &files {
            configure(file, text, 0)?;
        }
        let machines: Vec<Machine> =
            (0..GATES).map(|number| preload.machine(&format!("gate-{number}"))).collect();
        let start = |number: usize| -> Start {
            let machine = machines[number].clone();
            let (file, planted) = (file(number), planted.map(str::to_owned));
            let log = services.folder().join(format!("gate-{number}.log"));
            Box::new(move |port| {
                let mut command = semel(&log, planted.as_deref());
                command
                    .args(["serve", "gate", "--access-log", "off", "--admin", "127.0.0.1:0", "--config"])
                    .arg(&file);
                command.args(["--listen", &format!("127.0.0.1:{port}")]);
                machine.take(&mut command);
                command
            })
        };
        Ok(Self { processes: Processes::start((0..GATES).map(start).collect())?, files, machines })
    }

    pub(crate) fn ports(&self) -> &[u16] {
        self.processes.ports()
    }

    /// Those that share their records.
    pub(crate) fn shared_ports(&self) -> &[u16] {
        &self.ports()[..ALONE]
    }

    /// The machine of one.
    pub(crate) fn machine(&self, number: usize) -> &Machine {
        &self.machines[number]
    }

    /// All of them.
    pub(crate) fn machines(&self) -> &[Machine] {
        &self.machines
    }

    /// One follows another configuration from now on.
    pub(crate) fn reload(&self, number: usize, edition: u64) -> Result<(), String> {
        let (file, text) = &self.files[number];
        configure(file, text, usize::try_from(edition).unwrap_or(0))?;
        self.processes.signal(number, libc::SIGHUP);
        Ok(())
    }
}

fn configure(file: &PathBuf, text: &str, edition: usize) -> Result<(), String> {
    let route = format!(
        "{}match = \"POST /chaos\"\nkey = \"required\"\nlease = \"2s\"\nlate_window = \"1s\"\n\
         in_flight = \"wait 5s\"\nrequest_limit = \"1000000/1s\"\nmax_response = \"{ANSWER_KEPT_MAX}\"\n",
        EDITIONS[edition % EDITIONS.len()]
    );
    // One that starts at this moment finds a whole file.
    let whole = file.with_extension("new");
    let written = fs::write(&whole, format!("{text}{route}")).and_then(|()| fs::rename(&whole, file));
    written.map_err(|error| format!("failed to write {}: {error}", file.display()))
}

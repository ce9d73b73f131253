//! The gateways: two on one PostgreSQL and one Redis, before the service, one over HTTP/1.1 and the other over HTTP/2. Each has
//! a configuration of its own, which is changed while it runs.

use std::fs;
use std::path::PathBuf;

use semel_testbed::services::Services;

use super::processes::{Processes, Start, semel};
use super::proxy::Proxy;

/// What is said of the route in each configuration: other names, scopes and fingerprints of the same requests.
const EDITIONS: [&str; 5] = [
    "[route.chaos]\n",
    "[route.chaos-renamed]\n",
    "[route.chaos-renamed]\nscope = [\"principal\"]\n",
    "[route.chaos]\nfingerprint = { inputs = [\"method\", \"body\"] }\n",
    "[route.chaos-again]\nwas = [\"chaos\"]\nfingerprint = { inputs = [\"method\", \"body\"] }\n",
];

/// The gateways and their configurations.
pub(crate) struct Gates {
    pub(crate) processes: Processes,
    /// Each file, and what it says in every configuration.
    files: Vec<(PathBuf, String)>,
}

impl Gates {
    /// Starts one before each of these.
    pub(crate) fn start(
        services: &Services,
        postgres: &Proxy,
        redis: &Proxy,
        upstreams: [&Proxy; 2],
        planted: Option<&str>,
    ) -> Result<Self, String> {
        let text = |number: usize| {
            format!(
                "store = \"postgres://semel@127.0.0.1:{}/postgres\"\nidentity = \"authorization\"\n\
                 [gate]\nname = \"chaos\"\nredis = \"redis://127.0.0.1:{}\"\n\
                 upstream = {{ url = \"http://127.0.0.1:{}\", timeout = \"3s\", connect_timeout = \"1s\", http2 = {} }}\n",
                postgres.port(),
                redis.port(),
                upstreams[number].port(),
                number == 1
            )
        };
        let file = |number: usize| services.folder().join(format!("chaos-{number}.toml"));
        let files: Vec<_> = (0..upstreams.len()).map(|number| (file(number), text(number))).collect();
        for (file, text) in &files {
            configure(file, text, 0)?;
        }
        let start = |number: usize| -> Start {
            let (file, planted) = (file(number), planted.map(str::to_owned));
            let log = services.folder().join(format!("gate-{number}.log"));
            Box::new(move |port| {
                let mut command = semel(&log, planted.as_deref());
                command
                    .args(["serve", "gate", "--access-log", "off", "--admin", "127.0.0.1:0", "--config"])
                    .arg(&file);
                command.args(["--listen", &format!("127.0.0.1:{port}")]);
                command
            })
        };
        Ok(Self { processes: Processes::start((0..files.len()).map(start).collect())?, files })
    }

    pub(crate) fn ports(&self) -> &[u16] {
        self.processes.ports()
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
         in_flight = \"wait 5s\"\nrequest_limit = \"1000000/1s\"\n",
        EDITIONS[edition % EDITIONS.len()]
    );
    // One that starts at this moment finds a whole file.
    let whole = file.with_extension("new");
    let written = fs::write(&whole, format!("{text}{route}")).and_then(|()| fs::rename(&whole, file));
    written.map_err(|error| format!("failed to write {}: {error}", file.display()))
}

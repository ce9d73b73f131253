//! The gateways: two on one PostgreSQL and one Redis, before the service.

use super::processes::{Processes, Start, semel};
use super::proxy::Proxy;
use crate::services::Services;

/// How many there are.
pub(crate) const GATES: usize = 2;

/// Starts them.
pub(crate) fn start(
    services: &Services,
    postgres: &Proxy,
    redis: &Proxy,
    upstream: &Proxy,
    planted: Option<&str>,
) -> Result<Processes, String> {
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
    std::fs::write(&file, config).map_err(|error| format!("failed to write {}: {error}", file.display()))?;
    let start = |number: usize| -> Start {
        let (file, planted) = (file.clone(), planted.map(str::to_owned));
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
    Processes::start((0..GATES).map(start).collect())
}

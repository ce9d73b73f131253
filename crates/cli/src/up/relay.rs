//! The relay beside the gate: it writes through the gate, so that the shop, which knows no keys, gets each write once.

use std::net::SocketAddr;

use super::Args;
use super::facts::Command;
use crate::client;
use crate::config::Store;
use crate::exit::{Exit, Stop};
use crate::serve::relay::Running;
use crate::serve::relay::config::{Config, Flags};

/// Where it listens, if that is free.
const USUAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7420);
/// Any free address of this machine.
const FREE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// A relay in the folder of the other data. The gate serves without it too, unless it was asked for.
pub(super) async fn beside(args: &Args, gate: SocketAddr) -> Result<Option<Running>, Stop> {
    let is_asked_for = args.relay.is_some() || args.relay_config.is_some();
    let mut started = Err(Stop::new(Exit::Io, "there is no free address"));
    for listen in args.relay.map_or(vec![USUAL, FREE], |listen| vec![listen]) {
        started = Running::start(settings(args, gate, listen)?).await;
        if started.is_ok() {
            break;
        }
    }
    match started {
        Ok(running) => Ok(Some(running)),
        Err(stop) if is_asked_for => Err(stop),
        Err(Stop { message, .. }) => {
            tracing::warn!("there is no relay: {message}");
            Ok(None)
        }
    }
}

fn settings(args: &Args, gate: SocketAddr, listen: SocketAddr) -> Result<Config, Stop> {
    let bad = |message: String| Stop::new(Exit::Config, format!("the relay: {message}"));
    let mut config = match (&args.relay_config, &args.upstream) {
        (Some(path), _) => Config::load(&Flags { config: Some(path), ..Flags::default() })?,
        (None, Some(_)) => Config::of_text("").map_err(bad)?,
        (None, None) => Config::of_text(&demo(gate)).map_err(bad)?,
    };
    config.store = Store::Sqlite(args.data.join("relay.db").display().to_string());
    (config.listen, config.admin) = (listen, FREE);
    Ok(config)
}

/// What waits for an item becomes one order of it. The gate knows the relay's keys again, so a write that broke off is sent
/// again without harm.
fn demo(gate: SocketAddr) -> String {
    format!(
        r#"[relay]
debounce = "2s"
[relay.target.orders]
url = "http://{gate}/orders"
headers = {{ Authorization = "Bearer relay", Idempotency-Key = '"{{key}}"' }}
body = '{{{{"item":"{{lane}}","amount":{{delta}}}}}}'
tier = "key"
key_retention = "24h"
"#
    )
}

/// What to try with it.
pub(super) fn command(relay: &Running) -> Option<Command> {
    let target = relay.config.targets.keys().next()?;
    let key = client::uuid().ok()?;
    let line = format!(
        "for i in 1 2 3; do curl http://{}/v1/relay/{target} -H 'Authorization: Bearer demo' -H 'X-Sync-Mode: background' \
         -H \"X-Idempotency-Key: {key}-$i\" -d '{{\"items\":[{{\"lane\":\"tea\",\"value\":2}}]}}'; done",
        relay.listen
    );
    Some(Command {
        words: "Hand in three changes by the relay: within two seconds they are one order.",
        line,
    })
}

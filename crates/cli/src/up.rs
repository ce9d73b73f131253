//! `semel up`: everything in one command: the demo shop, the gate before it, the console that shows what happens, on one
//! embedded database. Owns what is started and in which order; the parts are in `stack`.

mod broker;
mod facts;
mod relay;
mod shop;
pub(crate) mod stack;

use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use semel_console::{History, Metrics};
use tokio::net::TcpListener;

use crate::client;
use crate::config::{self, LogTo, OneIn};
use crate::demo::Shop;
use crate::exit::{Exit, Stop};
use crate::serve::admin::{self, Admin};
use crate::serve::broker::Running as Broker;
use crate::serve::gate::note_admin_address;
use crate::serve::outbox::Running as Outbox;
use crate::serve::relay::Running as Relay;
use crate::serve::signals::EndSignals;
use crate::serve::sockets;
use crate::{logging, output_failed};
use facts::{Command, Facts, to_console};
use stack::{Running, Served};

/// How long work that is under way is waited for at the end.
const DRAIN: Duration = Duration::from_secs(30);

const DETAILS: &str = "\
What happens is shown by the console at --admin, as it happens. Without --upstream a demo shop is started behind the gate, and \
/ of the gate's address leads to the console; with --upstream the gate stands before that service, whose paths are all its \
own, and the address of --page leads there.

An outbox, a relay and a broker stand beside it. The relay merges changes and writes them through the gate, once: its target \
`orders` sums what waits for one item and orders it of the demo shop. With --upstream, targets are those of the file that \
--relay-config names. The broker has a mesh `demo` with the members alice and bob, whose tokens lie in the folder of --data, \
and a topic `news`; the outbox publishes and receives as alice.

Orders and records lie in the folder of --data and are there again at the next start. SIGTERM or Ctrl-C ends it in good \
order; a second one ends it at once.";

/// Start everything in one command: a demo shop, the gate before it, and the console that shows what happens.
#[derive(Debug, clap::Args)]
#[command(after_help = DETAILS)]
pub(crate) struct Args {
    /// A service of yours to stand before, instead of the demo shop.
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// Where the gate listens; port 0 is any free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7400", value_parser = config::address)]
    listen: SocketAddr,
    /// Where the console is, with metrics, health and readiness. On this machine only.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7401", value_parser = config::address)]
    admin: SocketAddr,
    /// Another address that leads to the console, with --upstream. On this machine only.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7402", value_parser = config::address)]
    page: SocketAddr,
    /// Where the relay listens; port 0 is any free one. [default: 127.0.0.1:7420, or a free one where that is taken]
    #[arg(long, value_name = "ADDRESS", value_parser = config::address)]
    relay: Option<SocketAddr>,
    /// A configuration whose [relay] is taken, with its targets, instead of the demo's.
    #[arg(long, value_name = "FILE")]
    relay_config: Option<PathBuf>,
    /// The folder for the database; it is created.
    #[arg(long, value_name = "DIR", default_value = "semel-data")]
    data: PathBuf,
    /// How long an order takes in the demo shop.
    #[arg(long, default_value = "50ms", value_parser = config::duration, conflicts_with = "upstream")]
    delay: Duration,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Exit, Stop> {
    for (flag, address) in [("--admin", args.admin), ("--page", args.page)] {
        if !address.ip().is_loopback() {
            let why = "it asks nobody for a credential, and so listens on this machine only";
            return Err(Stop::new(Exit::Usage, format!("{flag} {address}: {why}")));
        }
    }
    logging::start_as(Some(logging::LogFormat::Text));
    sockets::raise_limit();
    client::block_on(up(args))
}

async fn up(args: &Args) -> Result<Exit, Stop> {
    let mut signals = EndSignals::listen()
        .map_err(|error| Stop::new(Exit::Io, format!("failed to listen for signals: {error}")))?;
    create(&args.data)?;
    let metrics = admin::count();
    let listener = stack::bind(args.listen, "--listen").await?;
    let operators = stack::bind(args.admin, "--admin").await?;
    let addresses = Addresses { gate: local(&listener)?, admin: local(&operators)? };
    let prepared = stack::prepare(&args.data, LogTo::Stderr(OneIn::ALL)).await.map_err(of_folder)?;
    let relay = relay::beside(args, addresses.gate).await?;
    let broker = broker::beside(args).await;
    let others = Others { relay: relay.as_ref(), broker: broker.as_ref() };
    let Started { about, shop, beside, welcome } = match &args.upstream {
        None => demo(args, addresses, others).await?,
        Some(url) => service(args, url, addresses, others).await?,
    };
    let gate = prepared.before(&about.upstream, listener)?;
    let is_stopping = Arc::new(AtomicBool::new(false));
    let outbox = outbox(args, addresses.gate, broker.as_ref()).await;
    let shown = Shown { gate: &gate, shop: shop.as_ref(), outbox: outbox.as_ref(), others, about: &about };
    let admin = stack::serve(operators, for_operators(&shown, &is_stopping, addresses.admin, metrics)?);
    say(&welcome)?;
    signals.next().await;
    is_stopping.store(true, Ordering::Relaxed);
    say("ending; what is under way is finished first\n")?;
    let ending = async {
        // Both send through the gate, which ends last.
        if let Some(outbox) = outbox {
            outbox.stop().await;
        }
        if let Some(broker) = broker {
            broker.stop().await;
        }
        if let Some(relay) = relay {
            relay.stop().await;
        }
        gate.stop(DRAIN).await
    };
    tokio::select! {
        biased;
        left = ending => match left {
            0 => {}
            left => say(&format!("{left} requests were not finished: their outcome is marked unknown\n"))?,
        },
        () = signals.next() => return Err(Stop::new(Exit::Io, "ended at once, as asked twice")),
    }
    beside.stop();
    admin.stop();
    Ok(Exit::Success)
}

/// The outbox beside the gate. The gate serves without it too.
async fn outbox(args: &Args, gate: SocketAddr, broker: Option<&Broker>) -> Option<Outbox> {
    let member = broker.map(|broker| broker::member(broker, &args.data));
    let started = Outbox::beside(&args.data, gate, member).await;
    started.inspect_err(|Stop { message, .. }| tracing::warn!("there is no outbox: {message}")).ok()
}

/// Where clients and operators connect.
#[derive(Clone, Copy)]
struct Addresses {
    gate: SocketAddr,
    admin: SocketAddr,
}

/// What stands beside the gate.
#[derive(Clone, Copy)]
struct Others<'a> {
    relay: Option<&'a Relay>,
    broker: Option<&'a Broker>,
}

/// What stands behind the gate.
struct Started {
    /// What is known of what runs.
    about: Facts,
    /// The demo shop, where it is that.
    shop: Option<Shop>,
    /// What was started for it.
    beside: Served,
    /// What is said about it all.
    welcome: String,
}

/// The shop behind the gate.
async fn demo(args: &Args, addresses: Addresses, others: Others<'_>) -> Result<Started, Stop> {
    let shop = Shop::open(Some(&args.data.join("shop.db")), args.delay)
        .map_err(|error| Stop::new(Exit::Io, format!("failed to open the demo shop: {error}")))?;
    let listener = stack::bind(SocketAddr::from(([127, 0, 0, 1], 0)), "the demo shop").await?;
    let url = format!("http://{}", local(&listener)?);
    let commands = demo_commands(addresses.gate, &client::uuid()?);
    let about = facts(args, addresses, others, &url, commands);
    let welcome = welcome(&about, &format!("http://{}/", addresses.gate));
    let beside = stack::serve(listener, shop.router().merge(to_console(&about.admin)));
    Ok(Started { about, shop: Some(shop), beside, welcome })
}

/// Somebody's own service behind the gate, and another way to the console.
async fn service(args: &Args, url: &str, addresses: Addresses, others: Others<'_>) -> Result<Started, Stop> {
    let listener = stack::bind(args.page, "--page").await?;
    let page_url = format!("http://{}/", local(&listener)?);
    let commands = upstream_commands(addresses, &client::uuid()?);
    let about = facts(args, addresses, others, url, commands);
    let welcome = welcome(&about, &page_url);
    let beside = stack::serve(listener, to_console(&about.admin));
    Ok(Started { about, shop: None, beside, welcome })
}

fn facts(
    args: &Args,
    addresses: Addresses,
    Others { relay, broker }: Others<'_>,
    upstream: &str,
    mut commands: Vec<Command>,
) -> Facts {
    let data = std::path::absolute(&args.data).unwrap_or_else(|_| args.data.clone());
    let (path, body) =
        if args.upstream.is_none() { ("/orders", r#"{"item":"tea","amount":1}"#) } else { ("/", "{}") };
    commands.push(Command {
        words: "Queue a request, with or without a network: it is sent in order, once.",
        line: format!(
            "semel outbox send {path} -d '{body}' --store 'sqlite:{}'",
            data.join("outbox.db").display()
        ),
    });
    commands.extend(relay.and_then(relay::command));
    commands.extend(broker.into_iter().flat_map(|_| broker::commands(&data)));
    Facts {
        broker: broker.map(broker::url),
        relay: relay.map(|relay| format!("http://{}", relay.listen)),
        relay_admin: relay.map(|relay| format!("http://{}/", relay.admin)),
        gate: format!("http://{}", addresses.gate),
        upstream: upstream.to_owned(),
        admin: format!("http://{}/", addresses.admin),
        data: data.display().to_string(),
        records: format!("semel gate list --store 'sqlite:{}'", data.join("semel.db").display()),
        demo: args.upstream.is_none(),
        commands,
    }
}

/// What the console shows.
struct Shown<'a> {
    gate: &'a Running,
    shop: Option<&'a Shop>,
    outbox: Option<&'a Outbox>,
    others: Others<'a>,
    about: &'a Facts,
}

/// What operators see: the console of everything that runs, and the API of the gate.
fn for_operators(
    shown: &Shown<'_>,
    is_stopping: &Arc<AtomicBool>,
    address: SocketAddr,
    metrics: Metrics,
) -> Result<Router, Stop> {
    let gate = shown.gate;
    note_admin_address(&gate.store.backend, address);
    let access = admin::access(&gate.config, address)?;
    let (store, is_stopping) = (gate.store.clone(), Arc::clone(is_stopping));
    let admin = Admin { store, is_stopping, metrics, access, history: History::default() };
    let (mut surface, api) = admin::surface(&admin, &gate.config);
    if let Some(shop) = shown.shop {
        surface = surface.part(shop::shown(shop));
    }
    if let Some(outbox) = shown.outbox {
        surface = surface.part(outbox.shown());
    }
    if let Some(relay) = shown.others.relay {
        surface = surface.part(relay.shown().0);
    }
    if let Some(broker) = shown.others.broker {
        surface = surface.part(broker.shown().0);
    }
    let commands =
        shown.about.commands.iter().map(|command| (command.words.to_owned(), command.line.clone()));
    Ok(surface.facts(vec![shown.about.section()]).commands(commands.collect()).router(api))
}

const KEYED: &str = "-H 'Authorization: Bearer demo' -H 'Content-Type: application/json'";

fn demo_commands(gate: SocketAddr, key: &str) -> Vec<Command> {
    let order = |amount: u32| {
        let body = format!(r#"{{"item":"tea","amount":{amount}}}"#);
        format!("curl -i http://{gate}/orders {KEYED} -H 'Idempotency-Key: \"{key}\"' -d '{body}'")
    };
    vec![
        Command { words: "Order tea. Send it as often as you like: it is one order.", line: order(5) },
        Command { words: "The same key for another order is refused.", line: order(6) },
        Command { words: "See what has happened.", line: format!("curl http://{gate}/effects") },
    ]
}

fn upstream_commands(addresses: Addresses, key: &str) -> Vec<Command> {
    let Addresses { gate, admin } = addresses;
    let keyed = format!("{KEYED} -H 'Idempotency-Key: \"{key}\"' -d '{{}}'");
    vec![
        Command {
            words: "Send a request of your service under a key, twice: the second answer is the first one again.",
            line: format!("curl -i http://{gate}/ {keyed}"),
        },
        Command {
            words: "Without a key it passes as if there were no gate.",
            line: format!("curl -i http://{gate}/"),
        },
        Command { words: "See what was counted.", line: format!("curl http://{admin}/metrics") },
    ]
}

fn welcome(facts: &Facts, page: &str) -> String {
    let service = if facts.demo { "the demo shop" } else { "your service" };
    let mut text = format!(
        "semel stands before {service}\n\n\
         \x20 console    {}   (open it: what happens, as it happens)\n\
         \x20 page       {page}   (leads there)\n\
         \x20 gate       {}\n\
         \x20 service    {}   (bare; clients use the gate)\n\
         \x20 admin      {}\n\
         \x20 data       {}\n\
         \x20 records    {}\n",
        facts.admin, facts.gate, facts.upstream, facts.admin, facts.data, facts.records
    );
    if let Some(relay) = &facts.relay {
        text.push_str(&format!("  relay      {relay}\n"));
    }
    if let Some(admin) = &facts.relay_admin {
        text.push_str(&format!("             {admin}   (its admin address)\n"));
    }
    if let Some(broker) = &facts.broker {
        text.push_str(&format!("  broker     {broker}   (mesh demo: alice and bob, topic news)\n"));
    }
    for Command { words, line } in &facts.commands {
        text.push_str(&format!("\n{words}\n  {line}\n"));
    }
    text.push_str("\nCtrl-C ends it; what was recorded stays.\n");
    text
}

fn say(text: &str) -> Result<(), Stop> {
    let mut stdout = std::io::stdout();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(|error| output_failed(&error))
}

/// The folder is another program's, or this one's that still runs.
fn of_folder(stop: Stop) -> Stop {
    Stop { message: stop.message.replace("another file with --store", "another folder with --data"), ..stop }
}

fn create(folder: &Path) -> Result<(), Stop> {
    std::fs::create_dir_all(folder)
        .map_err(|error| Stop::new(Exit::Io, format!("failed to create {}: {error}", folder.display())))
}

fn local(listener: &TcpListener) -> Result<SocketAddr, Stop> {
    listener.local_addr().map_err(|error| Stop::new(Exit::Io, format!("failed to listen: {error}")))
}

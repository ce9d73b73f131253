//! `semel up`: everything in one command: the demo shop, the gate before it, a page that shows what happens, on one
//! embedded database. Owns what is started and in which order; the parts are in `stack`.

mod admin;
mod counts;
mod page;
pub(crate) mod stack;

use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use semel_contract::time::parse_duration;
use semel_store::ClaimStore;
use tokio::net::TcpListener;

use crate::client;
use crate::demo::Shop;
use crate::exit::{Exit, Stop};
use crate::output_failed;
use page::{Command, Facts, Page};
use stack::{Served, Upstream};

/// How long work that is under way is waited for at the end.
const DRAIN: Duration = Duration::from_secs(30);

const DETAILS: &str = "\
Without --upstream a demo shop is started behind the gate, and the page is at / of the gate's address. With --upstream the
gate stands before that service, whose paths are all its own, and the page has an address of its own (--page).

Orders and records lie in the folder of --data and are there again at the next start. SIGTERM or Ctrl-C ends it in good
order; a second one ends it at once.";

/// Start everything in one command: a demo shop, the gate before it, and a page that shows what happens.
#[derive(Debug, clap::Args)]
#[command(after_help = DETAILS)]
pub(crate) struct Args {
    /// A service of yours to stand before, instead of the demo shop.
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// Where the gate listens; port 0 is any free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7400")]
    listen: SocketAddr,
    /// Where operators look: metrics, health, readiness. On this machine only.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7401")]
    admin: SocketAddr,
    /// Where the page is, with --upstream. On this machine only.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7402")]
    page: SocketAddr,
    /// The folder for the database; it is created.
    #[arg(long, value_name = "DIR", default_value = "semel-data")]
    data: PathBuf,
    /// How long an order takes in the demo shop.
    #[arg(long, default_value = "50ms", value_parser = duration, conflicts_with = "upstream")]
    delay: Duration,
}

fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|error| error.to_string())
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Exit, Stop> {
    for (flag, address) in [("--admin", args.admin), ("--page", args.page)] {
        if !address.ip().is_loopback() {
            let why = "it asks nobody for a credential, and so listens on this machine only";
            return Err(Stop::new(Exit::Usage, format!("{flag} {address}: {why}")));
        }
    }
    client::block_on(up(args))
}

async fn up(args: &Args) -> Result<Exit, Stop> {
    let mut signals = Signals::listen()?;
    let data = folder(&args.data)?;
    let metrics = PrometheusBuilder::new()
        .install_recorder()
        .map_err(|error| Stop::new(Exit::Io, format!("failed to start counting: {error}")))?;
    let listener = stack::bind(args.listen, "--listen").await?;
    let address = local(&listener)?;
    let store = stack::open_store(&data.join("semel.db"))?;
    let admin_listener = stack::bind(args.admin, "--admin").await?;
    let admin_address = local(&admin_listener)?;
    let admin = stack::serve(admin_listener, admin::router(Arc::clone(&store), metrics.clone()));
    let parts = Parts { args, data, address, admin_address, store: Arc::clone(&store), metrics };
    let (upstream, page, welcome) = match &args.upstream {
        None => parts.demo().await?,
        Some(url) => parts.upstream(url).await?,
    };
    let gate = stack::gate(upstream, store, listener)?;
    say(&welcome)?;
    signals.next().await;
    say("ending; what is under way is finished first\n")?;
    tokio::select! {
        biased;
        left = gate.stop(DRAIN) => match left {
            0 => {}
            left => say(&format!("{left} requests were not finished: their outcome is marked unknown\n"))?,
        },
        () = signals.next() => return Err(Stop::new(Exit::Io, "ended at once, as asked twice")),
    }
    page.stop();
    admin.stop();
    Ok(Exit::Success)
}

/// What both ways to run have in common.
struct Parts<'a> {
    args: &'a Args,
    data: PathBuf,
    address: SocketAddr,
    admin_address: SocketAddr,
    store: Arc<dyn ClaimStore>,
    metrics: PrometheusHandle,
}

type Started = (Upstream, Served, String);

impl Parts<'_> {
    /// The shop and the page, both behind the gate.
    async fn demo(self) -> Result<Started, Stop> {
        let shop = Shop::open(Some(&self.data.join("shop.db")), self.args.delay)
            .map_err(|error| Stop::new(Exit::Io, format!("failed to open the demo shop: {error}")))?;
        let listener = stack::bind(SocketAddr::from(([127, 0, 0, 1], 0)), "the demo shop").await?;
        let shop_address = local(&listener)?;
        let commands = demo_commands(self.address, &client::uuid()?);
        let facts = self.facts(format!("http://{shop_address}"), true, commands);
        let page_url = format!("http://{}/", self.address);
        let welcome = welcome(&facts, &page_url);
        let routes = shop.router();
        let Self { store, metrics, .. } = self;
        let page = Page { facts, shop: Some(shop), store, metrics };
        let served = stack::serve(listener, routes.merge(page.router()));
        let upstream = stack::upstream(&format!("http://{shop_address}"))?;
        Ok((upstream, served, welcome))
    }

    /// Somebody's own service behind the gate, and the page beside it.
    async fn upstream(self, url: &str) -> Result<Started, Stop> {
        let upstream = stack::upstream(url)?;
        let listener = stack::bind(self.args.page, "--page").await?;
        let page_url = format!("http://{}/", local(&listener)?);
        let commands = upstream_commands(self.address, self.admin_address, &client::uuid()?);
        let facts = self.facts(url.to_owned(), false, commands);
        let welcome = welcome(&facts, &page_url);
        let Self { store, metrics, .. } = self;
        let served = stack::serve(listener, Page { facts, shop: None, store, metrics }.router());
        Ok((upstream, served, welcome))
    }

    fn facts(&self, upstream: String, demo: bool, commands: Vec<Command>) -> Facts {
        let data = std::path::absolute(&self.data).unwrap_or_else(|_| self.data.clone());
        Facts {
            gate: format!("http://{}", self.address),
            upstream,
            admin: format!("http://{}/", self.admin_address),
            data: data.display().to_string(),
            demo,
            commands,
        }
    }
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

fn upstream_commands(gate: SocketAddr, admin: SocketAddr, key: &str) -> Vec<Command> {
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
         \x20 page       {page}\n\
         \x20 gate       {}\n\
         \x20 service    {}   (bare; clients use the gate)\n\
         \x20 admin      {}\n\
         \x20 data       {}\n",
        facts.gate, facts.upstream, facts.admin, facts.data
    );
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

fn folder(path: &Path) -> Result<PathBuf, Stop> {
    std::fs::create_dir_all(path)
        .map_err(|error| Stop::new(Exit::Io, format!("failed to create {}: {error}", path.display())))?;
    Ok(path.to_owned())
}

fn local(listener: &TcpListener) -> Result<SocketAddr, Stop> {
    listener.local_addr().map_err(|error| Stop::new(Exit::Io, format!("failed to listen: {error}")))
}

/// The signals that ask for an end.
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    fn listen() -> Result<Self, Stop> {
        use tokio::signal::unix::{SignalKind, signal};
        let failed = |error| Stop::new(Exit::Io, format!("failed to listen for signals: {error}"));
        Ok(Self {
            terminate: signal(SignalKind::terminate()).map_err(failed)?,
            interrupt: signal(SignalKind::interrupt()).map_err(failed)?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

//! `semel serve broker`: publish once, fan out to everybody, lose nothing.

pub(crate) mod config;
mod file;
mod running;
pub(crate) mod sheet;

use std::net::SocketAddr;
use std::path::PathBuf;

use self::config::{Config, Who};
#[cfg(test)]
pub(crate) use self::running::access;
pub(crate) use self::running::{Running, check};
use super::lifecycle::{self, RunningPart};
use super::signals::{IN_FORCE, Reload};
use crate::config::redacted;
use crate::exit::{Exit, Stop};
use crate::logging;

/// Run the broker: publish once, and every subscriber gets it, in order.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(after_help = "\
Members of a mesh publish to topics or to one another under an id of their own; however often a message is sent, it is \
appended once. Operators make the first mesh:

  semel broker meshes add team
  semel broker members add alice --mesh team --role owner      (prints her token)
  semel broker topics add news --mesh team
  semel broker subscriptions add alice --mesh team --topic news
  curl http://127.0.0.1:7430/v1/meshes/team/messages -H 'Authorization: Bearer TOKEN' -H 'Idempotency-Key: 7f3c' \\
       -d '{\"to\":{\"topic\":\"news\"},\"body\":{\"hello\":1}}'

Several brokers may share one PostgreSQL.

Signals: TERM and INT end it: streams end at their cursor, so that readers resume elsewhere (a second one ends it at once). \
HUP reads the settings and the certificates again; what is unsafe is refused and the old ones stay.")]
pub(crate) struct Args {
    /// Where members connect; port 0 takes a free one. [default: 127.0.0.1:7430]
    #[arg(long, value_name = "ADDR", value_parser = crate::config::address)]
    pub(crate) listen: Option<SocketAddr>,
    /// Where operators look. [default: 127.0.0.1:7431]
    #[arg(long, value_name = "ADDR", value_parser = crate::config::address)]
    pub(crate) admin: Option<SocketAddr>,
    /// The file of the token that operators must show; needed where others reach the admin address.
    #[arg(long, value_name = "FILE")]
    pub(crate) admin_token_file: Option<PathBuf>,
    /// Where messages are kept: sqlite:PATH, a file of its own, or postgres://… [default: sqlite:broker.db]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// By what members are known: tokens, jwt:KEYS, check:URL or trusted:NAME. [default: tokens]
    #[arg(long, value_name = "SPEC")]
    pub(crate) identity: Option<String>,
    /// Where budgets are counted across brokers: redis://… [default: broker.redis]
    #[arg(long, value_name = "URL")]
    pub(crate) redis: Option<String>,
    /// The configuration; without one, what SEMEL_CONFIG names, or ./semel.toml if it is there.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Exit, Stop> {
    logging::start();
    let config = Config::load(args)?;
    lifecycle::run(async { Running::start(config).await.map(|running| Live { running, args }) })
}

/// A broker that runs, and the flags under which its file is read anew.
struct Live<'a> {
    running: Running,
    args: &'a Args,
}

impl Reload for Live<'_> {
    async fn reload(&mut self) -> Result<String, Stop> {
        self.running.reload(Config::load(self.args)?)?;
        Ok(IN_FORCE.to_owned())
    }
}

impl RunningPart for Live<'_> {
    const ENDING: &'static str = "streams end at their cursor";

    fn announcement(&self) -> String {
        announcement(&self.running)
    }

    async fn stop(self) {
        self.running.stop().await;
    }
}

fn announcement(running: &Running) -> String {
    let Running { config, listen, admin, .. } = running;
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    let redis =
        config.redis.as_ref().map_or_else(String::new, |url| format!("  redis      {}\n", redacted(url)));
    let next = match config.who {
        Who::Tokens => {
            "  next       semel broker meshes add team; semel broker members add alice --mesh team --role owner\n"
        }
        Who::Verified(_) => {
            "  next       semel broker meshes add MESH, where MESH is the tenant that callers are verified with\n"
        }
    };
    format!(
        "semel broker is ready\n  listening  {scheme}://{listen}\n  admin      http://{admin}\n  store      {}\n  identity   {}\n  \
         ids        remembered for {} days\n{redis}{next}",
        config.store,
        config.who,
        config.settings.dedupe_retention.as_secs() / 86_400,
    )
}

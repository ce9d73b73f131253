//! The storm without a URL: the demo shop, bare, and a second one behind the gate. Starts them and ends them.

use std::net::SocketAddr;
use std::time::Duration;

use super::verdict::Row;
use super::{Args, one};
use crate::client::Target;
use crate::client::effects::Counter;
use crate::config::LogTo;
use crate::demo::Shop;
use crate::exit::{Exit, Stop};
use crate::up::stack::{self, Scratch, Served};

/// How long work that is under way is waited for at the end.
const DRAIN: Duration = Duration::from_secs(10);

/// Storms both, and gives their rows, the gate's last.
pub(crate) async fn storm(args: &Args, seed: u64) -> Result<Vec<Row>, Stop> {
    let (bare, address) = shop(args).await?;
    let before = row(args, seed, "bare", address, address).await?;
    bare.stop();
    let scratch = Scratch::new()?;
    let after = through_gate(args, seed, &scratch).await?;
    Ok(vec![before, after])
}

async fn through_gate(args: &Args, seed: u64, scratch: &Scratch) -> Result<Row, Stop> {
    let (shop, shop_address) = shop(args).await?;
    let (listener, address) = listen().await?;
    let gate = stack::prepare(scratch.path(), LogTo::Off)
        .await?
        .before(&format!("http://{shop_address}"), listener)?;
    let row = row(args, seed, "through semel", address, shop_address).await;
    gate.stop(DRAIN).await;
    shop.stop();
    row
}

async fn listen() -> Result<(tokio::net::TcpListener, SocketAddr), Stop> {
    let listener = stack::bind(SocketAddr::from(([127, 0, 0, 1], 0)), "the demo").await?;
    let address = listener.local_addr();
    Ok((listener, address.map_err(|error| Stop::new(Exit::Io, format!("failed to listen: {error}")))?))
}

async fn shop(args: &Args) -> Result<(Served, SocketAddr), Stop> {
    let shop = Shop::open(None, args.delay)
        .map_err(|error| Stop::new(Exit::Io, format!("failed to open the demo shop: {error}")))?;
    let (listener, address) = listen().await?;
    Ok((stack::serve(listener, shop.router()), address))
}

async fn row(
    args: &Args,
    seed: u64,
    name: &str,
    service: SocketAddr,
    effects: SocketAddr,
) -> Result<Row, Stop> {
    let usage = |message| Stop::new(Exit::Usage, message);
    let counter = Counter {
        target: Target::parse(&format!("http://{effects}/effects")).map_err(usage)?,
        field: None,
        headers: http::HeaderMap::new(),
    };
    let path = args.path.as_deref().unwrap_or("/orders");
    let target = Target::parse(&format!("http://{service}")).and_then(|target| target.at(path));
    one(args, seed, name, target.map_err(usage)?, Some(counter)).await
}

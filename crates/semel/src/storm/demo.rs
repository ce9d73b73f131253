//! The storm without a URL: the demo shop, bare, and a second one behind the gate. Starts them and ends them.

use std::net::SocketAddr;

use super::verdict::Row;
use super::{Args, one};
use crate::client::Target;
use crate::client::effects::Counter;
use crate::demo::Shop;
use crate::exit::{Exit, Stop};
use crate::up::stack::{self, Scratch};

/// Storms both, and gives their rows, the gate's last.
pub(crate) async fn storm(args: &Args, seed: u64) -> Result<Vec<Row>, Stop> {
    let bare = stack::serve_shop(&shop(args)?).await?;
    let before = row(args, seed, "bare", bare.address, bare.address).await?;
    bare.stop();
    let shop = stack::serve_shop(&shop(args)?).await?;
    let scratch = Scratch::new()?;
    let gate = stack::gate_before(shop.address, scratch.path()).await?;
    let after = row(args, seed, "through semel", gate.address, shop.address).await?;
    gate.stop().await;
    shop.stop();
    Ok(vec![before, after])
}

fn shop(args: &Args) -> Result<Shop, Stop> {
    Shop::open(None, args.delay)
        .map_err(|error| Stop::new(Exit::Io, format!("failed to open the demo shop: {error}")))
}

async fn row(
    args: &Args,
    seed: u64,
    name: &str,
    service: SocketAddr,
    effects: SocketAddr,
) -> Result<Row, Stop> {
    let url = |path: &str, address: SocketAddr| {
        Target::parse(&format!("http://{address}{path}")).map_err(|message| Stop::new(Exit::Usage, message))
    };
    let counter = Counter { target: url("/effects", effects)?, field: None, headers: http::HeaderMap::new() };
    let path = args.path.as_deref().unwrap_or("/orders");
    let target = url("/", service)?.at(path).map_err(|message| Stop::new(Exit::Usage, message))?;
    one(args, seed, name, target, Some(counter)).await
}

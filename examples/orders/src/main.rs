//! An order service whose requests take effect once: the gate, the two stores, and where they meet. What an order is, is
//! in `order`; how it is kept, in `sqlite` and `postgres`.

mod flags;
mod order;
mod postgres;
mod sqlite;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use axum::routing::post;
use clap::Parser as _;
use flags::{Flags, Store};
use semel_contract::identity::Identity;
use semel_gate::{GateLayer, Route};
use semel_store::ClaimStore;
use tokio::net::TcpListener;

type Failure = Box<dyn std::error::Error>;

/// How long a killed process holds up the keys that it was at work on. Handlers may take longer: while a process lives,
/// it renews its leases.
const LEASE: Duration = Duration::from_secs(3);

#[tokio::main]
async fn main() -> ExitCode {
    match serve(Flags::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("failed to serve orders: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(flags: Flags) -> Result<(), Failure> {
    let (store, routes) = match &flags.store {
        Store::Sqlite(path) => sqlite::open(path)?,
        Store::Postgres(url) => postgres::open(url).await?,
    };
    let app = routes.route("/orders/{id}/refund", post(order::refund)).layer(gate(store)?);
    let listener = TcpListener::bind(&flags.listen).await?;
    println!("{}", welcome(&listener.local_addr()?.to_string()));
    Ok(axum::serve(listener, app).await?)
}

fn gate(store: Arc<dyn ClaimStore>) -> Result<GateLayer, Failure> {
    let create = Route::post("/orders").name("create-order").atomic().lease(LEASE);
    let refund = Route::post("/orders/{id}/refund").name("refund-order").lease(LEASE);
    // Anybody who can reach this port can claim to be anybody: this identity means that a proxy in front authenticates the
    // caller, sets X-User and removes it from what comes in, and that nobody gets past that proxy.
    let identity = Identity::header("X-User");
    Ok(GateLayer::builder(store).identity(identity).route(create).route(refund).build()?)
}

fn welcome(address: &str) -> String {
    let send = format!("curl -i http://{address}/orders");
    let keyed = "-H 'X-User: alice' -H 'Idempotency-Key: \"order-1\"'";
    format!(
        "listening on {address}. Order tea, twice if you like; look; refund it, twice if you like:\n\n\
         {send} {keyed} --json '{{\"item\":\"tea\",\"quantity\":2}}'\n\
         {send}\n\
         {send}/1/refund {keyed} -X POST"
    )
}

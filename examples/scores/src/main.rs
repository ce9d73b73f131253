//! Starts the stand-in for the external service and the score API before it.

use std::sync::Arc;

use semel_delivery::credentials::Wallet;
use semel_example_scores::service::Service;
use semel_example_scores::{DEBOUNCE, start};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let external = TcpListener::bind("127.0.0.1:3001").await?;
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    let service = Service::default();
    let origin = format!("http://{}", external.local_addr()?);
    let routes = service.router();
    tokio::spawn(async move { axum::serve(external, routes).await });
    let wallet = Arc::new(Wallet::default());
    let api = start("scores.db".as_ref(), &origin, wallet, DEBOUNCE).await?;
    println!("score API on http://{}, the external service on {origin}", listener.local_addr()?);
    axum::serve(listener, api.router()).await?;
    Ok(())
}

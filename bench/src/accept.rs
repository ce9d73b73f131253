//! What accepting a message costs without a disk: the same HTTP, the same JSON, a map in memory. The outbox is held
//! against it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::upstream::runtime;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where it listens.
    #[arg(long)]
    listen: SocketAddr,
}

#[derive(Debug, Deserialize)]
struct Message {
    client_message_id: String,
    lane: String,
    request: Value,
}

type Queue = Arc<Mutex<HashMap<String, (String, Value)>>>;

pub(crate) fn run(args: &Args) -> Result<(), String> {
    let served = runtime()?.block_on(async {
        let app = Router::new().route("/v1/send", post(accept)).with_state(Queue::default());
        let listener = TcpListener::bind(args.listen).await?;
        println!("ready");
        axum::serve(listener, app).await
    });
    served.map_err(|error| format!("failed to serve: {error}"))
}

async fn accept(State(queue): State<Queue>, Json(message): Json<Message>) -> Response {
    let answer =
        json!({"client_message_id": message.client_message_id, "status": "queued", "lane": message.lane});
    let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
    queue.insert(message.client_message_id, (message.lane, message.request));
    drop(queue);
    (StatusCode::ACCEPTED, Json(answer)).into_response()
}

//! The same streams over a WebSocket: one JSON text frame for each event, with `id`; a gap has `"event": "gap"`, what is hidden by
//! now `"event": "moderated"`. What a client sends is not listened to, but for the end.

use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Path, Query, State};
use axum::http::request::Parts;
use axum::response::Response;
use futures_util::{SinkExt, StreamExt};

use super::Api;
use super::answer::Told;
use super::stream::open;
use crate::broker::LineName;
use crate::broker::reader::{Item, Reader};
use crate::limits::READER_STALL_MAX;

type Pairs = Vec<(String, String)>;

/// Bytes that a client may send in one message.
const INCOMING_BYTES_MAX: usize = 16 << 10;

/// Several lines.
pub(crate) async fn lines(
    State(api): State<Api>,
    Path(mesh): Path<String>,
    Query(query): Query<Pairs>,
    parts: Parts,
    upgrade: WebSocketUpgrade,
) -> Result<Response, Told> {
    serve(&api, &mesh, None, &query, &parts, upgrade).await
}

/// A topic.
pub(crate) async fn topic(
    State(api): State<Api>,
    Path((mesh, topic)): Path<(String, String)>,
    Query(query): Query<Pairs>,
    parts: Parts,
    upgrade: WebSocketUpgrade,
) -> Result<Response, Told> {
    serve(&api, &mesh, Some(LineName::Topic(topic)), &query, &parts, upgrade).await
}

/// The caller's direct messages.
pub(crate) async fn direct(
    State(api): State<Api>,
    Path(mesh): Path<String>,
    Query(query): Query<Pairs>,
    parts: Parts,
    upgrade: WebSocketUpgrade,
) -> Result<Response, Told> {
    serve(&api, &mesh, Some(LineName::Direct), &query, &parts, upgrade).await
}

async fn serve(
    api: &Api,
    mesh: &str,
    line: Option<LineName>,
    query: &[(String, String)],
    parts: &Parts,
    upgrade: WebSocketUpgrade,
) -> Result<Response, Told> {
    let reader = open(api, mesh, line, query, parts).await?;
    Ok(upgrade.max_message_size(INCOMING_BYTES_MAX).on_upgrade(move |socket| talk(socket, reader)))
}

async fn talk(socket: WebSocket, mut reader: Reader) {
    let (mut sink, mut incoming) = socket.split();
    let listen = async {
        while let Some(Ok(message)) = incoming.next().await {
            if matches!(message, Message::Close(_)) {
                break;
            }
        }
    };
    // Neither is begun again: what a reader was in the middle of is not lost.
    let tell = async {
        while let Some(item) = reader.next().await {
            let sent = tokio::time::timeout(READER_STALL_MAX, sink.send(frame(&item))).await;
            if !matches!(sent, Ok(Ok(()))) {
                return;
            }
        }
        let _ = tokio::time::timeout(READER_STALL_MAX, sink.send(Message::Close(None))).await;
    };
    tokio::select! {
        () = listen => {}
        () = tell => {}
    }
}

/// An object of JSON with these members more, and the id that resumes the stream.
fn with_resume(text: &str, more: &str, id: &str) -> String {
    let text = text.strip_suffix('}').unwrap_or(text);
    format!("{text},{more}\"resume\":{}}}", serde_json::Value::from(id))
}

fn frame(item: &Item) -> Message {
    match item {
        Item::Event { id, event } => {
            let text = String::from_utf8_lossy(&event.json);
            let plain = event.id.to_string();
            if *id == plain {
                return Message::Text(text.into_owned().into());
            }
            // Of several lines, the id that resumes all of them stands beside.
            Message::Text(with_resume(&text, "", id).into())
        }
        Item::Moderated { id, event } => {
            let text = String::from_utf8_lossy(&event.json);
            Message::Text(with_resume(&text, "\"event\":\"moderated\",", id).into())
        }
        Item::Gap { id, gap } => {
            let mut value = serde_json::json!({"event": "gap", "id": id});
            if let (Ok(serde_json::Value::Object(gap)), Some(into)) =
                (serde_json::to_value(gap), value.as_object_mut())
            {
                into.extend(gap);
            }
            Message::Text(value.to_string().into())
        }
        Item::Beat => Message::Ping(bytes::Bytes::new()),
    }
}

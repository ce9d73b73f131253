//! Server-sent events: `id:` is the event's id, `data:` one JSON object, `event: gap` says what cannot be had,
//! `event: moderated` what is hidden by now. The stream is read as fast as its client takes it, and no faster.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;

use super::Api;
use super::answer::Told;
use crate::broker::LineName;
use crate::broker::reader::{Item, Reader, StreamWish};
use crate::limits::LINES_MAX;
use crate::message::check_name;

type Pairs = Vec<(String, String)>;

/// Streams a topic.
pub(crate) async fn topic(
    State(api): State<Api>,
    Path((mesh, topic)): Path<(String, String)>,
    Query(query): Query<Pairs>,
    parts: Parts,
) -> Result<Response, Told> {
    Ok(events(open(&api, &mesh, Some(LineName::Topic(topic)), &query, &parts).await?))
}

/// Streams the caller's direct messages.
pub(crate) async fn direct(
    State(api): State<Api>,
    Path(mesh): Path<String>,
    Query(query): Query<Pairs>,
    parts: Parts,
) -> Result<Response, Told> {
    Ok(events(open(&api, &mesh, Some(LineName::Direct), &query, &parts).await?))
}

/// Streams several lines at once.
pub(crate) async fn lines(
    State(api): State<Api>,
    Path(mesh): Path<String>,
    Query(query): Query<Pairs>,
    parts: Parts,
) -> Result<Response, Told> {
    Ok(events(open(&api, &mesh, None, &query, &parts).await?))
}

/// Opens a stream as its query and headers say.
pub(crate) async fn open(
    api: &Api,
    mesh: &str,
    line: Option<LineName>,
    query: &[(String, String)],
    parts: &Parts,
) -> Result<Reader, Told> {
    let one = |name: &str| query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    let authorized = api.authorize_stream(parts, mesh, one("ticket")).await?;
    let lines = match line {
        Some(line) => vec![line],
        None => named_lines(query)?,
    };
    let consumer = one("consumer").filter(|name| !name.is_empty());
    if let Some(name) = consumer {
        check_name("consumer", name)?;
    }
    // A browser that comes back by itself repeats its first query, and says here how far it came.
    let after = last_event_id(&parts.headers).or_else(|| one("after").map(str::to_owned));
    let after = after.filter(|after| !after.is_empty());
    let left = match authorized.expires {
        Some(expires) => {
            let left = expires.millis().saturating_sub(api.broker.time().await.millis());
            Some(Duration::from_millis(u64::try_from(left).unwrap_or(0)))
        }
        None => None,
    };
    let wish = StreamWish { lines, after, consumer: consumer.map(str::to_owned), left };
    Ok(api.broker.stream(&authorized.caller, authorized.known_by, wish).await?)
}

fn named_lines(query: &[(String, String)]) -> Result<Vec<LineName>, Told> {
    let mut lines: Vec<LineName> = Vec::new();
    for (_, value) in query.iter().filter(|(key, _)| key == "line") {
        let line = LineName::parse(value).ok_or_else(|| {
            Told::malformed("a line is `topic:NAME` or `direct`: ?line=topic:NAME&line=direct")
        })?;
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    match lines.len() {
        1..=LINES_MAX => Ok(lines),
        _ => Err(Told::malformed(&format!("expected 1 to {LINES_MAX} lines: ?line=topic:NAME&line=direct"))),
    }
}

fn last_event_id(headers: &HeaderMap) -> Option<String> {
    headers.get("last-event-id").and_then(|value| value.to_str().ok()).map(|text| text.trim().to_owned())
}

fn events(reader: Reader) -> Response {
    // Something at once, so that clients and proxies know that it has begun.
    let first = Some(Bytes::from_static(b"retry: 1000\n: open\n\n"));
    let stream = futures_util::stream::unfold((reader, first), |(mut reader, first)| async move {
        if let Some(first) = first {
            return Some((Ok::<Bytes, Infallible>(first), (reader, None)));
        }
        let item = reader.next().await?;
        Some((Ok(frame(&item)), (reader, None)))
    });
    let mut response = Response::new(Body::from_stream(stream));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// One event as it is written. JSON has no line breaks here.
fn frame(item: &Item) -> Bytes {
    match item {
        Item::Event { id, event } => {
            let mut frame = Vec::with_capacity(event.json.len() + id.len() + 16);
            frame.extend_from_slice(b"id: ");
            frame.extend_from_slice(id.as_bytes());
            frame.extend_from_slice(b"\ndata: ");
            frame.extend_from_slice(&event.json);
            frame.extend_from_slice(b"\n\n");
            frame.into()
        }
        Item::Gap { id, gap } => {
            let data = serde_json::to_string(gap).expect("text can be written");
            format!("event: gap\nid: {id}\ndata: {data}\n\n").into()
        }
        Item::Moderated { id, event } => {
            [b"event: moderated\nid: ", id.as_bytes(), b"\ndata: ", &event.json, b"\n\n"].concat().into()
        }
        Item::Beat => Bytes::from_static(b":\n\n"),
    }
}

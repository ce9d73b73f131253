//! The inbox on the outbox's surface: what was received and waits, as a list and as it comes, and its acknowledgement.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, Response, StatusCode};
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use semel_delivery::message::Received;
use semel_delivery::{Acknowledged, Inbox};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::watch;

use super::answer::{self, failed, json_answer, refusal};
use super::body::{Answered, Api, BodyRead, acting_for, named};

/// Messages and gaps that are read at once.
const READ_AT_ONCE: u32 = 200;
/// Gaps that a list shows.
const GAPS_SHOWN: usize = 20;

#[derive(Deserialize)]
pub(super) struct Wanted {
    after: Option<i64>,
    limit: Option<u32>,
}

/// What nobody acknowledged, how the lines fare, and what cannot be had.
pub(super) async fn list(
    State(api): State<Api>,
    wanted: Result<Query<Wanted>, axum::extract::rejection::QueryRejection>,
) -> Answered {
    let Query(wanted) =
        wanted.map_err(|error| refusal(StatusCode::BAD_REQUEST, "malformed", &error.body_text()))?;
    let inbox = api.outbox.inbox();
    let limit = wanted.limit.unwrap_or(100).clamp(1, semel_delivery::limits::LIST_ROWS_MAX);
    let found = inbox.list(wanted.after.unwrap_or(0), limit).await.map_err(|error| failed(&error))?;
    let depth = inbox.depth().await.map_err(|error| failed(&error))?;
    let gaps = all_gaps(&inbox, 0).await.map_err(|error| failed(&error))?;
    let last = found.last().filter(|_| found.len() == limit as usize).map(|message| message.number);
    let lines = api.receiving.iter().flat_map(|receiving| receiving.lines());
    let body = json!({
        "messages": found.iter().map(answer::received).collect::<Vec<_>>(),
        "next_after": last,
        "waiting": depth.waiting,
        "lines": lines.map(|line| answer::followed(&line)).collect::<Vec<_>>(),
        "gaps": gaps.iter().skip(gaps.len().saturating_sub(GAPS_SHOWN)).map(answer::gap).collect::<Vec<_>>(),
    });
    Ok(json_answer(StatusCode::OK, &body))
}

/// There are few: each stands for a broker that did not keep what was to be read.
async fn all_gaps(
    inbox: &Inbox,
    after: i64,
) -> Result<Vec<semel_delivery::message::Gap>, semel_delivery::OutboxError> {
    let (mut gaps, mut after) = (Vec::new(), after);
    loop {
        let some = inbox.gaps(after, READ_AT_ONCE).await?;
        let Some(last) = some.last() else { return Ok(gaps) };
        after = last.number;
        gaps.extend(some);
    }
}

#[derive(Deserialize)]
pub(super) struct Which {
    mesh: Option<String>,
}

/// One message, acknowledged or not.
pub(super) async fn show(
    State(api): State<Api>,
    Path((sender, id)): Path<(String, String)>,
    Query(which): Query<Which>,
) -> Answered {
    let found = api.outbox.inbox().find(&sender, &id).await.map_err(|error| failed(&error))?;
    let mesh = which.mesh.as_deref();
    let meant: Vec<&Received> =
        found.iter().filter(|found| mesh.is_none_or(|mesh| mesh == found.mesh)).collect();
    match meant.as_slice() {
        [one] => Ok(json_answer(StatusCode::OK, &answer::received(one))),
        [] => Err(unknown().into()),
        _ => Err(ambiguous().into()),
    }
}

/// Acknowledges a message: it is listed no more. The same again is no mistake.
///
/// Programs acknowledge what they have read, all day long: that is no deed of a person, and stands in no trail.
pub(super) async fn acknowledge(
    State(api): State<Api>,
    Path((sender, id)): Path<(String, String)>,
    Query(which): Query<Which>,
    headers: HeaderMap,
    body: BodyRead,
) -> Answered {
    let outbox = match named(&headers) {
        Some(_) => acting_for(&api, &headers, body)?,
        None => api.outbox.clone(),
    };
    let acknowledged = outbox.inbox().acknowledge(which.mesh.as_deref(), &sender, &id).await;
    let is_duplicate = match acknowledged.map_err(|error| failed(&error))? {
        Acknowledged::Now => false,
        Acknowledged::Before => true,
        Acknowledged::Unknown => return Err(unknown().into()),
        Acknowledged::Ambiguous => return Err(ambiguous().into()),
    };
    let body = json!({
        "acknowledged": true,
        "duplicate": is_duplicate,
        "sender": sender,
        "id": id,
        "client_message_id": id,
    });
    Ok(json_answer(StatusCode::OK, &body))
}

fn unknown() -> Response<Body> {
    refusal(StatusCode::NOT_FOUND, "unknown-message", "no such message was received")
}

fn ambiguous() -> Response<Body> {
    let why = "senders of this name in several meshes used this id: say which mesh is meant, with ?mesh=NAME";
    refusal(StatusCode::CONFLICT, "ambiguous-message", why)
}

#[derive(Deserialize)]
pub(super) struct From {
    after: Option<i64>,
}

/// A reader of the inbox.
struct Reader {
    inbox: Inbox,
    watch: watch::Receiver<u64>,
    after: i64,
    gap: i64,
    ready: VecDeque<Event>,
}

/// Messages as they come, from after `Last-Event-ID` or `?after=` on; without either, from the first that nobody acknowledged.
/// A number that was never given begins there too, with an event `reset` that says so.
pub(super) async fn events(State(api): State<Api>, Query(from): Query<From>, headers: HeaderMap) -> Answered {
    let inbox = api.outbox.inbox();
    let last =
        headers.get("last-event-id").and_then(|value| value.to_str().ok()).and_then(|text| text.parse().ok());
    let mut after: i64 = last.or(from.after).unwrap_or(0);
    let watch = inbox.watch();
    let newest = inbox.depth().await.map_err(|error| failed(&error))?.newest;
    let mut ready = VecDeque::new();
    if after > newest {
        // A number of another file, or of one that was restored: waiting for it would be waiting for ever.
        let reset = json!({"asked": after, "newest": newest});
        ready.push_back(Event::default().id("0").event("reset").data(reset.to_string()));
        after = 0;
    }
    let gap = all_gaps(&inbox, 0).await.map_err(|error| failed(&error))?.last().map_or(0, |gap| gap.number);
    let reader = Reader { inbox, watch, after, gap, ready };
    let stream = futures_util::stream::unfold(reader, |mut reader| async move {
        let event = reader.next().await?;
        Some((Ok::<Event, Infallible>(event), reader))
    });
    Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(Duration::from_secs(15))).into_response())
}

impl Reader {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            // Marked as seen before the look, so that a message in between wakes us.
            self.watch.mark_unchanged();
            for gap in self.inbox.gaps(self.gap, READ_AT_ONCE).await.ok()? {
                self.gap = gap.number;
                self.ready.push_back(Event::default().event("gap").data(answer::gap(&gap).to_string()));
            }
            for message in self.inbox.list(self.after, READ_AT_ONCE).await.ok()? {
                self.after = message.number;
                let data = answer::received(&message).to_string();
                self.ready.push_back(Event::default().id(message.number.to_string()).data(data));
            }
            if self.ready.is_empty() && self.watch.changed().await.is_err() {
                return None;
            }
        }
    }
}

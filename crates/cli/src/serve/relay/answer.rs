//! The bodies of answers. Pure.

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use semel_contract::profile::Profile;
use semel_delivery::relay::store::Lane;
use semel_delivery::relay::store::look::{Item, ItemState, LaneView, Request};
use serde_json::{Value, json};

use super::wording::Wording;

/// A JSON answer.
pub(crate) fn plain(status: StatusCode, body: &Value) -> Response<Body> {
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The answer to a submission, as it stands now: 200 when everything is applied, else 202.
pub(crate) fn request(profile: &Profile, request: &Request, is_known: bool) -> Response<Body> {
    let is_done = request.open == 0 && request.dead == 0;
    let mut lanes: Vec<(&Item, ItemState)> = Vec::new();
    for item in &request.items {
        match lanes.iter_mut().find(|(known, _)| known.lane == item.lane && known.group == item.group) {
            // Of several items for one lane, one that is not applied counts.
            Some((_, state)) if *state == ItemState::Completed => *state = item.state,
            Some(_) => {}
            None => lanes.push((item, item.state)),
        }
    }
    let lanes_states: Vec<ItemState> = lanes.iter().map(|(_, state)| *state).collect();
    let wording = Wording::of(profile);
    let lanes: Vec<Value> = lanes.iter().map(|(item, state)| wording.submitted(item, *state)).collect();
    // What was given up is no success, whatever became of the rest.
    let mut body = json!({"success": request.dead == 0, wording.list(): lanes});
    if request.open > 0 {
        body["pending"] = json!({"count": request.open, "message": waiting(&lanes_states)});
    }
    if request.dead > 0 {
        body["failed"] = json!({
            "count": request.dead,
            "message": given_up(request),
        });
        if request.open == 0 {
            body["pending"] = json!({"count": 0, "message": "Nothing more will be applied automatically."});
        }
    }
    let mut response = plain(if is_done { StatusCode::OK } else { StatusCode::ACCEPTED }, &body);
    if is_known {
        response.headers_mut().insert("idempotency-replayed", HeaderValue::from_static("true"));
    }
    response
}

/// The lanes of a target.
pub(crate) fn lanes(profile: &Profile, views: &[LaneView]) -> Response<Body> {
    let of_lane = |view: &LaneView| {
        json!({
            "lane": view.lane.name,
            "group": view.lane.group,
            "label": view.lane.label,
            "applied": view.lane.applied,
            "pending_delta": view.delta,
            "pending_count": view.pending,
            "has_pending": view.pending > 0,
            "state": view.lane.state.name(),
            "writing": writing(view),
        })
    };
    let mut body = json!({"lanes": views.iter().map(of_lane).collect::<Vec<_>>()});
    let wording = Wording::of(profile);
    if let Some(known) = wording.looked_at(views, writing) {
        body[wording.list()] = known;
    }
    plain(StatusCode::OK, &body)
}

/// The values around what is being written, for readers who look at the service by themselves.
fn writing(view: &LaneView) -> Value {
    view.writing.map_or(Value::Null, |writing| json!({"before": writing.before, "after": writing.after}))
}

/// What waits of one principal.
pub(crate) fn pending(lanes: &[(Lane, i64)]) -> Response<Body> {
    let count: i64 = lanes.iter().map(|(_, count)| count).sum();
    let of_lane = |(lane, count): &(Lane, i64)| json!({"target": lane.target, "group": lane.group, "lane": lane.name, "label": lane.label, "count": count});
    let lanes: Vec<Value> = lanes.iter().map(of_lane).collect();
    plain(StatusCode::OK, &json!({"pending": count, "pendingWrites": count, "lanes": lanes}))
}

/// What was given up: all of it, or a part.
fn given_up(request: &Request) -> &'static str {
    match request.items.iter().all(|item| item.state == ItemState::Failed) {
        true => "The changes were given up and are not applied; they are kept for an operator.",
        false => "Some changes were given up and are not applied; they are kept for an operator.",
    }
}

/// What becomes of what is not applied yet. Nobody is promised what a person has yet to decide.
fn waiting(states: &[ItemState]) -> &'static str {
    let has = |state: ItemState| states.contains(&state);
    if has(ItemState::InDoubt) {
        "The changes are saved; whether some of them were applied is not known yet, and an operator decides."
    } else if has(ItemState::Blocked) {
        "The changes are saved; some of them wait until an operator has decided about their lane."
    } else if has(ItemState::AuthRevoked) {
        "The changes are saved and will be applied once a new credential is given."
    } else {
        "The changes are saved and will be applied automatically."
    }
}

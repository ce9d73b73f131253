//! Credentials and holds: which origins refuse whose credentials, and the means to give others or to try again. Shows for
//! whom credentials were given, never what they are.

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Response, StatusCode};
use semel_delivery::credentials::Credential;
use semel_delivery::store::Filter;
use semel_delivery::url::Target;
use semel_delivery::{Row, Status};
use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::{Refusal, failed, json_answer, refusal};
use super::body::{Answered, Api, BodyRead, acting, parsed, whole};

/// The origin of an address.
fn origin_of(address: &str) -> Result<String, Refusal> {
    let target = Target::absolute(address).map_err(|error| {
        Refusal::from(refusal(StatusCode::BAD_REQUEST, "malformed", &format!("origin: {error}")))
    })?;
    Ok(target.origin)
}

/// Whose credentials are refused where, how many messages wait for others, and for whom credentials were given.
pub(super) async fn show(State(api): State<Api>) -> Answered {
    let filter = Filter {
        status: Some(Status::Held),
        limit: semel_delivery::limits::LIST_ROWS_MAX,
        ..Filter::default()
    };
    let held = api.outbox.list(filter).await.map_err(|error| failed(&error))?;
    let upstream = api.outbox.settings().upstream.as_ref();
    let count = |principal: &str, origin: &str| {
        let is_meant = |row: &&Row| {
            row.principal == principal
                && Target::resolve(&row.url, upstream).is_ok_and(|target| target.origin == origin)
        };
        held.iter().filter(is_meant).count()
    };
    let hold = |(principal, origin): (String, String)| json!({"principal": principal, "origin": origin, "held": count(&principal, &origin)});
    let holds: Vec<Value> = api.outbox.holds().into_iter().map(hold).collect();
    let given = |(principal, origin)| json!({"principal": principal, "origin": origin});
    let given: Vec<Value> = api.wallet.given().into_iter().map(given).collect();
    Ok(json_answer(StatusCode::OK, &json!({"holds": holds, "given": given})))
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Released {
    principal: Option<String>,
    origin: Option<String>,
    reason: Option<String>,
}

/// Tries a principal's messages again although its credential is the same.
pub(super) async fn release(State(api): State<Api>, headers: HeaderMap, body: BodyRead) -> Answered {
    let asked: Released = parsed(&whole(body)?)?;
    let origin = asked.origin.as_deref().map(origin_of).transpose()?;
    let principal = asked.principal.unwrap_or_else(|| "default".to_owned());
    let is_held = api
        .outbox
        .holds()
        .iter()
        .any(|(whose, at)| *whose == principal && origin.as_ref().is_none_or(|origin| origin == at));
    if !is_held {
        let why = format!("nothing of {principal} is held: GET /v1/credentials shows what is");
        return Err(refusal(StatusCode::NOT_FOUND, "not-held", &why).into());
    }
    let outbox = acting(&api, &headers, asked.reason.as_deref())?;
    let lanes = outbox.release(&principal, origin.as_deref()).await.map_err(|error| failed(&error))?;
    Ok(json_answer(StatusCode::OK, &json!({"principal": principal, "origin": origin, "lanes": lanes})))
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Given {
    principal: Option<String>,
    origin: Option<String>,
    headers: std::collections::BTreeMap<String, String>,
    reason: Option<String>,
}

/// Takes a credential, and lets its principal's messages to that origin go on.
pub(super) async fn give(State(api): State<Api>, asked: HeaderMap, body: BodyRead) -> Answered {
    let given: Given = parsed(&whole(body)?)?;
    let malformed = |why: &str| refusal(StatusCode::BAD_REQUEST, "malformed", why);
    let origin = match given.origin.as_deref() {
        Some(origin) => origin_of(origin)?,
        None => match &api.outbox.settings().upstream {
            Some(upstream) => upstream.origin.clone(),
            None => {
                return Err(malformed("say for which origin: a credential is sent nowhere else").into());
            }
        },
    };
    for (name, value) in &given.headers {
        let is_good = axum::http::HeaderName::from_bytes(name.as_bytes()).is_ok()
            && axum::http::HeaderValue::from_str(value).is_ok();
        if !is_good {
            return Err(malformed("headers: a name or value cannot be sent").into());
        }
    }
    let principal = given.principal.unwrap_or_else(|| "default".to_owned());
    // It is written down before it counts: nobody acts without a trace.
    let outbox = acting(&api, &asked, given.reason.as_deref())?;
    let noted = outbox.note_credential(&principal, &origin, given.headers.is_empty()).await;
    noted.map_err(|error| failed(&error))?;
    api.wallet.give(&principal, &origin, Credential { headers: given.headers.into_iter().collect() });
    api.outbox.release(&principal, Some(&origin)).await.map_err(|error| failed(&error))?;
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    Ok(response)
}

//! Answers on the wire, in the mesh form: `{error, reason, …}`. One table maps what the broker says to statuses.

use std::time::Duration;

use axum::Json;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use semel_contract::time::Timestamp;
use semel_delivery::relay::store::sql::StoreError;
use semel_http::UnreadBody;
use serde_json::{Value, json};

use crate::broker::ReadError;
use crate::published::{Published, Receipt, Refusal};
use crate::settings::Settings;
use crate::store::manage::ManageError;

/// When to come back where the store did not do it.
const STORE_PAUSE: Duration = Duration::from_secs(1);

/// An error: its status, its code, its words, and when to come back.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) status: StatusCode,
    pub(crate) body: Value,
    pub(crate) retry_after: Option<Duration>,
}

impl Told {
    pub(crate) fn new(status: StatusCode, code: &str, reason: &str) -> Self {
        Self { status, body: json!({"error": code, "reason": reason}), retry_after: None }
    }

    fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.body[name] = value.into();
        self
    }

    fn retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// No credential, or one that nobody has.
    pub(crate) fn unknown_caller() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "identity_missing", "the request has no credential of a member")
    }

    /// The same for all that is not this caller's, be it there or not.
    pub(crate) fn outsider() -> Self {
        Self::new(StatusCode::FORBIDDEN, "identity_refused", "the caller may not do this, or it is not there")
    }

    pub(crate) fn malformed(reason: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "request_malformed", reason)
    }

    pub(crate) fn missing(what: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", &format!("there is no such {what}"))
    }

    pub(crate) fn unavailable(error: &StoreError) -> Self {
        tracing::warn!(%error, "the store did not do it");
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "store_unavailable",
            "the store cannot be reached; try again",
        )
        .retry_after(STORE_PAUSE)
    }
}

impl IntoResponse for Told {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(after) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(whole_seconds(after)));
        }
        let should = if self.retry_after.is_some() { "true" } else { "false" };
        headers.insert(HeaderName::from_static("x-should-retry"), HeaderValue::from_static(should));
        response
    }
}

fn whole_seconds(after: Duration) -> u64 {
    (after.as_secs() + u64::from(after.subsec_nanos() > 0)).max(1)
}

impl From<&Refusal> for Told {
    fn from(refusal: &Refusal) -> Self {
        let new = Told::new;
        match refusal {
            Refusal::Malformed(why) => Told::malformed(why),
            Refusal::PayloadTooLarge { limit } => {
                new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", "the payload is too large")
                    .with("limit", *limit)
            }
            Refusal::BudgetSpent { limit, retry_after } => new(
                StatusCode::TOO_MANY_REQUESTS,
                "admission_limited",
                "the mesh has spent its budget of new messages",
            )
            .with("limit", limit.count)
            .with("window", limit.window.as_secs())
            .retry_after(*retry_after),
            Refusal::RequestLimited { retry_after } => {
                new(StatusCode::TOO_MANY_REQUESTS, "request_limited", "too many new ids of this member")
                    .retry_after(*retry_after)
            }
            Refusal::DestinationUnknown => {
                new(StatusCode::NOT_FOUND, "destination_unknown", "there is no such topic or member")
            }
            Refusal::NotSubscribed => new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "not_subscribed",
                "the sender is not subscribed to the topic",
            ),
            Refusal::DestinationLate => {
                let why = "the destination is not there yet, or the sender is not subscribed yet; try again";
                new(StatusCode::SERVICE_UNAVAILABLE, "destination_late", why).retry_after(STORE_PAUSE)
            }
            Refusal::MeshFull { limit } => {
                new(StatusCode::INSUFFICIENT_STORAGE, "mesh_full", "the mesh keeps all that it may")
                    .with("limit", *limit)
            }
            Refusal::Unavailable(why) => Told::unavailable(&StoreError::Failed(why.clone())),
            Refusal::Draining => {
                new(StatusCode::SERVICE_UNAVAILABLE, "draining", "the broker is about to stop; try again")
                    .retry_after(STORE_PAUSE)
            }
        }
    }
}

impl From<Refusal> for Told {
    fn from(refusal: Refusal) -> Self {
        Told::from(&refusal)
    }
}

impl From<UnreadBody> for Told {
    fn from(unread: UnreadBody) -> Self {
        match unread {
            UnreadBody::TooLarge(limit) => Refusal::PayloadTooLarge { limit }.into(),
            UnreadBody::NoRoom => {
                let why = "too many bodies of requests are being read";
                Told::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", why).retry_after(STORE_PAUSE)
            }
            UnreadBody::TooSlow(time_max) => {
                let why = format!("the body took longer than {time_max:?}");
                Told::new(StatusCode::REQUEST_TIMEOUT, "request_malformed", &why).retry_after(STORE_PAUSE)
            }
            UnreadBody::BrokeOff(_) => {
                let why = "the body broke off";
                Told::new(StatusCode::REQUEST_TIMEOUT, "request_malformed", why).retry_after(STORE_PAUSE)
            }
        }
    }
}

impl From<ReadError> for Told {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::NotAllowed => Told::outsider(),
            ReadError::BadCursor => Told::malformed("that is not the id of an event of this line"),
            ReadError::TooMany => {
                Told::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", "too many streams are open")
                    .retry_after(STORE_PAUSE)
            }
            ReadError::Store(error) => Told::unavailable(&error),
        }
    }
}

impl From<ManageError> for Told {
    fn from(error: ManageError) -> Self {
        match error {
            ManageError::Missing(what) => Told::missing(what),
            ManageError::Refused(why) => Told::malformed(&why),
            ManageError::Store(error) => Told::unavailable(&error),
        }
    }
}

impl From<StoreError> for Told {
    fn from(error: StoreError) -> Self {
        Told::unavailable(&error)
    }
}

/// The status and the body of what came of a publish.
pub(crate) fn of_published(published: &Published) -> (StatusCode, Value, Option<Duration>) {
    match published {
        Published::Accepted(receipt) => (StatusCode::CREATED, of_receipt(receipt), None),
        Published::Duplicate(receipt) => {
            let mut body = of_receipt(receipt);
            body["duplicate"] = json!(true);
            body["history_available"] = json!(receipt.history_available);
            (StatusCode::OK, body, None)
        }
        Published::Reused { fingerprint, broker_message_id } => {
            let mut body = json!({
                "error": "idempotency_key_reused",
                "reason": "the id was used for another message",
                "request_fingerprint": fingerprint,
            });
            if let Some(id) = broker_message_id {
                body["broker_message_id"] = json!(id);
            }
            (StatusCode::CONFLICT, body, None)
        }
        Published::Sealed => {
            let body = json!({"error": "key_sealed", "reason": "the id was cancelled; use another one"});
            (StatusCode::CONFLICT, body, None)
        }
        Published::Refused(refusal) => {
            let told = Told::from(refusal);
            (told.status, told.body, told.retry_after)
        }
    }
}

/// A receipt.
pub(crate) fn of_receipt(receipt: &Receipt) -> Value {
    json!({
        "broker_message_id": receipt.broker_message_id,
        "history_id": receipt.history_id.to_string(),
        "client_message_id": receipt.client_message_id,
        "first_seen_at": Timestamp::from_millis(receipt.first_seen_at).to_string(),
    })
}

/// The answer to one publish.
pub(crate) fn publish_response(published: &Published, settings: &Settings) -> Response {
    let (status, body, retry_after) = of_published(published);
    let mut response = Told { status, body, retry_after }.into_response();
    if status.is_success() {
        response.headers_mut().remove("x-should-retry");
    }
    if matches!(published, Published::Duplicate(_)) {
        let replayed = HeaderName::from_static("idempotency-replayed");
        response.headers_mut().insert(replayed, HeaderValue::from_static("true"));
    }
    promise(response.headers_mut(), settings);
    response
}

/// What every keyed answer says: how far the promise goes, and for how long.
pub(crate) fn promise(headers: &mut HeaderMap, settings: &Settings) {
    headers.insert(HeaderName::from_static("semel-guarantee"), HeaderValue::from_static("atomic"));
    let retention = HeaderValue::from(settings.announced_retention().as_secs());
    headers.insert(HeaderName::from_static("semel-retention"), retention);
}

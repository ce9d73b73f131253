//! Credentials that callers give, what waits for them, and the store's clock. Shows for whom a credential is, never what it
//! is.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Response, StatusCode};
use semel_contract::time::Timestamp;
use semel_delivery::credentials::Credential;
use semel_delivery::relay::given::NotKept;
use semel_delivery::relay::store::StoreError;
use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::plain;
use super::context::{Admin, acting, away};
use crate::problems::refusal as refused;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Released {
    target: String,
    principal: String,
    reason: Option<String>,
}

/// Tries again what a principal has parked, under the same credential.
pub(super) async fn release(
    State(admin): State<Admin>,
    headers: HeaderMap,
    Json(whose): Json<Released>,
) -> Response<Body> {
    if let Some(refusal) = unnameable(&[&whose.target, &whose.principal]) {
        return refusal;
    }
    let by = match acting(&headers, whose.reason.as_deref()) {
        Ok(by) => by,
        Err(refused) => return *refused,
    };
    match admin.engine.release(&whose.target, &whose.principal, by).await {
        // What is in the store may be of a target that this file does not know.
        Ok(0) if !admin.engine.targets.contains_key(&whose.target) => {
            let why = format!("there is no target {:?}, and nothing of it is parked", whose.target);
            refused(StatusCode::NOT_FOUND, "unknown-target", &why)
        }
        Ok(count) => plain(StatusCode::OK, &json!({"released": count})),
        Err(error) => away(&error),
    }
}

/// Refuses names that nobody has, and that a database could not compare.
fn unnameable(names: &[&str]) -> Option<Response<Body>> {
    let is_bad = names.iter().any(|name| name.chars().any(char::is_control));
    let why = "a name contains control characters";
    is_bad.then(|| refused(StatusCode::BAD_REQUEST, "bad-name", why))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Given {
    target: String,
    principal: String,
    header: Option<String>,
    #[serde(default)]
    value: String,
    /// Whether the one that was given is taken back instead.
    #[serde(default)]
    take_back: bool,
    reason: Option<String>,
}

impl Given {
    /// The credential; without header lines where it is taken back.
    fn credential(&self) -> Option<Credential> {
        if self.take_back {
            return self.value.is_empty().then(Credential::default);
        }
        let header = self.header.as_deref().unwrap_or("Authorization");
        let is_name = http::HeaderName::try_from(header).is_ok();
        let value = self.value.trim();
        let is_value = !value.is_empty() && !value.chars().any(char::is_control);
        (is_name && is_value).then(|| Credential::line(header, value))
    }
}

/// Keeps a credential for every replica and every start, and releases what waited for it.
pub(super) async fn give(
    State(admin): State<Admin>,
    headers: HeaderMap,
    Json(given): Json<Given>,
) -> Response<Body> {
    if let Some(refusal) = unnameable(&[&given.principal]) {
        return refusal;
    }
    let Some(target) = admin.engine.targets.get(&given.target) else {
        return refused(StatusCode::NOT_FOUND, "unknown-target", "there is no such target");
    };
    let Some(credential) = given.credential() else {
        return refused(
            StatusCode::BAD_REQUEST,
            "bad-credential",
            "the header's name is not one, or its value is empty or contains control characters",
        );
    };
    let by = match acting(&headers, given.reason.as_deref()) {
        Ok(by) => by,
        Err(refused) => return *refused,
    };
    let origin = target.upstream.origin();
    match admin.credentials.give(&given.principal, &given.target, origin, &credential, by).await {
        Ok(()) => {}
        Err(NotKept::NoKey) => {
            let why = "a credential is kept sealed only, and there is no key: name a key file under [relay.at_rest], or \
                       put the credential into a file or a command of [[relay.credential]]";
            return refused(StatusCode::CONFLICT, "at-rest-key-missing", why);
        }
        Err(NotKept::NotSealed(why)) => {
            return refused(StatusCode::BAD_REQUEST, "bad-credential", &why);
        }
        Err(NotKept::Store(error)) => return away(&error),
    }
    match release_given(&admin, &given).await {
        Ok(count) => plain(StatusCode::OK, &json!({"released": count})),
        Err(error) => away(&error),
    }
}

async fn release_given(admin: &Admin, given: &Given) -> Result<i64, StoreError> {
    admin.engine.store.start_over(&given.target, &given.principal).await?;
    admin.engine.release_renewed().await
}

/// The store's clock.
pub(super) async fn clock(State(admin): State<Admin>) -> Response<Body> {
    match admin.engine.store.now().await {
        Ok(now) => plain(StatusCode::OK, &clock_now(&admin, now)),
        Err(error) => away(&error),
    }
}

fn clock_now(admin: &Admin, now: i64) -> Value {
    let ahead = admin.engine.store.clock_ahead();
    json!({"now": Timestamp::from_millis(now).to_string(), "jump_ms": (ahead != 0).then_some(ahead)})
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Confirmed {
    reason: String,
}

/// A person says that the clock is right after its jump.
pub(super) async fn confirm_clock(
    State(admin): State<Admin>,
    headers: HeaderMap,
    Json(said): Json<Confirmed>,
) -> Response<Body> {
    if said.reason.trim().is_empty() {
        return refused(StatusCode::BAD_REQUEST, "reason-missing", "say why, in `reason`");
    }
    let store = &admin.engine.store;
    let reason = semel_delivery::limits::shorten(&said.reason, semel_delivery::limits::ERROR_CHARS_MAX);
    let by = match acting(&headers, Some(&reason)) {
        Ok(by) => by,
        Err(refused) => return *refused,
    };
    match store.confirm_clock(&by.name, &reason).await {
        Ok(true) => clock(State(admin)).await,
        Ok(false) => {
            let why = "the clock is believed: there is nothing to confirm";
            refused(StatusCode::CONFLICT, "clock-not-frozen", why)
        }
        Err(error) => away(&error),
    }
}

//! The service of `spec/once.md` in Rust, as a process of its own: this very test program, told by its environment. On the Rust layer
//! it enters and leaves by itself; behind a gateway it settles with `semel.settle`.

use std::future::ready;
use std::net::Ipv4Addr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, request::Parts};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use deadpool_postgres::{GenericClient, Manager, Pool};
use http_body_util::BodyExt;
use semel_contract::identity::Caller;
use semel_contract::problem::{Kind, Problem};
use semel_contract::profile::{Profile, presets};
use semel_contract::record::Guarantee;
use semel_gate::postgres::Grant;
use semel_gate::{GateLayer, Identified, Identify, NotGranted, Route, SettleError, Verified};
use semel_store::postgres::{Options, PostgresStore};
use serde_json::Value;
use tokio_postgres::NoTls;

/// What the process is to be: one of the services below.
pub(crate) const SERVES: &str = "SEMEL_TEST_ONCE";
pub(crate) const LAYER: &str = "layer";
pub(crate) const SETTLING: &str = "settling";
/// Where records are, past the proxy.
pub(crate) const STORE: &str = "STORE_URL";
/// Few, so that a waiter which held one would stop the service.
const CONNECTIONS: usize = 4;

/// The name of a preset's route. A gate has each name once.
pub(crate) fn route_name(preset: &str) -> String {
    if preset == "ietf" { "create-order".to_owned() } else { format!("create-order-{preset}") }
}

/// Serves for ever, where this process was started for that.
pub(crate) async fn serve_if_told() {
    let Ok(kind) = std::env::var(SERVES) else { return };
    let told = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name} is told"));
    let manager = Manager::new(told("DATABASE_URL").parse().expect("a URL"), NoTls);
    let pool = Pool::builder(manager).max_size(CONNECTIONS).build().expect("a pool");
    let app = match kind.as_str() {
        // Where nothing else is said, the records are reached by the same way as the tables.
        LAYER => on_the_layer(pool, &std::env::var(STORE).unwrap_or_else(|_| told("DATABASE_URL"))).await,
        SETTLING => Router::new().route("/{profile}/orders/{id}", post(settle)).with_state(Arc::new(pool)),
        other => panic!("no such service: {other}"),
    };
    let app = app.route("/ready", get(|| ready("ready")));
    let port = told("PORT").parse().expect("a port");
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.expect("it is free");
    axum::serve(listener, app).await.expect("it serves");
    std::process::exit(0);
}

/// The caller in `X-User`, the tenant in `X-Tenant`.
struct People;

impl Identify for People {
    fn identify<'a>(&'a self, parts: &'a Parts) -> Identified<'a> {
        let told =
            |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let caller = match told("x-user") {
            Some(user) => Caller::verified(told("x-tenant"), user),
            None => Err(Problem::new(Kind::IdentityMissing, "X-User says who is calling")),
        };
        Box::pin(ready(caller.map(Verified::new)))
    }
}

async fn on_the_layer(pool: Pool, store: &str) -> Router {
    let store = PostgresStore::connect(store, Options::default()).await.expect("the store opens");
    let mut gate = GateLayer::builder(Arc::new(store)).identity(People);
    for (name, preset) in presets::PRESETS {
        let pattern = format!("POST /{name}/orders/{{id}}");
        let profile = Profile { guarantee: Guarantee::Atomic, ..preset() };
        gate = gate.route(Route::new(&route_name(name), &pattern).expect("a pattern").profile(profile));
    }
    let gate = gate.build().expect("a safe gate");
    Router::new().route("/{profile}/orders/{id}", post(run)).with_state(Arc::new(pool)).layer(gate)
}

/// What a handler is to do.
#[derive(Clone)]
struct Script {
    run: String,
    attempts: Value,
}

impl Script {
    fn of(headers: &HeaderMap) -> Self {
        let told: Value =
            serde_json::from_slice(headers.get("x-once").expect("a script").as_bytes()).expect("JSON");
        Self { run: told["run"].as_str().expect("a name").to_owned(), attempts: told["attempts"].clone() }
    }

    async fn play(&self, tx: &impl GenericClient) -> Result<Response, SettleError> {
        let row = tx.query_one("SELECT nextval($1::text::regclass)", &[&self.run]).await?;
        let attempts = self.attempts.as_array().expect("a list");
        let turn = usize::try_from(row.get::<_, i64>(0)).expect("a small number");
        let attempt = &attempts[turn.min(attempts.len()) - 1];
        for name in attempt["effects"].as_array().into_iter().flatten() {
            let name = name.as_str().expect("a name");
            tx.execute("INSERT INTO once_effect (run, name) VALUES ($1, $2)", &[&self.run, &name]).await?;
        }
        if let Some(hold) = attempt["hold"].as_i64() {
            tx.query_one("SELECT pg_advisory_xact_lock_shared($1)::text", &[&hold]).await?;
        }
        for (member, is_swallowed) in [("raise_sql", false), ("swallow_sql", true)] {
            if let Some(state) = attempt[member].as_str() {
                let raised = tx.query_one("SELECT once_raise($1)::text", &[&state]).await;
                if !is_swallowed {
                    raised?;
                }
            }
        }
        if let Some(statement) = attempt["statement"].as_str() {
            tx.batch_execute(statement).await?;
        }
        match attempt["raise"].as_str() {
            Some(text) => Err(SettleError::failed(text.to_owned())),
            None => Ok(answer(&attempt["answer"])),
        }
    }
}

fn answer(told: &Value) -> Response {
    let status = u16::try_from(told["status"].as_u64().expect("a status")).expect("a status");
    let mut response = Response::new(Body::from(content(told)));
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    for pair in told["headers"].as_array().into_iter().flatten() {
        let (name, value) = (pair[0].as_str().expect("a name"), pair[1].as_str().expect("a value"));
        let name = HeaderName::try_from(name).expect("a name");
        response.headers_mut().append(name, HeaderValue::try_from(value).expect("a value"));
    }
    response
}

/// A body as the scenarios write it.
pub(crate) fn content(told: &Value) -> Vec<u8> {
    if let Some(text) = told["body_base64"].as_str() {
        return STANDARD.decode(text).expect("base64");
    }
    let repeat = &told["body_repeat"];
    if let Some(text) = repeat["text"].as_str() {
        let times = repeat["times"].as_u64().expect("a number");
        return text.repeat(usize::try_from(times).expect("a small number")).into_bytes();
    }
    told["body"].as_str().unwrap_or_default().as_bytes().to_vec()
}

async fn run(
    State(pool): State<Arc<Pool>>,
    grant: Result<Grant, NotGranted>,
    headers: HeaderMap,
) -> Response {
    let script = Script::of(&headers);
    let Ok(grant) = grant else { return run_unkeyed(&pool, &script).await.into_response() };
    let settled = grant.transact(&pool, |tx| {
        let script = script.clone();
        Box::pin(async move { script.play(tx).await })
    });
    settled.await.into_response()
}

async fn run_unkeyed(pool: &Pool, script: &Script) -> Result<Response, SettleError> {
    let mut connection = pool.get().await?;
    let tx = connection.transaction().await?;
    let response = script.play(&tx).await?;
    tx.commit().await?;
    Ok(response)
}

/// A service behind a gateway: its own transaction settles what it commits.
async fn settle(
    State(pool): State<Arc<Pool>>,
    Path((profile, _)): Path<(String, String)>,
    headers: HeaderMap,
) -> Response {
    let script = Script::of(&headers);
    let Some(fence) = headers.get("semel-fence").and_then(|fence| fence.to_str().ok()) else {
        return run_unkeyed(&pool, &script).await.into_response();
    };
    settle_in(&pool, &script, &profile, fence).await.into_response()
}

async fn settle_in(
    pool: &Pool,
    script: &Script,
    profile: &str,
    fence: &str,
) -> Result<Response, SettleError> {
    let mut connection = pool.get().await?;
    let tx = connection.transaction().await?;
    let (parts, body) = script.play(&tx).await?.into_parts();
    let body = body.collect().await.map_err(SettleError::failed)?.to_bytes();
    let is_refusal = parts.status == StatusCode::UNPROCESSABLE_ENTITY && profile != "feed";
    let is_final = parts.status.as_u16() < 400 || is_refusal;
    if is_final && !parts.headers.contains_key("semel-outcome") {
        let kept = parts.headers.iter().map(|(name, value)| {
            (name.to_string(), Value::from(value.to_str().expect("a value").to_owned()))
        });
        let kept = Value::Object(kept.collect());
        let status = i32::from(parts.status.as_u16());
        let sql = "SELECT semel.settle($1, $2, $3, $4)::text";
        let settled = tx.query_one(sql, &[&fence, &status, &kept, &body.as_ref()]).await;
        // A handler that takes no notice of what fails is what some scenarios are about.
        if settled.is_ok() {
            tx.commit().await?;
        }
    }
    Ok(Response::from_parts(parts, Body::from(body)))
}

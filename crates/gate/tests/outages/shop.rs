//! A shop behind the gate: one route whose handlers commit with their grant, one whose handlers commit by themselves. It
//! counts effects, knows the records, and says whether the promise was kept.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod, Runtime};
use semel_contract::identity::Identity;
use semel_contract::profile::{InFlight, Profile, presets};
use semel_gate::postgres::Grant;
use semel_gate::{GateLayer, Route, SettleError};
use semel_store::postgres::{Options, PostgresStore};
use tokio_postgres::{Client, NoTls};

const VARIABLE: &str = "SEMEL_TEST_POSTGRES";
/// The name of the handlers' sessions at the server.
const APPLICATION_NAME: &str = "shop";
/// How long a handler waits for a connection: it gives up sooner than its client does.
const CONNECTION_WAIT: Duration = Duration::from_secs(2);
/// How long a request waits for another with its key, so that a test ends in time.
const IN_FLIGHT_WAIT: Duration = Duration::from_secs(5);
/// How long a handler of the route with a deadline may take.
const DEADLINE: Duration = Duration::from_secs(1);
/// Connections of the handlers.
const CONNECTIONS: usize = 16;
/// Requests that run at a time. More would only wait for the handlers' connections, until they wait too long.
const RUNNING_MAX: usize = 32 * CONNECTIONS;
const EFFECT: &str = "INSERT INTO public.effect (key) VALUES ($1)";
const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS public.effect (key text NOT NULL)";

/// A database, with the ways to it that a test chose.
pub(crate) struct Shop {
    /// Straight to the server, for the test itself.
    pub(crate) url: String,
    pub(crate) store: Arc<PostgresStore>,
    pub(crate) desk: Arc<Desk>,
    pub(crate) app: Router,
    /// The database to drop in the end.
    _database: Option<Database>,
}

/// What the handlers share.
pub(crate) struct Desk {
    pool: Pool,
    /// Which attempts came as far as a handler.
    executed: Mutex<BTreeSet<String>>,
    /// How long the first run for a key thinks between its effect and its commit.
    first_run_takes: Duration,
    ran: Mutex<BTreeSet<String>>,
}

/// How a shop is reached and what its routes are like.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The way of the handlers, where it is not the straight one.
    pub(crate) handlers: Option<String>,
    /// The way of the store, where it is not the straight one.
    pub(crate) store: Option<String>,
    pub(crate) lease: Duration,
    pub(crate) first_run_takes: Duration,
}

impl Default for Plan {
    fn default() -> Self {
        Self { handlers: None, store: None, lease: Duration::from_secs(5), first_run_takes: Duration::ZERO }
    }
}

impl Shop {
    /// A shop in a database of its own, on the server that the tests share.
    pub(crate) async fn create() -> Self {
        Self::planned(|_| Plan::default()).await
    }

    /// The same with ways that depend on the database's address.
    pub(crate) async fn planned(plan: impl FnOnce(&str) -> Plan) -> Self {
        let database = Database::create().await;
        let url = database.url.clone();
        let plan = plan(&url);
        Self { _database: Some(database), ..Self::at(&url, plan).await }
    }

    /// A shop in the database at this address.
    pub(crate) async fn at(url: &str, plan: Plan) -> Self {
        let options = Options::default();
        let store = PostgresStore::connect(plan.store.as_deref().unwrap_or(url), options).await;
        let store = Arc::new(store.expect("the store opens"));
        let client = connect(url).await;
        client.batch_execute(SCHEMA).await.expect("a table");
        let desk = Arc::new(Desk {
            pool: pool(plan.handlers.as_deref().unwrap_or(url)),
            executed: Mutex::default(),
            first_run_takes: plan.first_run_takes,
            ran: Mutex::default(),
        });
        let app = app(&store, &desk, plan.lease);
        Self { url: url.to_owned(), store, desk, app, _database: None }
    }

    /// The books at this moment.
    pub(crate) async fn books(&self) -> Books {
        let client = connect(&self.url).await;
        let counted = "SELECT key, count(*) FROM public.effect GROUP BY key";
        let effects = client.query(counted, &[]).await.expect("effects");
        // State 2 is a record that is settled with its answer.
        let settled = "SELECT key FROM semel.record WHERE state = 2";
        let settled = client.query(settled, &[]).await.expect("records");
        Books {
            effects: effects.iter().map(|row| (row.get(0), row.get(1))).collect(),
            settled: settled.iter().map(|row| row.get(0)).collect(),
        }
    }
}

fn app(store: &Arc<PostgresStore>, desk: &Arc<Desk>, lease: Duration) -> Router {
    let profile = Profile { in_flight: InFlight::Wait { deadline: IN_FLIGHT_WAIT }, ..presets::ietf() };
    let route =
        |pattern| Route::new(pattern, pattern).expect("a pattern").profile(profile.clone()).lease(lease);
    let gate = GateLayer::builder(Arc::clone(store))
        .identity("trusted:X-User".parse::<Identity>().expect("an identity"))
        .route(route("POST /atomic").atomic())
        .route(route("POST /closure").atomic())
        .route(route("POST /in-time").atomic().deadline(DEADLINE))
        .route(route("POST /fenced"))
        .route(route("POST /idle"))
        .max_in_flight(RUNNING_MAX)
        .build()
        .expect("a safe gate");
    Router::new()
        .route("/atomic", post(atomic))
        .route("/closure", post(closure))
        .route("/in-time", post(atomic))
        .route("/fenced", post(fenced))
        .route("/idle", post(idle))
        .with_state(Arc::clone(desk))
        .layer(gate)
}

/// A pool as an application has it.
pub(crate) fn pool(url: &str) -> Pool {
    let mut config: tokio_postgres::Config = url.parse().expect("a URL");
    config.application_name(APPLICATION_NAME).connect_timeout(CONNECTION_WAIT);
    // A connection that leads nowhere any more is found out before a handler is given it.
    let verified = ManagerConfig { recycling_method: RecyclingMethod::Verified };
    Pool::builder(Manager::from_config(config, NoTls, verified))
        .max_size(CONNECTIONS)
        .recycle_timeout(Some(CONNECTION_WAIT))
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(CONNECTION_WAIT))
        .create_timeout(Some(CONNECTION_WAIT))
        .build()
        .expect("a pool")
}

/// A plain connection.
pub(crate) async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("the server answers");
    tokio::spawn(connection);
    client
}

impl Desk {
    /// Notes an attempt, and says how long it thinks.
    fn begin(&self, grant: &Grant, headers: &HeaderMap) -> Duration {
        let attempt = headers.get("x-attempt").and_then(|value| value.to_str().ok()).unwrap_or("").to_owned();
        self.executed.lock().expect("no panic").insert(attempt);
        let is_first = self.ran.lock().expect("no panic").insert(grant.id().key.to_string());
        if is_first { self.first_run_takes } else { Duration::ZERO }
    }

    /// Whether an attempt came as far as a handler.
    pub(crate) fn executed(&self, attempt: &str) -> bool {
        self.executed.lock().expect("no panic").contains(attempt)
    }
}

pub(crate) fn failed(error: impl std::fmt::Display) -> SettleError {
    SettleError::failed(error.to_string())
}

async fn atomic(State(desk): State<Arc<Desk>>, grant: Grant, headers: HeaderMap) -> Response {
    let thinks = desk.begin(&grant, &headers);
    let key = grant.id().key.as_str();
    let work = async || {
        let mut connection = desk.pool.get().await.map_err(failed)?;
        let tx = grant.begin(&mut connection).await?;
        tx.execute(EFFECT, &[&key]).await.map_err(failed)?;
        tokio::time::sleep(thinks).await;
        grant.commit(tx, (StatusCode::CREATED, key.to_owned())).await
    };
    work().await.into_response()
}

async fn closure(State(desk): State<Arc<Desk>>, grant: Grant) -> Response {
    let key = grant.id().key.to_string();
    let done = grant.transact(&desk.pool, |tx| {
        let key = key.clone();
        Box::pin(async move {
            tx.execute(EFFECT, &[&key]).await?;
            Ok((StatusCode::CREATED, key))
        })
    });
    done.await.into_response()
}

/// Says what it knows: that nothing was written, or nothing at all.
async fn fenced(State(desk): State<Arc<Desk>>, grant: Grant, headers: HeaderMap) -> Response {
    let thinks = desk.begin(&grant, &headers);
    let key = grant.id().key.to_string();
    let Ok(client) = desk.pool.get().await else {
        return (StatusCode::SERVICE_UNAVAILABLE, [("semel-outcome", "not-applied")]).into_response();
    };
    let written = client.execute(EFFECT, &[&key]).await;
    tokio::time::sleep(thinks).await;
    match written {
        Ok(_) => (StatusCode::CREATED, key).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// A handler without a database.
async fn idle(grant: Grant) -> Response {
    (StatusCode::CREATED, grant.id().key.to_string()).into_response()
}

/// What there is when the dust has settled.
#[derive(Debug)]
pub(crate) struct Books {
    effects: BTreeMap<String, i64>,
    settled: BTreeSet<String>,
}

impl Books {
    /// Whether anything of this key took effect.
    pub(crate) fn has_effect(&self, key: &str) -> bool {
        self.effects.contains_key(key)
    }

    /// No key has two effects, and each of the acknowledged has one, and its record.
    pub(crate) fn balance<'a>(&self, acknowledged: impl IntoIterator<Item = &'a String>) {
        let doubled: Vec<_> = self.effects.iter().filter(|(_, count)| **count > 1).collect();
        assert!(doubled.is_empty(), "two effects: {doubled:?}");
        let is_lost = |key: &&String| !self.has_effect(key) || !self.settled.contains(*key);
        let lost: Vec<_> = acknowledged.into_iter().filter(is_lost).collect();
        assert!(lost.is_empty(), "acknowledged, yet without effect or record: {lost:?}");
    }

    /// Of the keys that are atomic, an effect is there exactly where its record is.
    pub(crate) fn agree_on(&self, is_atomic: impl Fn(&str) -> bool) {
        let atomic = |key: &&String| is_atomic(key);
        let effects: BTreeSet<&String> = self.effects.keys().filter(atomic).collect();
        let settled: BTreeSet<&String> = self.settled.iter().filter(atomic).collect();
        let without_record: Vec<_> = effects.difference(&settled).collect();
        let without_effect: Vec<_> = settled.difference(&effects).collect();
        assert!(without_record.is_empty(), "effects without their record: {without_record:?}");
        assert!(without_effect.is_empty(), "records without their effect: {without_effect:?}");
    }
}

/// A database on the server that the tests share; dropped with this.
struct Database {
    url: String,
    name: String,
}

fn shared_server() -> String {
    std::env::var(VARIABLE).unwrap_or_else(|_| {
        panic!("{VARIABLE} is not set: run `cargo xtask test`, which starts a PostgreSQL for these tests")
    })
}

impl Database {
    async fn create() -> Self {
        use std::sync::atomic::{AtomicU32, Ordering};

        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("outages_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::SeqCst));
        let server = shared_server();
        let made = connect(&server).await.batch_execute(&format!("CREATE DATABASE {name}")).await;
        made.expect("the role of SEMEL_TEST_POSTGRES may create databases");
        let (place, _) = server.rsplit_once('/').expect("a URL with a database");
        Self { url: format!("{place}/{name}"), name }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let sql = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        let dropped = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async { connect(&shared_server()).await.batch_execute(&sql).await })
        });
        // A test that fails must not fail a second time over its database.
        let _ = dropped.join();
    }
}

//! Gates of different configuration on one PostgreSQL: whatever each of them knows of the others, a key runs once.
#![cfg(feature = "postgres")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::response::IntoResponse;
use axum::routing::post;
use http_body_util::BodyExt;
use semel_contract::identity::Identity;
use semel_contract::profile::presets;
use semel_gate::testing::TestClock;
use semel_gate::{GateBuilder, GateLayer, Route};
use semel_store::postgres::{Options, PostgresStore};
use semel_store::{ClaimStore, Entry, Filter};
use tokio_postgres::{Client, NoTls};
use tower::ServiceExt;

const SERVER: &str = "SEMEL_TEST_POSTGRES";
const HOUR: i64 = 3_600_000;
const UUID: &str = "8e03978e-40d5-43e8-bc93-6894a57f9324";

/// A database of its own, and a service that counts its runs.
struct World {
    url: String,
    client: Client,
    runs: Arc<AtomicU32>,
    status: Arc<AtomicU32>,
}

/// A process: a gate before the service, on its own connections, with a clock that stands still.
struct Process {
    app: Router,
    clock: Arc<TestClock>,
    gate: GateLayer,
}

impl World {
    async fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let server = std::env::var(SERVER)
            .unwrap_or_else(|_| panic!("run `cargo xtask test`, which starts PostgreSQL, or set {SERVER}"));
        let name = format!("forms_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::SeqCst));
        connect(&server).await.batch_execute(&format!("CREATE DATABASE {name}")).await.expect("a database");
        let (place, _) = server.rsplit_once('/').expect("a URL with a database");
        let url = format!("{place}/{name}");
        drop(store(&url).await);
        let client = connect(&url).await;
        Self { url, client, runs: Arc::default(), status: Arc::new(AtomicU32::new(201)) }
    }

    /// One that a release has used which registered no forms.
    async fn used_before() -> Self {
        let world = Self::new().await;
        let old = world.start(|gate| gate.route(Route::any())).await;
        assert_eq!(old.send(keyed("old", "{}")).await.status, 201);
        world.sql("DELETE FROM semel.form").await;
        world.runs.store(0, Ordering::SeqCst);
        world
    }

    async fn start(&self, configure: impl FnOnce(GateBuilder) -> GateBuilder) -> Process {
        let clock = Arc::new(TestClock::default());
        let builder = GateLayer::builder(store(&self.url).await).clock(Arc::clone(&clock) as _);
        let gate = configure(builder).build().expect("a gate");
        let (runs, status) = (Arc::clone(&self.runs), Arc::clone(&self.status));
        let handler = post(async move || {
            let run = runs.fetch_add(1, Ordering::SeqCst) + 1;
            let status = u16::try_from(status.load(Ordering::SeqCst)).unwrap();
            (StatusCode::from_u16(status).unwrap(), format!("run {run}"))
        });
        Process { app: Router::new().route("/orders", handler).layer(gate.clone()), clock, gate }
    }

    fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }

    async fn sql(&self, sql: &str) {
        self.client.batch_execute(sql).await.expect("it runs");
    }

    /// The forms of a gate, as they are kept.
    async fn forms(&self, gate: &str) -> Vec<String> {
        let sql = "SELECT form FROM semel.form WHERE gate = $1 ORDER BY form";
        let rows = self.client.query(sql, &[&gate]).await.expect("a list");
        rows.iter().map(|row| row.get(0)).collect()
    }

    async fn entries(&self) -> Vec<Entry> {
        let filter = Filter { limit: 100, ..Filter::default() };
        store(&self.url).await.list(&filter).await.expect("a list")
    }
}

impl Process {
    async fn send(&self, request: Request<Body>) -> Seen {
        let (parts, body) = self.app.clone().oneshot(request).await.expect("an answer").into_parts();
        let body = String::from_utf8(body.collect().await.expect("a body").to_bytes().to_vec()).unwrap();
        let is_replay = parts.headers.contains_key("idempotency-replayed");
        Seen { status: parts.status.as_u16(), is_replay, body }
    }
}

#[derive(Debug)]
struct Seen {
    status: u16,
    is_replay: bool,
    body: String,
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("the server answers");
    tokio::spawn(connection);
    client
}

async fn store(url: &str) -> Arc<PostgresStore> {
    let options = Options { connections: 4, ..Options::default() };
    Arc::new(PostgresStore::connect(url, options).await.expect("the store opens"))
}

fn keyed(key: &str, body: &str) -> Request<Body> {
    Request::post("/orders")
        .header("host", "shop.example")
        .header("authorization", "Bearer a")
        .header("x-user", "alice")
        .header("content-type", "application/json")
        .header("idempotency-key", key)
        .body(Body::from(body.to_owned()))
        .unwrap()
}

fn with(mut request: Request<Body>, name: &'static str, value: &'static str) -> Request<Body> {
    request.headers_mut().insert(name, value.parse().unwrap());
    request
}

fn seal(key: &str) -> Request<Body> {
    let uri = format!("/.well-known/semel/keys/{key}/seal?endpoint=POST%20/orders");
    let request = Request::post(uri).header("host", "shop.example").header("authorization", "Bearer a");
    request.header("x-user", "alice").body(Body::empty()).unwrap()
}

fn named(name: &str) -> Route {
    Route::new(name, "POST /orders").unwrap()
}

fn trusted() -> Identity {
    "trusted:X-User".parse().unwrap()
}

/// A route is added beside a general one, replica by replica: the old ones do not know its form yet.
#[tokio::test]
async fn a_route_that_is_added_beside_a_general_one_runs_a_key_once() {
    let world = World::new().await;
    let old = world.start(|gate| gate.route(Route::any())).await;
    assert_eq!(old.send(keyed("first", "{}")).await.status, 201);
    let new = world.start(|gate| gate.route(Route::any()).route(named("create"))).await;
    assert_eq!(new.send(keyed("k", "{}")).await.status, 201);
    let again = old.send(keyed("k", "{}")).await;
    assert!(again.is_replay && world.runs() == 2, "{again:?}");
    assert!(new.send(keyed("first", "{}")).await.is_replay);
}

/// The same the other way round: those that have the route do not look into what is left of it.
#[tokio::test]
async fn a_route_that_is_taken_away_beside_a_general_one_runs_a_key_once() {
    let world = World::new().await;
    let old = world.start(|gate| gate.route(Route::any()).route(named("create"))).await;
    assert_eq!(old.send(keyed("first", "{}")).await.status, 201);
    // It has been so for longer than any record lives, and the general route was there before.
    let since = format!("CASE WHEN form LIKE '%\"create\"%' THEN {} ELSE {} END", 60 * HOUR, 61 * HOUR);
    world.sql(&format!("UPDATE semel.form SET first_at = first_at - {since}, since = since - {since}")).await;
    old.clock.advance(Duration::from_secs(61));
    assert_eq!(old.send(keyed("second", "{}")).await.status, 201);
    let new = world.start(|gate| gate.route(Route::any())).await;
    assert_eq!(new.send(keyed("k", "{}")).await.status, 201);
    let again = old.send(keyed("k", "{}")).await;
    assert!(again.is_replay && world.runs() == 3, "{again:?}");
    assert!(new.send(keyed("first", "{}")).await.is_replay);
}

/// The form of a gate without configuration is only a guess of what was before: nothing is claimed in it.
#[tokio::test]
async fn a_guessed_form_never_leads() {
    let world = World::used_before().await;
    let gate = world.start(|gate| gate.route(named("create"))).await;
    assert!(gate.send(keyed("old", "{}")).await.is_replay, "it is looked into");
    assert_eq!(gate.send(keyed("k", "{}")).await.status, 201);
    let entries = world.entries().await;
    let of_k: Vec<_> = entries.iter().filter(|entry| entry.id.key.as_str() == "k").collect();
    assert_eq!(of_k.len(), 1);
    assert_eq!(of_k[0].about.endpoint, "create");
}

/// A store that was empty when forms were first kept has no records from before, whatever a gate is called.
#[tokio::test]
async fn an_upgrade_is_told_from_a_new_gate() {
    let fresh = World::new().await;
    let one = fresh.start(|gate| gate.name("one").scope_by_host().route(named("create"))).await;
    assert_eq!(one.send(keyed("k", "{}")).await.status, 201);
    let two = fresh.start(|gate| gate.name("two").scope_by_host().route(named("create"))).await;
    two.gate.prepare().await.expect("it may start");
    assert_eq!(fresh.forms("two").await.len(), 1, "its own alone");
    let used = World::used_before().await;
    let one = used.start(|gate| gate.name("one").scope_by_host().route(named("create"))).await;
    one.gate.prepare().await.expect("it may start");
    let two = used.start(|gate| gate.name("two").scope_by_host().route(named("create"))).await;
    two.gate.prepare().await.expect("it may start");
    for gate in ["one", "two"] {
        assert_eq!(used.forms(gate).await.len(), 3, "without a host, and without a configuration, too");
    }
}

/// The general route of today without its host is also that of a gate without configuration.
#[tokio::test]
async fn a_form_that_is_meant_twice_is_registered_once() {
    let world = World::used_before().await;
    let gate = world.start(|gate| gate.scope_by_host().route(Route::any())).await;
    gate.gate.prepare().await.expect("it may start");
    assert_eq!(world.forms("").await.len(), 2);
    assert!(gate.send(keyed("old", "{}")).await.is_replay);
    assert_eq!(gate.send(keyed("k", "{}")).await.status, 201);
}

/// A gate that may not start leaves nothing behind that would stop the others.
#[tokio::test]
async fn a_gate_that_cannot_read_former_keys_registers_nothing() {
    let world = World::new().await;
    let running = world.start(|gate| gate.identity(trusted()).route(named("create"))).await;
    assert_eq!(running.send(keyed("k", "{}")).await.status, 201);
    let before = world.forms("").await;
    let refused = world.start(|gate| gate.route(named("create-order"))).await;
    let why = refused.gate.prepare().await.expect_err("it cannot read them").to_string();
    assert!(why.contains("trusted:X-User"), "{why}");
    assert_eq!(refused.send(keyed("other", "{}")).await.status, 503);
    assert_eq!(world.forms("").await, before);
    running.clock.advance(Duration::from_secs(121));
    assert_eq!(running.send(keyed("more", "{}")).await.status, 201);
}

/// What comes later claims in the form of those that run, who need not understand it.
#[tokio::test]
async fn a_later_form_that_cannot_be_read_does_not_stop_a_running_gate() {
    let world = World::new().await;
    let old = world.start(|gate| gate.route(named("create"))).await;
    assert_eq!(old.send(keyed("first", "{}")).await.status, 201);
    let new = world.start(|gate| gate.identity(trusted()).route(named("create"))).await;
    assert_eq!(new.send(keyed("k", "{}")).await.status, 201);
    world.sql("INSERT INTO semel.form SELECT gate, '[\"semel.form.9\"]', kept_ms, first_at + 1, since + 1, last_at FROM semel.form \
               WHERE form LIKE '%trusted%'")
        .await;
    old.clock.advance(Duration::from_secs(121));
    assert_eq!(old.send(keyed("second", "{}")).await.status, 201);
    assert!(old.send(keyed("k", "{}")).await.is_replay);
    assert_eq!(world.runs(), 3);
}

/// A seal holds up those that still claim in the former form, and says how its caller is known there.
#[tokio::test]
async fn a_seal_is_made_in_the_form_that_is_claimed_in() {
    let world = World::new().await;
    let old = world.start(|gate| gate.route(named("create"))).await;
    assert_eq!(old.send(keyed("first", "{}")).await.status, 201);
    let new = world.start(|gate| gate.identity(trusted()).route(named("create-order"))).await;
    let sealed = new.send(seal("k")).await;
    assert_eq!(sealed.status, 200, "{sealed:?}");
    assert!(sealed.body.contains(r#""sealed":true"#), "{sealed:?}");
    assert!(sealed.body.contains(r#""identity":"hashed""#), "it does not hold for another token: {sealed:?}");
    let late = old.send(keyed("k", "{}")).await;
    assert_eq!((late.status, world.runs()), (409, 1), "{late:?}");
    let used = new.send(seal("first")).await;
    assert!(used.body.contains(r#""sealed":false"#), "{used:?}");
}

/// A key that was released had no effect, in whatever form it was claimed.
#[tokio::test]
async fn a_released_key_of_a_former_form_runs() {
    let world = World::new().await;
    let mut profile = presets::ietf();
    profile.lifetime.released = Some(Duration::from_secs(3600));
    let old = world.start(|gate| gate.route(named("create").profile(profile.clone()))).await;
    world.status.store(503, Ordering::SeqCst);
    assert_eq!(old.send(keyed("k", "{}")).await.status, 503);
    world.status.store(201, Ordering::SeqCst);
    // Nobody has claimed in the former form for a while.
    world.sql("UPDATE semel.form SET first_at = first_at - 400000, since = since - 400000, last_at = last_at - 400000").await;
    let new = world.start(|gate| gate.route(named("create-order").profile(profile))).await;
    let seen = new.send(keyed("k", "{}")).await;
    assert_eq!((seen.status, seen.is_replay, world.runs()), (201, false, 2), "{seen:?}");
    assert!(new.send(keyed("k", "{}")).await.is_replay);
}

/// Two hosts are two services: the same key and body there, with another token, is another request.
#[tokio::test]
async fn a_mark_of_rotation_is_of_one_host() {
    let world = World::new().await;
    let gate = world.start(|gate| gate.scope_by_host().route(named("create"))).await;
    assert_eq!(gate.send(keyed(UUID, "{}")).await.status, 201);
    let rotated = gate.send(with(keyed(UUID, "{}"), "authorization", "Bearer b")).await;
    assert_eq!((rotated.status, world.runs()), (409, 1), "{rotated:?}");
    let other = with(with(keyed(UUID, "{}"), "authorization", "Bearer b"), "host", "other.example");
    assert_eq!(gate.send(other).await.status, 201);
    // Also in a former form.
    let renamed = world.start(|gate| gate.scope_by_host().route(named("create-order"))).await;
    let third = with(with(keyed(UUID, "{}"), "authorization", "Bearer c"), "host", "third.example");
    assert_eq!(renamed.send(third).await.status, 201);
    let rotated = renamed.send(with(keyed(UUID, "{}"), "authorization", "Bearer c")).await;
    assert_eq!((rotated.status, world.runs()), (409, 3), "{rotated:?}");
}

/// A key is looked for in every former form, however many there were.
#[tokio::test]
async fn a_key_is_known_in_each_of_many_former_forms() {
    let world = World::new().await;
    for name in ["one", "two", "three", "four"] {
        let gate = world.start(|gate| gate.route(named(name))).await;
        assert_eq!(gate.send(keyed(name, "{}")).await.status, 201);
        world.sql("UPDATE semel.form SET first_at = first_at - 400000, since = since - 400000, last_at = last_at - 400000").await;
    }
    let gate = world.start(|gate| gate.route(named("five"))).await;
    assert_eq!(gate.send(keyed("k", "{}")).await.status, 201);
    for name in ["one", "two", "three", "four"] {
        assert!(gate.send(keyed(name, "{}")).await.is_replay, "{name}");
    }
}

/// Two configurations that were registered at the same moment: exactly one of them leads, so that both claim in one form.
#[tokio::test]
async fn of_two_forms_that_were_registered_at_the_same_moment_one_leads() {
    let world = World::new().await;
    let (one, two) = (
        world.start(|gate| gate.route(named("create"))).await,
        world.start(|gate| gate.route(named("create-order"))).await,
    );
    for process in [&one, &two] {
        process.gate.prepare().await.expect("it may start");
    }
    let moments = "UPDATE semel.form SET first_at = t.at, since = t.at, last_at = t.at \
                   FROM (SELECT max(since) AS at FROM semel.form WHERE gate = '') t WHERE gate = ''";
    world.sql(moments).await;
    for process in [&one, &two] {
        process.clock.advance(Duration::from_secs(61));
    }
    assert_eq!(one.send(keyed("a", "{}")).await.status, 201);
    assert_eq!(two.send(keyed("b", "{}")).await.status, 201);
    let entries = world.entries().await;
    let endpoints: Vec<&str> = entries.iter().map(|entry| entry.about.endpoint.as_str()).collect();
    assert_eq!((endpoints.len(), endpoints[0]), (2, endpoints[1]), "both claim in one form");
    assert!(one.send(keyed("b", "{}")).await.is_replay && two.send(keyed("a", "{}")).await.is_replay);
    assert_eq!(world.runs(), 2);
}

/// A handler that waits minutes for a connection would run its key under a name that others have turned away from meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_enters_long_after_the_look_at_the_forms_executes_nothing() {
    let world = World::new().await;
    let pool =
        deadpool_postgres::Config { url: Some(world.url.clone()), ..deadpool_postgres::Config::default() };
    let pool = pool.create_pool(Some(deadpool_postgres::Runtime::Tokio1), NoTls).expect("a pool");
    for (seconds, key) in [(200, "soon"), (301, "late")] {
        let clock = Arc::new(TestClock::default());
        let (waits, connections, runs) = (Arc::clone(&clock), pool.clone(), Arc::clone(&world.runs));
        let handler = post(async move |grant: semel_gate::postgres::Grant| {
            waits.advance(Duration::from_secs(seconds));
            let mut connection = connections.get().await.expect("a connection");
            match grant.begin(&mut connection).await {
                Ok(tx) => {
                    runs.fetch_add(1, Ordering::SeqCst);
                    grant.commit(tx, (StatusCode::CREATED, "done")).await.into_response()
                }
                Err(error) => error.into_response(),
            }
        });
        let gate = GateLayer::builder(store(&world.url).await).clock(clock as _).route(named("pay").atomic());
        let app = Router::new().route("/orders", handler).layer(gate.build().expect("a gate"));
        let answer = app.oneshot(keyed(key, "{}")).await.expect("an answer");
        assert_eq!(answer.status() == StatusCode::CREATED, key == "soon", "{key}: {answer:?}");
    }
    assert_eq!(world.runs(), 1, "what came late began nothing");
}

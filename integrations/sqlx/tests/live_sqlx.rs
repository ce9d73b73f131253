//! Settling with sqlx on real PostgreSQL: the handler's row and its record are both there or neither.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use http_body_util::BodyExt;
use semel_contract::identity::Identity;
use semel_contract::profile::{Anchor, presets};
use semel_gate::{GateLayer, Grant, Route, SettleError, settling};
use semel_sqlx::{Entered, SqlxGrant, failed};
use semel_store::postgres::{Options, PostgresStore};
use semel_store::{About, ClaimStore, Filter};
use sqlx::{Connection, PgPool, raw_sql};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tower::ServiceExt;

const SERVER: &str = "SEMEL_TEST_POSTGRES";
/// Neither the store's own default nor that of any preset.
const LIFETIME: Duration = Duration::from_secs(40 * 3600);

/// A shop with a database of its own on the tests' server.
struct Shop {
    pool: PgPool,
    store: Arc<PostgresStore>,
    app: Router,
}

/// What came back: the status, the body and the headers.
type Answered = (u16, String, HeaderMap);

async fn create_order(
    State(pool): State<PgPool>,
    grant: Grant,
    item: String,
) -> Result<Response, SettleError> {
    let mut tx = grant.begin_sqlx(&pool).await?;
    let insert = sqlx::query_scalar("INSERT INTO orders (item) VALUES ($1) RETURNING id").bind(&item);
    let id: i64 = insert.fetch_one(&mut *tx).await.map_err(failed)?;
    grant.commit_sqlx(tx, (StatusCode::CREATED, format!("order {id}"))).await
}

/// What an order says decides what becomes of it.
async fn order(state: State<PgPool>, grant: Grant, item: String) -> Response {
    let ended = match item.as_str() {
        "fails" => fail(&state.0, &grant).await,
        "breaks a constraint late" => break_late(&state.0, &grant).await,
        "is superseded" => lose_the_key(&state.0, &grant).await,
        "nests" => nest(&state.0, &grant).await,
        "loses its connection" => lose_the_connection(&state.0, &grant).await,
        "has headers" => with_headers(&state.0, &grant).await,
        "repeats itself" => repeat_the_read(&state.0, &grant).await,
        "writes too early" => write_before(&state.0, &grant).await,
        "writes outside" => write_outside(&state.0, &grant, StatusCode::CREATED).await,
        "writes outside and refuses" => write_outside(&state.0, &grant, StatusCode::CONFLICT).await,
        "leaves a savepoint open" => leave_open(&state.0, &grant).await,
        _ => create_order(state, grant, item).await,
    };
    ended.into_response()
}

async fn begin(pool: &PgPool, grant: &Grant) -> Result<Entered<'static>, SettleError> {
    let mut tx = grant.begin_sqlx(pool).await?;
    raw_sql("INSERT INTO orders (item) VALUES ('special')").execute(&mut *tx).await.map_err(failed)?;
    Ok(tx)
}

fn done() -> (StatusCode, &'static str) {
    (StatusCode::CREATED, "done")
}

async fn fail(pool: &PgPool, grant: &Grant) -> Result<Response, SettleError> {
    let mut tx = begin(pool, grant).await?;
    raw_sql("SELECT 1 / 0").execute(&mut *tx).await.map_err(failed)?;
    unreachable!("a division by zero fails")
}

async fn break_late(pool: &PgPool, grant: &Grant) -> Result<Response, SettleError> {
    let mut tx = begin(pool, grant).await?;
    raw_sql("INSERT INTO line (order_id) VALUES (-1)").execute(&mut *tx).await.map_err(failed)?;
    grant.commit_sqlx(tx, done()).await
}

/// Its owner cancels the key while this attempt runs.
async fn lose_the_key(pool: &PgPool, grant: &Grant) -> Result<Response, SettleError> {
    let tx = begin(pool, grant).await?;
    let store = settling::store_of::<PostgresStore>(grant).map_err(failed)?;
    store.seal(grant.id(), &About::default(), grant.lifetime()).await.map_err(failed)?;
    grant.commit_sqlx(tx, done()).await
}

async fn nest(pool: &PgPool, grant: &Grant) -> Result<Response, SettleError> {
    let mut outer = pool.begin().await.map_err(failed)?;
    let inner = outer.begin().await.map_err(failed)?;
    let inner = grant.enter_sqlx(inner).await?;
    grant.commit_sqlx(inner, done()).await
}

/// A trigger ends the session in the middle of its commit, as a fail-over would.
async fn lose_the_connection(pool: &PgPool, grant: &Grant) -> Result<Response, SettleError> {
    let mut tx = begin(pool, grant).await?;
    raw_sql("INSERT INTO poison VALUES (1)").execute(&mut *tx).await.map_err(failed)?;
    grant.commit_sqlx(tx, done()).await
}

async fn with_headers(pool: &PgPool, grant: &Grant) -> Result<Response, SettleError> {
    let mut answer = done().into_response();
    for value in [b"<a>".as_slice(), b"<\xfc>"] {
        answer.headers_mut().append("link", HeaderValue::from_bytes(value).expect("a value"));
    }
    grant.commit_sqlx(begin(pool, grant).await?, answer).await
}

/// A transaction that the handler began itself, because it wants more than the default.
async fn repeat_the_read(pool: &PgPool, grant: &Grant) -> Result<Response, SettleError> {
    let tx = pool.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ").await.map_err(failed)?;
    let mut tx = grant.enter_sqlx(tx).await?;
    raw_sql("INSERT INTO orders (item) VALUES ('special')").execute(&mut *tx).await.map_err(failed)?;
    grant.commit_sqlx(tx, done()).await
}

/// A program's mistake, which no retry mends.
async fn write_before(pool: &PgPool, grant: &Grant) -> Result<Response, SettleError> {
    let mut tx = pool.begin().await.map_err(failed)?;
    raw_sql("INSERT INTO orders (item) VALUES ('early')").execute(&mut *tx).await.map_err(failed)?;
    grant.commit_sqlx(grant.enter_sqlx(tx).await?, done()).await
}

/// Ends the transaction by itself, and goes on.
async fn write_outside(pool: &PgPool, grant: &Grant, status: StatusCode) -> Result<Response, SettleError> {
    let mut tx = begin(pool, grant).await?;
    raw_sql("ROLLBACK").execute(&mut *tx).await.map_err(failed)?;
    raw_sql("INSERT INTO orders (item) VALUES ('outside')").execute(&mut *tx).await.map_err(failed)?;
    grant.commit_sqlx(tx, status).await
}

async fn leave_open(pool: &PgPool, grant: &Grant) -> Result<Response, SettleError> {
    let mut tx = begin(pool, grant).await?;
    raw_sql("SAVEPOINT s").execute(&mut *tx).await.map_err(failed)?;
    grant.commit_sqlx(tx, done()).await
}

const TABLES: &str = "
CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, item text NOT NULL);
CREATE TABLE line (order_id bigint REFERENCES orders DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE poison (one int);
CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER die AFTER INSERT ON poison DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION die();";

/// Stands between the shop and its server, and hangs up on whoever sends the first COMMIT once the server has it.
async fn forgetful_proxy(url: &str) -> String {
    let server = url.split_once('@').and_then(|(_, rest)| rest.split_once('/')).expect("a URL").0.to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let here = listener.local_addr().expect("an address").to_string();
    let proxied = url.replace(&server, &here);
    tokio::spawn(async move {
        let mut forgets = true;
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(&server).await.expect("the server answers");
            // The first connection is the one that is hung up on.
            tokio::spawn(relay(client, server, std::mem::take(&mut forgets)));
        }
    });
    proxied
}

async fn relay(mut client: TcpStream, mut server: TcpStream, forgets: bool) {
    let (mut from_client, mut from_server) = (vec![0; 65_536], vec![0; 65_536]);
    loop {
        tokio::select! {
            Ok(count @ 1..) = client.read(&mut from_client) => {
                let sent = &from_client[..count];
                server.write_all(sent).await.expect("the server listens");
                if forgets && sent.windows(6).any(|word| word == b"COMMIT") {
                    // What the server answers is read, so that it is done, and told to nobody.
                    let _ = server.read(&mut from_server).await;
                    return;
                }
            }
            Ok(count @ 1..) = server.read(&mut from_server) => {
                client.write_all(&from_server[..count]).await.expect("the client listens");
            }
            else => return,
        }
    }
}

fn server() -> String {
    std::env::var(SERVER)
        .unwrap_or_else(|_| panic!("run `cargo xtask test`, which starts PostgreSQL, or set {SERVER}"))
}

impl Shop {
    async fn open(name: &str) -> Self {
        let url = Self::create(name).await;
        Self::at(&url, &url).await
    }

    /// A database of its own.
    async fn create(name: &str) -> String {
        let server = server();
        let name = format!("sqlx_{name}_{}", std::process::id());
        let admin = PgPool::connect(&server).await.expect("the server answers");
        let create = sqlx::AssertSqlSafe(format!("CREATE DATABASE {name}"));
        raw_sql(create).execute(&admin).await.expect("a database");
        let url = server.replace("/postgres", &format!("/{name}"));
        let pool = PgPool::connect(&url).await.expect("the server answers");
        raw_sql(TABLES).execute(&pool).await.expect("tables");
        url
    }

    /// The store may be reached by another way than the shop's own tables.
    async fn at(store_url: &str, url: &str) -> Self {
        let store = PostgresStore::connect(store_url, Options { connections: 4, ..Options::default() }).await;
        let store = Arc::new(store.expect("the store opens"));
        let pool = PgPool::connect(url).await.expect("the server answers");
        let mut profile = presets::ietf();
        (profile.lifetime.record, profile.lifetime.anchor) = (Some(LIFETIME), Anchor::Created);
        let gate = GateLayer::builder(Arc::clone(&store))
            .identity("trusted:X-User".parse::<Identity>().expect("an identity"))
            .route(Route::new("orders", "POST /orders").expect("a route").profile(profile).atomic())
            .build()
            .expect("a gate");
        let app = Router::new().route("/orders", post(order)).with_state(pool.clone()).layer(gate);
        Self { pool, store, app }
    }

    async fn order(&self, key: &str, item: &str) -> Answered {
        let request = Request::post("/orders").header("x-user", "alice").header("idempotency-key", key);
        let request = request.header("content-type", "text/plain").body(Body::from(item.to_owned()));
        let response = self.app.clone().oneshot(request.expect("a request")).await.expect("an answer");
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        (status, String::from_utf8(body.to_vec()).expect("text"), headers)
    }

    async fn orders(&self) -> i64 {
        let count = sqlx::query_scalar("SELECT count(*) FROM orders");
        count.fetch_one(&self.pool).await.expect("a count")
    }

    async fn records(&self) -> usize {
        let filter = Filter { limit: 1000, ..Filter::default() };
        self.store.list(&filter).await.expect("the store answers").len()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn effect_and_record_are_one_commit_and_a_retry_gets_its_answer() {
    let shop = Shop::open("together").await;
    let (first, again) = (shop.order("k", "tea").await, shop.order("k", "tea").await);
    assert_eq!((first.0, first.1.as_str()), (201, "order 1"));
    assert_eq!((again.0, &again.1), (first.0, &first.1));
    assert!(!first.2.contains_key("idempotency-replayed") && again.2.contains_key("idempotency-replayed"));
    assert_eq!((shop.orders().await, shop.records().await), (1, 1));
    assert_eq!(shop.order("k", "coffee").await.0, 422);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_fails_leaves_neither() {
    let shop = Shop::open("neither").await;
    for item in ["fails", "breaks a constraint late", "loses its connection"] {
        for _ in 0..2 {
            let (status, body, headers) = shop.order(item, item).await;
            assert_eq!(
                (status, headers.contains_key("idempotency-replayed")),
                (500, false),
                "{item}: {body}"
            );
            assert_eq!((shop.orders().await, shop.records().await), (0, 0), "{item}: {body}");
        }
    }
    assert_eq!(shop.order("fine", "tea").await.0, 201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_reply_is_lost_is_found_to_be_one() {
    let url = Shop::create("lost").await;
    let shop = Shop::at(&url, &forgetful_proxy(&url).await).await;
    let (status, body, headers) = shop.order("k", "tea").await;
    assert_eq!((status, body.as_str()), (201, "order 1"));
    assert!(!headers.contains_key("idempotency-replayed"));
    assert_eq!((shop.orders().await, shop.records().await), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_lost_rolls_the_effect_back() {
    let shop = Shop::open("stale").await;
    let (status, body, headers) = shop.order("k", "is superseded").await;
    assert_eq!((status, headers.contains_key("idempotency-replayed")), (409, false), "{body}");
    assert_eq!(shop.orders().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_savepoint_is_refused() {
    let shop = Shop::open("savepoint").await;
    let (status, body, _) = shop.order("k", "nests").await;
    assert_eq!(status, 500, "{body}");
    assert_eq!((shop.orders().await, shop.records().await), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mistake_of_the_program_is_no_outage() {
    let shop = Shop::open("early").await;
    let (status, body, headers) = shop.order("k", "writes too early").await;
    assert_eq!((status, headers.contains_key("retry-after")), (500, false), "{body}");
    assert_eq!((shop.orders().await, shop.records().await), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_handler_writes_outside_of_its_transaction_is_unknown_and_never_written_twice() {
    for item in ["writes outside", "writes outside and refuses"] {
        let shop = Shop::open(&item.replace(' ', "_")).await;
        let (status, body, headers) = shop.order("k", item).await;
        assert_eq!((status, headers["semel-outcome"].as_bytes()), (500, &b"unknown"[..]), "{body}");
        let (status, body, _) = shop.order("k", item).await;
        assert_eq!((status, body.contains("outcome-unknown"), shop.orders().await), (409, true, 1), "{body}");
    }
    let shop = Shop::open("open").await;
    for _ in 0..2 {
        let (status, body, headers) = shop.order("k", "leaves a savepoint open").await;
        assert_eq!((status, headers.contains_key("semel-outcome")), (500, false), "{body}");
    }
    assert_eq!((shop.orders().await, shop.records().await), (0, 0), "it was never outside");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_routes_own_lifetime_and_every_header_are_kept() {
    let shop = Shop::open("kept").await;
    for _ in 0..2 {
        let (status, _, headers) = shop.order("k", "has headers").await;
        let links: Vec<_> = headers.get_all("link").iter().map(|value| value.as_bytes()).collect();
        assert_eq!((status, links), (201, vec![b"<a>".as_slice(), b"<\xfc>"]));
    }
    let entries = shop.store.list(&Filter { limit: 1, ..Filter::default() }).await.expect("entries");
    let record = &entries[0].record;
    assert_eq!(record.expires_at, Some(record.created_at.plus(LIFETIME)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_enters_a_transaction_of_its_own_level() {
    let shop = Shop::open("repeatable").await;
    assert_eq!(shop.order("k", "repeats itself").await.0, 201);
    assert_eq!((shop.orders().await, shop.records().await), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_at_once_with_one_key_take_effect_once() {
    let shop = Arc::new(Shop::open("fifty").await);
    let sent = (0..50).map(|_| {
        let shop = Arc::clone(&shop);
        tokio::spawn(async move { shop.order("k", "tea").await })
    });
    for order in sent.collect::<Vec<_>>() {
        let (status, body, _) = order.await.expect("no call panics");
        assert_eq!((status, body.as_str()), (201, "order 1"));
    }
    assert_eq!(shop.orders().await, 1);
}

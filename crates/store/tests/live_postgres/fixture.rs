//! A database of its own for every test, on the server that `cargo xtask test` starts, and the things that the tests of
//! this backend share. The database is dropped at the end, whatever became of the test.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use semel_contract::decide::Claim;
use semel_contract::key::{Format, Key};
use semel_contract::profile::{Lifetime, presets};
use semel_contract::record::{Fence, Guarantee};
use semel_contract::scope::Scope;
use semel_store::conformance::{AdminFixture, Fixture};
use semel_store::postgres::{Options, PostgresStore};
use semel_store::{About, AdminStore, Answer, ClaimOutcome, ClaimRequest, ClaimStore, Entry, Id, Settlement};
use tokio_postgres::{Client, NoTls};

const VARIABLE: &str = "SEMEL_TEST_POSTGRES";
/// Whoever took less did not wait for a row, where the store is a patient one.
pub(crate) const AT_ONCE: Duration = Duration::from_secs(10);
/// How long a claim of these tests is exclusive.
pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// A database that is dropped with this.
pub(crate) struct Database {
    pub(crate) url: String,
    name: String,
}

impl Database {
    pub(crate) async fn create() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("semel_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::SeqCst));
        let client = client(&server()).await;
        let made = client.batch_execute(&format!("CREATE DATABASE {name} TEMPLATE template0")).await;
        made.expect("the role of SEMEL_TEST_POSTGRES may create databases");
        Self { url: on_database(&server(), &name), name }
    }

    pub(crate) async fn client(&self) -> Client {
        client(&self.url).await
    }

    pub(crate) async fn store(&self, connections: usize) -> Arc<PostgresStore> {
        self.store_with(Options { connections, ..Options::default() }).await
    }

    /// A store that waits for a row so long that waiting is told from not waiting.
    pub(crate) async fn patient_store(&self, connections: usize) -> Arc<PostgresStore> {
        let (lock_timeout, statement_timeout) = (Duration::from_secs(30), Duration::from_secs(60));
        self.store_with(Options { connections, lock_timeout, statement_timeout, ..Options::default() }).await
    }

    async fn store_with(&self, options: Options) -> Arc<PostgresStore> {
        Arc::new(PostgresStore::connect(&self.url, options).await.expect("the store opens"))
    }

    /// Makes the server take its time with keys whose name begins with `slow`.
    pub(crate) async fn slow_down(&self) {
        let sql = "CREATE FUNCTION public.slowly() RETURNS trigger LANGUAGE plpgsql AS $$
                BEGIN PERFORM pg_sleep(0.4); RETURN NULL; END $$;
            CREATE TRIGGER slowly AFTER INSERT OR UPDATE ON semel.record FOR EACH ROW
                WHEN (NEW.key LIKE 'slow%') EXECUTE FUNCTION public.slowly()";
        self.client().await.batch_execute(sql).await.expect("the test may slow the server down");
    }

    /// The same database through another port of this machine.
    pub(crate) fn url_at(&self, port: u16) -> String {
        let config: tokio_postgres::Config = self.url.parse().expect("a URL that worked");
        let user = config.get_user().unwrap_or("postgres");
        let password = config.get_password().map(|word| String::from_utf8_lossy(word).into_owned());
        let password = password.map(|word| format!(":{word}")).unwrap_or_default();
        format!("postgres://{user}{password}@127.0.0.1:{port}/{}", self.name)
    }

    /// The same database as another role, which this server must trust.
    pub(crate) fn url_as(&self, role: &str) -> String {
        let (host, port) = self.address();
        format!("postgres://{role}@{host}:{port}/{}", self.name)
    }

    /// The address of the server.
    pub(crate) fn address(&self) -> (String, u16) {
        let config: tokio_postgres::Config = self.url.parse().expect("a URL that worked");
        let host = match config.get_hosts().first() {
            Some(tokio_postgres::config::Host::Tcp(host)) => host.clone(),
            Some(tokio_postgres::config::Host::Unix(_)) | None => "127.0.0.1".to_owned(),
        };
        (host, config.get_ports().first().copied().unwrap_or(5432))
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let sql = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        let dropped = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async { client(&server()).await.batch_execute(&sql).await })
        });
        // A test that fails must not fail a second time over its database.
        let _ = dropped.join();
    }
}

/// The server of this test run.
pub(crate) fn server() -> String {
    std::env::var(VARIABLE).unwrap_or_else(|_| {
        panic!("{VARIABLE} is not set: run `cargo xtask test`, which starts a PostgreSQL for these tests")
    })
}

fn on_database(url: &str, name: &str) -> String {
    let (place, settings) = url.split_once('?').map_or((url, ""), |(place, settings)| (place, settings));
    let (scheme, rest) = place.split_once("://").expect("a URL has a scheme");
    let authority = rest.split('/').next().expect("a URL has an authority");
    let settings = if settings.is_empty() { String::new() } else { format!("?{settings}") };
    format!("{scheme}://{authority}/{name}{settings}")
}

/// A plain connection, as a handler or an operator has it.
pub(crate) async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("the server answers");
    tokio::spawn(connection);
    client
}

/// The backend under test, with the clock of its database.
pub(crate) struct Postgres {
    pub(crate) store: Arc<PostgresStore>,
    pub(crate) client: Client,
    pub(crate) database: Database,
}

pub(crate) async fn postgres() -> Postgres {
    let database = Database::create().await;
    let store = database.store(4).await;
    let client = database.client().await;
    Postgres { store, client, database }
}

/// The same with a store that waits for others for a long time.
pub(crate) async fn patient_postgres() -> Postgres {
    let database = Database::create().await;
    let store = database.patient_store(4).await;
    let client = database.client().await;
    Postgres { store, client, database }
}

impl Postgres {
    pub(crate) async fn number(&self, sql: &str) -> i64 {
        self.client.query_one(sql, &[]).await.expect("the statement runs").get(0)
    }

    pub(crate) async fn pass(&self, by: Duration) {
        let millis = i64::try_from(by.as_millis()).expect("a short time");
        self.client.execute("SELECT semel.shift_clock($1)", &[&millis]).await.expect("the clock is moved");
    }
}

impl Fixture for Postgres {
    fn store(&self) -> Arc<dyn ClaimStore> {
        Arc::clone(&self.store) as _
    }

    fn advance<'a>(&'a self, by: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(self.pass(by))
    }

    /// As a wrong server would: the time is another, and nobody says that it was meant.
    fn set_wall_off<'a>(&'a self, millis: i64) -> Pin<Box<dyn Future<Output = bool> + Send + 'a>> {
        Box::pin(async move {
            let sql = "UPDATE semel.clock SET offset_ms = offset_ms + $1";
            self.client.execute(sql, &[&millis]).await.expect("the clock is set");
            true
        })
    }
}

impl AdminFixture for Postgres {
    fn admin(&self) -> Arc<dyn AdminStore> {
        Arc::clone(&self.store) as _
    }
}

pub(crate) fn id(name: &str) -> Id {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let unique = format!("{name}-{}", NEXT.fetch_add(1, Ordering::SeqCst));
    Id {
        scope: Scope::of(None, Some("alice"), Some("create-order")),
        key: Key::parse(&Format::Printable255, &unique).expect("a printable key"),
    }
}

pub(crate) fn claim_request(id: &Id) -> ClaimRequest {
    static NONCE: AtomicU64 = AtomicU64::new(1);
    ClaimRequest {
        id: id.clone(),
        how: Claim::New,
        replaces: None,
        nonce: 0xfeed_0000_0000_0000 + NONCE.fetch_add(1, Ordering::SeqCst),
        lease: LEASE,
        late: Duration::from_secs(60),
        guarantee: Guarantee::Fenced,
        fingerprint: None,
        payload_hash: None,
        rotation: None,
        terms: None,
        about: About { principal: "alice".to_owned(), ..About::default() }.into(),
    }
}

pub(crate) fn atomic(id: &Id) -> ClaimRequest {
    ClaimRequest { guarantee: Guarantee::Atomic, ..claim_request(id) }
}

pub(crate) fn answer(body: &str) -> Answer {
    Answer {
        status: 201,
        headers: vec![("content-type".to_owned(), b"text/plain".to_vec())].into(),
        body: Bytes::copy_from_slice(body.as_bytes()),
        outcome_unknown: false,
    }
}

pub(crate) fn settled(body: &str) -> Settlement {
    Settlement::Settle(answer(body))
}

pub(crate) fn lifetime() -> Lifetime {
    presets::ietf().lifetime
}

pub(crate) async fn won(store: &PostgresStore, request: ClaimRequest) -> Fence {
    match store.claim(request).await.expect("the store answers") {
        ClaimOutcome::Won { fence, .. } => fence,
        other => panic!("expected to win, found {other:?}"),
    }
}

pub(crate) async fn entry(store: &PostgresStore, id: &Id) -> Entry {
    store.look_up(id).await.expect("the store answers").0.expect("there is a record")
}

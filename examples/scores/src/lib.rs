//! Scores of patrols: leaders send points, often from places with a bad connection; an external service keeps the scores
//! and is slow, limits its callers, and sometimes answers late or not at all. The relay inside this program writes each
//! point once.

pub mod api;
pub mod external;
pub mod list;
pub mod session;

use std::sync::Arc;
use std::time::Duration;

use semel_contract::json::Pointer;
use semel_delivery::Entropy;
use semel_delivery::credentials::Wallet;
use semel_delivery::http1::Http1;
use semel_delivery::relay::debounce::Debounce;
use semel_delivery::relay::given::SharedWallet;
use semel_delivery::relay::meters::Meters;
use semel_delivery::relay::recovery::Capability;
use semel_delivery::relay::store::postgres::Postgres;
use semel_delivery::relay::store::sqlite::Sqlite;
use semel_delivery::relay::store::sweep::Retention;
use semel_delivery::relay::template::{Place, Template};
use semel_delivery::relay::upstream::http::{HttpUpstream, Reading};
use semel_delivery::relay::{Engine, RelayStore, Target, Worker};
use semel_store::at_rest::KeyRing;
use semel_store::clock::SystemClock;

use api::Api;
use external::{External, TARGET};

/// Connections to a PostgreSQL.
const CONNECTIONS: usize = 8;
/// How long background points wait for company in this program.
pub const DEBOUNCE: Duration = Duration::from_secs(1);

/// How long pages go on sending one request, which is six days, and some hours for the way; what came of it is known for longer.
const SENT_FOR: Duration = Duration::from_secs(13 * 43_200);
/// By how much a leader's clock may be ahead.
const CLOCKS_DIFFER: Duration = Duration::from_secs(600);

/// The target: what the external service is, what it offers, and how long background points wait for company.
///
/// # Errors
/// The text is not an address.
pub fn target(origin: &str, debounce: Duration) -> Result<Target, Box<dyn std::error::Error>> {
    let url = || Template::parse(Place::Url, &format!("{origin}/patrols/{{lane}}"));
    let timeout = Duration::from_secs(2);
    let upstream = HttpUpstream {
        origin: origin.to_owned(),
        method: "POST".to_owned(),
        url: url()?,
        headers: vec![("content-type".to_owned(), Template::parse(Place::Header, "application/json")?)],
        body: Some(Template::parse(Place::Json, r#"{{"score":{after}}}"#)?),
        read: Some(Reading {
            url: url()?,
            headers: Vec::new(),
            value: Pointer::parse("/score")?,
            version: None,
            marker: None,
        }),
        timeout,
        transport: Arc::new(Http1::new()),
    };
    let groups = upstream.tells_groups_apart();
    let mut target = Target::new(TARGET, Arc::new(upstream), Capability::ReadBack);
    target.groups = groups;
    target.timeout = timeout;
    target.late_window = Duration::from_secs(4);
    target.debounce = Debounce { quiet: debounce, max_wait: debounce };
    target.sync_deadline = Duration::from_secs(3);
    target.blocked = vec!["blocked".to_owned()];
    target.check()?;
    Ok(target)
}

/// The score API with a relay that runs, over a file, or over a PostgreSQL (`postgres://…`) that replicas share. What signs
/// leaders in is sealed under these keys, which every replica has.
///
/// # Errors
/// The store cannot be opened, or the address is not one.
pub async fn start(
    store: &str,
    origin: &str,
    keys: KeyRing,
    debounce: Duration,
) -> Result<Api, Box<dyn std::error::Error>> {
    let store = match store.starts_with("postgres") {
        true => RelayStore::new(Arc::new(Postgres::connect(store, CONNECTIONS).await?)),
        false => RelayStore::new(Arc::new(Sqlite::open(store.as_ref(), Arc::new(SystemClock))?)),
    };
    store.start().await?;
    let wallet = Arc::new(SharedWallet::new(store.clone(), Some(keys.clone()), Arc::new(Wallet::default())));
    let engine = Arc::new(Engine {
        store,
        targets: [(TARGET.to_owned(), Arc::new(target(origin, debounce)?))].into(),
        credentials: Arc::<SharedWallet>::clone(&wallet),
        entropy: Entropy::system(),
        clock: Arc::new(SystemClock),
        owner: format!("scores:{:032x}", Entropy::system().bits()),
        meters: Meters::default(),
        settled: tokio::sync::Notify::new(),
    });
    let week = Duration::from_secs(7 * 86_400);
    let retention = Retention { client_max_age: SENT_FOR, completed: week, failed: week, auth_revoked: week };
    retention.check()?;
    let worker = Worker::new(Arc::clone(&engine), retention, 8);
    tokio::spawn(Arc::clone(&worker).run());
    let external = External { origin: origin.to_owned(), wallet };
    Ok(Api { engine, worker, external, keys, lists: Default::default() })
}

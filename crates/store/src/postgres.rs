//! The store in PostgreSQL: many processes share one database. Claims and settlements are short transactions, many
//! requests in one statement where load allows; time is the server's; nothing is held across a call to elsewhere. It
//! promises nothing about a fail-over to a standby that replicates asynchronously.

use std::sync::Arc;
use std::time::Duration;

use semel_contract::decide::Claim;
use semel_contract::profile::Lifetime;
use semel_contract::record::Fence;
use semel_contract::restore::Restore;
use semel_contract::time::Timestamp;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::AbortHandle;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{Config, NoTls, Socket};

use crate::claims::{
    About, ClaimOutcome, ClaimRequest, ClaimStore, Entry, FencedWrite, Filter, Id, KnownAmong, Reply,
    Resolution, Resolved, Sealed, Settlement, StoreError, Swept, is_reserved,
};
use crate::forms::{Form, Forms};
use crate::hints::Hints;

mod admin;
pub mod base;
mod batch;
pub mod channel;
mod claim;
mod clock;
mod limiter;
mod link;
pub mod once;
mod patience;
mod replace;
mod reserve;
mod rows;
mod schema;
mod settle;
mod signal;
pub mod sql;
pub mod time;
mod upkeep;

pub use base::{ConnectError, Migrations, Plan, Step};
pub use limiter::PostgresLimiter;
pub use once::Fate;
pub use schema::Options;

use base::{FirstConnection, error_chain};
use batch::Queue;
use clock::ServerClock;
use link::{Link, PgFailure};
use settle::{Ending, Write};

/// The name of this store among the server's sessions.
const APPLICATION_NAME: &str = "semel";
/// Connections beside those for requests: one for renewals, one for notifications and the clock.
const SIDE_CONNECTIONS: usize = 2;

/// A claim store in PostgreSQL.
pub struct PostgresStore {
    core: Arc<Core>,
    claims: Queue<ClaimRequest, ClaimOutcome>,
    settlements: Queue<Ending, FencedWrite>,
    reserves: Queue<ClaimRequest, ClaimOutcome>,
    tasks: Vec<AbortHandle>,
}

/// What the store's tasks share.
struct Core {
    link: Link,
    hints: Hints,
    signals: mpsc::Sender<[u8; 16]>,
    /// How many requests are looked into singly at once, so that the batches always find a connection.
    singles: Semaphore,
    contest: claim::Contest,
    following: tokio::sync::Mutex<()>,
    reservations: reserve::Reservations,
    /// Restores from backups, as they were last seen.
    restores: admin::Restores,
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresStore").finish_non_exhaustive()
    }
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl PostgresStore {
    /// Opens the store, and brings its schema up to date where the options allow it. Runs its tasks on the tokio runtime
    /// that this is called on, until the store is dropped.
    pub async fn connect(url: &str, options: Options) -> Result<Self, ConnectError> {
        Self::connect_tls(url, options, NoTls).await
    }

    /// The same over TLS.
    pub async fn connect_tls<T>(url: &str, options: Options, tls: T) -> Result<Self, ConnectError>
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::Stream: Send + Sync,
        T::TlsConnect: Send + Sync,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        let config = base::config(url, APPLICATION_NAME)?;
        let clock = prepare(&config, &options, tls.clone()).await?;
        let session = options.session();
        let pool = base::pool(config.clone(), tls.clone(), options.connections, &session)?;
        let side = base::pool(config.clone(), tls.clone(), SIDE_CONNECTIONS, &session)?;
        let link = Link::new(pool, side, clock, options.statement_timeout);
        let (signals, queue) = mpsc::channel(signal::SIGNALS_MAX);
        let singles = Semaphore::new((options.connections / 2).max(1));
        let core = Arc::new(Core {
            link,
            hints: Hints::default(),
            signals,
            singles,
            contest: claim::Contest::default(),
            following: tokio::sync::Mutex::default(),
            reservations: reserve::Reservations::default(),
            restores: admin::Restores::default(),
        });
        let tasks = vec![
            tokio::spawn(signal::send(Arc::downgrade(&core), queue)).abort_handle(),
            tokio::spawn(signal::listen(Arc::downgrade(&core), config, tls)).abort_handle(),
            tokio::spawn(upkeep::keep_time(Arc::downgrade(&core))).abort_handle(),
        ];
        let (of_claims, of_settlements, of_reserves) =
            (Arc::clone(&core), Arc::clone(&core), Arc::clone(&core));
        let claims = Queue::start(move |asked| claim::batch(Arc::clone(&of_claims), asked));
        let settlements = Queue::start(move |asked| settle::batch(Arc::clone(&of_settlements), asked));
        let reserves = Queue::start(move |asked| claim::look(Arc::clone(&of_reserves), asked));
        Ok(Self { core, claims, settlements, reserves, tasks })
    }

    /// What would be applied to the schema. Changes nothing.
    pub async fn migration_plan(url: &str) -> Result<Plan, ConnectError> {
        Self::migration_plan_tls(url, NoTls).await
    }

    /// The same over TLS.
    pub async fn migration_plan_tls<T>(url: &str, tls: T) -> Result<Plan, ConnectError>
    where
        T: MakeTlsConnect<Socket>,
        T::Stream: Send + 'static,
    {
        let first = FirstConnection::open(&base::config(url, APPLICATION_NAME)?, tls).await?;
        base::plan(&schema::SCHEMA, first.client()).await
    }

    /// The limiter of this database, which all its processes share.
    pub fn limiter(&self) -> PostgresLimiter {
        PostgresLimiter(Arc::clone(&self.core))
    }

    /// Wakes those who wait for this key, here and in other processes.
    pub fn announce(&self, id: &Id) {
        self.core.announce(id.hash());
    }

    /// By how many milliseconds the server's clock jumped ahead, while nobody has confirmed it. Meanwhile time goes on as
    /// it ticks, and nothing is swept.
    pub async fn frozen(&self) -> Result<Option<i64>, StoreError> {
        let sql = "SELECT jump_ms FROM semel.clock WHERE frozen";
        let rows = self.core.link.run_untimed(sql, &[]).await.map_err(PgFailure::of_read)?;
        Ok(rows.first().map(|row| row.get(0)))
    }

    /// An operator confirms that the server's clock is right.
    pub async fn confirm_clock(&self) -> Result<(), StoreError> {
        let sql = "SELECT semel.confirm_clock()";
        self.core.link.run_untimed(sql, &[]).await.map(drop).map_err(PgFailure::of_write)
    }

    /// How many connections the gates on this database have, this one's among them, and from how many addresses.
    ///
    /// # Errors
    /// The server cannot be asked.
    pub async fn sessions(&self) -> Result<(i64, i64), StoreError> {
        let rows = self.core.link.run_untimed(base::SESSIONS, &[]).await.map_err(PgFailure::of_read)?;
        Ok(rows.first().map_or((0, 0), |row| (row.get(0), row.get(1))))
    }

    /// Transactions begun so far; a statement by itself is one.
    pub fn statements(&self) -> u64 {
        self.core.link.transactions()
    }

    /// The latest store time that this process has seen.
    pub fn last_seen(&self) -> Timestamp {
        self.core.link.last_seen()
    }
}

/// The first connection: sees that the server is durable, brings the schema up to date and reads the clock.
async fn prepare<T>(config: &Config, options: &Options, tls: T) -> Result<ServerClock, ConnectError>
where
    T: MakeTlsConnect<Socket>,
    T::Stream: Send + 'static,
{
    let mut first = FirstConnection::open(config, tls).await?;
    first.prepare(&options.session(), &schema::SCHEMA, options.migrations).await?;
    let unreachable = |error: tokio_postgres::Error| ConnectError::Unreachable(error_chain(&error));
    time::begin(first.client(), schema::SCHEMA.name).await.map_err(unreachable)
}

impl Core {
    fn announce(&self, hash: [u8; 16]) {
        self.hints.wake(hash);
        // A full queue loses the hint, as hints may be.
        let _ = self.signals.try_send(hash);
    }

    async fn look_up(&self, id: &Id) -> Result<(Option<Entry>, Timestamp), StoreError> {
        let hash = id.hash();
        let values: [link::Value<'_>; 3] =
            [&hash.as_slice(), &id.scope.as_bytes().as_slice(), &id.key.as_str()];
        let answer = self.link.read(sql::LOOK_UP, &values).await?;
        let found = answer.rows.first().map(rows::entry).transpose()?.flatten();
        Ok((found, answer.now))
    }
}

impl ClaimStore for PostgresStore {
    fn claim(&self, request: ClaimRequest) -> Reply<'_, ClaimOutcome> {
        Box::pin(async move {
            match request.how {
                Claim::New => self.claims.ask(request).await,
                Claim::TakeOver | Claim::Supersede | Claim::Reclaim | Claim::Forward | Claim::Rerun => {
                    replace::claim(&self.core, &request).await
                }
            }
        })
    }

    fn reserve(&self, request: ClaimRequest) -> Reply<'_, ClaimOutcome> {
        Box::pin(reserve::reserve(self, request))
    }

    fn give_back(&self, id: &Id, fence: Fence) {
        self.core.reservations.give_back(&self.core, id, fence);
    }

    fn look_up<'a>(&'a self, id: &'a Id) -> Reply<'a, (Option<Entry>, Timestamp)> {
        Box::pin(self.core.look_up(id))
    }

    fn settle<'a>(
        &'a self,
        id: &'a Id,
        fence: Fence,
        settlement: Settlement,
        lifetime: &'a Lifetime,
    ) -> Reply<'a, FencedWrite> {
        if is_reserved(fence) {
            return Box::pin(reserve::settle(self, id, fence, settlement, lifetime));
        }
        let ending = Ending { id: id.clone(), fence, write: Write::of(settlement, lifetime) };
        Box::pin(self.settlements.ask(ending))
    }

    fn renew<'a>(&'a self, held: &'a [(Id, Fence)], lease: Duration) -> Reply<'a, Vec<FencedWrite>> {
        Box::pin(reserve::renew(&self.core, held, lease))
    }

    fn resolve<'a>(
        &'a self,
        id: &'a Id,
        fence: Fence,
        resolution: Resolution,
        lifetime: &'a Lifetime,
        by: &'a str,
        reason: &'a str,
    ) -> Reply<'a, Resolved> {
        let resolved = replace::resolve(&self.core, id, fence, resolution, lifetime, by, reason);
        Box::pin(async move { resolved.await.map_err(PgFailure::of_write) })
    }

    fn seal<'a>(&'a self, id: &'a Id, about: &'a About, lifetime: &'a Lifetime) -> Reply<'a, Sealed> {
        Box::pin(async move {
            replace::seal(&self.core, id, about, lifetime, None).await.map_err(PgFailure::of_write)
        })
    }

    fn sweep(&self, batch: u32, grace: Duration) -> Reply<'_, Swept> {
        Box::pin(upkeep::sweep(&self.core, batch, grace))
    }

    fn forget<'a>(&'a self, tenant: Option<&'a str>, principal: &'a str, by: &'a str) -> Reply<'a, u64> {
        Box::pin(upkeep::forget(&self.core, tenant, principal, by))
    }

    fn list<'a>(&'a self, filter: &'a Filter) -> Reply<'a, Vec<Entry>> {
        Box::pin(upkeep::list(&self.core, filter))
    }

    fn ready(&self) -> Reply<'_, ()> {
        Box::pin(async move { self.core.link.read(sql::TIME, &[]).await.map(drop) })
    }

    fn connections(&self) -> Option<(usize, usize)> {
        Some(self.core.link.connections())
    }

    fn restores(&self) -> Reply<'_, Vec<Restore>> {
        Box::pin(admin::restores(&self.core))
    }

    fn log_sweep(&self, swept: Swept, took: Duration) -> Reply<'_, ()> {
        Box::pin(admin::log_sweep(&self.core, swept, took))
    }

    fn count_stale<'a>(&'a self, tenant: Option<&'a str>, principal: &'a str) -> Reply<'a, ()> {
        Box::pin(admin::count_stale(&self.core, tenant, principal))
    }

    fn register_forms<'a>(&'a self, gate: &'a str, forms: &'a [Form]) -> Reply<'a, Forms> {
        Box::pin(admin::register_forms(&self.core, gate, forms))
    }

    fn known_among<'a>(&'a self, ids: &'a [Id], marks: &'a [([u8; 16], Id)]) -> Reply<'a, KnownAmong> {
        Box::pin(admin::known_among(&self.core, ids, marks))
    }

    fn is_marked<'a>(&'a self, rotation: [u8; 16], other_than: &'a Id) -> Reply<'a, bool> {
        Box::pin(admin::is_marked(&self.core, rotation, other_than))
    }

    fn hints(&self) -> &Hints {
        &self.core.hints
    }
}

//! What the tests stand on: a database that is watched and can be made to fail, and a small mesh.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_broker::{Beside, Broker, Caller, Draft, MeshWish, Parts, Published, Receipt, Role, Settings};
use semel_contract::profile::Rate;
use semel_contract::time::Timestamp;
use semel_delivery::relay::store::sql::{
    Asked, Database, Heard, Listening, Row, StoreError, Transaction, Value,
};
use semel_store::Reply;
use semel_store::limits::{Admission, Limiter, MemoryLimiter, Verdict};

/// A database that counts what it is asked, and fails on demand.
pub(crate) struct Watched {
    inner: Arc<dyn Database>,
    pub(crate) watch: Arc<Watch>,
}

#[derive(Default)]
pub(crate) struct Watch {
    pub(crate) statements: AtomicUsize,
    /// Statements that begin with this fail.
    pub(crate) failing: Mutex<Option<String>>,
    /// The next statement that begins with this waits: it says that it is there, and goes on when it may.
    pub(crate) paused: Mutex<Option<(String, Arc<Pause>)>>,
    /// The next commit is done, and its answer is lost.
    pub(crate) loses_commit: AtomicBool,
}

/// A statement that waits.
#[derive(Default)]
pub(crate) struct Pause {
    pub(crate) is_there: tokio::sync::Notify,
    pub(crate) may_go: tokio::sync::Notify,
}

impl Watch {
    /// Lets the next statement that begins with this wait. Of use where others can go on meanwhile: on a server.
    #[allow(dead_code, reason = "SQLite runs one transaction at a time")]
    pub(crate) fn pause(&self, sql: &str) -> Arc<Pause> {
        let pause = Arc::new(Pause::default());
        *self.paused.lock().unwrap() = Some((sql.to_owned(), Arc::clone(&pause)));
        pause
    }

    async fn wait(&self, sql: &str) {
        let pause = {
            let mut paused = self.paused.lock().unwrap();
            paused.take_if(|(begins, _)| sql.starts_with(begins.as_str()))
        };
        if let Some((_, pause)) = pause {
            pause.is_there.notify_one();
            pause.may_go.notified().await;
        }
    }

    fn ask(&self, sql: &str) -> Result<(), StoreError> {
        self.statements.fetch_add(1, Ordering::SeqCst);
        let failing = self.failing.lock().unwrap();
        match failing.as_deref().is_some_and(|failing| sql.starts_with(failing)) {
            true => Err(StoreError::Failed("as the test wishes".to_owned())),
            false => Ok(()),
        }
    }

    pub(crate) fn fail(&self, sql: Option<&str>) {
        *self.failing.lock().unwrap() = sql.map(str::to_owned);
    }
}

impl Watched {
    pub(crate) fn new(inner: Arc<dyn Database>) -> Self {
        Self { inner, watch: Arc::default() }
    }
}

struct WatchedTx {
    inner: Box<dyn Transaction>,
    watch: Arc<Watch>,
}

impl Transaction for WatchedTx {
    fn run<'a>(&'a mut self, sql: &'a str, args: Vec<Value>) -> Asked<'a, Vec<Row>> {
        Box::pin(async move {
            self.watch.wait(sql).await;
            self.watch.ask(sql)?;
            self.inner.run(sql, args).await
        })
    }

    fn run_all<'a>(&'a mut self, statements: Vec<(&'a str, Vec<Value>)>) -> Asked<'a, Vec<Vec<Row>>> {
        for (sql, _) in &statements {
            if let Err(error) = self.watch.ask(sql) {
                return Box::pin(std::future::ready(Err(error)));
            }
        }
        self.inner.run_all(statements)
    }

    fn run_each<'a>(&'a mut self, sql: &'a str, rows: Vec<Vec<Value>>) -> Asked<'a, Vec<Row>> {
        match self.watch.ask(sql) {
            Ok(()) => self.inner.run_each(sql, rows),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }

    fn confirm_clock(&mut self) -> Asked<'_, ()> {
        self.inner.confirm_clock()
    }

    fn commit(self: Box<Self>) -> Asked<'static, ()> {
        let WatchedTx { inner, watch } = *self;
        Box::pin(async move {
            inner.commit().await?;
            match watch.loses_commit.swap(false, Ordering::SeqCst) {
                true => Err(StoreError::Unknown("the answer was lost".to_owned())),
                false => Ok(()),
            }
        })
    }
}

impl Database for Watched {
    fn begin(&self) -> Asked<'_, Box<dyn Transaction>> {
        Box::pin(async move {
            let inner = self.inner.begin().await?;
            Ok(Box::new(WatchedTx { inner, watch: Arc::clone(&self.watch) }) as Box<dyn Transaction>)
        })
    }

    fn read<'a>(&'a self, sql: &'a str, args: Vec<Value>) -> Asked<'a, Vec<Row>> {
        match self.watch.ask(sql) {
            Ok(()) => self.inner.read(sql, args),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }

    fn now(&self) -> Asked<'_, i64> {
        self.inner.now()
    }

    fn is_owned(&self) -> bool {
        self.inner.is_owned()
    }

    fn clock_ahead(&self) -> i64 {
        self.inner.clock_ahead()
    }

    fn say<'a>(&'a self, channel: &'static str, text: &'a str) -> Asked<'a, ()> {
        self.inner.say(channel, text)
    }

    fn listen(&self, channel: &'static str, heard: Heard) -> Listening<'_> {
        self.inner.listen(channel, heard)
    }
}

/// A limiter that counts how often it is asked.
#[derive(Default)]
pub(crate) struct Counting {
    inner: MemoryLimiter,
    pub(crate) asked: AtomicUsize,
}

impl Limiter for Counting {
    fn request<'a>(&'a self, subject: &'a [u8], rate: Rate, now: Timestamp) -> Reply<'a, Verdict> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.inner.request(subject, rate, now)
    }

    fn admit<'a>(&'a self, admission: Admission<'a>, now: Timestamp) -> Reply<'a, Verdict> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.inner.admit(admission, now)
    }
}

/// A mesh `m` with the owner alice and the members bob and carol, and a topic `t` to which alice and bob are subscribed.
pub(crate) struct World {
    pub(crate) db: Arc<Watched>,
    pub(crate) limiter: Arc<Counting>,
    pub(crate) broker: Broker,
}

pub(crate) fn token(member: &str) -> String {
    format!("token-of-{member}")
}

pub(crate) fn sha256(text: &str) -> String {
    use sha2::{Digest, Sha256};
    semel_contract::hex::hex(&Sha256::digest(text.as_bytes()))
}

impl World {
    pub(crate) async fn new(db: Arc<dyn Database>, settings: Settings) -> Self {
        let (db, limiter) = (Arc::new(Watched::new(db)), Arc::new(Counting::default()));
        let broker = open(&db, &limiter, settings).await;
        broker.put_mesh("m", MeshWish { bytes_max: None, search: true }).await.unwrap();
        for (member, role) in [("alice", Role::Owner), ("bob", Role::Member), ("carol", Role::Member)] {
            broker.put_member("m", member, role, &[sha256(&token(member))]).await.unwrap();
        }
        broker.put_topic("m", "t", "subscribers").await.unwrap();
        for member in ["alice", "bob"] {
            broker.put_subscription("m", "t", member).await.unwrap();
        }
        Self { db, limiter, broker }
    }

    /// The same world once more.
    pub(crate) fn same(&self) -> Self {
        Self { db: Arc::clone(&self.db), limiter: Arc::clone(&self.limiter), broker: self.broker.clone() }
    }

    /// Another broker on the same database.
    pub(crate) async fn another(&self) -> Broker {
        open(&self.db, &self.limiter, (*self.broker.settings()).clone()).await
    }

    pub(crate) async fn rows(&self, table: &str) -> i64 {
        let sql = format!("SELECT count(*) FROM {table}");
        self.db.inner.read(&sql, vec![]).await.unwrap()[0].int(0).unwrap()
    }

    /// Rows of everything that a message is made of.
    pub(crate) async fn all_rows(&self) -> Vec<(&'static str, i64)> {
        let mut counts = Vec::new();
        for table in TABLES {
            counts.push((table, self.rows(table).await));
        }
        counts
    }

    pub(crate) async fn execute(&self, sql: &str) {
        let mut tx = self.db.inner.begin().await.unwrap();
        tx.run(sql, vec![]).await.unwrap();
        tx.commit().await.unwrap();
    }

    /// The tables of the database that a broker made.
    pub(crate) async fn tables(&self) -> Vec<String> {
        let sql = match self.db.is_owned() {
            true => "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'",
            false => {
                "SELECT c.relname::text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n \
                 ON n.oid = c.relnamespace WHERE n.nspname = 'semel_broker' AND c.relkind = 'r' \
                 AND c.relname NOT IN ('migration', 'clock', 'clock_mark')"
            }
        };
        let rows = self.db.inner.read(sql, vec![]).await.unwrap();
        rows.iter().map(|row| row.text(0).unwrap()).collect()
    }

    /// What is found while these rows of a table are away.
    pub(crate) async fn findings_without(&self, table: &str, which: &str) -> Vec<String> {
        self.execute(&format!("CREATE TABLE removed AS SELECT * FROM {table} WHERE {which}")).await;
        assert_eq!(self.rows("removed").await, 1, "{table} WHERE {which} is one row");
        self.execute(&format!("DELETE FROM {table} WHERE {which}")).await;
        let found = self.broker.orphans().await.unwrap().findings;
        self.execute(&format!("INSERT INTO {table} SELECT * FROM removed")).await;
        self.execute("DROP TABLE removed").await;
        // Put back by hand, it is counted once more.
        self.broker.rebuild().await.unwrap();
        found
    }

    pub(crate) async fn assert_no_orphans(&self) {
        assert_eq!(self.broker.orphans().await.unwrap().findings, Vec::<String>::new());
    }
}

pub(crate) const TABLES: [&str; 7] = [
    "client_message_dedupe",
    "topic_message",
    "message_queue",
    "message_history",
    "mention_index",
    "delivery_queue",
    "delivery_waiting",
];

async fn open(db: &Arc<Watched>, limiter: &Arc<Counting>, settings: Settings) -> Broker {
    let limiter: Arc<dyn Limiter> = Arc::clone(limiter) as _;
    let parts = Parts { limiter, ..Parts::new(Arc::clone(db) as Arc<dyn Database>) };
    Broker::open(parts, settings).await.unwrap()
}

pub(crate) fn caller(member: &str) -> Caller {
    Caller { mesh: "m".to_owned(), member: member.to_owned() }
}

pub(crate) fn draft_of(sender: &str, id: &str, text: &str) -> Draft {
    let beside = Beside { key: Some(id), ..Beside::default() };
    Draft::parse(text.as_bytes(), beside, "m", sender).unwrap()
}

/// A message to the topic `t`.
pub(crate) fn draft(sender: &str, id: &str, body: &str) -> Draft {
    draft_of(sender, id, &format!(r#"{{"to":{{"topic":"t"}},"body":"{body}"}}"#))
}

pub(crate) fn accepted(published: Published) -> Receipt {
    match published {
        Published::Accepted(receipt) => receipt,
        other => panic!("not accepted: {other:?}"),
    }
}

pub(crate) fn rate(count: u32, seconds: u64) -> Option<Rate> {
    Some(Rate { count, window: Duration::from_secs(seconds) })
}

/// Waits until something is so; fails when it takes too long.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    let until = std::time::Instant::now() + Duration::from_secs(30);
    while !is_so().await {
        assert!(std::time::Instant::now() < until, "{what} did not come");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

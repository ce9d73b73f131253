//! Rates do not fall while another transaction of the same database stays open.
//!
//! `SEMEL_RELAY_STEADY=180` runs for so many seconds, with and without such a transaction, and prints the rates.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use semel_delivery::relay::RelayStore;
use semel_delivery::relay::reduce::Reducer;
use semel_delivery::relay::store::accept::Accepted;
use semel_delivery::relay::store::claim::LaneClaim;
use semel_delivery::relay::store::conformance::submission;
use semel_delivery::relay::store::postgres::Postgres;
use semel_delivery::relay::store::ready::Place;
use semel_delivery::relay::store::sql::{Asked, Database, Row, Transaction, Value};
use semel_delivery::relay::store::{FencedWrite, Intent};
use tokio_postgres::Client;

use crate::base::{Base, client};

const LANES: [&str; 4] = ["a", "b", "c", "d"];
/// Rounds over all lanes in the short form.
const ROUNDS: usize = 200;

type Said = Arc<Mutex<Option<Vec<(String, Vec<Value>)>>>>;

/// A database that writes down what it is asked while somebody wants to know.
struct Listening {
    inner: Postgres,
    said: Said,
}

struct ListeningTransaction {
    inner: Box<dyn Transaction>,
    said: Said,
}

fn note(said: &Said, sql: &str, args: &[Value]) {
    if let Some(said) = &mut *said.lock().unwrap() {
        said.push((sql.to_owned(), args.to_vec()));
    }
}

impl Transaction for ListeningTransaction {
    fn run<'a>(&'a mut self, sql: &'a str, args: Vec<Value>) -> Asked<'a, Vec<Row>> {
        note(&self.said, sql, &args);
        self.inner.run(sql, args)
    }

    fn run_all<'a>(&'a mut self, statements: Vec<(&'a str, Vec<Value>)>) -> Asked<'a, Vec<Vec<Row>>> {
        statements.iter().for_each(|(sql, args)| note(&self.said, sql, args));
        self.inner.run_all(statements)
    }

    fn run_each<'a>(&'a mut self, sql: &'a str, rows: Vec<Vec<Value>>) -> Asked<'a, Vec<Row>> {
        self.inner.run_each(sql, rows)
    }

    fn confirm_clock(&mut self) -> Asked<'_, ()> {
        self.inner.confirm_clock()
    }

    fn commit(self: Box<Self>) -> Asked<'static, ()> {
        self.inner.commit()
    }
}

impl Database for Listening {
    fn begin(&self) -> Asked<'_, Box<dyn Transaction>> {
        Box::pin(async move {
            let inner = self.inner.begin().await?;
            Ok(Box::new(ListeningTransaction { inner, said: Arc::clone(&self.said) }) as Box<dyn Transaction>)
        })
    }

    fn read<'a>(&'a self, sql: &'a str, args: Vec<Value>) -> Asked<'a, Vec<Row>> {
        note(&self.said, sql, &args);
        self.inner.read(sql, args)
    }

    fn now(&self) -> Asked<'_, i64> {
        self.inner.now()
    }

    fn is_owned(&self) -> bool {
        false
    }
}

/// Accepts for every lane, finds what is due and drains it, as a worker does.
async fn round(store: &RelayStore, number: usize, seen: &mut Place) {
    for lane in LANES {
        let new = store.accept(&submission("alice", &format!("{lane}{number}"), &[(lane, 1)])).await.unwrap();
        assert!(matches!(new, Accepted::New { .. }));
    }
    let now = store.now().await.unwrap();
    let due = store.due_after(*seen, now, 100).await.unwrap();
    *seen = Place { due: now, lane: i64::MAX };
    assert_eq!(due.len(), LANES.len());
    for Place { lane, .. } in due {
        let LaneClaim::Held(work) = store.claim_due(lane, "me", 30_000, 100).await.unwrap() else {
            panic!("due")
        };
        store.paused(&["t/alice".to_owned()], now).await.unwrap();
        store.refused("t", &["alice".to_owned()]).await.unwrap();
        let intent = Intent {
            principal: "alice".to_owned(),
            lo: work.lane.watermark,
            hi: work.entries.last().unwrap().seq,
            before: Some(0),
            after: Some(1),
            version: None,
            key: "k".to_owned(),
            request: "{}".to_owned(),
            tries: 1,
            first: now,
            last: now,
            evidence: "[]".to_owned(),
        };
        assert_eq!(store.freeze(&work.hold, &intent).await.unwrap(), FencedWrite::Done);
        assert_eq!(
            store.applied(&work.hold, Reducer::Sum, 0, "answered").await.unwrap().written,
            FencedWrite::Done
        );
        store.pause("t/alice", now - 1, "over").await.unwrap();
    }
}

/// The pages that each look-up of one round reads, by its statement.
async fn pages(explain: &Client, said: Vec<(String, Vec<Value>)>) -> Vec<(String, i64)> {
    let mut all = Vec::new();
    for (mut sql, args) in said {
        if !sql.trim_start().starts_with("SELECT") {
            continue;
        }
        for (at, arg) in args.iter().enumerate().rev() {
            let literal = match arg {
                Value::Null => "NULL".to_owned(),
                Value::Int(value) => format!("({value})::bigint"),
                Value::Text(text) => format!("'{}'", text.replace('\'', "''")),
                Value::Bytes(bytes) => format!("'\\x{}'::bytea", semel_contract::hex::hex(bytes)),
            };
            sql = sql.replace(&format!("${}", at + 1), &literal);
        }
        let asked = format!("EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT TEXT) {sql}");
        let lines = explain.query(&asked, &[]).await.unwrap();
        // The first line about buffers is about the whole plan.
        let told =
            lines.iter().map(|row| row.get::<_, String>(0)).find(|line| line.contains("Buffers: shared"));
        let number = |word: &str| {
            let text = told.as_deref()?.split_once(&format!("{word}="))?.1;
            text.split_whitespace().next()?.parse::<i64>().ok()
        };
        all.push((sql, number("hit").unwrap_or(0) + number("read").unwrap_or(0)));
    }
    all
}

struct Run {
    base: Base,
    store: RelayStore,
    said: Said,
    explain: Client,
    seen: Place,
    number: usize,
}

impl Run {
    async fn new() -> Self {
        let base = Base::create().await;
        let said = Said::default();
        let inner = Postgres::connect(&base.url, 4).await.unwrap();
        let store = RelayStore::new(Arc::new(Listening { inner, said: Arc::clone(&said) }));
        let explain = client(&base.url).await;
        explain
            .batch_execute(
                "SET search_path = semel_relay, pg_catalog; SET jit = off; SET enable_seqscan = off;
                 SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_bitmapscan = off",
            )
            .await
            .unwrap();
        let seen = Place { due: 0, lane: 0 };
        Self { base, store, said, explain, seen, number: 0 }
    }

    /// So many rounds. Returns how long they took.
    async fn rounds(&mut self, count: usize) -> Duration {
        let start = Instant::now();
        for _ in 0..count {
            self.number += 1;
            round(&self.store, self.number, &mut self.seen).await;
        }
        start.elapsed()
    }

    /// What one round reads, with the statistics as they are now: the server takes them when it likes.
    async fn pages(&mut self) -> Vec<(String, i64)> {
        self.explain.batch_execute("ANALYZE").await.unwrap();
        *self.said.lock().unwrap() = Some(Vec::new());
        self.rounds(1).await;
        let said = self.said.lock().unwrap().take().unwrap();
        pages(&self.explain, said).await
    }
}

/// A transaction that has written something and stays open, and one that keeps a snapshot.
async fn hold_open(base: &Base) -> [Client; 2] {
    let (writer, reader) = (client(&base.url).await, client(&base.url).await);
    writer.batch_execute("BEGIN; CREATE TABLE public.somebody_elses (x int)").await.unwrap();
    let sql = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM semel_relay.relay_lane";
    reader.batch_execute(sql).await.unwrap();
    [writer, reader]
}

#[tokio::test(flavor = "multi_thread")]
async fn look_ups_read_no_more_pages_while_another_transaction_stays_open() {
    let mut run = Run::new().await;
    run.rounds(ROUNDS * 3 / 4).await;
    let open = hold_open(&run.base).await;
    let first = run.rounds(ROUNDS / 10).await;
    let before = run.pages().await;
    run.rounds(ROUNDS * 6 / 10).await;
    // The quickest of three: a moment in which others need the machine is no walk.
    let mut last = Duration::MAX;
    for _ in 0..3 {
        last = last.min(run.rounds(ROUNDS / 10).await);
    }
    let after = run.pages().await;
    assert_eq!(before.len(), after.len());
    let sum = |pages: &[(String, i64)]| pages.iter().map(|(_, pages)| pages).sum::<i64>();
    println!(
        "pages of a round: {} and {}; time of a tenth: {first:?} and {last:?}",
        sum(&before),
        sum(&after)
    );
    for ((sql, before), (_, after)) in before.iter().zip(&after) {
        // An index may have grown by a level; more would be a walk.
        assert!(*after <= before + 4, "{before} pages became {after}: {sql}");
    }
    assert!(sum(&after) * 10 <= sum(&before) * 13, "{} pages became {}", sum(&before), sum(&after));
    // Others use the machine as well: only a walk makes it three times slower.
    assert!(last < first * 3, "{first:?} became {last:?}");
    drop(open);
    run.base.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rate_stays_for_as_long_as_it_is_asked() {
    let Some(seconds) = std::env::var("SEMEL_RELAY_STEADY").ok().and_then(|text| text.parse::<u64>().ok())
    else {
        return;
    };
    // Side by side, so that both share the machine alike.
    tokio::join!(for_long(seconds, false), for_long(seconds, true));
}

async fn for_long(seconds: u64, is_held: bool) {
    let mut run = Run::new().await;
    run.rounds(50).await;
    let open = if is_held { Some(hold_open(&run.base).await) } else { None };
    let start = Instant::now();
    let mut rates = Vec::new();
    while start.elapsed() < Duration::from_secs(seconds) {
        let (since, begun) = (Instant::now(), run.number);
        while since.elapsed() < Duration::from_secs(seconds) / 10 {
            run.rounds(1).await;
        }
        rates.push((run.number - begun) as f64 * LANES.len() as f64 / since.elapsed().as_secs_f64());
    }
    let told: Vec<String> = rates.iter().map(|rate| format!("{rate:.0}")).collect();
    println!("another transaction open: {is_held}; accepted and drained each second: {}", told.join(" "));
    let (first, last) = (rates.first().copied().unwrap_or(0.0), rates.last().copied().unwrap_or(0.0));
    assert!(last * 1.3 >= first, "{first:.0} each second became {last:.0}");
    drop(open);
    run.base.drop().await;
}

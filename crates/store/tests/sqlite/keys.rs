//! A record is found by its key, whoever it belongs to, and soon; also while the keys of a file are still being read.

use std::time::Instant;

use semel_store::admin::{KeyReach, Sought};
use semel_store::sqlite::rusqlite::Connection;

use super::*;

/// Where it is a measurement.
const P99_MAX: Duration = Duration::from_millis(50);

fn numbered(at: usize) -> Id {
    let key = Key::parse(&Format::Printable255, &format!("key-{at}")).expect("a key");
    Id { scope: Scope::of(None, Some(&format!("principal-{}", at % 97)), Some("pay")), key }
}

async fn found(store: &SqliteStore, key: &str) -> Vec<u64> {
    let found = store.find(&Sought::Key(key.to_owned()), 10).await.expect("the store answers");
    found.into_iter().map(|entry| entry.record.fence.number).collect()
}

async fn reach(store: &SqliteStore) -> KeyReach {
    store.key_reach().await.expect("the store answers")
}

/// Waits until all keys are read.
async fn read_up(store: &SqliteStore) {
    let began = Instant::now();
    while reach(store).await != KeyReach::All {
        assert!(began.elapsed() < Duration::from_secs(600), "the keys are read");
    }
}

/// Settles so many records with a key of their own.
async fn fill(store: &Arc<SqliteStore>, rows: usize) {
    for from in (0..rows).step_by(1_000) {
        let batch: Vec<_> = (from..rows.min(from + 1_000))
            .map(|at| {
                let store = Arc::clone(store);
                tokio::spawn(async move {
                    let id = numbered(at);
                    let fence = won(&store, &id, Guarantee::Fenced).await;
                    settle(&store, &id, fence, settled("x")).await;
                })
            })
            .collect();
        for task in batch {
            task.await.expect("it ends");
        }
    }
}

async fn sweep_all(sqlite: &Sqlite) {
    sqlite.clock.advance(lifetime().record() + Duration::from_secs(3_600));
    while sqlite.store.sweep(10_000, Duration::ZERO).await.expect("it sweeps").removed > 0 {}
}

/// SEMEL_TEST_ROWS=1000000 makes it a measurement.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_found_among_many_and_what_came_or_went_since_is_known() {
    let measured: Option<usize> = std::env::var("SEMEL_TEST_ROWS").ok().and_then(|rows| rows.parse().ok());
    let rows = measured.unwrap_or(3_000);
    let sqlite = Sqlite::new();
    fill(&sqlite.store, rows).await;
    let sqlite = sqlite.reopened();
    let store = &sqlite.store;
    let began = Instant::now();
    read_up(store).await;
    let read = began.elapsed();
    let mut times = Vec::new();
    for at in (0..rows).step_by((rows / 500).max(1)) {
        let began = Instant::now();
        assert_eq!(found(store, &format!("key-{at}")).await.len(), 1, "key-{at}");
        times.push(began.elapsed());
    }
    times.sort();
    let p99 = times[times.len() * 99 / 100];
    println!("{rows} rows: read within {read:?}, searches p99 {p99:?}");
    assert!(measured.is_none() || p99 < P99_MAX, "{p99:?}");
    assert_eq!(found(store, "nobody").await, [0; 0]);
    // What is open is found, and again once it is settled; another principal's record of the same key too.
    let open = won(store, &numbered(rows), Guarantee::Fenced).await;
    assert_eq!(found(store, &format!("key-{rows}")).await, [open.number]);
    settle(store, &numbered(rows), open, settled("x")).await;
    assert_eq!(found(store, &format!("key-{rows}")).await, [open.number]);
    let other = Id { scope: Scope::of(None, Some("somebody"), Some("pay")), ..numbered(rows) };
    let second = won(store, &other, Guarantee::Fenced).await;
    assert_eq!(found(store, &format!("key-{rows}")).await, [open.number, second.number]);
    settle(store, &other, second, settled("x")).await;
    // What was swept is found no more.
    sweep_all(&sqlite).await;
    assert_eq!(found(store, "key-7").await, [0; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_keys_are_read_a_search_says_so_and_finds_what_came_since() {
    let sqlite = Sqlite::new();
    fill(&sqlite.store, 100).await;
    let open = won(&sqlite.store, &id("open"), Guarantee::Fenced).await;
    let sqlite = sqlite.reopened();
    let store = &sqlite.store;
    store.faults().hold_keys(true);
    assert_eq!(reach(store).await, KeyReach::Newest(0));
    assert_eq!(found(store, "key-7").await, [0; 0]);
    // What is claimed now, in either way, is found at once, and lists go on.
    let fenced = won(store, &id("fenced"), Guarantee::Fenced).await;
    let atomic = won(store, &id("atomic"), Guarantee::Atomic).await;
    for (key, fence) in [("fenced", fenced), ("atomic", atomic)] {
        assert_eq!(found(store, key).await, [fence.number]);
        settle(store, &id(key), fence, settled("x")).await;
        assert_eq!(found(store, key).await, [fence.number]);
    }
    let listed = store.list(&semel_store::Filter { limit: 1_000, ..Default::default() }).await;
    assert_eq!(listed.expect("the store answers").len(), 103);
    store.faults().hold_keys(false);
    read_up(store).await;
    assert_eq!(found(store, "key-7").await.len(), 1);
    assert_eq!(found(store, "open").await, [open.number], "a claim of the process before");
    assert_eq!(found(store, "fenced").await, [fenced.number], "and nothing twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_swept_or_given_another_number_while_keys_are_read_is_known() {
    let sqlite = Sqlite::new();
    fill(&sqlite.store, 100).await;
    let unknown = won(&sqlite.store, &id("unknown"), Guarantee::Fenced).await;
    settle(&sqlite.store, &id("unknown"), unknown, Settlement::Unknown).await;
    let sqlite = sqlite.reopened();
    let store = &sqlite.store;
    store.faults().hold_keys(true);
    sweep_all(&sqlite).await;
    let applied = semel_store::Resolution::Applied(Some(answer("x")));
    let resolved =
        store.resolve(&id("unknown"), unknown, applied, &lifetime(), "carol", "the bank says so").await;
    assert_eq!(resolved, Ok(semel_store::Resolved::Done));
    let renumbered = found(store, "unknown").await;
    assert!(renumbered.len() == 1 && renumbered != [unknown.number], "{renumbered:?}");
    store.faults().hold_keys(false);
    read_up(store).await;
    assert_eq!((found(store, "key-7").await, found(store, "unknown").await), (vec![], renumbered));
}

/// A reservation is written when it is settled, long after rows with higher numbers.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_is_found_that_was_claimed_long_before_it_was_written() {
    let sqlite = Sqlite::new();
    let store = &sqlite.store;
    let first = won(store, &id("first"), Guarantee::Atomic).await;
    for from in (0..12_000).step_by(1_000) {
        let claims = (from..from + 1_000).map(|at| {
            let store = Arc::clone(store);
            tokio::spawn(async move { won(&store, &numbered(at), Guarantee::Atomic).await })
        });
        for claim in claims.collect::<Vec<_>>() {
            claim.await.expect("it ends");
        }
    }
    let last = won(store, &id("last"), Guarantee::Fenced).await;
    assert_eq!(found(store, "last").await, [last.number]);
    settle(store, &id("first"), first, settled("x")).await;
    assert_eq!(found(store, "first").await, [first.number]);
}

/// What is not indexed is read some numbers at a time; a restart goes on with much higher ones.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_found_wherever_its_records_are() {
    let mut sqlite = Sqlite::new();
    let mut numbers = Vec::new();
    for at in 0..3 {
        let about = About { request_id: "one".to_owned(), ..About::default() };
        let requested =
            ClaimRequest { about: about.into(), ..claim_request(&numbered(at), Guarantee::Fenced) };
        let Ok(ClaimOutcome::Won { fence, .. }) = sqlite.store.claim(requested).await else {
            panic!("nobody else claims")
        };
        settle(&sqlite.store, &numbered(at), fence, settled("x")).await;
        numbers.push(fence.number);
        sqlite = sqlite.reopened();
    }
    assert!(numbers[1] - numbers[0] > 500_000, "{numbers:?}");
    for (limit, wanted) in [(10, &numbers[..]), (2, &numbers[..2])] {
        let found = sqlite.store.find(&Sought::RequestId("one".to_owned()), limit).await.expect("it answers");
        assert_eq!(found.iter().map(|entry| entry.record.fence.number).collect::<Vec<_>>(), wanted);
    }
}

/// A damaged key keeps no search waiting and no record from being swept.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_key_stops_neither_reading_nor_sweeping() {
    let sqlite = Sqlite::new();
    fill(&sqlite.store, 20).await;
    let path = sqlite.path();
    let Sqlite { clock, store, directory } = sqlite;
    drop(store);
    let raw = Connection::open(&path).expect("a database");
    let sql = "UPDATE semel_record SET key = CAST(x'ff80' AS TEXT) WHERE key = 'key-7'";
    assert_eq!(raw.execute(sql, []).expect("it is written"), 1);
    drop(raw);
    let store = Arc::new(SqliteStore::open_with_clock(&path, Arc::clone(&clock) as _).expect("it opens"));
    let sqlite = Sqlite { clock, store, directory };
    read_up(&sqlite.store).await;
    assert_eq!(found(&sqlite.store, "key-8").await.len(), 1);
    sweep_all(&sqlite).await;
    let raw = Connection::open(&path).expect("a database");
    let left: i64 =
        raw.query_row("SELECT count(*) FROM semel_record", [], |row| row.get(0)).expect("a count");
    assert_eq!(left, 0, "all of them have expired");
}

//! A record is found by its key, whoever it belongs to, and soon.

use std::time::Instant;

use semel_store::admin::Sought;

use super::*;

fn numbered(at: usize) -> Id {
    let key = Key::parse(&Format::Printable255, &format!("key-{at}")).expect("a key");
    Id { scope: Scope::of(None, Some(&format!("principal-{}", at % 97)), Some("pay")), key }
}

async fn found(store: &SqliteStore, key: &str) -> Vec<u64> {
    let found = store.find(&Sought::Key(key.to_owned()), 10).await.expect("the store answers");
    found.into_iter().map(|entry| entry.record.fence.number).collect()
}

/// SEMEL_TEST_ROWS=1000000 makes it a measurement.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_found_among_many_and_what_came_or_went_since_is_known() {
    let rows: usize =
        std::env::var("SEMEL_TEST_ROWS").ok().and_then(|rows| rows.parse().ok()).unwrap_or(3_000);
    let sqlite = Sqlite::new();
    let store = &sqlite.store;
    let mut made = 0;
    while made < rows {
        let upto = rows.min(made + 1_000);
        let batch: Vec<_> = (made..upto)
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
        made = upto;
    }
    let first = Instant::now();
    assert_eq!(found(store, "key-7").await.len(), 1);
    let first = first.elapsed();
    let mut times = Vec::new();
    for at in (0..rows).step_by((rows / 500).max(1)) {
        let began = Instant::now();
        assert_eq!(found(store, &format!("key-{at}")).await.len(), 1, "key-{at}");
        times.push(began.elapsed());
    }
    times.sort();
    let p99 = times[times.len() * 99 / 100];
    println!("{rows} rows: the first search {first:?}, later ones p99 {p99:?}");
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
    sqlite.clock.advance(lifetime().record() + Duration::from_secs(3_600));
    while store.sweep(10_000, Duration::ZERO).await.expect("it sweeps").removed > 0 {}
    assert_eq!(found(store, "key-7").await, [0; 0]);
}

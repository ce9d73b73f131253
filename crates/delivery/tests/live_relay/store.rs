//! The store on PostgreSQL: the suite, and what only a server with many sessions shows.

use semel_delivery::relay::store::StoreError;
use semel_delivery::relay::store::accept::Accepted;
use semel_delivery::relay::store::claim::LaneClaim;
use semel_delivery::relay::store::conformance::{self, submission};
use semel_delivery::relay::store::postgres::Postgres;

use crate::base::{Base, client};

// S2-113
#[tokio::test(flavor = "multi_thread")]
async fn the_suite_passes() {
    let bases = std::sync::Mutex::new(Vec::new());
    conformance::run(async || {
        let base = Base::create().await;
        let store = base.store().await;
        bases.lock().unwrap().push(base);
        store
    })
    .await;
    let bases = bases.into_inner().unwrap();
    for base in bases {
        base.drop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn several_replicas_open_one_database_at_once() {
    let base = Base::create().await;
    let all: Vec<_> = (0..4)
        .map(|_| {
            let url = base.url.clone();
            tokio::spawn(async move { Postgres::connect(&url, 2).await.map(drop) })
        })
        .collect();
    for one in all {
        one.await.unwrap().unwrap();
    }
    base.drop().await;
}

/// The first takes its number and is slow; the second waits for it instead of overtaking it.
#[tokio::test(flavor = "multi_thread")]
async fn two_transactions_that_would_commit_out_of_order_lose_nothing() {
    let base = Base::create().await;
    let store = base.store().await;
    let first = store.accept(&submission("alice", "0", &[("a", 1)])).await.unwrap();
    assert!(matches!(first, Accepted::New { .. }));
    // A slow committer holds the lane's row and has taken number 2.
    let mut slow = client(&base.url).await;
    slow.batch_execute("SET search_path = semel_relay").await.unwrap();
    let slow = slow.transaction().await.unwrap();
    let lane: i64 = slow.query_one("SELECT id FROM relay_lane FOR UPDATE", &[]).await.unwrap().get(0);
    slow.batch_execute(
        "INSERT INTO relay_item (lane, seq, request, pos, principal, value, created_ms)
            SELECT id, 2, 99, 0, 'slow', 10, 0 FROM relay_lane",
    )
    .await
    .unwrap();
    let (accepting, syncing) = (store.clone(), store.clone());
    let second = tokio::spawn(async move { accepting.accept(&submission("bob", "1", &[("a", 100)])).await });
    let sync = tokio::spawn(async move { syncing.claim(lane, "me", 30_000, 100).await });
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert!(!second.is_finished() && !sync.is_finished(), "both wait for the lane");
    slow.commit().await.unwrap();
    second.await.unwrap().unwrap();
    let LaneClaim::Held(work) = sync.await.unwrap().unwrap() else { panic!("nobody else claims") };
    let values: Vec<(i64, i64)> = work.entries.iter().map(|entry| (entry.seq, entry.value)).collect();
    let order = [(1, 1), (2, 10), (3, 100)];
    assert!(values.len() >= 2 && values == order[..values.len()], "{values:?}");
    base.drop().await;
}

/// PostgreSQL has no text with a zero byte in it.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_refused_takes_nobody_along() {
    let base = Base::create().await;
    let store = base.store().await;
    let all: Vec<_> = (0..30)
        .map(|number| {
            submission("alice", &format!("{number}{}", if number == 17 { "\0" } else { "" }), &[("a", 1)])
        })
        .collect();
    let told = futures_util::future::join_all(all.iter().map(|one| store.accept(one))).await;
    for (number, told) in told.into_iter().enumerate() {
        let is_as_expected = match number {
            17 => matches!(told, Err(StoreError::Failed(_))),
            _ => matches!(told, Ok(Accepted::New { .. })),
        };
        assert!(is_as_expected, "{number}");
    }
    assert_eq!(store.counts().await.unwrap().pending, 29);
    base.drop().await;
}

/// Callers at one replica name the group of every lane, those at another only of some, which are then looked for: nobody waits
/// in a circle, and every state is read after its lock, however many lanes there are.
#[tokio::test(flavor = "multi_thread")]
async fn many_lanes_are_locked_in_one_order_by_everybody() {
    let base = Base::create().await;
    let stores = [base.store().await, base.store().await];
    let of = |number: usize, is_said: fn(usize) -> bool| {
        let lanes: Vec<String> = (0..45).map(|lane| format!("l{lane:02}")).collect();
        let items: Vec<(&str, i64)> = lanes.iter().map(|lane| (lane.as_str(), 1)).collect();
        let mut one = submission("alice", &number.to_string(), &items);
        one.groups = false;
        for (at, item) in one.items.iter_mut().enumerate() {
            item.group = if is_said(at) { "g".to_owned() } else { String::new() };
        }
        one
    };
    stores[0].accept(&of(0, |_| true)).await.unwrap();
    let began = std::time::Instant::now();
    let accepting = (1..24).map(|number: usize| {
        let one = if number.is_multiple_of(2) { of(number, |_| true) } else { of(number, |at| at % 3 == 2) };
        let store = stores[number % 2].clone();
        tokio::spawn(async move { store.accept(&one).await })
    });
    for told in accepting.collect::<Vec<_>>() {
        let told = told.await.unwrap();
        assert!(matches!(told, Ok(Accepted::New { .. })), "{told:?}");
    }
    assert!(began.elapsed() < std::time::Duration::from_secs(10), "{:?}", began.elapsed());
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    let found: i64 = client(&base.url).await.query_one(deadlocks, &[]).await.unwrap().get(0);
    assert_eq!(found, 0);
    let views = stores[0].lanes("t", None, semel_delivery::relay::reduce::Reducer::Sum).await.unwrap();
    assert_eq!((views.len(), views.iter().map(|view| view.pending).sum::<i64>()), (45, 24 * 45));
    for view in views {
        let found = stores[0].detail(view.lane.id).await.unwrap().unwrap();
        assert!(found.entries.iter().map(|entry| entry.seq).eq(1..=found.entries.len() as i64));
        assert!(found.due.is_some(), "every lane is due");
    }
    base.drop().await;
}

/// One lane that somebody keeps locked does not hold up requests for others.
#[tokio::test(flavor = "multi_thread")]
async fn a_lane_that_stays_locked_holds_up_its_own_requests_alone() {
    let base = Base::create().await;
    let store = base.store().await;
    for lane in ["a", "b"] {
        store.accept(&submission("alice", lane, &[(lane, 1)])).await.unwrap();
    }
    let mut other = client(&base.url).await;
    let held = other.transaction().await.unwrap();
    held.batch_execute("SELECT id FROM semel_relay.relay_lane WHERE name = 'a' FOR UPDATE").await.unwrap();
    let accept = |key: String, lane: &'static str| {
        let store = store.clone();
        tokio::spawn(async move {
            let began = std::time::Instant::now();
            (store.accept(&submission("bob", &key, &[(lane, 1)])).await, began.elapsed())
        })
    };
    let of_a: Vec<_> = (0..6).map(|number| accept(format!("a{number}"), "a")).collect();
    let of_b: Vec<_> = (0..20).map(|number| accept(number.to_string(), "b")).collect();
    for told in of_b {
        let (told, took) = told.await.unwrap();
        assert!(matches!(told, Ok(Accepted::New { .. })), "{told:?}");
        assert!(took < std::time::Duration::from_millis(2500), "{took:?}");
    }
    held.commit().await.unwrap();
    for told in of_a {
        let (told, took) = told.await.unwrap();
        assert!(matches!(told, Ok(Accepted::New { .. })), "{told:?} after {took:?}");
    }
    base.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_trail_cannot_be_emptied() {
    let base = Base::create().await;
    base.store().await;
    let someone = client(&base.url).await;
    let error = someone.batch_execute("TRUNCATE semel_relay.relay_audit").await.unwrap_err();
    assert!(error.as_db_error().unwrap().message().contains("append-only"), "{error}");
    base.drop().await;
}

/// What is done would be forgotten, and a late retry applied again.
#[tokio::test(flavor = "multi_thread")]
async fn a_jump_of_the_servers_clock_expires_nothing_until_it_is_confirmed() {
    const DAYS_8: i64 = 8 * 86_400_000;
    let base = Base::create().await;
    let store = base.store().await;
    let before = store.now().await.unwrap();
    let set = format!("UPDATE semel_relay.clock SET offset_ms = offset_ms + {DAYS_8}");
    client(&base.url).await.batch_execute(&set).await.unwrap();
    let other = base.store().await;
    for store in [&store, &other] {
        let passed = store.now().await.unwrap() - before;
        assert!((0..60_000).contains(&passed), "time goes on as it ticks: {passed}");
        assert!((store.clock_ahead() - DAYS_8).abs() < 60_000, "{}", store.clock_ahead());
    }
    assert!(store.confirm_clock("ops", "the clock is right").await.unwrap());
    assert!(store.now().await.unwrap() - before >= DAYS_8);
    assert!(!store.confirm_clock("ops", "again").await.unwrap(), "there is nothing more to confirm");
    other.now().await.unwrap();
    assert_eq!(other.clock_ahead(), 0);
    base.drop().await;
}

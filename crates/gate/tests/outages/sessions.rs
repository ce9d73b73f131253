//! Sessions that the server ends in the middle of whatever they do: those of the store and those of the handlers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::client::{Story, Verdict, insist};
use crate::shop::{Shop, connect};

const TASKS: u32 = 64;
const REQUESTS: u32 = 2_000;
/// Every so many requests are sent twice at once.
const DOUBLED_EVERY: u32 = 10;
const PATIENCE: Duration = Duration::from_secs(90);
/// Each session lives for about a fifth of a second, and none is ended any more after so long: then everybody must be answered.
const PAUSE: Duration = Duration::from_millis(20);
const STORM_MAX: Duration = Duration::from_secs(30);

fn is_atomic(key: &str) -> bool {
    key.starts_with('a')
}

/// Ends sessions at random until it is told to stop, and counts them by name.
async fn end_sessions(shop: &Shop, stop: &AtomicBool) -> BTreeMap<String, u32> {
    let client = connect(&shop.url).await;
    // Chosen first and ended then: a filter alone might end sessions of others before it looks whose they are.
    let sql = "WITH chosen AS MATERIALIZED (
            SELECT pid, application_name FROM pg_stat_activity
            WHERE datname = current_database() AND application_name IN ('semel', 'shop') AND random() < 0.10
        )
        SELECT application_name FROM chosen WHERE pg_terminate_backend(pid)";
    let mut ended = BTreeMap::new();
    let started = Instant::now();
    while !stop.load(Ordering::SeqCst) && started.elapsed() < STORM_MAX {
        tokio::time::sleep(PAUSE).await;
        for row in client.query(sql, &[]).await.expect("sessions can be ended") {
            *ended.entry(row.get(0)).or_default() += 1;
        }
    }
    ended
}

/// One request, or two of one key at once.
async fn ask(shop: &Shop, n: u32) -> Vec<Story> {
    let (path, key) =
        if n.is_multiple_of(2) { ("/atomic", format!("a-{n:05}")) } else { ("/fenced", format!("f-{n:05}")) };
    let until = Instant::now() + PATIENCE;
    let first = insist(&shop.app, path, &key, until);
    if n % DOUBLED_EVERY < 2 && (n / DOUBLED_EVERY).is_multiple_of(2) {
        let (first, second) = tokio::join!(first, insist(&shop.app, path, &key, until));
        return vec![first, second];
    }
    vec![first.await]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminated_backend_is_not_a_second_effect() {
    let _turn = crate::turn().await;
    let shop = Arc::new(Shop::create().await);
    let (stop, next) = (AtomicBool::new(false), Arc::new(AtomicU32::new(0)));
    let started = Instant::now();
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let (shop, next) = (Arc::clone(&shop), Arc::clone(&next));
            tokio::spawn(async move {
                let mut stories = Vec::new();
                loop {
                    match next.fetch_add(1, Ordering::SeqCst) {
                        n if n < REQUESTS => stories.extend(ask(&shop, n).await),
                        _ => return stories,
                    }
                }
            })
        })
        .collect();
    let storm = async {
        let mut stories = Vec::new();
        for task in tasks {
            stories.extend(task.await.expect("no task panics"));
        }
        stop.store(true, Ordering::SeqCst);
        stories
    };
    let (stories, ended) = tokio::join!(storm, end_sessions(&shop, &stop));
    println!("{} clients in {:.1?}, sessions ended: {ended:?}", stories.len(), started.elapsed());
    assert!(ended.len() == 2 && ended.values().all(|count| *count >= 10), "it was a storm: {ended:?}");
    balanced(&shop, &stories).await;
}

async fn balanced(shop: &Shop, stories: &[Story]) {
    let books = shop.books().await;
    let mut verdicts: BTreeMap<(bool, String), u32> = BTreeMap::new();
    for story in stories {
        *verdicts.entry((is_atomic(&story.key), format!("{:?}", story.verdict))).or_default() += 1;
    }
    println!("verdicts, atomic or not: {verdicts:?}");
    let with = |verdict| stories.iter().filter(move |story| story.verdict == verdict);
    let effects = with(Verdict::Unknown).filter(|story| books.has_effect(&story.key)).count();
    println!("{effects} of the unknown took effect");
    assert_eq!(with(Verdict::Unanswered).count(), 0, "everybody is answered in the end");
    books.balance(with(Verdict::Acknowledged).map(|story| &story.key));
    books.agree_on(is_atomic);
}

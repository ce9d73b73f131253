//! A server that ends without warning, ten times, under a load that does not wait for it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::client::{Attempt, Story, Verdict, insist};
use crate::server::Server;
use crate::shop::{Plan, Shop};

const SHUTDOWNS: u32 = 10;
const REQUESTS_PER_SECOND: u32 = 500;
const LOAD: Duration = Duration::from_secs(40);
/// How long the clients go on after the last request was made.
const PATIENCE: Duration = Duration::from_secs(20);
/// How soon after a restart the first request must succeed.
const RECOVERY_MAX: Duration = Duration::from_secs(5);
/// A server that has just become ready may have answered this long before its log says so.
const LOG_LATE: Duration = Duration::from_millis(10);

/// One outage: the server was surely away from `gone` to `not_yet`.
#[derive(Clone, Copy, Debug)]
struct Outage {
    gone: Instant,
    restarted: Instant,
    not_yet: Instant,
}

/// The path of the nth request. Both kinds share the load.
fn path_of(n: u32) -> &'static str {
    if n.is_multiple_of(2) { "/atomic" } else { "/fenced" }
}

fn key_of(n: u32) -> String {
    let kind = if n.is_multiple_of(2) { "a" } else { "f" };
    format!("{kind}-{n:06}")
}

fn is_atomic(key: &str) -> bool {
    key.starts_with('a')
}

/// Sends so many requests a second, whatever becomes of them.
async fn load(shop: Arc<Shop>, started: Instant) -> Vec<Story> {
    let until = started + LOAD + PATIENCE;
    let total = REQUESTS_PER_SECOND * u32::try_from(LOAD.as_secs()).expect("a short time");
    let mut clients = Vec::new();
    for n in 0..total {
        let due = started + Duration::from_secs(1) * n / REQUESTS_PER_SECOND;
        tokio::time::sleep_until(due.into()).await;
        let shop = Arc::clone(&shop);
        clients.push(tokio::spawn(async move { insist(&shop.app, path_of(n), &key_of(n), until).await }));
    }
    let mut stories = Vec::new();
    for client in clients {
        stories.push(client.await.expect("no client panics"));
    }
    stories
}

/// Ends the server and starts it again at once, ten times, evenly over the load. Two of the outages last longer.
async fn shut_down(mut server: Server, started: Instant) -> (Server, Vec<Outage>) {
    let mut outages = Vec::new();
    for n in 0..SHUTDOWNS {
        let due = started + LOAD / (SHUTDOWNS + 1) * (n + 1);
        tokio::time::sleep_until(due.into()).await;
        server = tokio::task::spawn_blocking(move || {
            server.shut_down_immediately();
            server
        })
        .await
        .expect("the server ends");
        let gone = Instant::now();
        if n % 5 == 4 {
            tokio::time::sleep(Duration::from_millis(1200)).await;
        }
        let restarted = Instant::now();
        server.start();
        let not_yet = server.wait().await;
        outages.push(Outage { gone, restarted, not_yet: not_yet.checked_sub(LOG_LATE).expect("a time") });
    }
    (server, outages)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_immediate_shutdowns_lose_and_double_nothing() {
    let _turn = crate::turn().await;
    let server = Server::create().await;
    let shop = Arc::new(Shop::at(&server.url(), Plan::default()).await);
    let started = Instant::now();
    let (stories, (server, outages)) =
        tokio::join!(load(Arc::clone(&shop), started), shut_down(server, started));
    let took = started.elapsed();
    report(&stories, took);
    let attempts: Vec<&Attempt> = stories.iter().flat_map(|story| &story.attempts).collect();
    recovered(&attempts, &outages);
    nothing_ran_while_away(&shop, &attempts, &outages);
    balanced(&shop, &stories).await;
    drop(server);
}

fn report(stories: &[Story], took: Duration) {
    let mut answers: BTreeMap<(u16, &str), usize> = BTreeMap::new();
    for attempt in stories.iter().flat_map(|story| &story.attempts) {
        *answers.entry((attempt.status, attempt.problem.as_str())).or_default() += 1;
    }
    println!("{} requests, {took:.1?}; answers: {answers:?}", stories.len());
}

/// After each restart the first request succeeds soon.
fn recovered(attempts: &[&Attempt], outages: &[Outage]) {
    let mut slow = Vec::new();
    for (n, outage) in outages.iter().enumerate() {
        let after =
            attempts.iter().filter(|attempt| attempt.status == 201 && attempt.answered > outage.not_yet);
        let first = after.map(|attempt| attempt.answered).min().expect("the load outlasts the outages");
        let took = first.duration_since(outage.restarted);
        println!(
            "outage {n}: away for {:.0?}, ready {:.0?} and first 201 {took:.0?} after the restart",
            outage.not_yet.duration_since(outage.gone),
            outage.not_yet.duration_since(outage.restarted),
        );
        if took > RECOVERY_MAX {
            slow.push((n, took));
        }
    }
    assert!(slow.is_empty(), "slow to recover: {slow:?}");
}

/// Whatever was asked and answered while the server was away was told to come back, and no handler ran for it.
fn nothing_ran_while_away(shop: &Shop, attempts: &[&Attempt], outages: &[Outage]) {
    let is_within = |attempt: &Attempt, outage: &Outage| {
        attempt.sent >= outage.gone && attempt.answered <= outage.not_yet
    };
    let mut seen = 0;
    for attempt in attempts {
        if outages.iter().any(|outage| is_within(attempt, outage)) {
            seen += 1;
            assert_eq!((attempt.status, attempt.says_when_to_retry), (503, true), "{attempt:?}");
            assert!(!shop.desk.executed(&attempt.name), "it ran while the store was away: {attempt:?}");
        }
        if attempt.problem == "store-unavailable" {
            assert!(!shop.desk.executed(&attempt.name), "the store was away, yet it ran: {attempt:?}");
        }
    }
    println!("{seen} requests were asked and answered while the server was away");
    assert!(seen > 0, "somebody asked while it was away");
}

async fn balanced(shop: &Shop, stories: &[Story]) {
    let books = shop.books().await;
    let of = |verdict, atomic| {
        let of = move |story: &&Story| story.verdict == verdict && is_atomic(&story.key) == atomic;
        stories.iter().filter(of).map(|story| &story.key).collect::<Vec<_>>()
    };
    for (kind, atomic) in [("atomic", true), ("fenced", false)] {
        let (acknowledged, unknown) = (of(Verdict::Acknowledged, atomic), of(Verdict::Unknown, atomic));
        let unanswered = of(Verdict::Unanswered, atomic);
        let with_effect = |keys: &[&String]| keys.iter().filter(|key| books.has_effect(key)).count();
        let never_ran = stories
            .iter()
            .filter(|story| story.verdict == Verdict::Unknown && is_atomic(&story.key) == atomic);
        let never_ran = never_ran
            .filter(|story| !story.attempts.iter().any(|attempt| shop.desk.executed(&attempt.name)))
            .count();
        println!(
            "{kind}: {} acknowledged, {} unknown ({} with effect, {never_ran} never ran), {} unanswered ({} with effect)",
            acknowledged.len(),
            unknown.len(),
            with_effect(&unknown),
            unanswered.len(),
            with_effect(&unanswered),
        );
        books.balance(acknowledged);
        assert_eq!(unanswered, Vec::<&String>::new(), "everybody is answered in the end");
    }
    books.agree_on(is_atomic);
}

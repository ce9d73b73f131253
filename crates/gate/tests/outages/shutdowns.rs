//! A server that ends without warning, ten times, under a load that does not wait for it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream;

use crate::client::{Attempt, Story, Verdict, insist, insist_until};
use crate::server::Server;
use crate::shop::{Plan, Shop};

const SHUTDOWNS: u32 = 10;
const REQUESTS_PER_SECOND: u32 = 500;
/// How long the load lasts: until the last outage is over, within these bounds.
const LOAD_MIN: Duration = Duration::from_secs(40);
const LOAD_MAX: Duration = Duration::from_secs(180);
/// From one shutdown to the next; a server that is slow to start is given a moment all the same.
const SHUTDOWN_EVERY: Duration = Duration::from_millis(3600);
const UP_MIN: Duration = Duration::from_millis(1500);
/// How long the first request may take to succeed once the server is ready again.
const RECOVERY_MAX: Duration = Duration::from_secs(5);
/// How long the clients go on by themselves after the last request was made.
const PATIENCE: Duration = Duration::from_secs(8);
/// Who is left is then asked for once more, so many at a time: on a slow machine, clients that all insist are in each
/// other's way, and that is not what is looked into here.
const LAST_CALL: Duration = Duration::from_secs(30);
const LAST_CALL_AT_ONCE: usize = 64;
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

/// Sends so many requests a second, whatever becomes of them, until all outages are over.
async fn load(shop: Arc<Shop>, started: Instant, over: Arc<AtomicBool>) -> Vec<Story> {
    let (mut clients, ends) = (Vec::new(), Arc::new(OnceLock::<Instant>::new()));
    for n in 0.. {
        let due = started + Duration::from_secs(1) * n / REQUESTS_PER_SECOND;
        let is_over = over.load(Ordering::SeqCst) && due >= started + LOAD_MIN;
        if is_over || due >= started + LOAD_MAX {
            break;
        }
        tokio::time::sleep_until(due.into()).await;
        let (shop, ends) = (Arc::clone(&shop), Arc::clone(&ends));
        clients.push(tokio::spawn(async move {
            let until = || ends.get().copied().unwrap_or_else(|| Instant::now() + PATIENCE);
            insist_until(&shop.app, path_of(n), &key_of(n), until).await
        }));
    }
    ends.set(Instant::now() + PATIENCE).expect("the load ends once");
    let mut stories = Vec::new();
    for client in clients {
        stories.push(client.await.expect("no client panics"));
    }
    stories
}

/// Asks for those who are not answered yet, a few at a time.
async fn last_call(shop: &Arc<Shop>, stories: &mut [Story]) {
    let unanswered = stories.iter_mut().filter(|story| story.verdict == Verdict::Unanswered);
    let calls = unanswered.map(|story| async move {
        let path = if is_atomic(&story.key) { "/atomic" } else { "/fenced" };
        let again = insist(&shop.app, path, &story.key, Instant::now() + LAST_CALL).await;
        story.verdict = again.verdict;
        story.attempts.extend(again.attempts);
    });
    stream::iter(calls).for_each_concurrent(LAST_CALL_AT_ONCE, |call| call).await;
}

/// Ends the server and starts it again at once, ten times. Two of the outages last longer.
async fn shut_down(mut server: Server, started: Instant, over: Arc<AtomicBool>) -> (Server, Vec<Outage>) {
    let mut outages = Vec::new();
    let mut due = started + SHUTDOWN_EVERY;
    for n in 0..SHUTDOWNS {
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
        due = (due + SHUTDOWN_EVERY).max(Instant::now() + UP_MIN);
    }
    over.store(true, Ordering::SeqCst);
    (server, outages)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_immediate_shutdowns_lose_and_double_nothing() {
    let _turn = crate::turn().await;
    let server = Server::create().await;
    let shop = Arc::new(Shop::at(&server.url(), Plan::default()).await);
    let started = Instant::now();
    let over = Arc::new(AtomicBool::new(false));
    let (mut stories, (server, outages)) = tokio::join!(
        load(Arc::clone(&shop), started, Arc::clone(&over)),
        shut_down(server, started, Arc::clone(&over))
    );
    last_call(&shop, &mut stories).await;
    report(&stories, started.elapsed());
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

/// After each restart the first request succeeds soon. What the server itself needs until it is ready does not count.
fn recovered(attempts: &[&Attempt], outages: &[Outage]) {
    let mut slow = Vec::new();
    for (n, outage) in outages.iter().enumerate() {
        let after =
            attempts.iter().filter(|attempt| attempt.status == 201 && attempt.answered > outage.not_yet);
        let first = after.map(|attempt| attempt.answered).min().expect("the load outlasts the outages");
        let took = first.duration_since(outage.not_yet);
        println!(
            "outage {n}: away for {:.2?}, ready {:.2?} after the restart, first 201 {took:.2?} later",
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

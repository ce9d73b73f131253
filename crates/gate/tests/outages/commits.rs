//! Commits whose fate is not heard of. Whatever is lost on the way: the client's last answer is right, the effect is there
//! once, and never without its record.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::client::{Story, Verdict, attempt, insist};
use crate::proxy::{COMMIT, Harm, Proxy};
use crate::shop::{Plan, Shop};

const RUNS: usize = 30;
/// The shortest lease there may be, so that it lapses within a test.
const LEASE: Duration = Duration::from_secs(1);
/// Longer than the lease, also where it was renewed just before.
const PAST_THE_LEASE: Duration = Duration::from_millis(2500);
/// Longer than a statement of the store waits for a row that somebody else is writing.
const PAST_THE_LOCK: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(30);
/// What the statement that renews leases says of itself.
const RENEWAL: &[u8] = b"renewed AS";
const SHORT: Duration = Duration::from_millis(300);

/// A shop whose handlers and whose store are each behind a proxy.
struct Harmed {
    shop: Arc<Shop>,
    handlers: Proxy,
    store: Proxy,
}

impl Harmed {
    async fn open(first_run_takes: Duration) -> Self {
        Self::with_lease(LEASE, first_run_takes).await
    }

    async fn with_lease(lease: Duration, first_run_takes: Duration) -> Self {
        // The proxies must be there before the store opens, and the database before the proxies' URLs.
        let server = std::env::var("SEMEL_TEST_POSTGRES").unwrap_or_default();
        assert!(!server.is_empty(), "SEMEL_TEST_POSTGRES is not set: run `cargo xtask test`");
        let (handlers, store) = (Proxy::start(&server).await, Proxy::start(&server).await);
        let shop = Shop::planned(|url| Plan {
            handlers: Some(handlers.url(url)),
            store: Some(store.url(url)),
            lease,
            first_run_takes,
        })
        .await;
        Self { shop: Arc::new(shop), handlers, store }
    }

    /// Two clients insist on each of 30 keys, the second a little later. The promise is kept for each.
    async fn endure(&self, path: &'static str, what: &str) -> Vec<Story> {
        let started = Instant::now();
        let clients: Vec<_> = (0..RUNS * 2)
            .map(|n| {
                let (shop, key) = (Arc::clone(&self.shop), format!("{what}-{}", n / 2));
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(150) * (n as u32 % 2)).await;
                    insist(&shop.app, path, &key, Instant::now() + PATIENCE).await
                })
            })
            .collect();
        let mut stories = Vec::new();
        for client in clients {
            stories.push(client.await.expect("no client panics"));
        }
        let attempts: usize = stories.iter().map(|story| story.attempts.len()).sum();
        let unknown = stories.iter().filter(|story| story.verdict == Verdict::Unknown).count();
        println!(
            "{path} {what}: {} messages harmed, {attempts} attempts, {unknown} told unknown, {:.1?}",
            self.handlers.harmed() + self.store.harmed(),
            started.elapsed()
        );
        self.judge(&stories).await;
        stories
    }

    async fn judge(&self, stories: &[Story]) {
        let with = |verdict| stories.iter().filter(move |story: &&Story| story.verdict == verdict);
        let unanswered: Vec<_> = with(Verdict::Unanswered).collect();
        assert!(unanswered.is_empty(), "everybody is answered in the end: {unanswered:?}");
        let books = self.shop.books().await;
        books.balance(with(Verdict::Acknowledged).map(|story| &story.key));
        books.agree_on(|key| key.starts_with("a-"));
    }
}

/// Harms the handlers' commits, each key's first.
async fn harm_commits(what: &str, harm: Harm) {
    let harmed = Harmed::open(Duration::ZERO).await;
    harmed.handlers.harm(COMMIT, harm, RUNS);
    harmed.endure("/atomic", what).await;
    assert_eq!(harmed.handlers.harmed(), RUNS, "every harm met its commit");
}

/// Harms what the store says of keys: claims carry the key, and settlements the answer, which is the key.
async fn harm_store(path: &'static str, what: &str, harm: Harm) {
    let harmed = Harmed::open(Duration::ZERO).await;
    // One message carries many keys, and every late one holds up all of them.
    let times = match harm {
        Harm::LoseRequest { .. } | Harm::LoseReply { .. } | Harm::SwallowRequest | Harm::SwallowReply => RUNS,
        Harm::ArriveLater { .. } | Harm::DelayRequest { .. } | Harm::DelayReply { .. } => 6,
    };
    harmed.store.harm(format!("{what}-").as_bytes(), harm, times);
    let stories = harmed.endure(path, what).await;
    assert!(harmed.store.harmed() > 0, "the store was harmed");
    if let Harm::ArriveLater { after } = harm {
        // By then everybody was answered: what arrives now must change nothing.
        tokio::time::sleep(after + Duration::from_secs(1)).await;
        harmed.judge(&stories).await;
        let again = insist(&harmed.shop.app, path, &stories[0].key, Instant::now() + PATIENCE).await;
        assert_eq!(again.verdict, stories[0].verdict, "{again:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_reply_is_lost_is_resolved() {
    let _turn = crate::turn().await;
    harm_commits("a-reply-lost", Harm::LoseReply { orphaned: SHORT }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_never_arrives_is_made_again() {
    let _turn = crate::turn().await;
    harm_commits("a-request-lost", Harm::LoseRequest { orphaned: Duration::ZERO }).await;
    harm_commits("a-request-lost-late", Harm::LoseRequest { orphaned: SHORT }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_session_lingers_beyond_every_lock_is_resolved() {
    let _turn = crate::turn().await;
    harm_commits("a-arrives-later", Harm::ArriveLater { after: PAST_THE_LOCK }).await;
    harm_commits("a-lingers", Harm::LoseRequest { orphaned: PAST_THE_LOCK }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_or_its_reply_that_comes_past_the_lease_is_no_second_effect() {
    let _turn = crate::turn().await;
    harm_commits("a-reply-late", Harm::DelayReply { by: PAST_THE_LEASE }).await;
    harm_commits("a-request-late", Harm::DelayRequest { by: PAST_THE_LEASE }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_whose_commit_is_not_heard_of_is_resolved() {
    let _turn = crate::turn().await;
    harm_store("/atomic", "a-claim-reply-lost", Harm::LoseReply { orphaned: SHORT }).await;
    harm_store("/atomic", "a-claim-lost", Harm::LoseRequest { orphaned: SHORT }).await;
    harm_store("/atomic", "a-claim-reply-late", Harm::DelayReply { by: PAST_THE_LEASE }).await;
    harm_store("/atomic", "a-claim-late", Harm::DelayRequest { by: PAST_THE_LEASE }).await;
    harm_store("/atomic", "a-claim-later", Harm::ArriveLater { after: PAST_THE_LEASE }).await;
}

/// Here the effect is committed before its record: what is lost or late in between is never a second effect, though it may
/// be unknown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fenced_claim_or_settlement_that_is_not_heard_of_is_no_second_effect() {
    let _turn = crate::turn().await;
    harm_store("/fenced", "f-reply-lost", Harm::LoseReply { orphaned: SHORT }).await;
    harm_store("/fenced", "f-lost", Harm::LoseRequest { orphaned: SHORT }).await;
    harm_store("/fenced", "f-reply-late", Harm::DelayReply { by: PAST_THE_LEASE }).await;
    harm_store("/fenced", "f-late", Harm::DelayRequest { by: PAST_THE_LEASE }).await;
    harm_store("/fenced", "f-later", Harm::ArriveLater { after: PAST_THE_LEASE }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_fate_cannot_be_asked_for_is_resolved_later() {
    let _turn = crate::turn().await;
    let harmed = Harmed::open(Duration::from_millis(700)).await;
    harmed.handlers.harm(COMMIT, Harm::LoseReply { orphaned: SHORT }, RUNS);
    // The claims are made; then the commits lose their replies while nothing of the store comes through.
    let cut = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        harmed.store.close(true);
        harmed.store.harm(b"", Harm::LoseRequest { orphaned: Duration::ZERO }, usize::MAX);
        tokio::time::sleep(Duration::from_millis(1500)).await;
        harmed.store.harm(b"nothing", Harm::LoseRequest { orphaned: Duration::ZERO }, 0);
        harmed.store.close(false);
    };
    let (stories, ()) = tokio::join!(harmed.endure("/atomic", "a-no-fate"), cut);
    assert_eq!(harmed.handlers.harmed(), RUNS, "every harm met its commit");
    let told = |problem| stories.iter().flat_map(|story| &story.attempts).any(|told| told.problem == problem);
    assert!(told("settlement-pending"), "that nobody knows yet is said");
    assert!(!told("upstream-reset"), "and not that it was rolled back: it was committed");
}

/// One request whose commit is harmed so, on the route with a deadline; what it is told, and what a retry is told.
async fn commit_past_the_deadline(key: &str, harm: Harm) -> (u16, String) {
    let harmed = Harmed::open(Duration::ZERO).await;
    harmed.handlers.harm(COMMIT, harm, 1);
    let told = attempt(&harmed.shop.app, "/in-time", key).await;
    assert_eq!(harmed.handlers.harmed(), 1);
    let again = insist(&harmed.shop.app, "/in-time", key, Instant::now() + PATIENCE).await;
    assert_eq!(again.verdict, Verdict::Acknowledged);
    let books = harmed.shop.books().await;
    books.balance([&again.key]);
    (told.status, told.problem)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_said_of_a_commit_that_is_under_way_at_the_deadline_until_its_fate_is_known() {
    let _turn = crate::turn().await;
    let late = Harm::DelayRequest { by: Duration::from_secs(3) };
    assert_eq!(commit_past_the_deadline("a-lands", late).await, (201, String::new()), "it was committed");
    let lost = Harm::LoseRequest { orphaned: Duration::from_secs(3) };
    assert_eq!(commit_past_the_deadline("a-lost", lost).await.0, 504, "it was rolled back, and says so");
    let later = Harm::DelayRequest { by: Duration::from_secs(9) };
    let pending = (503, "settlement-pending".to_owned());
    assert_eq!(commit_past_the_deadline("a-lands-later", later).await, pending, "nobody knows yet");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_into_a_black_hole_holds_its_key_for_a_limited_time() {
    let _turn = crate::turn().await;
    let into_a_hole = async |harm, key: &'static str, path| {
        let harmed = Harmed::open(Duration::ZERO).await;
        harmed.handlers.harm(COMMIT, harm, 1);
        // The server ends what does nothing for thirty seconds, and by then nobody waits for its answer any more.
        let limit = Duration::from_secs(45);
        let told = tokio::time::timeout(limit, attempt(&harmed.shop.app, path, key)).await;
        let told = told.expect("it is answered, although the server never does");
        let again = insist(&harmed.shop.app, path, key, Instant::now() + PATIENCE).await;
        assert_eq!(again.verdict, Verdict::Acknowledged, "{again:?}");
        harmed.shop.books().await.balance([&again.key]);
        assert_eq!(harmed.handlers.harmed(), 1);
        (told.status, told.problem)
    };
    let (swallowed, unheard, closure) = tokio::join!(
        into_a_hole(Harm::SwallowRequest, "a-swallowed", "/atomic"),
        into_a_hole(Harm::SwallowReply, "a-unheard", "/atomic"),
        into_a_hole(Harm::SwallowRequest, "a-closure", "/closure"),
    );
    assert_eq!(swallowed.0, 503, "nothing was committed");
    assert_eq!(unheard, (201, String::new()), "the record tells");
    assert_eq!(closure.0, 503, "nothing was committed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_cannot_be_renewed_is_not_a_second_effect() {
    let _turn = crate::turn().await;
    let harmed = Harmed::open(PAST_THE_LEASE).await;
    harmed.store.harm(RENEWAL, Harm::LoseRequest { orphaned: Duration::ZERO }, usize::MAX);
    harmed.endure("/fenced", "f-unrenewed").await;
    assert!(harmed.store.harmed() > 0, "renewals were lost");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fenced_effect_whose_reply_is_lost_is_unknown_and_never_made_again() {
    let _turn = crate::turn().await;
    // No lease lapses here: whoever is told that it is unknown is told so for the lost reply.
    let harmed = Harmed::with_lease(Duration::from_secs(10), Duration::ZERO).await;
    harmed.handlers.harm(b"f-effect-", Harm::LoseReply { orphaned: SHORT }, RUNS);
    let stories = harmed.endure("/fenced", "f-effect").await;
    assert_eq!(harmed.handlers.harmed(), RUNS, "every harm met its effect");
    let books = harmed.shop.books().await;
    for story in &stories {
        assert_eq!((story.verdict, books.has_effect(&story.key)), (Verdict::Unknown, true), "{story:?}");
    }
}

//! The limiter in Redis passes the suite, agrees with the one in memory call by call, leaves no key that lives for
//! ever, and is replaced when Redis is killed. Needs Redis: it fails, and never skips, when there is none.

#![cfg(feature = "redis")]

mod agreement;

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use semel_contract::profile::{Charge, Rate};
use semel_store::limits::{
    Admission, Fallback, Limiter, MemoryLimiter, PRIMARY_REST_MILLIS, RedisLimiter, Verdict,
};

use agreement::{agrees_with_memory, at};

const HINT: &str = "run `cargo xtask test`, which starts Redis, or set SEMEL_TEST_REDIS";
/// A busy machine is not a broken Redis.
const PATIENCE: Duration = Duration::from_secs(10);

fn url() -> String {
    std::env::var("SEMEL_TEST_REDIS").unwrap_or_else(|_| panic!("SEMEL_TEST_REDIS is not set: {HINT}"))
}

fn limiter() -> RedisLimiter {
    RedisLimiter::patient(&url(), PATIENCE).expect("the address of Redis is one")
}

async fn shared() -> Arc<dyn Limiter> {
    Arc::new(limiter())
}

semel_store::limiter_tests!(shared());

#[test]
fn redis_and_memory_give_the_same_verdicts() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let redis = runtime.block_on(async { limiter() });
    agrees_with_memory(&runtime, &redis, 100);
}

#[tokio::test]
async fn no_key_in_redis_lives_for_ever() {
    let server = Server::start();
    let limiter = RedisLimiter::patient(&server.url(), PATIENCE).expect("the address of Redis is one");
    let rate = Rate { count: 2, window: Duration::from_secs(60) };
    for id in 0..4 {
        limiter.request(b"alice", rate, at(0)).await.expect("Redis answers");
        for charge in [Charge::NewKey, Charge::IdWindow] {
            let admission = Admission { principal: b"alice", id: [id; 16], rate, charge, attempts_per_id: 1 };
            limiter.admit(admission, at(0)).await.expect("Redis answers");
            limiter.admit(admission, at(0)).await.expect("Redis answers");
        }
    }
    let client = redis::Client::open(server.url()).expect("the address of Redis is one");
    let mut connection = client.get_multiplexed_async_connection().await.expect("Redis answers");
    let keys: Vec<String> =
        redis::cmd("KEYS").arg("*").query_async(&mut connection).await.expect("Redis lists keys");
    assert_eq!(keys.len(), 4, "{keys:?}");
    let tag = |key: &str| {
        key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag.to_owned())
    };
    for key in &keys {
        assert_eq!(tag(key), tag(&keys[0]), "one subject has one hash tag");
        let left: i64 = redis::cmd("PTTL").arg(key).query_async(&mut connection).await.expect("Redis knows");
        let windows = if key.contains(":requests:") { 3 } else { 2 };
        let expected = (windows - 1) * 60_000 + 1..=windows * 60_000;
        assert!(expected.contains(&left), "{key} lives for {left} ms");
    }
}

#[tokio::test]
async fn ids_that_left_are_cleared_away_in_redis() {
    let server = Server::start();
    let limiter = RedisLimiter::patient(&server.url(), PATIENCE).expect("the address of Redis is one");
    let rate = Rate { count: 10, window: Duration::from_secs(60) };
    for (id, millis) in [(1, 0), (2, 0), (3, 60_000)] {
        let admission =
            Admission { principal: b"alice", id: [id; 16], rate, charge: Charge::NewKey, attempts_per_id: 9 };
        limiter.admit(admission, at(millis)).await.expect("Redis answers");
    }
    let client = redis::Client::open(server.url()).expect("the address of Redis is one");
    let mut connection = client.get_multiplexed_async_connection().await.expect("Redis answers");
    let keys: Vec<String> =
        redis::cmd("KEYS").arg("*").query_async(&mut connection).await.expect("Redis lists keys");
    assert_eq!(keys.len(), 2, "{keys:?}");
    for key in keys {
        let count = if key.contains(":tries:") { "HLEN" } else { "ZCARD" };
        let kept: u32 = redis::cmd(count).arg(&key).query_async(&mut connection).await.expect("Redis counts");
        assert_eq!(kept, 1, "{key}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_redis_is_killed_memory_answers_and_it_is_counted() {
    let mut server = Server::start();
    let redis = RedisLimiter::at(&server.url()).expect("the address of Redis is one");
    let both = Fallback::new(Arc::new(redis), Arc::new(MemoryLimiter::default()));
    let rate = Rate { count: 3, window: Duration::from_secs(3600) };
    let admit = async |who: u8, id: u8, millis: i64| {
        let principal = [who];
        let admission = Admission {
            principal: &principal,
            id: [id; 16],
            rate,
            charge: Charge::NewKey,
            attempts_per_id: 9,
        };
        let asked = Instant::now();
        let verdict = both.admit(admission, at(millis)).await.expect("one of the two answers");
        assert!(asked.elapsed() < Duration::from_secs(10), "no request waits long for a limiter");
        matches!(verdict, Verdict::Allowed { .. })
    };
    let (mut who, mut connected) = (0, 0);
    let before = loop {
        who += 1;
        connected = until_redis_answers(&both, connected).await;
        let before = both.fallbacks();
        assert!(admit(who, 1, connected).await && admit(who, 2, connected).await);
        if both.fallbacks() == before {
            break before;
        }
        // A machine that stalls is no broken Redis: somebody else is let in, whose budgets are untouched.
        assert!(who < 10, "Redis answers");
    };
    server.kill();
    for id in 3..6 {
        assert!(admit(who, id, connected).await, "memory begins with a budget of its own");
    }
    assert!(!admit(who, 6, connected).await, "and keeps to it");
    assert_eq!(both.fallbacks(), before + 4);
    server.start_again();
    until_redis_answers(&both, connected).await;
}

/// Asks until the answer does not come from the stand-in, and says when that was.
async fn until_redis_answers(both: &Fallback, since_millis: i64) -> i64 {
    let rate = Rate { count: 1, window: Duration::from_secs(1) };
    let deadline = Instant::now() + PATIENCE;
    let mut now = since_millis;
    loop {
        let before = both.fallbacks();
        now += PRIMARY_REST_MILLIS;
        both.request(b"anybody", rate, at(now)).await.expect("one of the two answers");
        if both.fallbacks() == before {
            return now;
        }
        assert!(Instant::now() < deadline, "Redis is asked again once it is there");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_limiter_without_redis_fails_soon_and_says_so() {
    let limiter =
        RedisLimiter::at(&format!("redis://:secret@127.0.0.1:{}", free_port())).expect("an address");
    let rate = Rate { count: 3, window: Duration::from_secs(60) };
    let asked = Instant::now();
    let error = limiter.request(b"alice", rate, at(0)).await.expect_err("nobody listens there");
    assert!(asked.elapsed() < Duration::from_secs(2));
    assert!(error.to_string().contains("Redis"), "{error}");
    assert!(!format!("{error:?} {limiter:?}").contains("secret"));
}

/// A Redis of this test's own, on loopback and without a file.
struct Server {
    port: u16,
    child: Child,
}

impl Server {
    fn start() -> Server {
        let port = free_port();
        Server { port, child: spawn(port) }
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }

    fn start_again(&mut self) {
        self.child = spawn(self.port);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have been killed already, as a part of its test.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").port()
}

fn spawn(port: u16) -> Child {
    let child = Command::new(program())
        .args(["--save", "", "--appendonly", "no", "--bind", "127.0.0.1", "--port", &port.to_string()])
        .current_dir(std::env::temp_dir())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("cannot start a Redis: {error}; {HINT}"));
    let deadline = Instant::now() + PATIENCE;
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(Instant::now() < deadline, "the Redis of this test listens");
        std::thread::sleep(Duration::from_millis(10));
    }
    child
}

/// `redis-server`, or `valkey-server`, which speaks the same.
fn program() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path)
        .chain(["/usr/bin", "/usr/local/bin", "/usr/sbin", "/usr/local/sbin"].map(PathBuf::from))
        .collect();
    let named = |name: &str| folders.iter().map(|folder| folder.join(name)).find(|file| file.is_file());
    named("redis-server")
        .or_else(|| named("valkey-server"))
        .unwrap_or_else(|| panic!("there is no redis-server on this machine: {HINT}"))
}

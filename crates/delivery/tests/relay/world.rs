//! A world of tests: time that stands still until it is moved, an upstream with every bad habit, a store that fails.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_contract::time::Timestamp;
use semel_delivery::Entropy;
use semel_delivery::credentials::{Credential, Credentials};
use semel_delivery::message::Answer;
use semel_delivery::relay::debounce::Mode;
use semel_delivery::relay::meters::Meters;
use semel_delivery::relay::recovery::Capability;
use semel_delivery::relay::store::accept::{Accepted, NewItem, Submission};
use semel_delivery::relay::store::sql::{Asked, Database, Row, StoreError, Transaction, Value};
use semel_delivery::relay::store::sqlite::Sqlite;
use semel_delivery::relay::upstream::{Batch, Current, Place, Read, Upstream};
use semel_delivery::relay::{Engine, RelayStore, Target};
use semel_delivery::transport::{MaySend, Sent};
use semel_store::clock::{Clock, Reading};
use tokio::sync::Notify;

pub(crate) const START: i64 = 1_800_000_000_000;

/// Time that stands still until it is moved.
#[derive(Clone, Default)]
pub(crate) struct Manual(Arc<AtomicI64>);

impl Manual {
    pub(crate) fn now(&self) -> i64 {
        START + self.0.load(Ordering::SeqCst)
    }

    pub(crate) fn pass(&self, millis: i64) {
        self.0.fetch_add(millis, Ordering::SeqCst);
    }
}

impl Clock for Manual {
    fn read(&self) -> Reading {
        let passed = self.0.load(Ordering::SeqCst);
        Reading { wall: Timestamp::from_millis(START + passed), ticks: Duration::from_millis(passed as u64) }
    }
}

/// Numbers that follow from a seed.
#[derive(Clone)]
pub(crate) struct Rng(Arc<Mutex<u64>>);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)))
    }

    pub(crate) fn below(&self, bound: u64) -> u64 {
        let mut state = self.0.lock().unwrap();
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        (*state >> 11) % bound
    }
}

/// What the upstream does with a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Habit {
    Good,
    /// Applies it; the answer is lost.
    LostReply,
    /// Applies it so many milliseconds later; no answer comes.
    Late(i64),
    /// Does nothing; no answer comes.
    Swallows,
    /// Applies it and fails.
    FailsAfter,
    /// Applies it and answers with this status.
    AppliesAndAnswers(u16),
    /// Does nothing and says so.
    Answers(u16),
    /// The same, with `Retry-After`.
    Limits(u64),
    /// The same, with a date.
    LimitsUntil(&'static str),
    /// Cannot be reached.
    Away,
    /// Is reached only after [`Service::thaw`]: the machine stands still while it connects.
    Frozen,
}

#[derive(Clone, Debug)]
struct Write {
    lane: String,
    delta: i64,
    after: Option<i64>,
    key: String,
    version: Option<String>,
}

#[derive(Default)]
struct Slot {
    value: i64,
    version: u64,
    markers: Vec<String>,
}

#[derive(Default)]
struct Books {
    slots: BTreeMap<String, Slot>,
    keys: BTreeSet<String>,
    late: Vec<(i64, Write)>,
    habits: VecDeque<Habit>,
    refused: BTreeSet<String>,
    writes: Vec<(String, i64)>,
    reads: u64,
}

/// The upstream.
#[derive(Clone)]
pub(crate) struct Service {
    tier: Capability,
    clock: Manual,
    books: Arc<Mutex<Books>>,
    reads: bool,
    /// Told when a write stands still, and when it may go on.
    frozen: Arc<(Notify, Notify)>,
}

impl Service {
    pub(crate) fn new(tier: Capability, clock: &Manual) -> Self {
        let reads = !matches!(tier, Capability::Blind(_));
        Self { tier, clock: clock.clone(), books: Arc::default(), reads, frozen: Arc::default() }
    }

    /// The next writes are treated so; then well.
    pub(crate) fn next(&self, habits: &[Habit]) {
        self.books.lock().unwrap().habits.extend(habits);
    }

    /// Waits until a write stands still.
    pub(crate) async fn freezes(&self) {
        self.frozen.0.notified().await;
    }

    /// Lets it go on.
    pub(crate) fn thaw(&self) {
        self.frozen.1.notify_one();
    }

    pub(crate) fn forget_habits(&self) {
        self.books.lock().unwrap().habits.clear();
    }

    /// A credential that is answered with 401.
    pub(crate) fn refuse(&self, token: &str) {
        self.books.lock().unwrap().refused.insert(token.to_owned());
    }

    pub(crate) fn value(&self, lane: &str) -> i64 {
        self.catch_up();
        self.books.lock().unwrap().slots.get(lane).map_or(0, |slot| slot.value)
    }

    pub(crate) fn set(&self, lane: &str, value: i64) {
        let mut books = self.books.lock().unwrap();
        let slot = books.slots.entry(lane.to_owned()).or_default();
        slot.value = value;
        slot.version += 1;
    }

    /// Writes that arrived: lane and change.
    pub(crate) fn writes(&self) -> Vec<(String, i64)> {
        self.books.lock().unwrap().writes.clone()
    }

    pub(crate) fn reads_so_far(&self) -> u64 {
        self.books.lock().unwrap().reads
    }

    fn catch_up(&self) {
        let now = self.clock.now();
        let mut books = self.books.lock().unwrap();
        let (ripe, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut books.late).into_iter().partition(|(at, _)| *at <= now);
        books.late = rest;
        for (_, write) in ripe {
            apply(self.tier, &mut books, &write);
        }
    }

    fn is_refused(&self, credential: Option<&Credential>) -> bool {
        let books = self.books.lock().unwrap();
        credential.is_some_and(|credential| {
            credential.headers.iter().any(|(_, value)| books.refused.contains(value))
        })
    }
}

fn apply(tier: Capability, books: &mut Books, write: &Write) -> u16 {
    let is_known = !books.keys.insert(write.key.clone());
    let slot = books.slots.entry(write.lane.clone()).or_default();
    match tier {
        Capability::Key { .. } if is_known => return 200,
        Capability::Key { .. } | Capability::Blind(_) => slot.value += write.delta,
        Capability::CompareAndSet => {
            if write.version.as_deref() != Some(slot.version.to_string().as_str()) {
                return 412;
            }
            slot.value = write.after.unwrap();
        }
        Capability::Marker => {
            slot.value = write.after.unwrap();
            slot.markers.push(write.key.clone());
        }
        Capability::ReadBack => slot.value = write.after.unwrap(),
    }
    slot.version += 1;
    200
}

fn answered(status: u16, after: Option<u64>) -> Sent {
    let headers = after.map(|after| ("retry-after".to_owned(), after.to_string())).into_iter().collect();
    Sent::Answered(Answer { status, headers, body: Vec::new() })
}

impl Upstream for Service {
    fn origin(&self) -> &str {
        "http://scores.example"
    }

    fn reads(&self) -> bool {
        self.reads
    }

    fn read<'a>(
        &'a self,
        place: &'a Place<'a>,
        credential: Option<&'a Credential>,
    ) -> semel_delivery::relay::upstream::Asked<'a, Read> {
        self.catch_up();
        let answer = if self.is_refused(credential) {
            Read::Answered(Answer { status: 401, headers: Vec::new(), body: Vec::new() })
        } else {
            let mut books = self.books.lock().unwrap();
            books.reads += 1;
            let slot = books.slots.entry(place.lane.to_owned()).or_default();
            Read::Current(Current {
                value: Some(slot.value),
                version: Some(slot.version.to_string()),
                markers: slot.markers.clone(),
            })
        };
        Box::pin(async move { answer })
    }

    fn freeze(&self, batch: &Batch) -> Result<String, String> {
        let Batch { lane, delta, after, key, version, .. } = batch;
        Ok(serde_json::json!({"lane": lane, "delta": delta, "after": after, "key": key, "version": version})
            .to_string())
    }

    fn write<'a>(
        &'a self,
        frozen: &'a str,
        credential: Option<&'a Credential>,
        may_send: MaySend,
    ) -> semel_delivery::relay::upstream::Asked<'a, Sent> {
        self.catch_up();
        if self.books.lock().unwrap().habits.front() == Some(&Habit::Frozen) {
            self.books.lock().unwrap().habits.pop_front();
            return Box::pin(async move {
                self.frozen.0.notify_one();
                self.frozen.1.notified().await;
                match may_send.is_allowed() {
                    true => self.write(frozen, credential, may_send).await,
                    false => Sent::NotSent("it was too late for the first byte".to_owned()),
                }
            });
        }
        if self.is_refused(credential) {
            return Box::pin(async { answered(401, None) });
        }
        let read: serde_json::Value = serde_json::from_str(frozen).unwrap();
        let write = Write {
            lane: read["lane"].as_str().unwrap().to_owned(),
            delta: read["delta"].as_i64().unwrap(),
            after: read["after"].as_i64(),
            key: read["key"].as_str().unwrap().to_owned(),
            version: read["version"].as_str().map(str::to_owned),
        };
        let mut books = self.books.lock().unwrap();
        books.writes.push((write.lane.clone(), write.delta));
        let sent = match books.habits.pop_front().unwrap_or(Habit::Good) {
            Habit::Good => answered(apply(self.tier, &mut books, &write), None),
            Habit::LostReply => {
                apply(self.tier, &mut books, &write);
                Sent::Broken("the connection was reset".to_owned())
            }
            Habit::Late(by) => {
                books.late.push((self.clock.now() + by, write));
                Sent::TimedOut("no answer".to_owned())
            }
            Habit::Swallows => Sent::TimedOut("no answer".to_owned()),
            Habit::FailsAfter => {
                apply(self.tier, &mut books, &write);
                answered(500, None)
            }
            Habit::AppliesAndAnswers(status) => {
                apply(self.tier, &mut books, &write);
                answered(status, None)
            }
            Habit::Answers(status) => answered(status, None),
            Habit::Limits(after) => answered(429, Some(after)),
            Habit::LimitsUntil(date) => Sent::Answered(Answer {
                status: 429,
                headers: vec![("retry-after".to_owned(), date.to_owned())],
                body: Vec::new(),
            }),
            Habit::Away => Sent::NotSent("connection refused".to_owned()),
            Habit::Frozen => unreachable!("it stood still before it connected"),
        };
        Box::pin(async move { sent })
    }
}

/// Credentials that tests change.
#[derive(Clone, Default)]
pub(crate) struct Tokens(Arc<Mutex<BTreeMap<String, String>>>);

impl Tokens {
    pub(crate) fn set(&self, principal: &str, token: &str) {
        self.0.lock().unwrap().insert(principal.to_owned(), token.to_owned());
    }
}

impl Credentials for Tokens {
    fn credential<'a>(&'a self, principal: &'a str, _: &'a str) -> semel_delivery::credentials::Asked<'a> {
        let token =
            self.0.lock().unwrap().get(principal).cloned().unwrap_or_else(|| format!("token of {principal}"));
        Box::pin(async move { Ok(Some(Credential { headers: vec![("authorization".to_owned(), token)] })) })
    }
}

/// A database that fails at a chosen call: before it, or, for a commit, after it was done.
pub(crate) struct Failing {
    inner: Sqlite,
    /// Calls until it fails; negative means never.
    pub(crate) countdown: Arc<AtomicI64>,
    pub(crate) is_owned: bool,
    commits_first: Arc<std::sync::atomic::AtomicBool>,
    /// Transactions so far.
    pub(crate) begun: AtomicI64,
}

impl Failing {
    pub(crate) fn new(clock: &Manual) -> Self {
        Self {
            inner: Sqlite::memory(Arc::new(clock.clone())).unwrap(),
            countdown: Arc::new(AtomicI64::new(-1)),
            is_owned: false,
            commits_first: Arc::default(),
            begun: AtomicI64::new(0),
        }
    }

    /// Fails after so many more calls. With `commits_first` a commit that fails was done nevertheless.
    pub(crate) fn fail_after(&self, calls: i64, commits_first: bool) {
        self.countdown.store(calls, Ordering::SeqCst);
        self.commits_first.store(commits_first, Ordering::SeqCst);
    }

    pub(crate) fn heal(&self) {
        self.countdown.store(-1, Ordering::SeqCst);
    }
}

fn fails(countdown: &AtomicI64) -> bool {
    match countdown.load(Ordering::SeqCst) {
        left if left < 0 => false,
        // A process that is dead does nothing more.
        0 => true,
        left => {
            countdown.store(left - 1, Ordering::SeqCst);
            false
        }
    }
}

struct FailingTransaction {
    inner: Box<dyn Transaction>,
    countdown: Arc<AtomicI64>,
    commits_first: Arc<std::sync::atomic::AtomicBool>,
}

impl Transaction for FailingTransaction {
    fn run<'a>(&'a mut self, sql: &'a str, args: Vec<Value>) -> Asked<'a, Vec<Row>> {
        if fails(&self.countdown) {
            return Box::pin(async { Err(StoreError::Failed("crash".to_owned())) });
        }
        self.inner.run(sql, args)
    }

    fn confirm_clock(&mut self) -> Asked<'_, ()> {
        self.inner.confirm_clock()
    }

    fn commit(self: Box<Self>) -> Asked<'static, ()> {
        Box::pin(async move {
            if fails(&self.countdown) {
                if self.commits_first.load(Ordering::SeqCst) {
                    // Only the call at which it crashes is done; later ones never happen.
                    self.commits_first.store(false, Ordering::SeqCst);
                    self.inner.commit().await?;
                }
                return Err(StoreError::Unknown("crash".to_owned()));
            }
            self.inner.commit().await
        })
    }
}

impl Database for Failing {
    fn begin(&self) -> Asked<'_, Box<dyn Transaction>> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            let inner = self.inner.begin().await?;
            let (countdown, commits_first) = (Arc::clone(&self.countdown), Arc::clone(&self.commits_first));
            Ok(Box::new(FailingTransaction { inner, countdown, commits_first }) as Box<dyn Transaction>)
        })
    }

    fn now(&self) -> Asked<'_, i64> {
        self.inner.now()
    }

    fn is_owned(&self) -> bool {
        self.is_owned
    }
}

/// A relay in its world.
pub(crate) struct World {
    pub(crate) clock: Manual,
    pub(crate) service: Service,
    pub(crate) tokens: Tokens,
    pub(crate) db: Arc<Failing>,
    pub(crate) engine: Engine,
    pub(crate) target: Target,
}

pub(crate) const TARGET: &str = "scores";
/// How late the upstream applies at most.
pub(crate) const LATE_WINDOW: Duration = Duration::from_secs(60);

impl World {
    pub(crate) fn new(tier: Capability, seed: u64) -> Self {
        Self::with(tier, seed, |_| {})
    }

    pub(crate) fn with(tier: Capability, seed: u64, change: impl Fn(&mut Target)) -> Self {
        let clock = Manual::default();
        let service = Service::new(tier, &clock);
        let db = Arc::new(Failing::new(&clock));
        let mut target = Target::new(TARGET, Arc::new(service.clone()), tier);
        target.late_window = LATE_WINDOW;
        change(&mut target);
        target.check().unwrap();
        let tokens = Tokens::default();
        let engine = engine(&clock, &db, &tokens, &target, seed);
        Self { clock, service, tokens, db, engine, target }
    }

    /// Another process on the same store.
    pub(crate) fn another(&self, seed: u64) -> Engine {
        engine(&self.clock, &self.db, &self.tokens, &self.target, seed)
    }

    /// The process is gone, another one begins on the same store.
    pub(crate) fn restart(&mut self, seed: u64) {
        self.db.heal();
        self.engine = engine(&self.clock, &self.db, &self.tokens, &self.target, seed);
    }

    pub(crate) fn submission(
        &self,
        principal: &str,
        key: &str,
        mode: Mode,
        items: &[(&str, i64)],
    ) -> Submission {
        let item = |(lane, value): &(&str, i64)| NewItem {
            lane: (*lane).to_owned(),
            group: "g".to_owned(),
            label: None,
            session: None,
            value: *value,
        };
        Submission {
            target: TARGET.to_owned(),
            principal: principal.to_owned(),
            key: key.to_owned(),
            fingerprint: format!("{items:?}"),
            mode,
            debounce: self.target.debounce,
            groups: true,
            items: items.iter().map(item).collect(),
            age: None,
        }
    }

    pub(crate) async fn accept(
        &self,
        principal: &str,
        key: &str,
        mode: Mode,
        items: &[(&str, i64)],
    ) -> Accepted {
        self.engine.store.accept(&self.submission(principal, key, mode, items)).await.unwrap()
    }

    pub(crate) async fn turn(&self) {
        self.engine.run_due().await.unwrap();
    }

    /// Lets time pass until nothing waits that could be done.
    pub(crate) async fn settle(&self) {
        for _ in 0..10_000 {
            self.engine.release_renewed().await.unwrap();
            if self.engine.run_due().await.unwrap() > 0 {
                // A lane that somebody else holds stays due.
                self.clock.pass(1000);
                continue;
            }
            let Some(next) = self.engine.store.next_due(i64::MIN, i64::MAX).await.unwrap() else { return };
            self.clock.pass((next - self.clock.now()).max(1));
        }
        panic!("it never comes to rest");
    }

    pub(crate) async fn applied(&self) -> Vec<semel_delivery::relay::store::AuditRow> {
        let mut rows = self.engine.store.audit_after(0, 1_000_000).await.unwrap();
        rows.retain(|row| row.event == "applied");
        rows
    }
}

fn engine(clock: &Manual, db: &Arc<Failing>, tokens: &Tokens, target: &Target, seed: u64) -> Engine {
    let rng = Rng::new(seed);
    let entropy =
        Entropy::from_fn(move || (0..4).fold(0, |bits, _| bits << 32 | u128::from(rng.below(1 << 32))));
    let db: Arc<dyn Database> = Arc::<Failing>::clone(db);
    Engine {
        store: RelayStore::new(db),
        targets: [(TARGET.to_owned(), Arc::new(target.clone()))].into(),
        credentials: Arc::new(tokens.clone()),
        entropy,
        clock: Arc::new(clock.clone()),
        owner: format!("replica {seed}"),
        meters: Meters::default(),
        settled: tokio::sync::Notify::new(),
    }
}

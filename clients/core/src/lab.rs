//! A laboratory: a scripted server behind a gate, a clock that moves only when it is told, and processes that die without a
//! word. The tests of every client play `spec/clients.json` in it. No part of what applications get.

use std::collections::{BTreeSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use semel_contract::time::Timestamp;
use semel_delivery::envelope::key_header;
use semel_delivery::message::Answer;
use semel_delivery::sqlite::SqliteStore;
use semel_delivery::store::OutboxStore;
use semel_delivery::transport::{Outgoing, Sending, Sent, Transport};
use semel_delivery::{Entropy, Outbox, Settings};
use semel_store::clock::{Clock, Reading};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::core::{Core, Runner};
use crate::errors::CoreError;
use crate::host::{Blocking, Bridge, Host};
use crate::owner::{self, Owner};
use crate::types::Options;

/// When every scenario begins.
const START_MILLIS: i64 = 1_767_225_600_000;
/// How often everything is polled before it counts as quiet.
const QUIET_POLLS: u32 = 100;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

enum Job {
    Run(Work),
    Advance(u64, mpsc::Sender<()>),
    Kill(mpsc::Sender<()>),
}

/// A machine with one application on it, and its server.
#[derive(uniffi::Object)]
pub struct Lab {
    bench: Arc<Bench>,
}

/// What the threads of a laboratory share.
struct Bench {
    jobs: Mutex<mpsc::Sender<Job>>,
    world: Arc<World>,
}

#[derive(Default)]
struct Server {
    script: VecDeque<Value>,
    is_down: bool,
    kills_at_arrival: bool,
    ahead_millis: i64,
    key_header: String,
    keys: BTreeSet<String>,
    sends: Vec<(String, i64)>,
    bodies: Vec<String>,
    credentials: Vec<Option<String>>,
    effects: Vec<String>,
}

struct World {
    server: Mutex<Server>,
    store: Arc<SqliteStore>,
    /// Milliseconds that passed before this life of the process.
    base: AtomicI64,
    began: Mutex<Option<Instant>>,
    jumped: AtomicI64,
    is_dead: AtomicBool,
    died: Notify,
    asking: AtomicUsize,
}

#[uniffi::export]
impl Lab {
    /// A laboratory at time zero.
    #[uniffi::constructor]
    pub fn new() -> Arc<Self> {
        let world = Arc::new(World {
            server: Mutex::default(),
            store: Arc::new(SqliteStore::memory().expect("a store in memory opens")),
            base: AtomicI64::new(0),
            began: Mutex::default(),
            jumped: AtomicI64::new(0),
            is_dead: AtomicBool::new(true),
            died: Notify::new(),
            asking: AtomicUsize::new(0),
        });
        let (jobs, todo) = mpsc::channel();
        let at_work = Arc::clone(&world);
        std::thread::spawn(move || at_work.work(&todo));
        Arc::new(Self { bench: Arc::new(Bench { jobs: Mutex::new(jobs), world }) })
    }

    /// Starts the application on this machine. The path of the options means nothing.
    pub fn open(&self, options: Options, host: Arc<dyn Host>) -> Result<Arc<Core>, CoreError> {
        let (bench, world) = (Arc::clone(&self.bench), Arc::clone(&self.bench.world));
        let (told, answer) = mpsc::channel();
        world.is_dead.store(false, Ordering::SeqCst);
        let kept = (options.clone(), Arc::clone(&host));
        self.bench.run(Box::pin(async move {
            let _ = told.send(world.open(&options, &host).await);
        }));
        let owner =
            answer.recv().map_err(|_| CoreError::Closed { reason: "it died as it opened".to_owned() })??;
        Ok(Core::run_elsewhere(bench, kept.0, kept.1, owner))
    }

    /// What the server does with the requests to come: a JSON list as in `spec/clients.json`.
    pub fn answers(&self, script: String) {
        let script: Vec<Value> = serde_json::from_str(&script).expect("a script is a list");
        self.bench.world.server().script.extend(script);
    }

    /// Whether requests arrive.
    pub fn network(&self, is_down: bool) {
        self.bench.world.server().is_down = is_down;
    }

    /// Lets time pass; zero lets everything happen that needs none.
    pub fn advance(&self, millis: u64) {
        let (done, waited) = mpsc::channel();
        self.bench.put(Job::Advance(millis, done));
        let _ = waited.recv();
    }

    /// The process dies without a word.
    pub fn kill(&self) {
        let (done, waited) = mpsc::channel();
        self.bench.put(Job::Kill(done));
        let _ = waited.recv();
    }

    /// The process dies when its next request has taken effect, before the answer.
    pub fn kill_at_arrival(&self) {
        self.bench.world.server().kills_at_arrival = true;
    }

    /// How far the server's clock is ahead.
    pub fn server_clock_ahead(&self, millis: i64) {
        self.bench.world.server().ahead_millis = millis;
    }

    /// Somebody sets the machine's clock.
    pub fn clock_jump(&self, millis: i64) {
        self.bench.world.jumped.fetch_add(millis, Ordering::SeqCst);
    }

    /// What the server saw, as JSON: `sends` with `[key, at]`, `bodies`, `credentials`, and the keys of its `effects`.
    pub fn seen(&self) -> String {
        let server = self.bench.world.server();
        json!({
            "sends": server.sends, "bodies": server.bodies, "credentials": server.credentials, "effects": server.effects,
        })
        .to_string()
    }
}

impl Runner for Bench {
    fn run(&self, work: Work) {
        self.put(Job::Run(work));
    }
}

impl Bench {
    fn put(&self, job: Job) {
        // The thread lives as long as the laboratory.
        let _ = self.jobs.lock().unwrap_or_else(PoisonError::into_inner).send(job);
    }
}

impl World {
    fn server(&self) -> std::sync::MutexGuard<'_, Server> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Milliseconds since the beginning, whatever anybody's clock says.
    fn elapsed(&self) -> i64 {
        let began = *self.began.lock().unwrap_or_else(PoisonError::into_inner);
        let of_this_life = began.map_or(0, |began| began.elapsed().as_millis() as i64);
        self.base.load(Ordering::SeqCst) + of_this_life
    }

    /// Does one job after the other. Between jobs nothing runs, and no time passes.
    fn work(self: Arc<Self>, todo: &mpsc::Receiver<Job>) {
        let mut runtime = self.life();
        for job in todo {
            let mut left = 0;
            let done = match job {
                Job::Run(work) => {
                    runtime.block_on(self.until_dead(async {
                        work.await;
                        self.settle().await;
                    }));
                    None
                }
                Job::Advance(millis, done) => {
                    let ends = runtime.block_on(async { self.elapsed() }) + millis as i64;
                    if !self.is_dead.load(Ordering::SeqCst) {
                        runtime.block_on(self.until_dead(async {
                            self.settle().await;
                            tokio::time::sleep(Duration::from_millis(millis)).await;
                            self.settle().await;
                        }));
                    }
                    left = ends - runtime.block_on(async { self.elapsed() });
                    Some(done)
                }
                Job::Kill(done) => {
                    self.is_dead.store(true, Ordering::SeqCst);
                    Some(done)
                }
            };
            if self.is_dead.load(Ordering::SeqCst) {
                let at = runtime.block_on(async { self.elapsed() });
                *self.began.lock().unwrap_or_else(PoisonError::into_inner) = None;
                self.base.store(at + left.max(0), Ordering::SeqCst);
                runtime.shutdown_background();
                runtime = self.life();
            }
            if let Some(done) = done {
                let _ = done.send(());
            }
        }
        // What is left of the application is not called any more: its own runtime may be gone.
        std::mem::forget(runtime);
    }

    /// A life of the process: its tasks end with it.
    fn life(&self) -> Runtime {
        let builder = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = builder.expect("a runtime is built");
        let began = runtime.block_on(async { Instant::now() });
        *self.began.lock().unwrap_or_else(PoisonError::into_inner) = Some(began);
        runtime
    }

    async fn until_dead(&self, work: impl Future<Output = ()>) {
        tokio::select! {
            biased;
            () = self.died.notified() => {}
            () = work => {}
        }
    }

    /// Polls everything until nothing is left that needs no time.
    async fn settle(&self) {
        let mut quiet = 0;
        while quiet < QUIET_POLLS {
            quiet += 1;
            if self.asking.load(Ordering::SeqCst) > 0 {
                quiet = 0;
                std::thread::sleep(Duration::from_micros(50));
            }
            tokio::task::yield_now().await;
        }
    }

    async fn open(self: Arc<Self>, options: &Options, host: &Arc<dyn Host>) -> Result<Owner, CoreError> {
        let counted = Arc::new(Counted(Arc::clone(&self)));
        let bridge = Arc::new(Bridge::new(Arc::clone(host), options.needs_credentials, counted));
        let settings = Settings {
            clock: Arc::new(LabClock(Arc::clone(&self))),
            // Every random number is one half.
            entropy: Entropy::from_fn(|| 1 << 52),
            transport: Arc::new(Wire(Arc::clone(&self))),
            ..owner::settings(options, &bridge)?
        };
        self.server().key_header = key_header(&settings.profile).to_owned();
        let store: Arc<dyn OutboxStore> = Arc::clone(&self.store) as _;
        let outbox = Outbox::with_store(store, settings).await?;
        Ok(Owner::at_work(outbox))
    }
}

/// Counts questions to the host: no time passes while it thinks.
struct Counted(Arc<World>);

impl Blocking for Counted {
    fn begin(&self) {
        self.0.asking.fetch_add(1, Ordering::SeqCst);
    }

    fn end(&self) {
        self.0.asking.fetch_sub(1, Ordering::SeqCst);
    }
}

struct LabClock(Arc<World>);

impl Clock for LabClock {
    fn read(&self) -> Reading {
        let elapsed = self.0.elapsed();
        let wall = START_MILLIS + elapsed + self.0.jumped.load(Ordering::SeqCst);
        Reading { wall: Timestamp::from_millis(wall), ticks: Duration::from_millis(elapsed as u64) }
    }

    fn boot(&self) -> u64 {
        1
    }
}

struct Wire(Arc<World>);

impl Transport for Wire {
    fn send(&self, request: Outgoing) -> Sending<'_> {
        let answer = self.0.arrive(&request);
        Box::pin(async move {
            match answer {
                Some(sent) => sent,
                None => std::future::pending().await,
            }
        })
    }
}

impl World {
    /// A request arrives; `None`: the process dies before it is answered.
    fn arrive(&self, request: &Outgoing) -> Option<Sent> {
        let at = self.elapsed();
        let jumped = self.jumped.load(Ordering::SeqCst);
        let mut server = self.server();
        if server.is_down {
            return Some(Sent::NotSent("the server cannot be reached".to_owned()));
        }
        let date = http_date(START_MILLIS + at + jumped + server.ahead_millis);
        let answer = |status: u16, headers: Vec<(String, String)>, body: String| {
            let headers = headers.into_iter().chain([("date".to_owned(), date.clone())]).collect();
            Sent::Answered(Answer { status, headers, body: body.into_bytes() })
        };
        if request.target.path.starts_with("/.well-known/") {
            let scripted = server.script.pop_front_if(|next| next["status"].is_u64());
            let status = scripted.and_then(|answer| answer["status"].as_u64()).unwrap_or(404);
            return Some(answer(status as u16, Vec::new(), String::new()));
        }
        let header = |name: &str| {
            let found = request.headers.iter().find(|(given, _)| given.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.clone())
        };
        let key = header(&server.key_header).unwrap_or_default();
        server.sends.push((key.clone(), at));
        server.bodies.push(String::from_utf8_lossy(&request.body).into_owned());
        server.credentials.push(header("authorization"));
        let dies = std::mem::take(&mut server.kills_at_arrival);
        let scripted = if dies { json!("lost") } else { server.script.pop_front().unwrap_or(json!("ok")) };
        if let Some(status) = scripted["status"].as_u64() {
            let lines = scripted["headers"].as_object().into_iter().flatten();
            let lines =
                lines.map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned()));
            let body = scripted["body"].as_str().unwrap_or_default().to_owned();
            return Some(answer(status as u16, lines.collect(), body));
        }
        let mut lines = vec![("semel-guarantee".to_owned(), "fenced".to_owned())];
        match server.keys.insert(key.clone()) {
            true => server.effects.push(key),
            false => lines.push(("idempotency-replayed".to_owned(), "true".to_owned())),
        }
        if dies {
            self.is_dead.store(true, Ordering::SeqCst);
            self.died.notify_one();
            return None;
        }
        match scripted == json!("lost") {
            true => Some(Sent::Broken("the connection broke".to_owned())),
            false => Some(answer(201, lines, String::new())),
        }
    }
}

/// A time as HTTP writes it.
fn http_date(millis: i64) -> String {
    let text = Timestamp::from_millis(millis).to_string();
    let (date, time) = text.split_once('T').expect("times have a T");
    let parts: Vec<usize> = date.split('-').filter_map(|part| part.parse().ok()).collect();
    let months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    format!("Thu, {:02} {} {} {} GMT", parts[2], months[parts[1] - 1], parts[0], &time[..8])
}

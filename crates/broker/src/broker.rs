//! The broker: accepts messages once, tells senders what became of them, and lets readers read. Owns the order of an accept.
//! HTTP is in front of it, the store behind it.

mod across;
mod line;
mod manage;
mod metrics;
mod read;
pub(crate) mod reader;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_contract::planted::{self, Bug};
use semel_contract::profile::{Charge, Generator};
use semel_contract::time::{Timestamp, millis_of};
use semel_delivery::relay::store::sql::{Database, StoreError};
use semel_delivery::{Entropy, Operator};
use semel_http::BodyRoom;
use semel_store::clock::{Clock, SystemClock};
use semel_store::limits::{Admission, Fallback, Limiter, MemoryLimiter, Verdict};
use semel_store::postgres::base::SESSIONS;
use sha2::{Digest, Sha256};
use tokio::sync::Notify;

pub use self::line::{LineName, ReadError};
pub use self::manage::{SealAnswer, WebhookBody};
pub use self::read::{Page, ReceiptView};

use crate::consumers::Consumers;
use crate::directory::Directory;
use crate::door::{Door, Tell};
use crate::event::Event;
use crate::identity::Caller;
use crate::limits::TOGETHER_MAX;
use crate::live::Hub;
use crate::message::Draft;
use crate::meters::{Meters, Phase};
use crate::news::News;
use crate::published::{Published, Refusal};
use crate::settings::{BadSetting, Settings};
use crate::store::Store;
use crate::store::accept::{Decided, Job, Terms};
use crate::store::history::Stored;
use crate::wakes::Wakes;

/// How long a mesh's use of its bytes is believed before it is counted again.
const ROOM_FRESH: Duration = Duration::from_secs(2);
/// Ids whose first refusal is remembered for the grace of late destinations.
const GRACE_IDS_MAX: usize = 10_000;
/// How often a line with readers is looked at where one process owns the database, and is told of every commit.
const OWNED_POLL: Duration = Duration::from_secs(5);

/// What a broker is made of.
pub struct Parts {
    /// Where it keeps what it keeps.
    pub db: Arc<dyn Database>,
    /// What counts budgets.
    pub limiter: Arc<dyn Limiter>,
    /// The same, where it has a stand-in: how often that one answered is told.
    pub fallback: Option<Arc<Fallback>>,
    /// Where ids and secrets come from.
    pub entropy: Entropy,
    /// What tells the time where the database is a server's.
    pub clock: Arc<dyn Clock>,
}

impl Parts {
    /// A limiter in memory, and the machine's own randomness and clock.
    pub fn new(db: Arc<dyn Database>) -> Self {
        let limiter = Arc::new(MemoryLimiter::default());
        Self { db, limiter, fallback: None, entropy: Entropy::system(), clock: Arc::new(SystemClock) }
    }

    /// With a limiter that has a stand-in.
    #[must_use]
    pub fn limited_by(self, limiter: Fallback) -> Self {
        let limiter = Arc::new(limiter);
        Self { limiter: Arc::clone(&limiter) as Arc<dyn Limiter>, fallback: Some(limiter), ..self }
    }
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Parts")
    }
}

/// Why a broker could not be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenFailed {
    /// A setting is unsafe.
    Setting(BadSetting),
    /// The database cannot be used.
    Store(StoreError),
}

impl std::fmt::Display for OpenFailed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            OpenFailed::Setting(error) => error.fmt(f),
            OpenFailed::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for OpenFailed {}

/// A broker. Clones are the same one.
#[derive(Clone)]
pub struct Broker(pub(crate) Arc<Inner>, Option<Operator>);

impl std::fmt::Debug for Broker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Broker")
    }
}

pub(crate) struct Inner {
    pub(crate) store: Store,
    pub(crate) directory: Arc<Directory>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) meters: Arc<Meters>,
    pub(crate) entropy: Entropy,
    /// What tickets are signed with.
    pub(crate) secret: Vec<u8>,
    pub(crate) draining: Arc<News<bool>>,
    /// The streams of each consumer, so that older ones look when one begins.
    pub(crate) consumers: Arc<Consumers>,
    pub(crate) follower: Arc<Followed>,
    /// What other brokers of the same database are told of.
    pub(crate) wakes: Arc<Wakes>,
    limiter: Arc<dyn Limiter>,
    fallback: Option<Arc<Fallback>>,
    clock: Arc<dyn Clock>,
    settings: Mutex<Arc<Settings>>,
    /// Room for what callers send, at either address.
    bodies: Mutex<Arc<BodyRoom>>,
    door: Door,
    rooms: Mutex<HashMap<String, Room>>,
    late: Mutex<HashMap<(String, String), i64>>,
}

/// Lines that have new messages for those who follow the commits.
#[derive(Default)]
pub(crate) struct Followed {
    pub(crate) lines: Mutex<std::collections::BTreeSet<i64>>,
    pub(crate) came: Notify,
    pub(crate) deliver: Notify,
}

/// A message that waits for its transaction.
struct Waits {
    id: String,
    first_sent: Option<Timestamp>,
}

/// What a mesh keeps, as far as it was counted.
#[derive(Clone, Copy)]
struct Room {
    used: i64,
    most: Option<i64>,
    counted: tokio::time::Instant,
}

impl Broker {
    /// Opens a broker on a database.
    ///
    /// # Errors
    /// A setting is unsafe, or the database cannot be used.
    pub async fn open(parts: Parts, settings: Settings) -> Result<Self, OpenFailed> {
        settings.check().map_err(OpenFailed::Setting)?;
        let Parts { db, limiter, fallback, entropy, clock } = parts;
        let store = Store { db, operator: None };
        let fresh = [entropy.bits().to_be_bytes(), entropy.bits().to_be_bytes()].concat();
        let secret = store.secret("tickets", &fresh).await.map_err(OpenFailed::Store)?;
        let directory = Arc::new(Directory::open(store.clone()).await.map_err(OpenFailed::Store)?);
        let poll = if store.db.is_owned() { OWNED_POLL } else { settings.poll };
        let hub = Arc::new(Hub::new(store.clone(), Arc::clone(&directory), poll));
        let (meters, follower) = (Arc::new(Meters::default()), Arc::new(Followed::default()));
        let wakes = Arc::new(Wakes::new(&entropy));
        let tell = teller(&hub, &follower, &wakes, &store, &directory);
        let inner = Inner {
            door: Door::new(store.clone(), tell),
            store,
            directory,
            hub,
            meters,
            entropy,
            secret,
            draining: News::new(false),
            consumers: Arc::default(),
            follower,
            wakes,
            limiter,
            fallback,
            clock,
            bodies: Mutex::new(Arc::new(BodyRoom::new(settings.bodies))),
            settings: Mutex::new(Arc::new(settings)),
            rooms: Mutex::default(),
            late: Mutex::default(),
        };
        Ok(Self(Arc::new(inner), None))
    }

    /// How it behaves now.
    pub fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.0.settings.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Behaves otherwise from now on.
    ///
    /// # Errors
    /// A setting is unsafe: everything stays as it was.
    pub fn set_settings(&self, settings: Settings) -> Result<(), BadSetting> {
        settings.check()?;
        if settings.bodies != self.settings().bodies {
            let room = Arc::new(BodyRoom::new(settings.bodies));
            *self.0.bodies.lock().unwrap_or_else(PoisonError::into_inner) = room;
        }
        *self.0.settings.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
        Ok(())
    }

    /// Room for what callers send.
    pub(crate) fn bodies(&self) -> Arc<BodyRoom> {
        Arc::clone(&self.0.bodies.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes no more messages, and ends every stream at a cursor that can be resumed.
    pub fn drain(&self) {
        self.0.draining.update(|_| true);
    }

    /// Whether it can serve.
    ///
    /// # Errors
    /// The database cannot be used, or the broker is about to stop.
    pub async fn ready(&self) -> Result<(), StoreError> {
        if self.0.draining.get() {
            return Err(StoreError::Failed("the broker is about to stop".to_owned()));
        }
        self.0.store.db.ready().await?;
        self.0.store.number("epoch").await.map(drop)
    }

    /// How many connections the brokers on this server's database have, this one's among them, and from how many addresses.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn sessions(&self) -> Result<(i64, i64), StoreError> {
        let rows = self.0.store.read(SESSIONS, vec![]).await?;
        rows.first().map_or(Ok((0, 0)), |row| Ok((row.int(0)?, row.int(1)?)))
    }

    /// Publishes one message of a member.
    ///
    /// After `Accepted` or `Duplicate`: it is kept, once, for everybody it is for. After anything else nothing of it is, but
    /// where the store cannot say whether it did: then the same message sent again is told.
    pub async fn publish(&self, caller: &Caller, draft: Draft) -> Published {
        let mut published = self.publish_all(caller, vec![Ok(draft)]).await;
        published.pop().unwrap_or(Published::Refused(Refusal::Draining))
    }

    /// Publishes several messages of a member, each for itself, numbered in their order. What could not be read keeps its
    /// place.
    pub async fn publish_all(&self, caller: &Caller, drafts: Vec<Result<Draft, Refusal>>) -> Vec<Published> {
        let settings = self.settings();
        let terms = Terms {
            epoch: self.0.directory.epoch(),
            retention: millis_of(settings.dedupe_retention),
            is_patient: false,
        };
        let mut answers: Vec<Result<Waits, (Phase, Published)>> = Vec::with_capacity(drafts.len());
        let mut jobs = Vec::new();
        for draft in drafts {
            let admitted = match draft {
                Ok(draft) => self.admit(caller, draft, &settings).await,
                Err(why) => Err((Phase::B1, Published::Refused(why))),
            };
            answers.push(admitted.map(|job| {
                let waits = Waits {
                    id: job.draft.client_message_id.as_str().to_owned(),
                    first_sent: job.draft.first_sent,
                };
                jobs.push(job);
                waits
            }));
        }
        let mut accepted = Vec::with_capacity(jobs.len());
        while !jobs.is_empty() {
            let rest = jobs.split_off(jobs.len().min(TOGETHER_MAX));
            accepted.extend(self.0.door.submit(std::mem::replace(&mut jobs, rest), terms).await);
        }
        let (mut accepted, mut published) = (accepted.into_iter(), Vec::with_capacity(answers.len()));
        for answer in answers {
            let (phase, answer) = match answer {
                Ok(Waits { id, first_sent }) => {
                    let answer = accepted.next().unwrap_or(Published::Refused(Refusal::Draining));
                    self.after_transaction(caller, &id, first_sent, answer, &settings).await
                }
                Err(answer) => answer,
            };
            self.0.meters.count(phase, &answer);
            published.push(answer);
        }
        published
    }

    /// B0 and B1: what is known is told, without any limiter; what is not passes the limiters, the cheap checks first.
    async fn admit(
        &self,
        caller: &Caller,
        draft: Draft,
        settings: &Settings,
    ) -> Result<Job, (Phase, Published)> {
        let refuse = |why| Err((Phase::B1, Published::Refused(why)));
        if self.0.draining.get() {
            return refuse(Refusal::Draining);
        }
        let id = draft.client_message_id.as_str();
        let now = self.time().await;
        if planted::is(Bug::BrokerLimiterBeforeB0) {
            self.charge(caller, id, settings, now)
                .await
                .map_err(|why| (Phase::B1, Published::Refused(why)))?;
        }
        match self.0.store.look_up(&caller.mesh, id).await {
            Ok(Some(known)) => return Err((Phase::B0, known.judge(&caller.member, &draft.fingerprint))),
            Ok(None) => {}
            Err(error) => return refuse(Refusal::Unavailable(error.to_string())),
        }
        let bytes = draft.payload.as_bytes().len();
        if bytes > settings.inline_bytes {
            return refuse(Refusal::PayloadTooLarge { limit: settings.inline_bytes });
        }
        if let Err(why) = self.check_room(&caller.mesh, bytes as i64).await {
            return refuse(why);
        }
        if !planted::is(Bug::BrokerLimiterBeforeB0)
            && let Err(why) = self.charge(caller, id, settings, now).await
        {
            return refuse(why);
        }
        let broker_message_id = Generator::Ulid.mint(self.0.entropy.bits(), now).as_str().to_owned();
        Ok(Job { caller: caller.clone(), draft, broker_message_id })
    }

    /// Spends the member's unknown ids and the mesh's budget. An id costs one unit in a window, however often it is tried.
    async fn charge(
        &self,
        caller: &Caller,
        id: &str,
        settings: &Settings,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        self.charge_request(caller, settings, now).await?;
        let Some(rate) = settings.budget else { return Ok(()) };
        let admission = Admission {
            principal: &subject(&["mesh", &caller.mesh]),
            id: id_hash(&caller.mesh, id),
            rate,
            charge: Charge::IdWindow,
            attempts_per_id: settings.attempts_per_id,
        };
        match self.0.limiter.admit(admission, now).await {
            Ok(Verdict::Denied { retry_after, limit, .. }) => {
                Err(Refusal::BudgetSpent { limit, retry_after })
            }
            // A limiter that cannot count lets through: what it protects is not the promise.
            Ok(Verdict::Allowed { .. }) | Err(_) => Ok(()),
        }
    }

    /// Spends one of the member's unknown ids.
    async fn charge_request(
        &self,
        caller: &Caller,
        settings: &Settings,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let Some(rate) = settings.request_limit else { return Ok(()) };
        let subject = subject(&["request", &caller.mesh, &caller.member]);
        match self.0.limiter.request(&subject, rate, now).await {
            Ok(Verdict::Denied { retry_after, .. }) => Err(Refusal::RequestLimited { retry_after }),
            Ok(Verdict::Allowed { .. }) | Err(_) => Ok(()),
        }
    }

    /// Refuses what would take a mesh above its bytes. Counted every few seconds, and by this broker in between.
    async fn check_room(&self, mesh: &str, bytes: i64) -> Result<(), Refusal> {
        let known = self.rooms().get(mesh).copied().filter(|room| room.counted.elapsed() < ROOM_FRESH);
        let room = match known {
            Some(room) => room,
            None => {
                let counted = self.0.store.room(mesh).await;
                let (used, most) = counted.map_err(|error| Refusal::Unavailable(error.to_string()))?;
                Room { used, most, counted: tokio::time::Instant::now() }
            }
        };
        match room.most {
            Some(most) if room.used.saturating_add(bytes) > most => Err(Refusal::MeshFull { limit: most }),
            Some(_) | None => {
                let mut rooms = self.rooms();
                rooms.retain(|_, room| room.counted.elapsed() < ROOM_FRESH);
                rooms.insert(mesh.to_owned(), Room { used: room.used + bytes, ..room });
                Ok(())
            }
        }
    }

    fn rooms(&self) -> std::sync::MutexGuard<'_, HashMap<String, Room>> {
        self.0.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts what the transaction refused, and gives late destinations their grace.
    async fn after_transaction(
        &self,
        caller: &Caller,
        id: &str,
        first_sent: Option<Timestamp>,
        answer: Published,
        settings: &Settings,
    ) -> (Phase, Published) {
        match &answer {
            Published::Refused(Refusal::DestinationUnknown | Refusal::NotSubscribed) => {}
            Published::Accepted(_) => return (Phase::B3, answer),
            Published::Duplicate(_) | Published::Reused { .. } | Published::Sealed => {
                return (Phase::Claim, answer);
            }
            Published::Refused(_) => return (Phase::B3, answer),
        }
        if settings.budget.is_some() {
            self.0.meters.count_charged_then_refused();
        }
        let answer = match self.is_within_grace(caller, id, first_sent, settings).await {
            true => Published::Refused(Refusal::DestinationLate),
            false => answer,
        };
        (Phase::B2, answer)
    }

    /// Whether a destination may still come. Counted from the first attempt, as the sender says or as this broker saw it.
    async fn is_within_grace(
        &self,
        caller: &Caller,
        id: &str,
        first_sent: Option<Timestamp>,
        settings: &Settings,
    ) -> bool {
        let grace = millis_of(settings.b2_retry);
        if grace == 0 {
            return false;
        }
        let now = self.time().await.millis();
        let mut late = self.0.late.lock().unwrap_or_else(PoisonError::into_inner);
        if late.len() >= GRACE_IDS_MAX {
            late.retain(|_, first| now - *first < grace);
        }
        let key = (caller.mesh.clone(), id.to_owned());
        let has_room = late.len() < GRACE_IDS_MAX || late.contains_key(&key);
        let seen = if has_room { *late.entry(key).or_insert(now) } else { now - grace };
        let first = first_sent.map_or(seen, |first| first.millis().min(now));
        now - first < grace
    }

    /// The time. A database of this process tells its own; asking a server would cost a round trip.
    pub(crate) async fn time(&self) -> Timestamp {
        if self.0.store.db.is_owned()
            && let Ok(now) = self.0.store.now().await
        {
            return Timestamp::from_millis(now);
        }
        self.0.clock.read().wall
    }
}

/// Who is told of commits, after them.
fn teller(
    hub: &Arc<Hub>,
    follower: &Arc<Followed>,
    wakes: &Arc<Wakes>,
    store: &Store,
    directory: &Arc<Directory>,
) -> Tell {
    let (hub, follower, wakes) = (Arc::clone(hub), Arc::clone(follower), Arc::clone(wakes));
    let (store, directory) = (store.clone(), Arc::clone(directory));
    Arc::new(move |decided: &[Decided], jobs: &[Arc<Job>]| {
        let mut lines: Vec<i64> = decided.iter().filter_map(|decided| decided.line).collect();
        lines.sort_unstable();
        lines.dedup();
        if !lines.is_empty() {
            lines.iter().for_each(|line| hub.wake(*line));
            if !store.db.is_owned() {
                wakes.announce(&lines);
            }
            follower.lines.lock().unwrap_or_else(PoisonError::into_inner).extend(lines);
            follower.came.notify_one();
            follower.deliver.notify_one();
        }
        if planted::is(Bug::BrokerPushBeforeCommit) {
            jobs.iter().for_each(|job| push_early(&hub, &store, &directory, job));
        }
    })
}

/// What a broker would do that pushes before it commits.
fn push_early(hub: &Arc<Hub>, store: &Store, directory: &Arc<Directory>, job: &Arc<Job>) {
    let (hub, store, job, epoch) = (Arc::clone(hub), store.clone(), Arc::clone(job), directory.epoch());
    tokio::spawn(async move {
        let to = &job.draft.destination;
        let Ok(Some(line)) = store.line(&job.caller.mesh, to.kind(), to.name()).await else { return };
        let stored = Stored {
            line: line.line,
            number: line.next_number,
            broker_message_id: job.broker_message_id.clone(),
            client_message_id: job.draft.client_message_id.as_str().to_owned(),
            sender: job.caller.member.clone(),
            body: job.draft.payload.as_bytes().to_vec(),
            is_json: true,
            content_type: None,
            client_tx_id: None,
            supersedes: None,
            created_at: 0,
            is_moderated: false,
        };
        hub.push_unread(line.line, Event::of(&line.wire_name(), epoch, &stored));
    });
}

/// Bytes that stand for a budget, each part with its length before it.
fn subject(parts: &[&str]) -> Vec<u8> {
    let mut bytes = b"broker".to_vec();
    for part in parts {
        bytes.extend((part.len() as u64).to_be_bytes());
        bytes.extend(part.as_bytes());
    }
    bytes
}

fn id_hash(mesh: &str, id: &str) -> [u8; 16] {
    let digest: [u8; 32] = Sha256::digest(subject(&[mesh, id])).into();
    *digest.first_chunk().expect("a digest has 32 bytes")
}

//! Those who send requests. They repeat themselves, give up waiting, go away, and ask again until they have a last word.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum_core::body::Body;
use bytes::Bytes;
use futures_util::FutureExt;
use http::Request;
use http_body_util::BodyExt;
use semel_contract::age::FIRST_SENT;
use semel_contract::time::{Timestamp, millis_of};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tower::ServiceExt;

use crate::body_faults;
use crate::book::{Use, effect_name};
use crate::coverage::Met;
use crate::edition::{HOSTS, USER};
use crate::faults::Fault;
use crate::fleet::{Fleet, Node};
use crate::log::SlotNumber;
use crate::operator::Operator;
use crate::plan::Operated;
use crate::routes::{Endpoint, RETRY_WINDOW};
use crate::seen::{Seen, Word};
use crate::upstream::OnPurpose;
use crate::world::{Invariant, Owner, Slot, World};

/// How long a client asks once the faults have stopped, before it is an error that it has no last word: longer than
/// settlements are tried in the background.
const PATIENCE_MILLIS: u64 = 400_000;
/// The same where nobody resolves what is unknown.
const UNOPERATED_PATIENCE_MILLIS: u64 = 30_000;

/// One logical request: something that somebody wants to happen once.
#[derive(Clone, Debug)]
pub struct Intent {
    /// The scope and key that it is sent under.
    pub slot: SlotNumber,
    /// Which use of the key it is.
    pub generation: u32,
    /// What its body asks for.
    pub body: String,
    /// What its path names.
    pub item: &'static str,
    /// When it was first sent, as its sender's clock says.
    pub first_sent: Timestamp,
    /// How long ago it was meant, where that is guarded.
    pub age: Duration,
    /// Whether its handler takes two seconds, whatever happens.
    pub takes_its_time: bool,
    /// How its body comes.
    pub upload: Upload,
}

/// How a request's body comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upload {
    /// In one piece, unless a fault strikes.
    Usual,
    /// Its second half comes after so long.
    Slow(Duration),
    /// Its second half never comes.
    Stalls,
}

impl Intent {
    /// What its effect is called: by its body, and by its path where that is not the usual one.
    pub fn name(&self) -> String {
        effect_name(&self.body, self.item)
    }
}

/// What a client hears of one send.
#[derive(Clone, Debug)]
pub enum Heard {
    /// An answer.
    Answer(Seen),
    /// Nothing came of it: refused, reset, lost or too late.
    Nothing(&'static str),
}

/// All clients, and what they need.
#[derive(Debug)]
pub struct Clients {
    pub(crate) world: Arc<World>,
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) operator: Arc<Operator>,
    next_send: AtomicU64,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Clients {
    /// Clients of this fleet.
    pub fn new(world: &Arc<World>, fleet: &Arc<Fleet>, operator: &Arc<Operator>) -> Self {
        Self {
            world: Arc::clone(world),
            fleet: Arc::clone(fleet),
            operator: Arc::clone(operator),
            next_send: AtomicU64::new(1),
            tasks: Mutex::default(),
        }
    }

    /// Does something on the side; the phase does not end before it has.
    pub fn on_the_side(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.lock().expect("nothing that holds this lock panics").push(tokio::spawn(task));
    }

    /// Waits until everything on the side is done.
    pub async fn done(&self) {
        loop {
            let tasks = std::mem::take(&mut *self.tasks.lock().expect("nothing that holds this lock panics"));
            if tasks.is_empty() {
                return;
            }
            for task in tasks {
                if let Err(error) = task.await {
                    self.world.fail(Invariant::I15, None, format!("a client's task ended: {error}"));
                }
            }
        }
    }

    /// Sends a logical request until there is a last word about it.
    pub async fn pursue(self: Arc<Self>, intent: Intent) {
        let mut quiet_since = None;
        loop {
            self.repeat_at_once(&intent);
            let heard = self.send(&intent, intent.slot).await;
            let word = match &heard {
                Heard::Answer(seen) => seen.word(self.endpoint(&intent)),
                Heard::Nothing(_) => Word::Again { unknown: false },
            };
            let pause = match word {
                Word::Last(last) => return self.finish(&intent, last),
                Word::Again { unknown } => {
                    if self.world.is_quiet() {
                        let since = *quiet_since.get_or_insert(self.world.now());
                        if self.world.now() - since > self.patience(unknown) {
                            return self.give_up(&intent, unknown, &heard);
                        }
                    }
                    self.world.rng(|rng| if unknown { rng.millis(500, 9000) } else { rng.millis(300, 5000) })
                }
            };
            sleep(pause).await;
        }
    }

    /// How long a client goes on asking once the faults have stopped.
    fn patience(&self, unknown: bool) -> u64 {
        match (unknown, self.world.plan.operated) {
            (true, Operated::No) => UNOPERATED_PATIENCE_MILLIS,
            (true, Operated::Yes) | (false, _) => PATIENCE_MILLIS,
        }
    }

    fn endpoint(&self, intent: &Intent) -> Endpoint {
        self.world.slot_of(intent.slot).endpoint
    }

    fn finish(&self, intent: &Intent, word: &'static str) {
        self.world.count(Met::Word, word);
        self.world.note(Some(intent.slot), format!("the last word about {} is {word}", intent.name()));
        self.world.check_last_word(intent, word);
    }

    fn give_up(&self, intent: &Intent, unknown: bool, heard: &Heard) {
        if unknown {
            return self.finish(intent, "unknown");
        }
        let last = match heard {
            Heard::Answer(seen) => seen.summary(),
            Heard::Nothing(why) => (*why).to_owned(),
        };
        let why = format!("{} has no last word long after the faults stopped, only {last}", intent.name());
        self.world.fail(Invariant::I15, Some(intent.slot), why);
    }

    /// Sometimes the same is sent twice at once, or under a new credential, or its owner cancels it.
    fn repeat_at_once(self: &Arc<Self>, intent: &Intent) {
        let world = &self.world;
        if world.strikes(Fault::Duplicate) {
            self.send_on_the_side(intent, intent.slot);
        }
        if world.plan.is_hashed() && world.strikes(Fault::Rotated) {
            let Slot { person, host, endpoint, key, .. } = world.slot_of(intent.slot);
            let rotated = world.slot(Owner { person, rotation: 1, host }, endpoint, key.as_str());
            self.send_on_the_side(intent, rotated);
        }
        // Once the record may have expired, cancelling its key says nothing about what it was used for.
        let is_fresh = world.clock.true_time().millis_since(intent.first_sent) < millis_of(RETRY_WINDOW);
        if is_fresh && world.strikes(Fault::Sealed) {
            let (clients, used) = (Arc::clone(self), (intent.slot, intent.generation));
            self.on_the_side(async move {
                sleep(clients.world.rng(|rng| rng.millis(0, 3000))).await;
                clients.seal(used).await;
            });
        }
    }

    fn send_on_the_side(self: &Arc<Self>, intent: &Intent, slot: SlotNumber) {
        let (clients, intent) = (Arc::clone(self), intent.clone());
        self.on_the_side(async move {
            let soon = clients.world.rng(|rng| rng.chance(700));
            sleep(clients.world.rng(|rng| if soon { rng.millis(0, 60) } else { rng.millis(60, 9000) })).await;
            clients.send(&intent, slot).await;
        });
    }

    /// Sends once, to some replica, and checks what comes back.
    pub async fn send(&self, intent: &Intent, slot: SlotNumber) -> Heard {
        let node = self.fleet.any();
        self.send_to(&node, intent, slot).await
    }

    /// Sends once, to this replica.
    pub async fn send_to(&self, node: &Node, intent: &Intent, slot: SlotNumber) -> Heard {
        let world = &self.world;
        let send = self.next_send.fetch_add(1, Ordering::Relaxed);
        world.note(Some(slot), format!("send {send} of {} to {}", intent.name(), node.life.name));
        world.ledger().asks(send, &intent.name());
        if node.life.is_dead() {
            return Heard::Nothing("the node is down");
        }
        let since = world.now();
        let patience = match (world.is_quiet(), world.strikes(Fault::Disconnect)) {
            (_, true) => world.rng(|rng| rng.millis(0, 400)),
            (true, false) => Duration::from_secs(40),
            (false, false) if world.rng(|rng| rng.chance(200)) => Duration::from_secs(40),
            (false, false) => world.rng(|rng| rng.millis(300, 12_000)),
        };
        let request = self.request(intent, slot, send);
        let heard = tokio::select! {
            biased;
            () = node.life.died() => Heard::Nothing("the node died"),
            heard = self.hear(node, request) => heard,
            () = sleep(patience) => Heard::Nothing("out of patience"),
        };
        match &heard {
            Heard::Answer(_) if world.strikes(Fault::AnswerLost) => {
                world.note(Some(slot), format!("the answer of send {send} is lost"));
                return Heard::Nothing("the answer was lost");
            }
            Heard::Answer(seen) => {
                world.note(Some(slot), format!("send {send} hears {}", seen.summary()));
                world.check_seen(intent, slot, send, since, seen);
            }
            Heard::Nothing(why) => world.note(Some(slot), format!("send {send} hears nothing: {why}")),
        }
        heard
    }

    async fn hear(&self, node: &Node, request: Request<Body>) -> Heard {
        let called = AssertUnwindSafe(node.service.clone().oneshot(request)).catch_unwind().await;
        node.life.awake().await;
        let response = match called {
            Ok(Ok(response)) => response,
            Ok(Err(_)) => return Heard::Nothing("the service failed"),
            Err(panic) if panic.is::<OnPurpose>() => return Heard::Nothing("the handler panicked"),
            Err(panic) => {
                let why = panic.downcast_ref::<String>().cloned();
                let why = why.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                self.world.fail(Invariant::I15, None, format!("the gate panicked: {why:?}"));
                return Heard::Nothing("the gate panicked");
            }
        };
        let (parts, body) = response.into_parts();
        match body.collect().await {
            Ok(body) => Heard::Answer(Seen::new(&parts, body.to_bytes())),
            Err(_) => Heard::Nothing("the body broke off"),
        }
    }

    fn request(&self, intent: &Intent, slot: SlotNumber, send: u64) -> Request<Body> {
        let is_anonymous = self.world.strikes(Fault::Anonymous);
        let slot = self.world.slot_of(slot);
        let at = intent.first_sent.to_string();
        let mut body = json!({"effect": intent.body, "use": intent.generation, "at": at});
        if slot.endpoint == Endpoint::Guarded {
            body["generatedAt"] = json!(intent.first_sent.minus(intent.age).to_string());
        }
        if intent.takes_its_time {
            body["slow"] = json!(true);
        }
        let mut request = Request::post(format!("/{}/{}", slot.endpoint.name(), intent.item))
            .header("host", self.spelled(slot.host))
            .header("idempotency-key", slot.key.as_str())
            .header("content-type", "application/json")
            .header("x-request-id", send.to_string());
        if !is_anonymous {
            // Whoever identifies callers finds what it reads, in each configuration.
            request = request.header(USER, slot.user()).header("authorization", &slot.credential);
        }
        if slot.endpoint == Endpoint::Aged {
            request = request.header(FIRST_SENT, intent.first_sent.to_string());
        }
        let words = Bytes::from(body.to_string());
        let body = match intent.upload {
            Upload::Slow(after) => body_faults::slow_upload(words, after),
            Upload::Stalls => body_faults::stalled_upload(words),
            Upload::Usual if self.world.strikes(Fault::StalledUpload) => {
                body_faults::upload(&self.world, words)
            }
            Upload::Usual => Body::from(words),
        };
        request.body(body).expect("the simulated headers are headers")
    }

    /// A host's name, in one of the ways in which clients write it.
    fn spelled(&self, host: usize) -> String {
        let name = HOSTS[host];
        match self.world.rng(|rng| rng.below(8)) {
            0 => name.to_ascii_uppercase(),
            1 => format!("{name}:443"),
            2 => format!("{name}."),
            _ => name.to_owned(),
        }
    }

    /// Cancels a key that may not have been used yet, through some replica.
    async fn seal(&self, used: Use) {
        let (world, node) = (&self.world, self.fleet.any());
        let slot = world.slot_of(used.0);
        if node.life.is_dead() {
            return;
        }
        let endpoint = format!("POST%20/{}/usual", slot.endpoint.name());
        let request =
            Request::post(format!("/.well-known/semel/keys/{}/seal?endpoint={endpoint}", slot.key.as_str()))
                .header("host", self.spelled(slot.host))
                .header(USER, slot.user())
                .header("authorization", &slot.credential)
                .body(Body::empty())
                .expect("the simulated headers are headers");
        let heard = tokio::select! {
            biased;
            () = node.life.died() => Heard::Nothing("the node died"),
            heard = self.hear(&node, request) => heard,
            () = sleep(Duration::from_secs(40)) => Heard::Nothing("out of patience"),
        };
        if let Heard::Answer(seen) = heard
            && seen.is_seal()
        {
            world.note(Some(used.0), "its owner hears that the key is sealed");
            world.was_sealed(used);
        }
    }
}

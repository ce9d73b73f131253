//! Those who publish: they repeat themselves until they hear something, sometimes afterwards too, cancel what they no longer want,
//! and sometimes ask for what must be refused. And the owner, who changes who is subscribed.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::broker::mesh::{Change, Fate, MESH, Mesh, NOWHERE, QUIET, Receipt, Sent, member, topic};
use crate::broker::servers::{Servers, Told};
use crate::coverage::Met;
use crate::delivery_faults::DeliveryFault;
use crate::stage::{Invariant, lock};
use crate::way::Ground as _;

/// Where messages go.
const MESSAGES: &str = "/v1/meshes/m/messages";
const SEALED_AT: &str = "endpoint=POST%20/v1/meshes/m/messages";

/// Everybody.
pub(super) struct Senders {
    pub(super) mesh: Arc<Mesh>,
    pub(super) servers: Arc<Servers>,
    next: AtomicU64,
    is_late: Mutex<bool>,
    busy: Mutex<Vec<JoinHandle<()>>>,
}

/// One message on its way.
#[derive(Clone)]
struct Message {
    id: String,
    sender: String,
    to: Value,
    body: String,
}

impl Message {
    fn text(&self, body: &str) -> String {
        json!({"to": self.to, "body": body}).to_string()
    }
}

fn receipt_of(body: &Value) -> Receipt {
    let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
    Receipt {
        message: text("broker_message_id"),
        history: text("history_id"),
        first_seen: text("first_seen_at"),
    }
}

impl Senders {
    pub(super) fn new(mesh: &Arc<Mesh>, servers: &Arc<Servers>) -> Self {
        Self {
            mesh: Arc::clone(mesh),
            servers: Arc::clone(servers),
            next: AtomicU64::new(1),
            is_late: Mutex::default(),
            busy: Mutex::default(),
        }
    }

    /// The long pause has been.
    pub(super) fn begin_late(&self) {
        *lock(&self.is_late) = true;
        self.mesh.sent().values_mut().for_each(|sent| sent.is_old = true);
    }

    fn on_the_side(&self, work: impl Future<Output = ()> + Send + 'static) {
        lock(&self.busy).push(tokio::spawn(work));
    }

    /// Waits until everybody has heard what they waited for.
    pub(super) async fn done(&self) {
        loop {
            let Some(work) = lock(&self.busy).pop() else { return };
            if work.await.is_err_and(|error| error.is_panic()) {
                self.mesh.fail(Invariant::I15, None, "something panicked");
            }
        }
    }

    /// Somebody publishes something.
    pub(super) fn publish(self: &Arc<Self>) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let plan = &self.mesh.plan;
        let (sender, to) = self.mesh.rng(|rng| {
            let sender = member(rng.below(plan.members));
            let to = match rng.below(4) {
                0 => json!({"member": member(rng.below(plan.members))}),
                _ => json!({"topic": topic(rng.below(plan.topics))}),
            };
            (sender, to)
        });
        let is_refused = self.mesh.strikes(DeliveryFault::NotAllowed);
        let to = match is_refused {
            true => json!({"topic": self.mesh.rng(|rng| *rng.pick(&[QUIET, NOWHERE]))}),
            false => to,
        };
        let message = Message { id: format!("message-{number}"), sender, to, body: format!("says {number}") };
        let line = match (message.to["topic"].as_str(), message.to["member"].as_str()) {
            (Some(topic), _) => format!("topic:{topic}"),
            (None, name) => format!("member:{}", name.unwrap_or_default()),
        };
        let sent = Sent {
            sender: message.sender.clone(),
            line,
            body: message.body.clone(),
            fate: Fate::Open,
            begun: self.mesh.steps(),
            told: None,
            is_old: false,
        };
        self.mesh.note(None, format!("{} of {} goes to {}", message.id, sent.sender, sent.line));
        self.mesh.sent().insert(message.id.clone(), sent);
        if self.mesh.strikes(DeliveryFault::Cancelled) {
            self.on_the_side(Arc::clone(self).cancels(message.clone()));
        }
        self.on_the_side(Arc::clone(self).publishes(message));
    }

    async fn publishes(self: Arc<Self>, message: Message) {
        while !self.told(&message).await {
            sleep(self.mesh.rng(|rng| rng.millis(100, 4000))).await;
        }
        let is_in = || matches!(self.mesh.sent()[&message.id].fate, Fate::In(_));
        if is_in() && self.mesh.strikes(DeliveryFault::Altered) {
            self.alters(&message).await;
        }
        while self.mesh.strikes(DeliveryFault::Repeated) {
            sleep(self.mesh.rng(|rng| rng.millis(0, 20_000))).await;
            self.told(&message).await;
        }
    }

    async fn ask(&self, message: &Message, who: &str, body: &str) -> Option<Told> {
        let server = self.servers.any();
        let (text, key) = (message.text(body), Some(message.id.as_str()));
        server.ask((Method::POST, MESSAGES), who, key, &text).await
    }

    /// Publishes once. Says whether its end was heard.
    async fn told(&self, message: &Message) -> bool {
        let Some(told) = self.ask(message, &message.sender, &message.body).await else { return false };
        let Message { id, .. } = message;
        let code = told.body["error"].as_str().unwrap_or_default();
        match (told.status, code) {
            (StatusCode::CREATED, _) => self.is_in(id, &receipt_of(&told.body), "accepted"),
            (StatusCode::OK, _) => self.is_in(id, &receipt_of(&told.body), "duplicate"),
            (StatusCode::CONFLICT, "key_sealed") => self.is_out(id, "sealed"),
            (StatusCode::NOT_FOUND, "destination_unknown") => self.is_out(id, "destination-unknown"),
            (StatusCode::UNPROCESSABLE_ENTITY, "not_subscribed") => return self.is_unsubscribed(message),
            (StatusCode::TOO_MANY_REQUESTS, _) => {
                self.mesh.count(Met::Word, "limited");
                if let Fate::In(_) = self.mesh.sent()[id].fate {
                    self.fail(format!("the retry of {id}, which is in, is refused by the limiter"));
                }
                return false;
            }
            (StatusCode::SERVICE_UNAVAILABLE, _) => return false,
            (status, _) => self.fail(format!("{id} is told {status}: {}", told.body)),
        }
        true
    }

    fn fail(&self, why: String) {
        self.mesh.fail(Invariant::I10, None, why);
    }

    /// Somebody heard that it is in.
    fn is_in(&self, id: &str, receipt: &Receipt, how: &'static str) {
        self.mesh.count(Met::Word, how);
        self.mesh.note(None, format!("{id} is in, {how}: {} as {}", receipt.message, receipt.history));
        let (steps, mut sent) = (self.mesh.steps(), self.mesh.sent());
        let Some(one) = sent.get_mut(id) else { return };
        let before = std::mem::replace(&mut one.fate, Fate::In(receipt.clone()));
        one.told.get_or_insert(steps);
        drop(sent);
        match before {
            Fate::Open => self.mesh.count_checked(),
            Fate::In(first) if first == *receipt => self.mesh.count_checked(),
            Fate::In(first) => self.fail(format!("{id} was told {first:?} and is {how} as {receipt:?}")),
            Fate::Out => self.fail(format!("{id} was out for good and is {how}")),
        }
    }

    /// Somebody heard that it is not in, and that it can never be.
    fn is_out(&self, id: &str, how: &'static str) {
        self.mesh.count(Met::Word, how);
        self.mesh.note(None, format!("{id} is out: {how}"));
        let mut sent = self.mesh.sent();
        let Some(one) = sent.get_mut(id) else { return };
        let before = std::mem::replace(&mut one.fate, Fate::Out);
        let is_surely_out = how == "sealed" || one.line.ends_with(QUIET) || one.line.ends_with(NOWHERE);
        drop(sent);
        if let Fate::In(receipt) = before {
            self.fail(format!("{id} was told {receipt:?} and is out: {how}"));
        }
        if !is_surely_out {
            self.fail(format!("{id} is refused: {how}"));
        }
    }

    /// The sender is not subscribed now. An attempt whose answer was lost may have come before that, so nothing is said for good.
    fn is_unsubscribed(&self, message: &Message) -> bool {
        if message.to["topic"].as_str() == Some(QUIET) {
            self.is_out(&message.id, "not-subscribed");
            return true;
        }
        self.mesh.count(Met::Word, "not-subscribed-now");
        if let Fate::In(_) = self.mesh.sent()[&message.id].fate {
            self.fail(format!("the retry of {}, which is in, is refused", message.id));
        }
        if !self.mesh.plan.has_changes() {
            self.fail(format!("{} is refused though its sender is subscribed", message.id));
        }
        false
    }

    /// Another message under an id that is in, by its sender or by somebody else.
    async fn alters(&self, message: &Message) {
        let is_stranger = self.mesh.rng(|rng| rng.chance(400));
        let who = match is_stranger {
            true => (0..self.mesh.plan.members).map(member).find(|name| *name != message.sender),
            false => Some(message.sender.clone()),
        };
        let who = who.unwrap_or_else(|| message.sender.clone());
        let body = if is_stranger { message.body.as_str() } else { "something else" };
        let Some(told) = self.ask(message, &who, body).await else { return };
        let is_reused = told.body["error"] == "idempotency_key_reused";
        match told.status {
            StatusCode::CONFLICT if is_reused => self.mesh.count(Met::Word, "reused"),
            StatusCode::SERVICE_UNAVAILABLE => return,
            status => {
                let why = format!("{} is taken from {who} for something else: {status}", message.id);
                self.mesh.fail(Invariant::I3, None, why);
            }
        }
        if is_stranger && told.body.get("broker_message_id").is_some() {
            self.mesh.fail(Invariant::I9, None, format!("{} is shown to {who}", message.id));
        }
    }

    /// The sender no longer wants it: from then on it is out, or it is in.
    async fn cancels(self: Arc<Self>, message: Message) {
        sleep(self.mesh.rng(|rng| rng.millis(0, 3000))).await;
        let path = format!("/.well-known/semel/keys/{}/seal?{SEALED_AT}", message.id);
        loop {
            let server = self.servers.any();
            let told = server.ask((Method::POST, &path), &message.sender, None, "").await;
            match told {
                Some(Told { status: StatusCode::OK, body }) if body["sealed"] == true => {
                    return self.is_out(&message.id, "sealed");
                }
                Some(Told { status: StatusCode::OK, body }) => {
                    let text = body["response"]["body"].as_str().unwrap_or_default();
                    let receipt = receipt_of(&serde_json::from_str(text).unwrap_or(Value::Null));
                    return self.is_in(&message.id, &receipt, "duplicate");
                }
                Some(Told { status: StatusCode::SERVICE_UNAVAILABLE, .. }) | None => {}
                Some(Told { status, body }) => {
                    return self.fail(format!("a seal of {} is told {status}: {body}", message.id));
                }
            }
            sleep(self.mesh.rng(|rng| rng.millis(100, 4000))).await;
        }
    }

    /// The owner changes who is subscribed, one after the other.
    pub(super) async fn changes(self: Arc<Self>) {
        loop {
            sleep(self.mesh.rng(|rng| rng.millis(500, 15_000))).await;
            if self.mesh.strikes(DeliveryFault::Subscribed) {
                self.change().await;
            }
        }
    }

    async fn change(&self) {
        let (plan, mesh) = (&self.mesh.plan, &self.mesh);
        let (topic, member) =
            mesh.rng(|rng| (topic(rng.below(plan.topics)), member(rng.below(plan.members))));
        let is_now = |change: &&Change| change.topic == topic && change.member == member;
        let is_on = !mesh.changes().iter().rev().find(is_now).is_none_or(|change| change.is_on);
        let change =
            Change { topic: topic.clone(), member: member.clone(), is_on, asked: mesh.steps(), told: None };
        mesh.note(None, format!("{member} is to be on {topic}: {is_on}"));
        let at = {
            let mut changes = mesh.changes();
            changes.push(change);
            changes.len() - 1
        };
        self.settle(at).await;
    }

    /// Changes that nobody heard of are asked for again.
    pub(super) async fn settle_changes(&self) {
        let count = self.mesh.changes().len();
        for at in 0..count {
            self.settle(at).await;
        }
    }

    /// Whoever still waits to publish may, at the end.
    pub(super) async fn subscribe_everybody(&self) {
        let plan = &self.mesh.plan;
        for topic in (0..plan.topics).map(topic) {
            for member in (0..plan.members).map(member) {
                let is_now = |change: &&Change| change.topic == topic && change.member == member;
                let is_off =
                    self.mesh.changes().iter().rev().find(is_now).is_some_and(|change| !change.is_on);
                if is_off {
                    let (topic, member, asked) = (topic.clone(), member, self.mesh.steps());
                    let at = {
                        let mut changes = self.mesh.changes();
                        changes.push(Change { topic, member, is_on: true, asked, told: None });
                        changes.len() - 1
                    };
                    self.settle(at).await;
                }
            }
        }
    }

    async fn settle(&self, at: usize) {
        let Change { topic, member: name, is_on, told, .. } = self.mesh.changes()[at].clone();
        if told.is_some() {
            return;
        }
        let path = format!("/v1/meshes/{MESH}/topics/{topic}/subscriptions/{name}");
        let method = if is_on { Method::PUT } else { Method::DELETE };
        loop {
            let server = self.servers.any();
            let told = server.ask((method.clone(), &path), &member(0), None, "{}").await;
            if told.is_some_and(|told| told.status.is_success()) {
                self.mesh.note(None, format!("{name} is on {topic} now: {is_on}"));
                let steps = self.mesh.steps();
                self.mesh.changes()[at].told = Some(steps);
                self.mesh.count(Met::Decision, if is_on { "subscribed" } else { "unsubscribed" });
                return;
            }
            sleep(self.mesh.rng(|rng| rng.millis(100, 4000))).await;
        }
    }
}

//! Those who read: each follows its lines by a stream, drops and comes back after the last event it has seen, at whichever broker, and
//! keeps what came in an inbox. A message that comes out of order, twice, unsent, or before it is in the database breaks a promise.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum_core::body::Body;
use futures_util::StreamExt;
use http::{Method, Request, StatusCode};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::broker::mesh::{Fate, MESH, Mesh, token};
use crate::broker::servers::{Server, Servers};
use crate::coverage::Met;
use crate::delivery_faults::DeliveryFault;
use crate::stage::{Invariant, lock};
use crate::way::Ground as _;

/// A silence after which a reader looks elsewhere: longer than two heart-beats.
const SILENCE_MAX: Duration = Duration::from_secs(40);

/// What came by one line.
#[derive(Clone, Debug, Default)]
pub(super) struct Inbox {
    /// Number and message.
    pub(super) came: BTreeMap<i64, String>,
    /// Numbers that were said to be gone: after the first, before the second.
    pub(super) gone: Vec<(i64, i64)>,
    last: i64,
}

/// A reader.
pub(super) struct Reader {
    mesh: Arc<Mesh>,
    servers: Arc<Servers>,
    pub(super) name: String,
    pub(super) member: String,
    /// As members name them: `topic:NAME` or `direct`.
    pub(super) lines: Vec<String>,
    pub(super) inboxes: Mutex<BTreeMap<String, Inbox>>,
    cursor: Mutex<Option<String>>,
    is_asleep: Mutex<bool>,
}

impl Reader {
    pub(super) fn new(
        mesh: &Arc<Mesh>,
        servers: &Arc<Servers>,
        (name, member, lines): (String, String, Vec<String>),
    ) -> Self {
        let inboxes = lines.iter().map(|line| (line.clone(), Inbox::default())).collect();
        Self {
            mesh: Arc::clone(mesh),
            servers: Arc::clone(servers),
            name,
            member,
            lines,
            inboxes: Mutex::new(inboxes),
            cursor: Mutex::default(),
            is_asleep: Mutex::default(),
        }
    }

    /// Reads nothing more until it is woken.
    pub(super) fn set_asleep(&self, is_asleep: bool) {
        *lock(&self.is_asleep) = is_asleep;
        self.mesh.note(None, format!("{} sleeps: {is_asleep}", self.name));
    }

    pub(super) fn is_asleep(&self) -> bool {
        *lock(&self.is_asleep)
    }

    /// Reads for as long as the run goes on.
    pub(super) async fn reads(self: Arc<Self>) {
        loop {
            if !self.is_asleep() {
                let server = self.servers.any();
                self.read_once(&server).await;
            }
            sleep(self.mesh.rng(|rng| rng.millis(50, 1500))).await;
        }
    }

    async fn read_once(&self, server: &Server) {
        let lines: Vec<String> = self.lines.iter().map(|line| format!("line={line}")).collect();
        let mut path = format!("/v1/meshes/{MESH}/events?after=0&{}", lines.join("&"));
        if let ([one], true) = (self.lines.as_slice(), self.mesh.rng(|rng| rng.chance(500))) {
            let place =
                one.strip_prefix("topic:").map_or("direct".to_owned(), |topic| format!("topics/{topic}"));
            path = format!("/v1/meshes/{MESH}/{place}/events?after=0");
        }
        let mut request = Request::builder()
            .method(Method::GET)
            .uri(&path)
            .header("authorization", format!("Bearer {}", token(&self.member)));
        if let Some(cursor) = &*lock(&self.cursor) {
            request = request.header("last-event-id", cursor);
        }
        let Some(response) = server.open(request.body(Body::empty()).expect("a request can be built")).await
        else {
            return;
        };
        match response.status() {
            StatusCode::OK => {}
            StatusCode::SERVICE_UNAVAILABLE => return,
            // Of subscriptions that have all ended nothing more comes.
            StatusCode::FORBIDDEN if self.mesh.plan.has_changes() => return,
            status => return self.fail(format!("{} is told {status} at {path}", self.name)),
        }
        self.mesh.count(Met::Decision, "stream");
        let mut body = response.into_body().into_data_stream();
        let mut text = String::new();
        loop {
            let piece = tokio::select! {
                biased;
                () = server.way.life.died() => return,
                piece = timeout(SILENCE_MAX, body.next()) => piece,
            };
            let Ok(Some(Ok(piece))) = piece else { return };
            text.push_str(&String::from_utf8_lossy(&piece));
            while let Some((frame, rest)) = text.split_once("\n\n") {
                let frame = frame.to_owned();
                text = rest.to_owned();
                self.take(&frame);
            }
            self.acknowledge(server).await;
            if self.mesh.strikes(DeliveryFault::ReaderDrops) || self.is_asleep() {
                return;
            }
        }
    }

    fn fail(&self, why: String) {
        self.mesh.fail(Invariant::I10, None, why);
    }

    /// Takes one frame into the inbox.
    fn take(&self, frame: &str) {
        let field = |name: &str| frame.lines().find_map(|line| line.strip_prefix(name));
        let (Some(id), Some(data)) = (field("id: "), field("data: ")) else { return };
        let data: Value = serde_json::from_str(data).unwrap_or(Value::Null);
        if field("event: ") == Some("gap") {
            self.take_gap(&data);
        } else {
            self.take_message(&data);
        }
        *lock(&self.cursor) = Some(id.to_owned());
    }

    fn take_gap(&self, data: &Value) {
        let number = |name: &str| {
            let text = data[name].as_str().unwrap_or_default();
            let mut parts = text.split('.');
            let first = parts.next();
            parts.next().or(first).and_then(|part| part.parse::<i64>().ok()).unwrap_or(0)
        };
        let (line, from, oldest) =
            (data["line"].as_str().unwrap_or_default(), number("from"), number("oldest"));
        self.mesh.note(None, format!("{} has a gap: {data}", self.name));
        self.mesh.count(Met::Decision, "gap");
        if data["reason"] != "swept" {
            self.fail(format!("{} is told of a gap: {data}", self.name));
        }
        let mut inboxes = lock(&self.inboxes);
        let inbox = inboxes.entry(line.to_owned()).or_default();
        inbox.gone.push((from, oldest));
        inbox.last = inbox.last.max(oldest - 1);
    }

    fn take_message(&self, data: &Value) {
        let text = |name: &str| data[name].as_str().unwrap_or_default();
        let (line, message, id) = (text("line"), text("broker_message_id"), text("client_message_id"));
        let number = text("id").split('.').nth(1).and_then(|part| part.parse::<i64>().ok()).unwrap_or(0);
        self.mesh.note(None, format!("{} reads {id} as {number} of {line}", self.name));
        let last = {
            let mut inboxes = lock(&self.inboxes);
            let inbox = inboxes.entry(line.to_owned()).or_default();
            inbox.came.insert(number, message.to_owned());
            std::mem::replace(&mut inbox.last, number)
        };
        if number <= last {
            self.fail(format!("{} reads {number} of {line} after {last}", self.name));
        }
        let sent = self.mesh.sent().get(id).cloned();
        let Some(sent) = sent else {
            return self.fail(format!("{} reads {id}, which nobody sent", self.name));
        };
        let is_same = sent.sender == text("sender") && data["body"] == json!(sent.body);
        if !is_same {
            self.fail(format!("{} reads {data} and {sent:?} was sent", self.name));
        }
        match &sent.fate {
            Fate::Out => self.fail(format!("{} reads {id}, which is out", self.name)),
            Fate::In(receipt) if receipt.message != message => {
                self.fail(format!("{} reads {id} as {message}, and it is {}", self.name, receipt.message));
            }
            Fate::In(_) | Fate::Open => {}
        }
        let sql = "SELECT 1 FROM message_history WHERE broker_message_id = $1";
        if self.mesh.peek(sql, vec![message.into()]).is_some_and(|rows| rows.is_empty()) {
            self.fail(format!("{} reads {id}, which is not in the database", self.name));
        }
        self.mesh.count_checked();
    }

    /// Says how far it has read, now and then.
    async fn acknowledge(&self, server: &Server) {
        let [line] = self.lines.as_slice() else { return };
        let Some(cursor) = lock(&self.cursor).clone() else { return };
        if !self.mesh.rng(|rng| rng.chance(100)) {
            return;
        }
        let place =
            line.strip_prefix("topic:").map_or("direct".to_owned(), |topic| format!("topics/{topic}"));
        let path = format!("/v1/meshes/{MESH}/{place}/ack");
        let body = json!({"up_to": cursor}).to_string();
        if let Some(told) = server.ask((Method::POST, &path), &self.member, None, &body).await {
            self.mesh
                .count(Met::Decision, if told.status.is_success() { "acknowledged" } else { "ack-refused" });
        }
    }
}

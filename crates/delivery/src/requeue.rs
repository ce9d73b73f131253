//! Requeue: an old message gives way to a new one under a new id. Where an attempt of the old one may have taken effect,
//! its key is sealed at the server first, so that no late arrival can run it beside the new one.

use std::sync::PoisonError;
use std::time::Duration;

use semel_contract::key::is_uuid;
use semel_contract::planted::{self, Bug};
use semel_contract::profile::Generator;
use semel_contract::record::Fence;
use semel_contract::time::millis_of;
use serde_json::Value;

use crate::envelope::{Draft, fingerprint};
use crate::limits::RETENTION_MARGIN_PARTS;
use crate::message::{Answer, Enqueue, Request, Row, Status};
use crate::outbox::{Outbox, OutboxError};
use crate::store::{Judged, LanePlan, LaneRebuilt, Replaced, Successor, Terms};
use crate::transport::{Outgoing, Sent};
use crate::url::{Target, encoded};

/// How long the server may take to seal a key.
const SEAL_TIME_MAX: Duration = Duration::from_secs(10);

/// What the new message sends.
#[derive(Clone, Debug, Default)]
pub enum NewBody {
    /// The same.
    #[default]
    Same,
    /// This instead.
    Patched(Vec<u8>),
}

/// How a message is requeued.
#[derive(Clone, Debug, Default)]
pub struct Requeue {
    /// The new id; without one, a fresh ULID, or a random UUID in the place of a UUID.
    pub new_client_id: Option<String>,
    /// What it sends.
    pub body: NewBody,
    /// Go on even where the old one may have been delivered.
    pub force: bool,
}

/// What became of a requeue.
#[derive(Clone, Debug)]
pub struct Requeued {
    /// The old message, aborted.
    pub old: Row,
    /// The new one.
    pub new: Row,
    /// Whether the server has sealed the old key: no late arrival of it will take effect.
    pub is_sealed: bool,
}

/// What the server says of the old key.
enum Seal {
    /// It is cancelled for ever, and was never used.
    Sealed,
    /// It was used, and this was the answer.
    Applied(Answer),
    /// It was used, and nobody knows what came of it; or it runs.
    Open(String),
    /// The server does not offer to seal keys, does not answer, or seals for the present credential alone.
    Impossible(String),
}

impl Outbox {
    /// Puts a new message in the place of one that waits, is held or was given up.
    ///
    /// # Errors
    /// The message is being sent, was delivered or was taken back; it may have been delivered and `force` is not set; the
    /// new id is taken; its body was purged.
    pub async fn requeue(&self, row: &Row, how: Requeue) -> Result<Requeued, OutboxError> {
        match row.status {
            Status::Pending | Status::Held | Status::Dead => {}
            Status::Inflight => {
                return Err(OutboxError::State(
                    "it is being sent: wait until the attempt has ended".to_owned(),
                ));
            }
            Status::Done | Status::Aborted => {
                let why = format!("a message that is {} cannot be requeued", row.status.name());
                return Err(OutboxError::State(why));
            }
        }
        if let Some(id) = &how.new_client_id
            && self.receipt(id).await?.is_some()
        {
            // Asked before anything is sealed, and once more in the transaction.
            return Err(OutboxError::State("the new id is taken: choose another".to_owned()));
        }
        let request = self.inner.store.request(row.id).await?;
        let request = request.ok_or_else(|| OutboxError::State("its body was purged".to_owned()))?;
        let fence = self.set_aside(row).await?;
        let requeued = self.requeue_aside(row, request, how, fence).await;
        if let (Err(_), Some(fence)) = (&requeued, fence) {
            // Where it was settled meanwhile, there is nothing to put back.
            self.inner.store.put_back(row.id, fence).await?;
        }
        self.inner.wakes.wake([row.lane.clone()]);
        requeued
    }

    /// Keeps a message that was sent before, and waits, from being sent again meanwhile.
    async fn set_aside(&self, row: &Row) -> Result<Option<Fence>, OutboxError> {
        if row.status != Status::Pending || row.attempts == 0 {
            return Ok(None);
        }
        let now = self.now();
        let nonce = self.inner.settings.entropy.bits() as u64;
        let terms = Terms { now, lease_until: now.plus(SEAL_TIME_MAX * 6), nonce };
        if !self.inner.store.set_aside(row.id, terms).await? {
            return Err(OutboxError::State("it is being sent: wait until the attempt has ended".to_owned()));
        }
        let found = self.inner.store.find(crate::store::Find::Row(row.id)).await?;
        Ok(found.and_then(|row| row.fence).filter(|fence| fence.nonce == nonce))
    }

    async fn requeue_aside(
        &self,
        row: &Row,
        request: Request,
        how: Requeue,
        fence: Option<Fence>,
    ) -> Result<Requeued, OutboxError> {
        let seal = match row.attempts {
            // Not a byte was ever sent. It may still say of the message whose place it took that it may have arrived.
            0 => Seal::Impossible("the message whose place it took was not sealed".to_owned()),
            _ if planted::is(Bug::OutboxRequeueUnsealed) => Seal::Sealed,
            _ => match self.seal(row).await {
                Seal::Sealed if self.may_be_forgotten(row) => Seal::Impossible(
                    "it was first sent so long ago that the server may have forgotten its key: a seal says nothing then"
                        .to_owned(),
                ),
                seal => seal,
            },
        };
        let (is_sealed, possibly_delivered) = match seal {
            Seal::Sealed => (true, false),
            Seal::Applied(answer) if !how.force => {
                return Err(OutboxError::State(format!(
                    "it took effect already: the server has kept its answer, {}; look before you force it",
                    answer.status
                )));
            }
            // The server knows of an attempt, whatever the row says.
            Seal::Open(why) if !how.force => return Err(may_have_been_delivered(&why)),
            Seal::Impossible(why) if row.ambiguous && !how.force => {
                return Err(may_have_been_delivered(&why));
            }
            Seal::Applied(_) | Seal::Open(_) => (false, true),
            Seal::Impossible(_) => (false, row.ambiguous),
        };
        let draft = self.successor(row, request, how);
        let successor =
            Successor { draft, possibly_delivered, fence, judged: Judged::of(row), by: "operator" };
        match self.acting().replace(row.id, successor, self.now(), self.inner.time.epoch()).await? {
            Replaced::Done(old, new) => {
                self.finished(old.id);
                Ok(Requeued { old: *old, new: *new, is_sealed })
            }
            Replaced::IdTaken => Err(OutboxError::State("the new id is taken: choose another".to_owned())),
            Replaced::Stale => Err(OutboxError::State("it changed meanwhile: look again".to_owned())),
        }
    }

    fn successor(&self, row: &Row, mut request: Request, how: Requeue) -> Draft {
        let settings = &self.inner.settings;
        let (now, entropy) = (self.now(), &settings.entropy);
        if let NewBody::Patched(body) = how.body {
            request.body = body;
        }
        let profile = settings.profile_of(&row.profile);
        // A server that asked for random UUIDs asks for one again.
        let generator = if is_uuid(&row.client_message_id) { Generator::Uuid4 } else { Generator::Ulid };
        let minted = || generator.mint(entropy.bits(), now).as_str().to_owned();
        Draft {
            client_message_id: how.new_client_id.unwrap_or_else(minted),
            is_callers: true,
            client_tx_id: Generator::Uuid4.mint(entropy.bits(), now).as_str().to_owned(),
            fingerprint: fingerprint(&request, &row.principal, &profile),
            principal: row.principal.clone(),
            lane: row.lane.clone(),
            logical_key: row.logical_key.clone(),
            operation: row.operation.clone(),
            profile: row.profile.clone(),
            client_generated_at: row.client_generated_at,
            request,
        }
    }

    /// Whether the server may have forgotten what became of the message's key. Of two clocks that differ the later one counts:
    /// the one that is not believed may be right.
    fn may_be_forgotten(&self, row: &Row) -> bool {
        let settings = &self.inner.settings;
        let window = settings.profile_of(&row.profile).lifetime.retry_window;
        let origin = Target::resolve(&row.url, settings.upstream.as_ref()).map(|target| target.origin);
        let known = self.inner.retentions.lock().unwrap_or_else(PoisonError::into_inner);
        let announced = origin.ok().and_then(|origin| known.get(&origin).copied()).map(Duration::from_secs);
        drop(known);
        let kept =
            announced.map_or(window, |announced| window.min(announced - announced / RETENTION_MARGIN_PARTS));
        let now = self.now().max(self.inner.time.wall());
        row.first_attempt_at.is_some_and(|first| now.millis_since(first) >= millis_of(kept))
    }

    /// Asks the server to cancel the message's key.
    async fn seal(&self, row: &Row) -> Seal {
        let settings = &self.inner.settings;
        let impossible =
            |why: &str| Seal::Impossible(format!("its key could not be sealed at the server: {why}"));
        let target = match Target::resolve(&row.url, settings.upstream.as_ref()) {
            Ok(target) => target,
            Err(error) => return impossible(&error.to_string()),
        };
        let credential = match self.inner.credential(&row.principal, &target.origin).await {
            Ok(credential) => credential.unwrap_or_default(),
            Err(why) => return impossible(&why),
        };
        let endpoint = encoded(&format!("{} {}", row.method, target.path));
        let target = Target {
            path: format!("/.well-known/semel/keys/{}/seal", encoded(&row.client_message_id)),
            query: Some(format!("endpoint={endpoint}")),
            ..target
        };
        let outgoing = Outgoing {
            method: "POST".to_owned(),
            target,
            headers: credential.headers,
            body: Vec::new(),
            timeout: SEAL_TIME_MAX,
            may_send: semel_http::MaySend::always(),
        };
        match settings.transport.send(outgoing).await {
            Sent::Answered(answer) => read_seal(&answer),
            Sent::NotSent(why) | Sent::Broken(why) | Sent::TimedOut(why) => impossible(&why),
        }
    }
}

fn may_have_been_delivered(why: &str) -> OutboxError {
    OutboxError::State(format!("it may have been delivered, and {why}; find out, then force it or abort it"))
}

/// What the server's answer to a seal means.
fn read_seal(answer: &Answer) -> Seal {
    let impossible =
        || Seal::Impossible(format!("its key could not be sealed at the server: HTTP {}", answer.status));
    let Ok(told) = serde_json::from_slice::<Value>(&answer.body) else { return impossible() };
    let state = told["state"].as_str().unwrap_or_default();
    match (answer.status, told["sealed"].as_bool(), state) {
        (200, Some(true), _) => match told["identity"].as_str() {
            Some("verified" | "shared") => Seal::Sealed,
            Some("hashed") if planted::is(Bug::OutboxHashedSealBelieved) => Seal::Sealed,
            // Under another credential the key may have been used, and may yet be.
            Some("hashed") => Seal::Impossible(
                "a seal does not reach what was sent under another credential: the server only hashes credentials"
                    .to_owned(),
            ),
            Some(_) | None => Seal::Impossible(
                "the server does not say whether its seal reaches what was sent under another credential".to_owned(),
            ),
        },
        (200, Some(false), "settled" | "unkept") => {
            let response = &told["response"];
            let status = response["status"].as_u64().or_else(|| told["status"].as_u64()).unwrap_or(200);
            let body = response["body"].as_str().unwrap_or_default().as_bytes().to_vec();
            Seal::Applied(Answer { status: u16::try_from(status).unwrap_or(200), headers: Vec::new(), body })
        }
        (200, Some(false), state) => Seal::Open(format!("the server says that its key is {state}")),
        _ => impossible(),
    }
}

/// Puts what the application made of a lane in the place of a held message, and drops what it no longer wants: all of it in
/// one transaction, so that a crash leaves the old lane or the new one.
pub(crate) async fn rebuilt(
    outbox: &Outbox,
    row: &Row,
    drop: Vec<i64>,
    with: Vec<Enqueue>,
) -> Result<(), OutboxError> {
    let inner = &outbox.inner;
    let draft = |enqueue| Draft::of(enqueue, &inner.settings, outbox.now(), &inner.settings.entropy);
    let with = with.into_iter().map(draft).collect::<Result<_, _>>().map_err(OutboxError::Refused)?;
    let plan = LanePlan { judged: Judged::of(row), drop, with };
    match inner.store.rebuild(row.id, plan, outbox.now(), inner.time.epoch()).await? {
        LaneRebuilt::Done { gone, lanes } => {
            gone.into_iter().for_each(|row| outbox.finished(row));
            inner.wakes.wake(lanes);
            Ok(())
        }
        LaneRebuilt::IdTaken(id) => Err(OutboxError::State(format!("the id {id:?} is taken"))),
        LaneRebuilt::Stale => Err(OutboxError::State("it changed meanwhile".to_owned())),
    }
}

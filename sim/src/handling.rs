//! One request at the service: it works on it to its end, whether or not anybody waits, and everything it does is in the
//! ledger.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum_core::body::Body;
use axum_core::response::IntoResponse;
use bytes::Bytes;
use futures_util::FutureExt;
use http::{Request, Response};
use http_body_util::BodyExt;
use semel_contract::record::Fence;
use semel_contract::time::{Timestamp, millis_of};
use semel_gate::{Grant, NoAnswer, SettleError, settling};
use semel_store::{Answer, FencedWrite, StoreError};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use crate::body_faults;
use crate::book::{Use, effect_name};
use crate::faulty::FaultyStore;
use crate::life::Life;
use crate::log::SlotNumber;
use crate::routes::{CAP, DEADLINE, Effects, Endpoint, GRACE};
use crate::script::{Acts, Piece, Said, Script};
use crate::world::{Invariant, World};

/// Why a service has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceFailed;

impl fmt::Display for ServiceFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the simulated service failed")
    }
}

impl std::error::Error for ServiceFailed {}

/// What a handler panics with on purpose.
#[derive(Clone, Copy, Debug)]
pub struct OnPurpose;

/// How often an atomic handler asks what became of its commit.
const COMMIT_TRIES: u32 = 3;

/// One request as the service reads it.
pub(crate) struct Call {
    pub(crate) world: Arc<World>,
    pub(crate) life: Arc<Life>,
    store: Arc<FaultyStore>,
    grant: Grant,
    pub(crate) slot: SlotNumber,
    endpoint: Endpoint,
    used: Use,
    name: String,
    who: u64,
    pub(crate) send: u64,
    meant_at: Option<Timestamp>,
    takes_its_time: bool,
}

/// Marks the attempt as ended, however it ends.
struct Running {
    world: Arc<World>,
    life: Arc<Life>,
    fence: Fence,
    slot: SlotNumber,
    since: Instant,
    is_finished: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.world.attempt_ended(self.fence);
        let in_time = self.since.elapsed() < DEADLINE;
        if !self.is_finished
            && in_time
            && !self.life.is_dead()
            && !self.world.is_over()
            && !std::thread::panicking()
        {
            let why = format!("the work under fence {} was cancelled", self.fence.number);
            self.world.fail(Invariant::I15, Some(self.slot), why);
        }
    }
}

impl Call {
    pub(crate) fn read(
        world: Arc<World>,
        life: Arc<Life>,
        store: Arc<FaultyStore>,
        request: Request<Body>,
    ) -> Self {
        let (parts, body) = request.into_parts();
        let grant = parts.extensions.get::<Grant>().cloned().expect("the gate gives a grant");
        let slot = world.number_of(grant.id()).expect("only simulated keys are sent");
        let send = parts.headers.get("x-request-id").and_then(|value| value.to_str().ok());
        let send = send.and_then(|send| send.parse().ok()).expect("every send has a number");
        let body =
            body.collect().now_or_never().and_then(Result::ok).expect("the gate hands over whole bodies");
        let body: Value = serde_json::from_slice(&body.to_bytes()).expect("simulated bodies are JSON");
        let item = parts.uri.path().rsplit('/').next().unwrap_or("");
        let generation = u32::try_from(body["use"].as_u64().unwrap_or(0)).unwrap_or(0);
        Self {
            endpoint: world.slot_of(slot).endpoint,
            used: (slot, generation),
            name: effect_name(body["effect"].as_str().unwrap_or(""), item),
            who: world.slot_of(slot).who(),
            meant_at: body["generatedAt"].as_str().and_then(|text| Timestamp::parse(text).ok()),
            takes_its_time: body["slow"] == true,
            world,
            life,
            store,
            grant,
            slot,
            send,
        }
    }

    pub(crate) fn fence(&self) -> Fence {
        self.grant.fence()
    }

    /// An action that is too old is refused, never executed.
    pub(crate) fn check_age(&self) {
        let age = self.meant_at.map_or(0, |meant_at| self.world.clock.true_time().millis_since(meant_at));
        if age > millis_of(CAP + GRACE) {
            self.world.fail(
                Invariant::I3,
                Some(self.slot),
                format!("an action that is {age} ms old was executed"),
            );
        }
    }

    /// The planted mistake: it goes on to send though the lease may be over.
    pub(crate) async fn late(self) -> Result<Response<Body>, ServiceFailed> {
        sleep(self.endpoint.lease(self.world.plan.has_mixed_leases()) + Duration::from_secs(1)).await;
        self.world.dispatched(self.slot, self.fence(), self.send);
        self.run().await
    }

    pub(crate) async fn run(self) -> Result<Response<Body>, ServiceFailed> {
        let mut running = Running {
            world: Arc::clone(&self.world),
            life: Arc::clone(&self.life),
            fence: self.fence(),
            slot: self.slot,
            since: Instant::now(),
            is_finished: false,
        };
        let script =
            if self.takes_its_time { Script::slow() } else { Script::draw(&self.world, self.endpoint) };
        self.world.note(Some(self.slot), format!("upstream will {script:?}"));
        let life = Arc::clone(&self.life);
        let response = match self.endpoint {
            Endpoint::Atomic => self.atomic(script).await,
            Endpoint::Hold
            | Endpoint::Probe
            | Endpoint::Forward
            | Endpoint::Rerun
            | Endpoint::Release
            | Endpoint::Spent
            | Endpoint::Aged
            | Endpoint::Guarded
            | Endpoint::Limited => self.remote(script).await,
        };
        life.awake().await;
        running.is_finished = true;
        response
    }

    /// The request is worked on elsewhere, whether or not anybody waits for it.
    async fn remote(self, script: Script) -> Result<Response<Body>, ServiceFailed> {
        let (say, hear) = oneshot::channel();
        let call = Arc::new(self);
        tokio::spawn(serve(Arc::clone(&call), script, say));
        match hear.await {
            Ok(said) => call.say(said),
            Err(_) => std::future::pending().await,
        }
    }

    /// Until when an effect may still come: the declared window, as far as it is not over yet.
    fn time_left(&self) -> Duration {
        let claim = self.world.shadow().claims.get(&self.fence().number).map(|claim| claim.late_until);
        Duration::from_millis(claim.unwrap_or(0).saturating_sub(self.world.now() + 1))
    }

    /// Where the upstream knows keys, one that is used for something else is refused.
    fn is_used_for_another(&self) -> bool {
        let ledger = self.world.ledger();
        self.endpoint.effects() == Effects::OnceByUpstream
            && ledger.effect(self.used).is_some_and(|effect| effect.name != self.name)
    }

    fn act(&self) {
        self.world.take_effect(self.used, &self.name, self.fence());
    }

    /// The words of an answer. An upstream that knows keys says the same to every attempt.
    fn words(&self) -> Bytes {
        words(&self.world, self.used, &self.name, self.who, self.fence().number)
    }

    fn say(&self, said: Said) -> Result<Response<Body>, ServiceFailed> {
        match said {
            Said::Answer { status, told, body } => {
                let mut response = http::Response::builder().status(status);
                for (name, value) in HEADERS {
                    response = response.header(name, value);
                }
                if let Some(told) = told {
                    response = response.header("semel-outcome", told);
                }
                let body = body_faults::body(&self.world, body, self.words());
                Ok(response.body(body).expect("the simulated headers are headers"))
            }
            Said::Reset => Ok(broken(NoAnswer::Reset("simulated".to_owned()))),
            Said::TimedOut => Ok(broken(NoAnswer::TimedOut("simulated".to_owned()))),
            Said::Failed => Err(ServiceFailed),
            Said::Panicked => std::panic::resume_unwind(Box::new(OnPurpose)),
            Said::Nothing => unreachable!("nothing is never said"),
        }
    }

    /// The effect and the record commit together, or neither does.
    async fn atomic(self, script: Script) -> Result<Response<Body>, ServiceFailed> {
        sleep(script.work).await;
        match (script.acts, script.said) {
            (_, Said::Nothing) => std::future::pending().await,
            (Acts::Never, said) => self.say(said),
            (Acts::Before | Acts::After(_), said) => {
                let answer = Answer {
                    status: 201,
                    headers: vec![("x-tag".to_owned(), b"atomic".to_vec())].into(),
                    body: self.words(),
                    outcome_unknown: false,
                };
                match self.commit(&answer).await {
                    Ok(()) => {
                        settling::confirm(&self.grant, answer);
                        self.say(said)
                    }
                    Err(not_done) => Ok(not_done.into_response()),
                }
            }
        }
    }

    async fn commit(&self, answer: &Answer) -> Result<(), SettleError> {
        let (id, lifetime) = (self.grant.id(), self.grant.lifetime());
        for _ in 0..COMMIT_TRIES {
            let effect = (self.used, self.name.as_str());
            match self.store.commit(id, self.fence(), answer.clone(), lifetime, effect).await {
                Ok(FencedWrite::Done) => return Ok(()),
                Ok(FencedWrite::Superseded) => return Err(SettleError::Superseded),
                Err(error @ (StoreError::Unavailable(_) | StoreError::Full(_))) => {
                    return Err(SettleError::Store(error));
                }
                Err(StoreError::Unknown(_)) => sleep(Duration::from_millis(50)).await,
            }
        }
        Err(SettleError::Unknown("simulated".into()))
    }
}

/// Works on a request to its end.
async fn serve(call: Arc<Call>, script: Script, say: oneshot::Sender<Said>) {
    sleep(script.work).await;
    let said = if call.is_used_for_another() {
        Said::Answer { status: 422, told: None, body: Piece::Whole }
    } else {
        if script.acts == Acts::Before {
            call.act();
        }
        script.said
    };
    let mut say = Some(say);
    if said != Said::Nothing {
        // Nobody may be there to hear it.
        let _ = say.take().map(|say| say.send(said));
    }
    if let Acts::After(time) = script.acts {
        sleep(time.min(call.time_left())).await;
        call.act();
    }
    if said == Said::Nothing {
        std::future::pending::<()>().await;
    }
}

/// What every answer carries beside its words; the last two belong to one moment and are not kept.
const HEADERS: [(&str, &str); 5] = [
    ("content-type", "application/json"),
    ("x-tag", "a"),
    ("x-tag", "b"),
    ("set-cookie", "secret=1"),
    ("date", "today"),
];

/// The words by which an effect is reported, by the upstream or by whoever looks it up there.
pub(crate) fn words(world: &World, used: Use, name: &str, who: u64, fence: u64) -> Bytes {
    let first = world.ledger().effect(used).map(|effect| effect.fence);
    let by_key = world.slot_of(used.0).endpoint.effects() == Effects::OnceByUpstream;
    let run = first.filter(|_| by_key).unwrap_or(fence);
    Bytes::from(json!({"effect": name, "who": who, "run": run}).to_string())
}

pub(crate) fn broken(how: NoAnswer) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = http::StatusCode::BAD_GATEWAY;
    response.extensions_mut().insert(how);
    response
}

//! The network between the outbox and the server: what is lost, late, doubled or broken off on the way there and back.

use std::sync::Arc;
use std::time::Duration;

use semel_delivery::credentials::{Asked, Credential, Credentials};
use semel_delivery::message::Answer;
use semel_delivery::transport::{Outgoing, Sending, Sent, Transport};
use tokio::time::{Instant, sleep, sleep_until};

use crate::delivery_faults::DeliveryFault;
use crate::life::Life;
use crate::outbox::plan::ON_ITS_WAY_MAX;
use crate::outbox::server::{Mood, Refusal, answer, header};
use crate::outbox::world::OutboxWorld;

/// One process's way to the server.
#[derive(Clone)]
pub(super) struct Wire {
    pub(super) world: Arc<OutboxWorld>,
    pub(super) life: Arc<Life>,
}

impl Wire {
    /// A request arrives, whatever became of its sender.
    fn arrive(&self, request: &Outgoing) -> Answer {
        let world = &self.world;
        let mood = match world.strikes(DeliveryFault::Rejected) {
            true => Mood::Rejecting,
            false if world.strikes(DeliveryFault::NotKept) => Mood::Verbose,
            false if world.strikes(DeliveryFault::LedElsewhere) => Mood::Leading,
            false if world.strikes(DeliveryFault::Refused) => {
                Mood::Refusing(world.rng(|rng| *rng.pick(&[Refusal::TooOld, Refusal::Mismatch])))
            }
            false => Mood::Willing,
        };
        let answer = world.server().arrive(request, mood, world.now(), world.clock.true_time());
        let key = key_of(request);
        let slot = world.slot(&key);
        world.note(Some(slot), format!("the server is asked for {key} and says {}", answer.status));
        answer
    }

    /// A copy of the request that arrives some time.
    fn arrives_later(&self, request: &Outgoing) {
        let most = u64::try_from(ON_ITS_WAY_MAX.as_millis()).unwrap_or(0);
        let after = self.world.rng(|rng| rng.millis(0, most - 1));
        let (wire, request) = (self.clone(), request.clone());
        tokio::spawn(async move {
            sleep(after).await;
            wire.arrive(&request);
        });
    }

    /// The server works on the request, which is carried out later or comes to nothing.
    fn runs_on(&self, request: &Outgoing) {
        let most = u64::try_from(ON_ITS_WAY_MAX.as_millis()).unwrap_or(0);
        let (after, is_carried_out) = self.world.rng(|rng| (rng.millis(0, most - 1), rng.chance(500)));
        let (wire, request) = (self.clone(), request.clone());
        tokio::spawn(async move {
            sleep(after).await;
            wire.world.server().end(&key_of(&request));
            if is_carried_out {
                wire.arrive(&request);
            }
        });
    }

    async fn latency(&self) {
        let time = match self.world.strikes(DeliveryFault::SlowAnswer) {
            true => self.world.rng(|rng| rng.millis(100, 12_000)),
            false => self.world.rng(|rng| rng.millis(1, 80)),
        };
        sleep(time).await;
    }

    /// Sends one request and waits for what comes back.
    async fn exchange(&self, request: &Outgoing) -> Sent {
        let world = &self.world;
        let began = Instant::now();
        let timed_out = |wire: &Self| {
            let life = Arc::clone(&wire.life);
            async move {
                sleep_until(began + request.timeout).await;
                life.awake().await;
                Sent::TimedOut("no answer came".to_owned())
            }
        };
        let broken = || Sent::Broken("the connection was reset".to_owned());
        if world.strikes(DeliveryFault::NotSent) {
            return Sent::NotSent("connection refused".to_owned());
        }
        self.latency().await;
        if world.strikes(DeliveryFault::Lost) {
            return timed_out(self).await;
        }
        if world.strikes(DeliveryFault::ResetBefore) {
            return broken();
        }
        if world.strikes(DeliveryFault::LateEffect) {
            self.arrives_later(request);
            return match world.rng(|rng| rng.chance(500)) {
                true => broken(),
                false => timed_out(self).await,
            };
        }
        if let Some(refused) = self.turned_away() {
            return Sent::Answered(refused);
        }
        if world.strikes(DeliveryFault::Pending) && world.server().begin(request) {
            self.runs_on(request);
            return timed_out(self).await;
        }
        if world.strikes(DeliveryFault::Duplicated) {
            self.arrives_later(request);
        }
        let said = self.arrive(request);
        if world.strikes(DeliveryFault::ErrorAfter) {
            return Sent::Answered(answer(500, "broke-down"));
        }
        if world.strikes(DeliveryFault::ResetAfter) {
            return broken();
        }
        if world.strikes(DeliveryFault::AnswerLost) {
            return timed_out(self).await;
        }
        self.latency().await;
        match began.elapsed() > request.timeout {
            true => Sent::TimedOut("the answer came too late".to_owned()),
            false => Sent::Answered(said),
        }
    }

    /// What something in front of the server says, which never asked it.
    fn turned_away(&self) -> Option<Answer> {
        let world = &self.world;
        if world.strikes(DeliveryFault::ErrorBefore) {
            return Some(answer(502, "bad-gateway"));
        }
        if world.strikes(DeliveryFault::Throttled) {
            let after = world.rng(|rng| rng.between(1, 120));
            let headers = vec![("retry-after".to_owned(), after.to_string())];
            return Some(Answer { headers, ..answer(429, "too-many") });
        }
        if world.strikes(DeliveryFault::Unavailable) {
            return Some(answer(503, "unavailable"));
        }
        world.strikes(DeliveryFault::Blocked).then(|| answer(503, "blocked"))
    }

    async fn sent(&self, request: Outgoing) -> Sent {
        self.life.awake().await;
        let pause = self
            .world
            .strikes(DeliveryFault::LongPause)
            .then(|| self.world.rng(|rng| rng.millis(1000, 150_000)));
        if let Some(pause) = pause {
            sleep(pause).await;
        }
        self.life.awake().await;
        if !request.may_send.is_allowed() {
            return Sent::NotSent("it was too late for the first byte".to_owned());
        }
        self.world.first_byte(&request);
        let sent = self.exchange(&request).await;
        self.life.awake().await;
        let key = key_of(&request);
        let slot = self.world.slot(&key);
        let heard = match &sent {
            Sent::Answered(answer) => format!("{}", answer.status),
            Sent::NotSent(why) | Sent::Broken(why) | Sent::TimedOut(why) => why.clone(),
        };
        self.world.note(Some(slot), format!("{} hears about {key}: {heard}", self.life.name));
        sent
    }
}

/// The key that a request is about, whether it sends or seals it.
pub(super) fn key_of(request: &Outgoing) -> String {
    match header(request, "idempotency-key") {
        "" => request.target.path.split('/').nth(4).unwrap_or_default().to_owned(),
        key => key.to_owned(),
    }
}

impl Transport for Wire {
    fn send(&self, request: Outgoing) -> Sending<'_> {
        Box::pin(self.sent(request))
    }
}

/// The present credentials, asked for at every attempt.
impl Credentials for Wire {
    fn credential<'a>(&'a self, principal: &'a str, _: &'a str) -> Asked<'a> {
        Box::pin(async move {
            self.life.awake().await;
            sleep(Duration::from_millis(1)).await;
            self.life.awake().await;
            let token = self.world.token(principal);
            Ok(Some(Credential { headers: vec![("authorization".to_owned(), token)] }))
        })
    }
}

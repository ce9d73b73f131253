//! The network between a replica and the upstream. What goes out late or is applied late stays within the window that the
//! target declares.

use std::sync::Arc;
use std::time::Duration;

use semel_delivery::credentials::{Credential, Credentials};
use semel_delivery::message::Answer;
use semel_delivery::relay::upstream::{Asked, Batch, Current, Place, Read, Upstream};
use semel_delivery::transport::{MaySend, Sent};
use tokio::time::{Instant, sleep, sleep_until};

use crate::delivery_faults::DeliveryFault;
use crate::life::Life;
use crate::relay::plan::{LATE_WINDOW, TIMEOUT};
use crate::relay::service::Write;
use crate::relay::world::RelayWorld;

/// What stands still before its first byte, and what is applied late, have half of the window each.
const HALF: Duration = Duration::from_secs(LATE_WINDOW.as_secs() / 2 - 5);

/// A replica's way to the upstream.
#[derive(Clone)]
pub(super) struct SimUpstream {
    pub(super) world: Arc<RelayWorld>,
    pub(super) life: Arc<Life>,
}

fn said(status: u16) -> Answer {
    Answer { status, headers: Vec::new(), body: Vec::new() }
}

impl SimUpstream {
    fn is_revoked(&self, credential: Option<&Credential>) -> bool {
        let service = self.world.service();
        credential
            .is_some_and(|credential| credential.headers.iter().any(|(_, token)| service.is_revoked(token)))
    }

    async fn latency(&self) {
        let time = match self.world.strikes(DeliveryFault::SlowAnswer) {
            true => self.world.rng(|rng| rng.millis(100, 6000)),
            false => self.world.rng(|rng| rng.millis(1, 80)),
        };
        sleep(time).await;
    }

    fn apply(&self, write: &Write) -> u16 {
        let status = self.world.service().apply(write, self.world.now());
        let Write { lane, delta, after, key, .. } = write;
        let text = format!(
            "the upstream gets {delta} for {lane} (then {after:?}) as {} and says {status}",
            short(key)
        );
        self.world.note(self.world.slot(lane), text);
        status
    }

    /// The write is applied some time after its sender has given up waiting.
    fn apply_later(&self, write: &Write, gives_up: Instant) {
        let most = u64::try_from(HALF.as_millis()).unwrap_or(0);
        let at = gives_up + self.world.rng(|rng| rng.millis(0, most));
        let (upstream, write) = (self.clone(), write.clone());
        tokio::spawn(async move {
            sleep_until(at).await;
            upstream.apply(&write);
        });
    }

    /// What something in front of the upstream says, which never asked it.
    fn turned_away(&self) -> Option<Answer> {
        let world = &self.world;
        if world.strikes(DeliveryFault::ErrorBefore) {
            return Some(said(502));
        }
        if world.strikes(DeliveryFault::Throttled) {
            let after = world.rng(|rng| rng.between(1, 90));
            return Some(Answer {
                headers: vec![("retry-after".to_owned(), after.to_string())],
                ..said(429)
            });
        }
        if world.strikes(DeliveryFault::Unavailable) {
            return Some(said(503));
        }
        world.strikes(DeliveryFault::Blocked).then(|| said(418))
    }

    async fn exchange(&self, write: &Write, credential: Option<&Credential>) -> Sent {
        let world = &self.world;
        let gives_up = Instant::now() + TIMEOUT;
        let silent = || async move {
            sleep_until(gives_up).await;
            Sent::TimedOut("no answer came".to_owned())
        };
        let broken = || Sent::Broken("the connection was reset".to_owned());
        if world.strikes(DeliveryFault::NotSent) {
            return Sent::NotSent("connection refused".to_owned());
        }
        self.latency().await;
        if self.is_revoked(credential) {
            return Sent::Answered(said(401));
        }
        if world.strikes(DeliveryFault::Lost) {
            return silent().await;
        }
        if world.strikes(DeliveryFault::ResetBefore) {
            return broken();
        }
        if world.strikes(DeliveryFault::LateEffect) {
            if world.rng(|rng| rng.chance(500)) {
                self.apply_later(write, Instant::now());
                return broken();
            }
            self.apply_later(write, gives_up);
            return silent().await;
        }
        if let Some(refused) = self.turned_away() {
            return Sent::Answered(refused);
        }
        if world.strikes(DeliveryFault::Rejected) && world.service().reject(write) {
            world.note(world.slot(&write.lane), format!("the upstream refuses {}", short(&write.key)));
            return Sent::Answered(said(422));
        }
        let status = self.apply(write);
        if world.strikes(DeliveryFault::ErrorAfter) {
            return Sent::Answered(said(500));
        }
        if world.strikes(DeliveryFault::ResetAfter) {
            return broken();
        }
        if world.strikes(DeliveryFault::AnswerLost) {
            return silent().await;
        }
        self.latency().await;
        match Instant::now() > gives_up {
            true => Sent::TimedOut("the answer came too late".to_owned()),
            false => Sent::Answered(said(status)),
        }
    }

    async fn sent(&self, frozen: &str, credential: Option<&Credential>, may_send: MaySend) -> Sent {
        // Connecting may take longer than any lease.
        if self.world.strikes(DeliveryFault::LongPause) {
            let most = u64::try_from(2 * LATE_WINDOW.as_millis()).unwrap_or(0);
            sleep(self.world.rng(|rng| rng.millis(1000, most))).await;
        }
        self.life.awake().await;
        if !may_send.is_allowed() {
            return Sent::NotSent("it was too late for the first byte".to_owned());
        }
        let write = Write::of(frozen);
        self.world.first_byte(&write, frozen);
        let sent = self.exchange(&write, credential).await;
        self.life.awake().await;
        let heard = match &sent {
            Sent::Answered(answer) => answer.status.to_string(),
            Sent::NotSent(why) | Sent::Broken(why) | Sent::TimedOut(why) => why.clone(),
        };
        let text = format!("{} hears about {}: {heard}", self.life.name, short(&write.key));
        self.world.note(self.world.slot(&write.lane), text);
        sent
    }

    async fn value(&self, place: &Place<'_>, credential: Option<&Credential>) -> Read {
        self.life.awake().await;
        self.latency().await;
        self.life.awake().await;
        let fails = self.world.strikes(DeliveryFault::ReadFails);
        let read = if self.is_revoked(credential) {
            Read::Answered(said(401))
        } else if fails && self.world.rng(|rng| rng.chance(500)) {
            Read::Answered(said(500))
        } else if fails {
            Read::Failed("the connection was reset".to_owned())
        } else {
            let current: Current = self.world.service().current(place.lane);
            self.world
                .note(self.world.slot(place.lane), format!("{} reads {:?}", self.life.name, current.value));
            Read::Current(current)
        };
        self.latency().await;
        self.life.awake().await;
        read
    }
}

/// The end of a batch's key, which is enough to tell it apart.
pub(super) fn short(key: &str) -> &str {
    key.get(key.len().saturating_sub(6)..).unwrap_or(key)
}

impl Upstream for SimUpstream {
    fn origin(&self) -> &str {
        "http://scores.test"
    }

    fn reads(&self) -> bool {
        self.world.plan.reads
    }

    fn read<'a>(&'a self, place: &'a Place<'a>, credential: Option<&'a Credential>) -> Asked<'a, Read> {
        Box::pin(self.value(place, credential))
    }

    fn freeze(&self, batch: &Batch) -> Result<String, String> {
        Ok(Write::frozen(batch))
    }

    fn write<'a>(
        &'a self,
        frozen: &'a str,
        credential: Option<&'a Credential>,
        may_send: MaySend,
    ) -> Asked<'a, Sent> {
        Box::pin(self.sent(frozen, credential, may_send))
    }
}

/// The present credentials, asked for at every call.
impl Credentials for SimUpstream {
    fn credential<'a>(&'a self, principal: &'a str, _: &'a str) -> semel_delivery::credentials::Asked<'a> {
        Box::pin(async move {
            self.life.awake().await;
            let token = self.world.token(principal);
            Ok(Some(Credential { headers: vec![("authorization".to_owned(), token)] }))
        })
    }
}

//! Those who hand messages in: they repeat themselves until they hear something, tap twice, and sometimes change their mind
//! under the same id, which must be refused.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_delivery::accept::Sameness;
use semel_delivery::{Enqueue, OutboxError, Request, Row};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::coverage::Met;
use crate::delivery_faults::DeliveryFault;
use crate::outbox::node::House;
use crate::outbox::world::{OutboxWorld, Told};
use crate::stage::{Invariant, lock};

/// How long a caller waits before it asks again.
const PATIENCE: Duration = Duration::from_secs(20);

/// Everybody.
pub(super) struct People {
    pub(super) world: Arc<OutboxWorld>,
    pub(super) house: Arc<House>,
    next: AtomicU64,
    busy: Mutex<Vec<JoinHandle<()>>>,
}

/// What a caller heard.
enum Heard {
    /// It is in: the row, and whether the id is another name of it.
    In(Box<Row>, bool),
    /// Nothing, or nothing that says whether it is in.
    Nothing,
    /// The id was used for something else.
    Refused,
}

impl People {
    pub(super) fn new(world: &Arc<OutboxWorld>, house: &Arc<House>) -> Self {
        Self {
            world: Arc::clone(world),
            house: Arc::clone(house),
            next: AtomicU64::new(1),
            busy: Mutex::default(),
        }
    }

    pub(super) fn on_the_side(&self, work: impl Future<Output = ()> + Send + 'static) {
        lock(&self.busy).push(tokio::spawn(work));
    }

    /// Waits until everybody has heard what they waited for.
    pub(super) async fn done(&self) {
        loop {
            let Some(work) = lock(&self.busy).pop() else { return };
            // A panic was reported where it happened, and fails the run.
            if work.await.is_err_and(|error| error.is_panic()) {
                self.world.fail(Invariant::I15, None, "something panicked");
            }
        }
    }

    /// Somebody wants something to be sent.
    pub(super) fn intend(self: &Arc<Self>) {
        let world = &self.world;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let lane = world.rng(|rng| rng.below(world.plan.lanes));
        let principal = lane % world.plan.principals;
        // A second tap on the same button: another id for the same action.
        let action = if world.strikes(DeliveryFault::DoubleTap) { number.saturating_sub(1) } else { number };
        let logical = world.rng(|rng| rng.chance(400)) || action != number;
        let enqueue = message(number, lane, principal, logical.then_some(action));
        if world.strikes(DeliveryFault::Altered) {
            let other = message(number + 1_000_000, lane, principal, None).request;
            let altered = Enqueue { request: other, ..enqueue.clone() };
            self.on_the_side(Arc::clone(self).alters(enqueue.clone(), altered));
        } else {
            self.on_the_side(Arc::clone(self).hands_in(enqueue));
        }
    }

    async fn alters(self: Arc<Self>, enqueue: Enqueue, altered: Enqueue) {
        Arc::clone(&self).hands_in(enqueue.clone()).await;
        if let Heard::In(row, _) = self.hand_in(&altered).await {
            let id = enqueue.client_message_id.unwrap_or_default();
            let why = format!("{id} was handed in with another body, and row {} was said to be it", row.id);
            self.world.fail(Invariant::I3, Some(self.world.slot(&id)), why);
        }
    }

    /// Hands a message in until it is heard that it is there; sometimes once more later.
    async fn hands_in(self: Arc<Self>, enqueue: Enqueue) {
        let id = enqueue.client_message_id.clone().unwrap_or_default();
        loop {
            match self.hand_in(&enqueue).await {
                Heard::In(row, is_alias) => {
                    self.hears(&id, &row, is_alias);
                    break;
                }
                Heard::Nothing => sleep(self.world.rng(|rng| rng.millis(200, 5000))).await,
                Heard::Refused => {
                    let why = format!("{id} is refused as another message, though it is the same");
                    return self.world.fail(Invariant::I3, Some(self.world.slot(&id)), why);
                }
            }
        }
        while self.world.strikes(DeliveryFault::Repeated) {
            sleep(self.world.rng(|rng| rng.millis(0, 600_000))).await;
            if let Heard::In(row, is_alias) = self.hand_in(&enqueue).await {
                self.hears(&id, &row, is_alias);
            }
        }
    }

    async fn hand_in(&self, enqueue: &Enqueue) -> Heard {
        let Some(outbox) = self.house.outbox() else { return Heard::Nothing };
        let patience = match self.world.strikes(DeliveryFault::Impatient) {
            true => self.world.rng(|rng| rng.millis(0, 30)),
            false => PATIENCE,
        };
        match timeout(patience, outbox.enqueue(enqueue.clone())).await {
            Ok(Ok(accepted)) => Heard::In(Box::new(accepted.receipt), accepted.alias.is_some()),
            // It was given up before anybody could say that it was in.
            Ok(Err(OutboxError::Conflict(row, conflict, _))) => match conflict.sameness {
                Sameness::Match => {
                    let is_alias = Some(&row.client_message_id) != enqueue.client_message_id.as_ref();
                    Heard::In(row, is_alias)
                }
                Sameness::Mismatch => Heard::Refused,
            },
            Ok(Err(_)) | Err(_) => Heard::Nothing,
        }
    }

    /// Somebody heard that a message is in: then it is on disk, now and for ever, and it is the same one every time.
    fn hears(&self, id: &str, row: &Row, is_alias: bool) {
        let world = &self.world;
        let slot = Some(world.slot(id));
        world.note(slot, format!("{id} is in, as row {} of {}, {}", row.id, row.lane, row.status.name()));
        world.count(Met::Standing, row.status.name());
        if is_alias {
            world.count(Met::Decision, "alias");
        }
        let before = world.told().insert(id.to_owned(), Told { row: row.id, is_alias });
        if let Some(before) = before.filter(|before| before.row != row.id) {
            let why = format!("{id} was row {} and is row {} now", before.row, row.id);
            return world.fail(Invariant::I1, slot, why);
        }
        match world.row(id) {
            Some(found) if found.id == row.id => {}
            Some(found) => {
                let why = format!("{id} was said to be row {}, and is row {} on disk", row.id, found.id);
                world.fail(Invariant::I5, slot, why);
            }
            None => world.fail(Invariant::I12, slot, format!("{id} was acknowledged and is not on disk")),
        }
    }
}

fn message(number: u64, lane: u64, principal: u64, action: Option<u64>) -> Enqueue {
    let request = Request::json("POST", "/actions", format!("{{\"n\":{number}}}"));
    Enqueue {
        client_message_id: Some(format!("00000000-0000-4000-8000-{number:012}")),
        lane: Some(format!("lane-{lane}")),
        principal: Some(format!("person-{principal}")),
        logical_key: action.map(|action| format!("action-{action}")),
        ..Enqueue::new(request)
    }
}

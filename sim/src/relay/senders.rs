//! Those who submit entries: they repeat themselves until they hear something, and sometimes ask for something else under
//! the same key, which must be refused. And those who look after the relay.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_contract::time::millis_of;
use semel_delivery::relay::debounce::Mode;
use semel_delivery::relay::intake::fingerprint;
use semel_delivery::relay::store::accept::{Accepted, NewItem, Submission};
use semel_delivery::relay::store::operate::{Resolution, Resolved};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::coverage::Met;
use crate::delivery_faults::DeliveryFault;
use crate::relay::plan::LATE_WINDOW;
use crate::relay::replicas::Replicas;
use crate::relay::world::{RelayWorld, TARGET, Told};
use crate::stage::{Invariant, lock};

/// How long somebody waits before asking again.
const PATIENCE: Duration = Duration::from_secs(25);

/// Everybody.
pub(super) struct Senders {
    pub(super) world: Arc<RelayWorld>,
    pub(super) replicas: Arc<Replicas>,
    next: AtomicU64,
    busy: Mutex<Vec<JoinHandle<()>>>,
}

impl Senders {
    pub(super) fn new(world: &Arc<RelayWorld>, replicas: &Arc<Replicas>) -> Self {
        Self {
            world: Arc::clone(world),
            replicas: Arc::clone(replicas),
            next: AtomicU64::new(1),
            busy: Mutex::default(),
        }
    }

    fn on_the_side(&self, work: impl Future<Output = ()> + Send + 'static) {
        lock(&self.busy).push(tokio::spawn(work));
    }

    /// Waits until everybody has heard what they waited for.
    pub(super) async fn done(&self) {
        loop {
            let Some(work) = lock(&self.busy).pop() else { return };
            if work.await.is_err_and(|error| error.is_panic()) {
                self.world.fail(Invariant::I15, None, "something panicked");
            }
        }
    }

    /// Somebody submits something.
    pub(super) fn submit(self: &Arc<Self>) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.on_the_side(Arc::clone(self).submits(self.submission(number)));
    }

    fn submission(&self, number: u64) -> Submission {
        let plan = &self.world.plan;
        let items: Vec<NewItem> = self.world.rng(|rng| {
            let count = rng.between(1, 3);
            let item = |_| NewItem {
                lane: format!("lane-{}", rng.below(plan.lanes)),
                group: String::new(),
                label: None,
                session: None,
                value: i64::try_from(rng.between(1, 40)).unwrap_or(1) - 15,
            };
            (0..count).map(item).collect()
        });
        let mode = self.world.rng(|rng| *rng.pick(&[Mode::Interactive, Mode::Background]));
        Submission {
            target: TARGET.to_owned(),
            principal: format!("person-{}", self.world.rng(|rng| rng.below(plan.principals))),
            key: format!("key-{number}"),
            fingerprint: fingerprint(TARGET, &items),
            mode,
            debounce: plan.debounce,
            groups: true,
            items,
            age: None,
        }
    }

    async fn submits(self: Arc<Self>, submission: Submission) {
        while !self.told(&submission).await {
            sleep(self.world.rng(|rng| rng.millis(200, 5000))).await;
        }
        if self.world.strikes(DeliveryFault::Altered) {
            let other = Submission { fingerprint: "something else".to_owned(), ..submission.clone() };
            if let Some(Accepted::New { .. } | Accepted::Known { .. }) = self.ask(&other).await {
                let why = format!("{} is taken for something else", submission.key);
                self.world.fail(Invariant::I3, None, why);
            }
        }
        while self.world.strikes(DeliveryFault::Repeated) {
            sleep(self.world.rng(|rng| rng.millis(0, 60_000))).await;
            self.told(&submission).await;
        }
    }

    async fn ask(&self, submission: &Submission) -> Option<Accepted> {
        let replica = self.replicas.any();
        let patience = match self.world.strikes(DeliveryFault::Impatient) {
            true => self.world.rng(|rng| rng.millis(0, 30)),
            false => PATIENCE,
        };
        let accepted = timeout(patience, replica.engine.store.accept(submission)).await.ok()?.ok()?;
        if let (Mode::Interactive, Accepted::New { request, lanes, .. }) = (submission.mode, &accepted) {
            let (request, lanes) = (*request, lanes.clone());
            let wait = async move { replica.worker.wait(submission, request, &lanes).await };
            // The answer waits for the write; without one the entry is in all the same.
            let _ = timeout(PATIENCE, wait).await;
        }
        Some(accepted)
    }

    /// Submits once. Says whether it was heard that it is in: then it is in the database, now and for ever.
    async fn told(&self, submission: &Submission) -> bool {
        let request = match self.ask(submission).await {
            Some(Accepted::New { request, .. } | Accepted::Known { request }) => request,
            Some(Accepted::Mismatch | Accepted::TooOld | Accepted::FromFuture) => {
                let why = format!("{} is refused as another request, though it is the same", submission.key);
                self.world.fail(Invariant::I3, None, why);
                return true;
            }
            None => return false,
        };
        let items = submission.items.iter().map(|item| (item.lane.clone(), item.value)).collect();
        let before = self.world.told().insert(submission.key.clone(), Told { request, items });
        self.world
            .note(None, format!("{} is in, as request {request}: {:?}", submission.key, shown(submission)));
        if let Some(before) = before.filter(|before| before.request != request) {
            let why = format!("{} was request {} and is {request} now", submission.key, before.request);
            self.world.fail(Invariant::I1, None, why);
        }
        let store = self.world.store();
        if let Some(None) = self.world.peek(store.request(request)) {
            let why = format!("{} was acknowledged and is not in the database", submission.key);
            self.world.fail(Invariant::I12, None, why);
        }
        true
    }

    /// Credentials are revoked, and some time later somebody logs in again.
    pub(super) async fn logs_in(self: Arc<Self>) {
        let world = &self.world;
        loop {
            sleep(world.rng(|rng| rng.millis(200, 20_000))).await;
            let principal = format!("person-{}", world.rng(|rng| rng.below(world.plan.principals)));
            if world.strikes(DeliveryFault::Unauthorized) {
                let token = world.token(&principal);
                world.service().revoke(&token);
                world.note(None, format!("the credential {token} is revoked"));
            } else if world.rng(|rng| rng.chance(300)) {
                world.log_in(&principal);
            }
        }
    }

    /// People decide, requeue and interfere now and then.
    pub(super) async fn operates(self: Arc<Self>) {
        let world = &self.world;
        loop {
            sleep(world.rng(|rng| rng.millis(500, 30_000))).await;
            if world.strikes(DeliveryFault::Resolved) {
                self.resolves().await;
            }
            if world.strikes(DeliveryFault::Requeued) {
                self.requeues().await;
            }
            if world.strikes(DeliveryFault::Interference) {
                let lane = format!("lane-{}", world.rng(|rng| rng.below(world.plan.lanes)));
                world.service().interfere(&lane, 1000);
                world.note(world.slot(&lane), format!("somebody else writes to {lane}"));
            }
        }
    }

    async fn lanes(&self, what: &str) -> Vec<i64> {
        let store = self.replicas.any().engine.store.clone();
        let lanes = timeout(PATIENCE, store.list(Some(what), 0, 100)).await;
        lanes.ok().and_then(Result::ok).unwrap_or_default().iter().map(|lane| lane.id).collect()
    }

    /// A person looks at the upstream's ledger and says of batches in doubt what is true now.
    async fn resolves(&self) {
        for lane in self.lanes("in-doubt").await {
            let replica = self.replicas.any();
            let store = &replica.engine.store;
            let Ok(Ok(Some(detail))) = timeout(PATIENCE, store.detail(lane)).await else { continue };
            let Some(intent) = detail.intent else { continue };
            let resolution = match self.world.service().times(&intent.key) {
                0 => Resolution::NotApplied,
                _ => Resolution::Applied,
            };
            let late = millis_of(LATE_WINDOW);
            let said = store.resolve(lane, resolution, self.world.plan.reducer, late, "somebody");
            let name = match timeout(PATIENCE, said).await {
                Ok(Ok(Resolved::Done)) => "resolved",
                Ok(Ok(Resolved::TooEarly { .. })) => "resolved-too-early",
                Ok(Ok(Resolved::NotInDoubt)) => "not-in-doubt",
                Ok(Err(_)) | Err(_) => "resolve-failed",
            };
            if name == "resolved-too-early" {
                self.world.count(Met::Fault, DeliveryFault::TooEarly.name());
            }
            self.world.count(Met::Decision, name);
            let text = format!("somebody says {resolution:?} of {}: {name}", detail.lane.name);
            self.world.note(self.world.slot(&detail.lane.name), text);
        }
    }

    async fn requeues(&self) {
        for what in ["dead", "blocked"] {
            for lane in self.lanes(what).await {
                let store = self.replicas.any().engine.store.clone();
                let requeued = timeout(PATIENCE, store.requeue(lane, "somebody")).await;
                self.world
                    .note(None, format!("somebody requeues lane {lane}: {}", matches!(requeued, Ok(Ok(_)))));
            }
        }
    }

    /// Does whatever a person must do so that everything can go on.
    pub(super) async fn set_right(&self) {
        for number in 0..self.world.plan.principals {
            self.world.log_in(&format!("person-{number}"));
        }
        self.resolves().await;
        for lane in self.lanes("blocked").await {
            let store = self.replicas.any().engine.store.clone();
            let _ = timeout(PATIENCE, store.requeue(lane, "somebody")).await;
        }
    }
}

fn shown(submission: &Submission) -> Vec<String> {
    submission.items.iter().map(|item| format!("{} to {}", item.value, item.lane)).collect()
}

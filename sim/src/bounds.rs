//! Whether what is bounded is bounded, and whether every permit came back: asked of each replica at the end, in a way that
//! only a full set of permits answers well.

use std::sync::Arc;
use std::time::Duration;

use semel_contract::problem::Kind;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::client::{Clients, Heard, Intent, Upload};
use crate::coverage::Met;
use crate::faults::Fault;
use crate::routes::{Endpoint, UPLOADS_MAX};
use crate::world::{Invariant, Owner};

/// So many requests come one after the other, each for itself, before a slow one.
const QUICK_REQUESTS: usize = 12;

/// How many of these were refused in this way.
async fn refused_as(kind: Kind, sends: Vec<JoinHandle<Heard>>) -> usize {
    let mut refused = 0;
    for send in sends {
        if let Ok(Heard::Answer(seen)) = send.await {
            refused += usize::from(seen.problem() == Some(kind));
        }
    }
    refused
}

impl Clients {
    /// Asks every replica.
    pub async fn check_bounds(self: &Arc<Self>) {
        let plan = &self.world.plan;
        let waits =
            |endpoint: &&Endpoint| !matches!(endpoint, Endpoint::Spent | Endpoint::Aged | Endpoint::Limited);
        let Some(endpoint) = plan.endpoints.iter().copied().find(|endpoint| waits(&endpoint)) else { return };
        for node in 0..plan.nodes {
            self.check_detached(node, endpoint).await;
            self.check_waiters(node, endpoint).await;
            if plan.rates.has(Fault::StalledUpload) {
                self.check_uploads(node, endpoint).await;
            }
        }
        if plan.rates.has(Fault::QuickThenSlow) {
            self.world.count(Met::Fault, Fault::QuickThenSlow.name());
            self.check_renewals(endpoint).await;
        }
    }

    /// Leases are renewed as often as they need it, however many requests came before.
    async fn check_renewals(self: &Arc<Self>, endpoint: Endpoint) {
        for key in 0..QUICK_REQUESTS {
            let quick = Intent { takes_its_time: false, ..self.slow_intent(endpoint, 900_000 + key) };
            // The judge of renewals has the last word, not the answers.
            let _ = self.send_in_task(0, quick).await;
        }
        let _ = self.send_in_task(0, self.slow_intent(endpoint, 999_999)).await;
    }

    fn slow_intent(&self, endpoint: Endpoint, key: usize) -> Intent {
        let owner = Owner { person: 0, rotation: 0, host: 0 };
        let slot = self.world.slot(owner, endpoint, &format!("00000000-0000-4000-9000-{key:012}"));
        let body = format!("slow-{key}");
        let first_sent = self.world.clock.true_time();
        Intent {
            slot,
            generation: 0,
            body,
            item: "usual",
            first_sent,
            age: Duration::ZERO,
            takes_its_time: true,
            upload: Upload::Usual,
        }
    }

    fn send_in_task(self: &Arc<Self>, node: usize, intent: Intent) -> JoinHandle<Heard> {
        let clients = Arc::clone(self);
        tokio::spawn(async move {
            let node = clients.fleet.node(node);
            clients.send_to(&node, &intent, intent.slot).await
        })
    }

    /// As many as may run at once do run, and one more is refused.
    async fn check_detached(self: &Arc<Self>, node: usize, endpoint: Endpoint) {
        let max = self.world.plan.max_in_flight;
        let mut sends = Vec::new();
        for key in 0..=max {
            sends.push(self.send_in_task(node, self.slow_intent(endpoint, node * 1000 + key)));
            sleep(Duration::from_millis(20)).await;
        }
        let refused = refused_as(Kind::Overloaded, sends).await;
        if refused != 1 {
            let why = format!("of {} requests at once n{node} refused {refused}, not one", max + 1);
            self.world.fail(Invariant::I14, None, why);
        }
    }

    /// Bodies that never come to their end fill their room and no more, are ended in time, and give the room back.
    async fn check_uploads(self: &Arc<Self>, node: usize, endpoint: Endpoint) {
        let quick = |key: usize| Intent {
            takes_its_time: false,
            ..self.slow_intent(endpoint, node * 1000 + 600 + key)
        };
        let stalls = |key: usize| Intent { upload: Upload::Stalls, ..quick(key) };
        let sends = (0..UPLOADS_MAX).map(|key| self.send_in_task(node, stalls(key))).collect();
        sleep(Duration::from_millis(20)).await;
        let more = refused_as(Kind::Overloaded, vec![self.send_in_task(node, quick(UPLOADS_MAX))]).await;
        let ended = refused_as(Kind::RequestMalformed, sends).await;
        let after = refused_as(Kind::Overloaded, vec![self.send_in_task(node, quick(UPLOADS_MAX))]).await;
        if (more, ended, after) != (1, UPLOADS_MAX, 0) {
            let why = format!(
                "beside {UPLOADS_MAX} stalled uploads n{node} refused {more} for want of room; it ended {ended} of \
                 them, and refused {after} then"
            );
            self.world.fail(Invariant::I14, None, why);
        }
    }

    /// As many as may wait for one key do wait, and one more is refused.
    async fn check_waiters(self: &Arc<Self>, node: usize, endpoint: Endpoint) {
        let (_, max) = self.world.plan.max_waiters;
        let intent = self.slow_intent(endpoint, node * 1000 + 500);
        let mut sends = Vec::new();
        for _ in 0..max + 2 {
            sends.push(self.send_in_task(node, intent.clone()));
            sleep(Duration::from_millis(20)).await;
        }
        let refused = refused_as(Kind::TooManyWaiters, sends).await;
        if refused != 1 {
            let why = format!("of {} that wait for one key n{node} refused {refused}, not one", max + 1);
            self.world.fail(Invariant::I14, None, why);
        }
    }
}

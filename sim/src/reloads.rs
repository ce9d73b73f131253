//! Changes of the configuration while requests are on their way: a body that began to come under the one is whole under the
//! next, and its sender has lost patience and sent it again.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::client::{Clients, Intent, Upload};
use crate::faults::Fault;
use crate::world::Owner;

/// So many requests are on their way when the configuration changes.
const ON_THEIR_WAY: usize = 3;

impl Clients {
    /// Tells replicas to follow another configuration now and then, or the same once more.
    pub async fn reloads(self: Arc<Self>) {
        for round in 0_usize.. {
            sleep(self.world.rng(|rng| rng.millis(1000, 15_000))).await;
            if !self.world.strikes(Fault::Reloaded) {
                continue;
            }
            let (number, edition) = (self.fleet.any_number(), self.fleet.any_edition());
            if !self.fleet.is_well(number) {
                continue;
            }
            let under_way: Vec<Intent> = match self.world.rng(|rng| rng.chance(700)) {
                true => (0..ON_THEIR_WAY).map(|one| self.slowly_sent(round * ON_THEIR_WAY + one)).collect(),
                false => Vec::new(),
            };
            for intent in &under_way {
                let (clients, intent) = (Arc::clone(&self), intent.clone());
                let node = self.fleet.node(number);
                self.on_the_side(async move {
                    // Nobody waits for this answer; the next try asks for it.
                    let _ = clients.send_to(&node, &intent, intent.slot).await;
                });
            }
            sleep(self.world.rng(|rng| rng.millis(10, 2000))).await;
            // It may have died meanwhile.
            if self.fleet.is_well(number) {
                self.fleet.reload(number, edition);
            }
            for intent in under_way {
                let again = Intent { upload: Upload::Usual, ..intent };
                self.on_the_side(Arc::clone(&self).pursue(again));
            }
        }
    }

    /// A new request whose body takes some seconds.
    fn slowly_sent(&self, number: usize) -> Intent {
        let world = &self.world;
        let endpoint = world.rng(|rng| *rng.pick(&world.plan.endpoints));
        let host = usize::try_from(world.rng(|rng| rng.below(world.plan.hosts as u64))).unwrap_or(0);
        let since = world.now();
        let key = format!("00000000-0000-4000-a{:03}-{since:08}{number:04}", endpoint as usize);
        let slot = world.slot(Owner { person: 0, rotation: 0, host }, endpoint, &key);
        Intent {
            slot,
            generation: world.current_use(slot),
            body: format!("s{since}-{number}"),
            item: "usual",
            first_sent: world.clock.true_time(),
            age: Duration::ZERO,
            takes_its_time: false,
            upload: Upload::Slow(world.rng(|rng| rng.millis(100, 8000))),
        }
    }
}

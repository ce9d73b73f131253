//! The broker under simulation: the production code behind its own routers, one process on its own file or several on one database,
//! with those who publish, read and manage. One append for an id, every subscriber gets exactly its interval in order, and
//! nothing that was refused is anywhere, whatever crashes, is lost or comes late.

mod check;
mod mesh;
pub mod plan;
mod readers;
mod senders;
mod servers;

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::broker::mesh::{Mesh, member, topic};
use crate::broker::readers::Reader;
use crate::broker::senders::Senders;
use crate::broker::servers::Servers;
use crate::delivery_faults::DeliveryFault;
use crate::plan::Options;
use crate::report::{EFFECTS_MIN, Report};
use crate::stage::{Invariant, lock};
use crate::way::Ground as _;
use crate::weather;

/// How often it is looked whether everybody has read everything, and how long apart.
const LOOKS: usize = 120;
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// A pause in which nobody runs and every id expires.
const LONG_PAUSE: Duration = Duration::from_secs(8 * 86_400);
/// How long brokers take until they have swept.
const SWEEPING: Duration = Duration::from_secs(200);
/// So many more messages are sent at most where a run was too small.
const MORE_MAX: usize = 1000;

/// Everybody in one run.
struct Cast {
    mesh: Arc<Mesh>,
    servers: Arc<Servers>,
    senders: Arc<Senders>,
    readers: Vec<Arc<Reader>>,
}

/// Plays one seed.
pub(crate) async fn simulate(options: &Options) -> Report {
    let mesh = Arc::new(Mesh::new(options));
    mesh.set_quiet(true);
    let servers = Arc::new(Servers::start(&mesh).await);
    let senders = Arc::new(Senders::new(&mesh, &servers));
    let readers: Vec<_> = (0..mesh.plan.readers).map(|number| reader(&mesh, &servers, number)).collect();
    let cast = Cast { mesh: Arc::clone(&mesh), servers, senders, readers };
    tokio::select! {
        biased;
        () = mesh.failed() => {}
        () = cast.tell() => {}
    }
    mesh.end();
    mesh.air().close();
    let effects = *lock(&mesh.checked);
    Report::of(options, &mesh, effects)
}

fn reader(mesh: &Arc<Mesh>, servers: &Arc<Servers>, number: u64) -> Arc<Reader> {
    let plan = &mesh.plan;
    let who = mesh.rng(|rng| member(rng.below(plan.members)));
    let one = format!("topic:{}", topic(mesh.rng(|rng| rng.below(plan.topics))));
    let lines = match mesh.rng(|rng| rng.below(4)) {
        0 => vec!["direct".to_owned()],
        1 => vec![one, "direct".to_owned()],
        _ => vec![one],
    };
    let name = format!("reader-{number} of {who} on {}", lines.join(" and "));
    Arc::new(Reader::new(mesh, servers, (name, who, lines)))
}

impl Cast {
    async fn tell(&self) {
        let steps_min = self.mesh.plan.options.steps_min;
        let reading: Vec<JoinHandle<()>> =
            self.readers.iter().map(|reader| tokio::spawn(Arc::clone(reader).reads())).collect();
        // One of several sleeps through the pause, and finds that it missed something.
        let late = self.readers.first().filter(|_| self.readers.len() > 2);
        self.phase(steps_min / 2, late).await;
        reading.iter().for_each(JoinHandle::abort);
        self.pause().await;
        let _reading: Vec<JoinHandle<()>> =
            self.readers.iter().map(|reader| tokio::spawn(Arc::clone(reader).reads())).collect();
        self.phase(steps_min, None).await;
        for _ in 0..MORE_MAX {
            let is_enough = *lock(&self.mesh.checked) >= EFFECTS_MIN && self.mesh.steps() >= steps_min;
            if is_enough || self.mesh.failure().is_some() {
                return;
            }
            self.senders.publish();
            self.senders.done().await;
            self.rest().await;
            self.mesh.check_everything(&self.servers, &self.readers).await;
        }
    }

    /// Messages and faults, then quiet until everybody has read what is for it.
    async fn phase(&self, steps: usize, late: Option<&Arc<Reader>>) {
        let mesh = &self.mesh;
        mesh.set_quiet(false);
        let around = self.surroundings();
        let (mut launched, most) = (0, mesh.plan.messages * 3);
        while launched < mesh.plan.messages || (mesh.steps() < steps && launched < most) {
            if launched == mesh.plan.messages / 2
                && let Some(late) = late
            {
                late.set_asleep(true);
            }
            self.senders.publish();
            launched += 1;
            sleep(mesh.rng(|rng| rng.millis(0, mesh.plan.gap_millis))).await;
        }
        sleep(mesh.rng(|rng| rng.millis(0, 60_000))).await;
        mesh.set_quiet(true);
        around.iter().for_each(JoinHandle::abort);
        self.servers.heal().await;
        self.senders.settle_changes().await;
        self.senders.subscribe_everybody().await;
        let _healing = Healing(tokio::spawn(Arc::clone(&self.servers).restarts()));
        self.senders.done().await;
        self.rest().await;
        mesh.check_everything(&self.servers, &self.readers).await;
    }

    fn surroundings(&self) -> Vec<JoinHandle<()>> {
        let Cast { mesh, servers, senders, .. } = self;
        let clocks = [DeliveryFault::ClockForward, DeliveryFault::ClockBack, DeliveryFault::ClockSteps];
        let rates = clocks.map(|fault| (mesh.plan.rates.of(fault), fault.name()));
        let away = (mesh.plan.rates.of(DeliveryFault::StoreAway), DeliveryFault::StoreAway.name());
        vec![
            tokio::spawn(Arc::clone(servers).crashes()),
            tokio::spawn(Arc::clone(servers).restarts()),
            tokio::spawn(Arc::clone(servers).freezes()),
            tokio::spawn(Arc::clone(senders).changes()),
            tokio::spawn(weather::clock(Arc::clone(mesh), rates)),
            tokio::spawn(weather::outage(Arc::clone(mesh), away)),
        ]
    }

    /// Nobody runs for longer than ids are remembered.
    async fn pause(&self) {
        self.servers.end_all();
        self.senders.begin_late();
        // A wall clock that is wrong by days is set right by somebody in that time.
        let (creep, _) = self.mesh.clock.wrong_millis();
        self.mesh.clock.set_wrong_millis((creep, 0));
        sleep(LONG_PAUSE).await;
        self.mesh.note(None, "eight days later");
        self.servers.heal().await;
        sleep(SWEEPING).await;
        self.readers.iter().filter(|reader| reader.is_asleep()).for_each(|reader| reader.set_asleep(false));
    }

    /// Waits until every reader has what is its own.
    async fn rest(&self) {
        for _ in 0..LOOKS {
            self.servers.heal().await;
            let mut behind = None;
            for reader in self.readers.iter().filter(|reader| !reader.is_asleep()) {
                if !self.mesh.is_complete(reader).await {
                    behind = Some(reader);
                }
            }
            if behind.is_none() {
                return sleep(LOOK_EVERY).await;
            }
            sleep(LOOK_EVERY).await;
        }
        self.mesh.fail(Invariant::I15, None, "somebody never reads what is for it, after the faults");
    }
}

/// Starts what has died, until it is dropped.
struct Healing(JoinHandle<()>);

impl Drop for Healing {
    fn drop(&mut self) {
        self.0.abort();
    }
}

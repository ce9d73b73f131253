//! The faults, one after another, each with a pause in which things may recover or not.

use std::thread;
use std::time::{Duration, Instant};

use semel_testbed::failure::Failure;
use semel_testbed::os;
use semel_testbed::services::Services;

use super::gates::{ALONE, GATES, Gates};
use super::mesh::Mesh;
use super::outboxes::Outboxes;
use super::preload::Machine;
use super::processes::Processes;
use super::proxy::Proxy;
use super::random::Random;
use super::tokens::Tokens;

/// The longest pause between two faults.
const PAUSE_MILLIS_MAX: u64 = 1200;
/// How long a disk is full, and how long its syncs fail.
const BAD_DISK: Duration = Duration::from_millis(1500);
/// Longer than a gateway's lease: somebody else may act on what a stopped one holds.
const STOPPED: Duration = Duration::from_millis(3500);
/// Long enough for some to be connecting.
const CONNECTING: Duration = Duration::from_millis(300);
/// By how much a clock may be off, in seconds: from what passes for drift to what everything has expired after.
const OFF_BY_SECONDS: [u64; 8] = [0, 1, 8, 55, 600, 3 * 3600, 2 * 86_400, 40 * 86_400];
/// How often the run says how far it is.
const WORD: Duration = Duration::from_secs(10);

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    KillGate,
    StopGatePastItsLease,
    CutPostgres,
    RefusePostgres,
    ShutDownPostgresAtOnce,
    CutUpstream,
    RefuseUpstream,
    KillRedis,
    CutRedis,
    PromoteStandby,
    KillRelay,
    StopRelay,
    KillOutbox,
    StopOutbox,
    FillDisk,
    FailSyncs,
    FreezeWhileConnecting,
    ReloadGate,
    RotateToken,
    KillBroker,
    StopBroker,
    KillMember,
    StopMember,
    FailGateSyncs,
    FreezeRelayWhileConnecting,
    FreezeOutboxWhileConnecting,
    SetGateClock,
    SetRelayClock,
    SetOutboxClock,
    SetGateClockWhileDown,
    SetRelayClockWhileDown,
    SetOutboxClockWhileDown,
}

impl Fault {
    pub(crate) const ALL: [Fault; 32] = [
        Fault::KillGate,
        Fault::StopGatePastItsLease,
        Fault::CutPostgres,
        Fault::RefusePostgres,
        Fault::ShutDownPostgresAtOnce,
        Fault::CutUpstream,
        Fault::RefuseUpstream,
        Fault::KillRedis,
        Fault::CutRedis,
        Fault::PromoteStandby,
        Fault::KillRelay,
        Fault::StopRelay,
        Fault::KillOutbox,
        Fault::StopOutbox,
        Fault::FillDisk,
        Fault::FailSyncs,
        Fault::FreezeWhileConnecting,
        Fault::ReloadGate,
        Fault::RotateToken,
        Fault::KillBroker,
        Fault::StopBroker,
        Fault::KillMember,
        Fault::StopMember,
        Fault::FailGateSyncs,
        Fault::FreezeRelayWhileConnecting,
        Fault::FreezeOutboxWhileConnecting,
        Fault::SetGateClock,
        Fault::SetRelayClock,
        Fault::SetOutboxClock,
        Fault::SetGateClockWhileDown,
        Fault::SetRelayClockWhileDown,
        Fault::SetOutboxClockWhileDown,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Fault::KillGate => "a gateway killed (kill -9) and started again",
            Fault::StopGatePastItsLease => "a gateway stopped past its lease",
            Fault::CutPostgres => "connections to PostgreSQL cut",
            Fault::RefusePostgres => "PostgreSQL away for a second",
            Fault::ShutDownPostgresAtOnce => "PostgreSQL shut down at once and started again",
            Fault::CutUpstream => "connections to the service cut",
            Fault::RefuseUpstream => "the service away for a second",
            Fault::KillRedis => "Redis killed and started again",
            Fault::CutRedis => "connections to Redis cut",
            Fault::PromoteStandby => "the primary dies, a synchronous standby is promoted",
            Fault::KillRelay => "a relay killed (kill -9) and started again",
            Fault::StopRelay => "a relay stopped for 3.5 s",
            Fault::KillOutbox => "an outbox killed (kill -9) and started again",
            Fault::StopOutbox => "an outbox stopped for 3.5 s",
            Fault::FillDisk => "the disk of an outbox full",
            Fault::FailSyncs => "syncs of an outbox's disk fail",
            Fault::FreezeWhileConnecting => "a gateway frozen between connect and first byte",
            Fault::ReloadGate => "a gateway's configuration changed (SIGHUP)",
            Fault::RotateToken => "everybody's credential rotated",
            Fault::KillBroker => "a broker killed (kill -9) and started again",
            Fault::StopBroker => "a broker stopped for 3.5 s",
            Fault::KillMember => "a member's daemon killed (kill -9) and started again",
            Fault::StopMember => "a member's daemon stopped for 3.5 s",
            Fault::FailGateSyncs => "syncs of a gateway's disk fail",
            Fault::FreezeRelayWhileConnecting => "a relay frozen between connect and first byte",
            Fault::FreezeOutboxWhileConnecting => "an outbox frozen between connect and first byte",
            Fault::SetGateClock => "the clock of a gateway set",
            Fault::SetRelayClock => "the clock of a relay set",
            Fault::SetOutboxClock => "the clock of an outbox set",
            Fault::SetGateClockWhileDown => "a gateway killed, its clock set, and started again",
            Fault::SetRelayClockWhileDown => "a relay killed, its clock set, and started again",
            Fault::SetOutboxClockWhileDown => "an outbox killed, its clock set, and started again",
        }
    }
}

/// Who does it, and what was done.
pub(crate) struct Faults<'a> {
    pub(crate) services: &'a mut Services,
    pub(crate) gates: &'a Gates,
    pub(crate) tokens: &'a Tokens,
    pub(crate) relays: &'a Processes,
    pub(crate) relay_machines: &'a [Machine],
    pub(crate) outboxes: &'a Outboxes,
    pub(crate) mesh: &'a Mesh,
    /// To PostgreSQL and to Redis.
    pub(crate) stores: [&'a Proxy; 2],
    /// To the service, over HTTP/2 for the second gateway and over HTTP/1.1 for the others, and to the scores.
    pub(crate) upstreams: [&'a Proxy; 3],
    /// From each outbox to its gateway.
    pub(crate) ways: [&'a Proxy; 2],
    pub(crate) done: Vec<Fault>,
    /// Processes that ended by themselves and were started again.
    pub(crate) revived: u64,
}

impl Faults<'_> {
    /// Plays faults for so long: each at least once, then at random.
    pub(crate) fn play(
        &mut self,
        lasts: Duration,
        random: &mut Random,
        progress: impl Fn() -> u64,
    ) -> Result<(), Failure> {
        let until = Instant::now() + lasts;
        let mut word = Instant::now() + WORD;
        let mut first: Vec<Fault> = Fault::ALL.to_vec();
        while Instant::now() < until {
            if let Some(signal) = os::interrupted() {
                return Err(Failure::Interrupted(signal));
            }
            thread::sleep(Duration::from_millis(300 + random.below(PAUSE_MILLIS_MAX)));
            let fault = match first.is_empty() {
                true => Fault::ALL[usize::try_from(random.below(Fault::ALL.len() as u64)).unwrap_or(0)],
                false => first.swap_remove(usize::try_from(random.below(first.len() as u64)).unwrap_or(0)),
            };
            if self.happen(fault, random)? {
                self.done.push(fault);
            }
            let daemons = [&self.mesh.brokers, &self.mesh.daemons];
            let others = [&self.gates.processes, self.relays, &self.outboxes.processes];
            for processes in others.into_iter().chain(daemons) {
                self.revived += processes.revive()?;
            }
            if Instant::now() > word {
                word = Instant::now() + WORD;
                eprintln!("xtask: {} faults, {} requests acknowledged", self.done.len(), progress());
            }
        }
        Ok(())
    }

    /// Lets it happen. `false`: it cannot, on this machine.
    fn happen(&mut self, fault: Fault, random: &mut Random) -> Result<bool, Failure> {
        let [postgres, redis] = self.stores;
        let mut any = |of: u64| usize::try_from(random.below(of)).unwrap_or(0);
        let (one, gate, upstream, member) = (any(2), any(GATES as u64), self.upstreams[any(3)], any(4));
        let to_service = self.upstreams[usize::from(gate == 1)];
        let off_by = off_by(random);
        let (outboxes, gates) = (&self.outboxes.processes, &self.gates.processes);
        match fault {
            Fault::KillGate => gates.kill_and_start(gate)?,
            Fault::StopGatePastItsLease => stop(gates, gate),
            Fault::KillRelay => self.relays.kill_and_start(one)?,
            Fault::StopRelay => stop(self.relays, one),
            Fault::KillOutbox => outboxes.kill_and_start(one)?,
            Fault::StopOutbox => stop(outboxes, one),
            Fault::CutPostgres => postgres.cut(),
            Fault::RefusePostgres => away(postgres),
            Fault::ShutDownPostgresAtOnce => self.services.restart_postgres()?,
            Fault::PromoteStandby => postgres.lead_to(self.services.promote_standby()?),
            Fault::CutUpstream => upstream.cut(),
            Fault::RefuseUpstream => away(upstream),
            Fault::KillRedis => self.services.restart_redis()?,
            Fault::CutRedis => redis.cut(),
            Fault::FreezeWhileConnecting => freeze_while_connecting(gates, gate, to_service),
            Fault::FreezeRelayWhileConnecting => {
                freeze_while_connecting(self.relays, one, self.upstreams[2]);
            }
            Fault::FreezeOutboxWhileConnecting => freeze_while_connecting(outboxes, one, self.ways[one]),
            Fault::ReloadGate => self.gates.reload(gate, random.next())?,
            Fault::RotateToken => self.tokens.rotate()?,
            Fault::KillBroker => self.mesh.brokers.kill_and_start(one)?,
            Fault::StopBroker => stop(&self.mesh.brokers, one),
            Fault::KillMember => self.mesh.daemons.kill_and_start(member)?,
            Fault::StopMember => stop(&self.mesh.daemons, member),
            Fault::FillDisk => return Ok(for_a_while(|is_bad| self.outboxes.fill_disk(is_bad))),
            Fault::FailGateSyncs => {
                return Ok(for_a_while(|is_bad| self.gates.machine(ALONE).fail_syncs(is_bad)));
            }
            Fault::SetGateClock => return Ok(self.gates.machine(gate).set_clock(off_by)),
            Fault::SetRelayClock => return Ok(self.relay_machines[one].set_clock(off_by)),
            Fault::SetOutboxClock => return Ok(self.outboxes.machine(one).set_clock(off_by)),
            Fault::SetGateClockWhileDown => {
                return Ok(gates.kill_and_start_after(gate, || self.gates.machine(gate).set_clock(off_by))?);
            }
            Fault::SetRelayClockWhileDown => {
                let set = || self.relay_machines[one].set_clock(off_by);
                return Ok(self.relays.kill_and_start_after(one, set)?);
            }
            Fault::SetOutboxClockWhileDown => {
                return Ok(
                    outboxes.kill_and_start_after(one, || self.outboxes.machine(one).set_clock(off_by))?
                );
            }
            Fault::FailSyncs => return Ok(for_a_while(|is_bad| self.outboxes.fail_syncs(is_bad))),
        }
        Ok(true)
    }
}

/// By how many milliseconds a clock is off from now on: any of the sizes, or less, early or late.
fn off_by(random: &mut Random) -> i64 {
    let most = OFF_BY_SECONDS[random.below(OFF_BY_SECONDS.len() as u64) as usize] * 1000;
    let millis = i64::try_from(most / 2 + random.below(most / 2 + 1)).unwrap_or(0);
    if random.below(3) == 0 { -millis } else { millis }
}

fn stop(processes: &Processes, number: usize) {
    processes.signal(number, libc::SIGSTOP);
    thread::sleep(STOPPED);
    processes.signal(number, libc::SIGCONT);
}

/// What connects is accepted and hears nothing; it stands still meanwhile, and goes on when its time is over.
fn freeze_while_connecting(processes: &Processes, number: usize, upstream: &Proxy) {
    upstream.keep_waiting(true);
    thread::sleep(CONNECTING);
    processes.signal(number, libc::SIGSTOP);
    thread::sleep(STOPPED);
    upstream.keep_waiting(false);
    processes.signal(number, libc::SIGCONT);
}

fn for_a_while(becomes: impl Fn(bool) -> bool) -> bool {
    let is_possible = becomes(true);
    if is_possible {
        thread::sleep(BAD_DISK);
        becomes(false);
    }
    is_possible
}

fn away(proxy: &Proxy) {
    proxy.refuse(true);
    thread::sleep(Duration::from_secs(1));
    proxy.refuse(false);
}

//! The faults, one after another, each with a pause in which things may recover or not.

use std::thread;
use std::time::{Duration, Instant};

use super::gates::{GATES, Gates};
use super::proxy::Proxy;
use super::random::Random;
use crate::failure::Failure;
use crate::os;
use crate::services::Services;

/// The longest pause between two faults.
const PAUSE_MILLIS_MAX: u64 = 1200;
/// Longer than a lease: somebody else may act on what a stopped gateway holds.
const STOPPED: Duration = Duration::from_millis(3500);
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
}

impl Fault {
    pub(crate) const ALL: [Fault; 9] = [
        Fault::KillGate,
        Fault::StopGatePastItsLease,
        Fault::CutPostgres,
        Fault::RefusePostgres,
        Fault::ShutDownPostgresAtOnce,
        Fault::CutUpstream,
        Fault::RefuseUpstream,
        Fault::KillRedis,
        Fault::CutRedis,
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
        }
    }
}

/// Who does it, and what was done.
pub(crate) struct Faults<'a> {
    pub(crate) services: &'a mut Services,
    pub(crate) gates: &'a Gates,
    /// To PostgreSQL, to Redis, to the service.
    pub(crate) proxies: [&'a Proxy; 3],
    pub(crate) done: Vec<Fault>,
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
            self.happen(fault, random)?;
            self.done.push(fault);
            if Instant::now() > word {
                word = Instant::now() + WORD;
                eprintln!("xtask: {} faults, {} requests acknowledged", self.done.len(), progress());
            }
        }
        Ok(())
    }

    fn happen(&mut self, fault: Fault, random: &mut Random) -> Result<(), Failure> {
        let [postgres, redis, upstream] = self.proxies;
        let gate = usize::try_from(random.below(GATES as u64)).unwrap_or(0);
        match fault {
            Fault::KillGate => self.gates.kill_and_start(gate)?,
            Fault::StopGatePastItsLease => {
                self.gates.signal(gate, libc::SIGSTOP);
                thread::sleep(STOPPED);
                self.gates.signal(gate, libc::SIGCONT);
            }
            Fault::CutPostgres => postgres.cut(),
            Fault::RefusePostgres => away(postgres),
            Fault::ShutDownPostgresAtOnce => self.services.restart_postgres()?,
            Fault::CutUpstream => upstream.cut(),
            Fault::RefuseUpstream => away(upstream),
            Fault::KillRedis => self.services.restart_redis()?,
            Fault::CutRedis => redis.cut(),
        }
        Ok(())
    }
}

fn away(proxy: &Proxy) {
    proxy.refuse(true);
    thread::sleep(Duration::from_secs(1));
    proxy.refuse(false);
}

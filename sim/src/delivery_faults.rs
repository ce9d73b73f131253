//! Every kind of fault that the delivery engines and the broker meet, and how a seed chooses among them: by the same swarms as the gate.

use crate::faults::{Family, Swarm};
use crate::part::Part;
use crate::rng::Rng;

macro_rules! delivery_faults {
    ($($fault:ident $family:ident $parts:ident $low:literal $high:literal $name:literal)*) => {
        /// One kind of fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum DeliveryFault { $(#[doc = $name] $fault,)* }

        impl DeliveryFault {
            /// Every kind.
            pub const ALL: &'static [DeliveryFault] = &[$(DeliveryFault::$fault,)*];

            /// The kind's name.
            pub fn name(self) -> &'static str {
                match self { $(DeliveryFault::$fault => $name,)* }
            }

            /// What it happens to.
            pub fn family(self) -> Family {
                match self { $(DeliveryFault::$fault => Family::$family,)* }
            }

            /// Where it can happen.
            fn place(self) -> Place {
                match self { $(DeliveryFault::$fault => Place::$parts,)* }
            }

            /// How often it happens when it does, in a thousand chances: from, to.
            fn rates(self) -> (u64, u64) {
                match self { $(DeliveryFault::$fault => ($low, $high),)* }
            }
        }
    };
}

/// Where a fault can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// All engines but the gate.
    All,
    /// The outbox and the relay.
    Both,
    /// The relay and the broker.
    Shared,
    Outbox,
    Relay,
    Broker,
}

delivery_faults! {
    DiskSlow       Store    All     20 150 "disk-slow"
    DiskFull       Store    All      5  40 "disk-full"
    SyncFails      Store    All      1   8 "sync-fails"
    StoreAway      Store    Shared 200 800 "store-away-for-a-while"
    CommitUnknown  Store    Shared   5  40 "commit-unknown"
    CommitLate     Store    Shared   3  20 "commit-unknown-and-late"
    Crash          Node     All    300 900 "crash"
    CrashAtWrite   Node     All      2  12 "crash-around-a-write"
    Freeze         Node     All    300 900 "freeze"
    LongDowntime   Node     Outbox  20 100 "down-for-hours"
    LongPause      Node     Both     5  40 "pause-between-lease-check-and-first-byte"
    Repeated       Client   All     50 300 "sent-in-twice"
    Altered        Client   All     30 150 "altered-under-its-id"
    Impatient      Client   All     20 100 "client-does-not-wait"
    DoubleTap      Client   Outbox  50 300 "double-tap"
    NotSent        Upstream Both    10 100 "not-sent"
    Lost           Upstream Both    10  80 "request-lost"
    ResetBefore    Upstream Both    10  80 "reset-before-the-effect"
    ResetAfter     Upstream Both    10  80 "reset-after-the-effect"
    AnswerLost     Upstream All     10  80 "answer-lost"
    LateEffect     Upstream Both    10 100 "late-effect"
    Duplicated     Upstream Outbox  10 100 "request-duplicated"
    ErrorBefore    Upstream Both    10  80 "5xx-before-the-effect"
    ErrorAfter     Upstream Both    10  80 "5xx-after-the-effect"
    Throttled      Upstream Both    10  80 "429-with-retry-after"
    Unavailable    Upstream Both    10  60 "503"
    Blocked        Upstream Both     3  20 "blocked"
    Unauthorized   Upstream Both    10  60 "credential-refused"
    Rotated        Upstream Outbox  10  60 "credential-rotated"
    NotKept        Upstream Outbox  10  80 "answer-too-large-to-keep"
    Rejected       Upstream Both     5  40 "rejected-for-good"
    Refused        Upstream Outbox  10  80 "refused-without-a-look-at-the-key"
    ReadFails      Upstream Relay   10  80 "reading-fails"
    SlowAnswer     Upstream All     30 200 "slow-answer"
    ClockForward   Clock    All    300 800 "clock-jumps-forward"
    ClockBack      Clock    All    300 800 "clock-jumps-back"
    ClockSteps     Clock    All    300 800 "clock-steps-under-a-minute"
    Paused         Operator Outbox 100 500 "lane-paused"
    Aborted        Operator Outbox  50 300 "aborted"
    Requeued       Operator Both   200 800 "requeued"
    Believed       Operator Outbox 200 800 "requeued-because-the-receipt-says-so"
    Resolved       Operator Relay  300 900 "resolved-by-a-person"
    TooEarly       Operator Relay  100 500 "not-applied-said-too-early"
    Interference   Operator Relay   50 200 "somebody-else-writes"
    WakeUpLost     Store    Broker 300 700 "wake-up-lost"
    ReaderDrops    Client   Broker  20 150 "reader-drops"
    Cancelled      Client   Broker  50 300 "cancelled-by-its-sender"
    NotAllowed     Client   Broker  50 200 "sent-where-it-may-not"
    Subscribed     Operator Broker 300 900 "subscriptions-change"
    Pending        Upstream Outbox  10  60 "still-runs-and-may-come-to-nothing"
    LedElsewhere   Upstream Outbox  10  60 "led-elsewhere-after-the-effect"
}

impl DeliveryFault {
    /// The fault of this name.
    pub fn named(name: &str) -> Option<DeliveryFault> {
        DeliveryFault::ALL.iter().copied().find(|fault| fault.name() == name)
    }

    /// Whether an engine can meet it.
    pub fn concerns(self, part: Part) -> bool {
        match (self.place(), part) {
            (Place::All, Part::Outbox | Part::Relay | Part::Broker)
            | (Place::Both, Part::Outbox | Part::Relay)
            | (Place::Shared, Part::Relay | Part::Broker)
            | (Place::Outbox, Part::Outbox)
            | (Place::Relay, Part::Relay)
            | (Place::Broker, Part::Broker) => true,
            (Place::All | Place::Both | Place::Shared | Place::Outbox | Place::Relay | Place::Broker, _) => {
                false
            }
        }
    }
}

/// What may happen on a calm day.
const CALM: [DeliveryFault; 4] =
    [DeliveryFault::Repeated, DeliveryFault::Altered, DeliveryFault::DoubleTap, DeliveryFault::SlowAnswer];

/// How often each fault happens in one run, in a thousand chances.
#[derive(Clone, Debug)]
pub struct Rates(Vec<u32>);

impl Rates {
    /// Draws the rates of a run.
    pub fn draw(part: Part, swarm: Swarm, with: &[DeliveryFault], rng: &mut Rng) -> Self {
        let swarm = swarm.settled(rng);
        let rate = |fault: &DeliveryFault| {
            // The others' numbers do not depend on it.
            let is_of_one_part = fault.place() == Place::Broker
                || matches!(fault, DeliveryFault::Pending | DeliveryFault::LedElsewhere);
            if is_of_one_part && !fault.concerns(part) {
                return 0;
            }
            let (low, high) = fault.rates();
            let (rate, half) = (rng.between(low, high), rng.chance(500));
            let is_taken = match swarm {
                Swarm::Mixed => half,
                Swarm::Everything => true,
                Swarm::Calm => CALM.contains(fault),
                Swarm::Only(family) => fault.family() == family || (fault.family() == Family::Client && half),
            };
            let rate = if with.contains(fault) { high } else { rate };
            let happens = fault.concerns(part) && (is_taken || with.contains(fault));
            u32::try_from(if happens { rate } else { 0 }).unwrap_or(0)
        };
        Self(DeliveryFault::ALL.iter().map(rate).collect())
    }

    /// How often this one happens.
    pub fn of(&self, fault: DeliveryFault) -> u32 {
        self.0[fault as usize]
    }

    /// Whether it may happen at all.
    pub fn has(&self, fault: DeliveryFault) -> bool {
        self.of(fault) > 0
    }

    /// Takes one out.
    pub fn spare(&mut self, fault: DeliveryFault) {
        self.0[fault as usize] = 0;
    }

    /// Whether the wall clock may be set.
    pub fn jumps(&self) -> bool {
        [DeliveryFault::ClockForward, DeliveryFault::ClockBack, DeliveryFault::ClockSteps]
            .iter()
            .any(|fault| self.has(*fault))
    }

    /// The names of those that may happen.
    pub fn names(&self) -> Vec<&'static str> {
        DeliveryFault::ALL.iter().filter(|fault| self.has(**fault)).map(|fault| fault.name()).collect()
    }
}

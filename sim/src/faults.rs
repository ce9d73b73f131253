//! Every kind of fault, and how a seed chooses among them: a swarm takes a random half of them at random rates, since
//! faults that are always there hide what happens without them.

use crate::rng::Rng;

macro_rules! faults {
    ($($fault:ident $family:ident $low:literal $high:literal $name:literal)*) => {
        /// One kind of fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Fault { $(#[doc = $name] $fault,)* }

        impl Fault {
            /// Every kind.
            pub const ALL: &'static [Fault] = &[$(Fault::$fault,)*];

            /// The kind's name.
            pub fn name(self) -> &'static str {
                match self { $(Fault::$fault => $name,)* }
            }

            /// What it happens to.
            pub fn family(self) -> Family {
                match self { $(Fault::$fault => Family::$family,)* }
            }

            /// How often it happens when it does, in a thousand chances: from, to.
            fn rates(self) -> (u64, u64) {
                match self { $(Fault::$fault => ($low, $high),)* }
            }
        }
    };
}

faults! {
    StoreSlow            Store    20 150  "store-slow"
    StoreUnavailable     Store    10  80  "store-unavailable"
    StoreFull            Store     5  30  "store-full"
    StoreUnknownApplied  Store    10 100  "store-unknown-applied"
    StoreUnknownLost     Store    10 100  "store-unknown-lost"
    StoreHangsBefore     Store     5  40  "store-hangs-before-the-write"
    StoreHangsAfter      Store     5  40  "store-hangs-after-the-write"
    StoreAway            Store   200 800  "store-away-for-a-while"
    HintsLost            Store   300 700  "hints-lost"
    Crash                Node    300 900  "crash"
    Freeze               Node    300 900  "freeze"
    CrashAtWrite         Node      2  15  "crash-around-a-write"
    FreezeInHandler      Node     10  80  "freeze-while-a-handler-runs"
    ReadyPause           Node     20 120  "pause-between-claim-and-dispatch"
    NotReady             Node     10  50  "service-not-ready"
    Disconnect           Client   30 200  "client-disconnects"
    Duplicate            Client   50 400  "duplicate-in-flight"
    Altered              Client   50 200  "altered-body-under-the-key"
    AnswerLost           Client   30 200  "answer-lost-on-its-way"
    Rotated              Client   50 200  "credential-rotated"
    Sealed               Client   20 100  "sealed-by-its-owner"
    ClockAhead           Client   50 200  "client-clock-ahead"
    Anonymous            Client   10  50  "request-without-identity"
    StalledUpload        Client   20 120  "upload-stalls"
    LateRetry            Client   50 300  "retried-much-later"
    StaleAction          Client   50 300  "action-too-old"
    NotSent              Upstream 10 100  "upstream-not-reached"
    ResetBefore          Upstream 10  80  "reset-before-the-effect"
    ResetAfter           Upstream 10  80  "reset-after-the-effect"
    LateEffect           Upstream 10  80  "reset-then-late-effect"
    ErrorBefore          Upstream 10  80  "5xx-before-the-effect"
    ErrorAfter           Upstream 10  80  "5xx-after-the-effect"
    ErrorThenEffect      Upstream 10  60  "5xx-then-late-effect"
    ErrorToldApplied     Upstream 10  50  "5xx-told-applied"
    ErrorToldNotApplied  Upstream 10  50  "5xx-told-not-applied"
    Throttled            Upstream 10  60  "429-or-503"
    Rejected             Upstream 10  60  "422-from-the-upstream"
    ServiceFails         Upstream 10  50  "service-error"
    TimedOut             Upstream 10  50  "forwarding-timed-out"
    SlowAnswer           Upstream 30 200  "slow-answer"
    Hang                 Upstream  5  60  "upstream-hangs"
    Panic                Upstream 10  50  "handler-panics"
    PanicInCall          Upstream 10  50  "handler-panics-when-called"
    LargeAnswer          Upstream 20 100  "answer-too-large-to-keep"
    SlowBody             Upstream 20 100  "slow-body"
    BodyBreaks           Upstream 10  60  "body-breaks-off"
    BodyHangs            Upstream 10  40  "body-hangs"
    ClockForward         Clock   300 800  "clock-jumps-forward"
    ClockBack            Clock   300 800  "clock-jumps-back"
    ClockSteps           Clock   300 800  "clock-steps-under-a-minute"
    ClockWhileDown       Clock   300 800  "clock-set-while-nobody-runs"
    TooEarly             Operator 100 500 "not-applied-said-too-early"
    SlowProbe            Operator 100 500 "probe-answers-with-old-evidence"
    QuickThenSlow        Operator 500 500 "quick-requests-then-a-slow-one"
    MixedLeases          Operator 500 500 "routes-with-different-leases"
    TwoHosts             Operator 500 500 "two-hosts"
    Reloaded             Operator 300 900 "configuration-reloaded"
    Rolled               Operator 300 900 "configuration-rolled-out"
}

/// What a fault happens to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// The record store.
    Store,
    /// The machines on which the gate runs.
    Node,
    /// Those who send requests.
    Client,
    /// What is behind the gate.
    Upstream,
    /// The wall clock.
    Clock,
    /// Those who resolve and configure.
    Operator,
}

/// Which faults a run may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swarm {
    /// A random half of all.
    Mixed,
    /// Only clients that repeat themselves and a slow upstream: nothing may ever become unknown.
    Calm,
    /// Those of one family, and clients.
    Only(Family),
    /// All of them at once.
    Everything,
}

impl Swarm {
    /// Every swarm, by the name that the command line knows.
    pub const ALL: &'static [(&'static str, Swarm)] = &[
        ("mixed", Swarm::Mixed),
        ("calm", Swarm::Calm),
        ("store", Swarm::Only(Family::Store)),
        ("node", Swarm::Only(Family::Node)),
        ("client", Swarm::Only(Family::Client)),
        ("upstream", Swarm::Only(Family::Upstream)),
        ("clock", Swarm::Only(Family::Clock)),
        ("operator", Swarm::Only(Family::Operator)),
        ("everything", Swarm::Everything),
    ];

    /// The swarm of this name.
    pub fn named(name: &str) -> Option<Swarm> {
        Swarm::ALL.iter().find(|(known, _)| *known == name).map(|(_, swarm)| *swarm)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        Swarm::ALL.iter().find(|(_, swarm)| *swarm == self).map_or("mixed", |(name, _)| *name)
    }

    /// What a mixed run is this time: sometimes calm, sometimes everything at once.
    pub(crate) fn settled(self, rng: &mut Rng) -> Swarm {
        match (self, rng.below(10)) {
            (Swarm::Mixed, 0) => Swarm::Calm,
            (Swarm::Mixed, 1) => Swarm::Everything,
            (same, _) => same,
        }
    }

    fn takes(self, fault: Fault, rng: &mut Rng) -> bool {
        let half = rng.chance(500);
        match self {
            Swarm::Mixed => half,
            Swarm::Everything => true,
            Swarm::Calm => CALM.contains(&fault),
            Swarm::Only(family) => fault.family() == family || (fault.family() == Family::Client && half),
        }
    }
}

/// What may happen on a calm day.
const CALM: [Fault; 6] = [
    Fault::Duplicate,
    Fault::Disconnect,
    Fault::AnswerLost,
    Fault::SlowAnswer,
    Fault::MixedLeases,
    Fault::QuickThenSlow,
];

/// How often each fault happens in one run, in a thousand chances.
#[derive(Clone, Debug)]
pub struct Rates(Vec<u32>);

impl Rates {
    /// Draws the rates of a run.
    pub fn draw(swarm: Swarm, rng: &mut Rng) -> Self {
        let swarm = swarm.settled(rng);
        let rate = |fault: &Fault| {
            let (low, high) = fault.rates();
            let rate = u32::try_from(rng.between(low, high)).unwrap_or(0);
            if swarm.takes(*fault, rng) { rate } else { 0 }
        };
        Self(Fault::ALL.iter().map(rate).collect())
    }

    /// Makes sure that these may happen.
    pub fn ask_for(&mut self, wanted: &[Fault]) {
        for fault in wanted {
            let (_, high) = fault.rates();
            self.0[*fault as usize] = u32::try_from(high).unwrap_or(0);
        }
    }

    /// How often this one happens.
    pub fn of(&self, fault: Fault) -> u32 {
        self.0[fault as usize]
    }

    /// Whether it may happen at all.
    pub fn has(&self, fault: Fault) -> bool {
        self.of(fault) > 0
    }

    /// Whether the wall clock may be set.
    pub fn jumps(&self) -> bool {
        [Fault::ClockForward, Fault::ClockBack, Fault::ClockSteps].iter().any(|fault| self.has(*fault))
    }

    /// The names of those that may happen.
    pub fn names(&self) -> Vec<&'static str> {
        Fault::ALL.iter().filter(|fault| self.has(**fault)).map(|fault| fault.name()).collect()
    }
}

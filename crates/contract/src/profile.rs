//! A profile: everything in which routes may differ, as one value. Presets are in [`presets`], how settings are
//! written in [`settings`], the rules that refuse an unsafe combination in [`safety`].

use std::borrow::Cow;
use std::time::Duration;

use crate::classify::Classify;
use crate::fingerprint::Recipe;
use crate::hex::hex;
use crate::json::Pointer;
use crate::keep::KeepRule;
use crate::key::KeyPolicy;
use crate::problem::render::Wire;
use crate::problem::{Kind, Problem};
use crate::record::Guarantee;
use crate::schedule::Schedule;
use crate::scope::ScopePolicy;
use crate::staleness::Staleness;

pub mod presets;
pub mod safety;
pub mod settings;

/// All settings of a route.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The name of the preset, or of the user's own profile, that it began as.
    pub name: Cow<'static, str>,
    /// How keys are read.
    pub key: KeyPolicy,
    /// How keys are minted for messages that bring none.
    pub generator: Generator,
    /// Whose a key is.
    pub scope: ScopePolicy,
    /// What a request is recognised by; `None` sees every request under one key as the same.
    pub fingerprint: Option<Recipe>,
    /// What to do when a key returns with another request.
    pub mismatch: Mismatch,
    /// What to do while another attempt runs.
    pub in_flight: InFlight,
    /// What to do when the outcome is unknown.
    pub on_unknown: OnUnknown,
    /// What a server error of the upstream says about the effect.
    pub on_error: OnError,
    /// How strongly effect and record are tied together.
    pub guarantee: Guarantee,
    /// How problems are written.
    pub wire: Wire,
    /// How long records live.
    pub lifetime: Lifetime,
    /// Which answers are kept.
    pub record: Vec<KeepRule>,
    /// What a replay looks like.
    pub replay: Replay,
    /// The limiters.
    pub limits: Limits,
    /// The methods that a route of this profile covers unless it says otherwise.
    pub methods: Vec<String>,
    /// Whether a released key may be used again.
    pub failed_key: FailedKey,
    /// The names under which states are shown.
    pub state_names: StateNames,
    /// The guard against old actions.
    pub guard: Option<Guard>,
    /// Whether requests first sent before the retry window are refused.
    pub age: Option<FirstSent>,
    /// What answers mean to a sender.
    pub classify: Classify,
    /// When a sender tries again.
    pub schedule: Schedule,
    /// What becomes of a message that is given up.
    pub give_up: GiveUp,
    /// How messages are ordered.
    pub lane: Lane,
    /// When expired records are removed.
    pub sweep: Sweep,
    /// How bodies are kept.
    pub stored: Stored,
}

/// How keys are minted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generator {
    /// A version 4 UUID.
    Uuid4,
    /// A version 4 UUID, a dash and the milliseconds of minting.
    Uuid4Millis,
    /// A ULID.
    Ulid,
}

/// What to do when a key returns with another request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// Refuse it.
    Refuse {
        /// The status.
        status: u16,
        /// What to show of the two requests.
        reveal: Reveal,
    },
    /// Do not look.
    Ignore,
}

/// What a mismatch shows of the hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reveal {
    /// Nothing.
    None,
    /// The first eight bytes of the recorded fingerprint.
    Prefix8,
    /// The payload hashes of both requests.
    PayloadHashes,
}

/// What to do while another attempt runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlight {
    /// Wait for it to settle and replay it; past the deadline, reject.
    Wait {
        /// How long.
        deadline: Duration,
    },
    /// Reject at once.
    Reject {
        /// When to come back.
        retry_after: Duration,
    },
    /// Say 202.
    Accepted,
}

/// What to do when the outcome of the first attempt is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnUnknown {
    /// Tell retries so until it is resolved.
    Hold,
    /// Ask a configured URL.
    Probe,
    /// Send again: the upstream is itself idempotent by key.
    Forward,
    /// Run again: at least once, explicitly.
    Rerun,
}

impl OnUnknown {
    /// The policy's name in settings.
    pub fn name(self) -> &'static str {
        match self {
            OnUnknown::Hold => "hold",
            OnUnknown::Probe => "probe",
            OnUnknown::Forward => "forward",
            OnUnknown::Rerun => "rerun",
        }
    }
}

/// What a server error of the upstream says about the effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// Nothing: record it and replay it as of unknown outcome.
    Replay,
    /// That the upstream rolled back: release the key.
    Release,
}

/// How long records live. Users set the retry window; the rest follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// How long a client may go on retrying with one key.
    pub retry_window: Duration,
    /// How far clocks may be apart.
    pub skew: Duration,
    /// What is added for safety.
    pub margin: Duration,
    /// A lifetime set by hand instead of the sum of the above.
    pub record: Option<Duration>,
    /// How long a released row stays for inspection; `None` removes it at once.
    pub released: Option<Duration>,
    /// From when the lifetime counts.
    pub anchor: Anchor,
    /// How long an expired record stays before it is swept.
    pub sweep_grace: Duration,
    /// A retention that the profile's readers rely on.
    pub least: Duration,
    /// A margin that the profile's readers rely on.
    pub least_margin: Duration,
}

/// From when a record's lifetime counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// From the first claim.
    Created,
    /// From the settlement.
    Settled,
}

/// What a replay looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replay {
    /// The first answer, byte for byte.
    Verbatim,
    /// Another status, with `duplicate: true`.
    Duplicate {
        /// The status.
        status: u16,
    },
}

/// The limiters of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Before look-up: every request counts.
    pub request: Option<Rate>,
    /// Whether a request over the limit is refused even when its key is known.
    pub request_refuses_known: bool,
    /// After look-up: only new keys count.
    pub admission: Option<Rate>,
    /// What one unit of the admission budget pays for.
    pub admission_charge: Charge,
    /// Attempts that one id may make within a window for its one unit.
    pub attempts_per_id: u32,
}

/// So many in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// How many.
    pub count: u32,
    /// In how long.
    pub window: Duration,
}

/// What one unit of the admission budget pays for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charge {
    /// One new key.
    NewKey,
    /// One id within one window, however often it is tried.
    IdWindow,
}

/// Whether a released key may be used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailedKey {
    /// It may.
    Reclaim,
    /// It is spent.
    Sealed,
}

/// The names under which states are shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateNames {
    /// For a claim.
    pub claimed: Cow<'static, str>,
    /// For a settled record.
    pub settled: Cow<'static, str>,
    /// For a released one.
    pub released: Cow<'static, str>,
    /// For an unknown one.
    pub unknown: Cow<'static, str>,
}

/// The guard against old actions, with where the times stand in the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// When the user acted.
    pub generated_at: Pointer,
    /// When the client sent it; optional in the request.
    pub submitted_at: Option<Pointer>,
    /// The bounds.
    pub bounds: Staleness,
}

/// Where the time of the first attempt is read, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstSent {
    /// From the time in a version 7 UUID, where no header says it.
    pub from_uuid7: bool,
}

/// What becomes of a message that is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GiveUp {
    /// Reported and removed.
    Drop,
    /// Kept for an operator.
    Dead,
}

/// How messages are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// One after the other.
    Fifo,
    /// Each by itself.
    Independent,
    /// Waiting ones are reduced into one.
    Coalesce(Reducer),
}

/// How waiting messages become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reducer {
    /// Their sum.
    Sum,
    /// The last.
    Last,
    /// The largest.
    Max,
}

/// When expired records are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sweep {
    /// How often, or at which time of day.
    pub when: SweepWhen,
    /// Rows in one batch.
    pub batch: u32,
    /// Whether each run leaves a row in the cleanup log.
    pub log: bool,
}

/// How often the sweeper runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SweepWhen {
    /// Every so often.
    Every(Duration),
    /// Daily, this long after midnight UTC.
    DailyAt(Duration),
}

/// How bodies are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The largest request body that is fingerprinted; larger ones are refused.
    pub max_body_bytes: u64,
    /// The largest answer that is kept; larger ones pass through and leave a tombstone.
    pub max_response_bytes: u64,
    /// Whether kept answers are compressed.
    pub compress: bool,
}

/// The hashes of one request, as far as a mismatch may show them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hashes<'a> {
    /// The fingerprint.
    pub fingerprint: Option<&'a [u8; 32]>,
    /// The body's own hash.
    pub payload: Option<&'a [u8; 32]>,
}

impl Profile {
    /// Whether a mismatch shows the hashes of both payloads.
    pub fn shows_payload(&self) -> bool {
        matches!(self.mismatch, Mismatch::Refuse { reveal: Reveal::PayloadHashes, .. })
    }

    /// The refusal of a key that returns with another request, showing what the profile reveals.
    pub fn mismatch_problem(&self, recorded: Hashes<'_>, received: Hashes<'_>) -> Problem {
        let detail = "the key was first used for a request with another method, path, query or body";
        let problem = Problem::new(Kind::FingerprintMismatch, detail);
        let reveal = match self.mismatch {
            Mismatch::Refuse { reveal, .. } => reveal,
            Mismatch::Ignore => Reveal::None,
        };
        match reveal {
            Reveal::None => problem,
            Reveal::Prefix8 => {
                problem.with("request_fingerprint", recorded.fingerprint.map(|hash| hex(&hash[..8])))
            }
            Reveal::PayloadHashes => problem
                .with("expectedHash", recorded.payload.map(|hash| hex(hash)))
                .with("receivedHash", received.payload.map(|hash| hex(hash))),
        }
    }

    /// The status of a problem, where this profile has one of its own.
    pub fn status_of(&self, kind: Kind) -> u16 {
        match (kind, self.mismatch) {
            (Kind::FingerprintMismatch, Mismatch::Refuse { status, .. }) => status,
            (other, _) => other.status(),
        }
    }

    /// Sets the one number that users set; margin and the sender's age follow it.
    pub fn set_retry_window(&mut self, window: Duration) {
        const DAY: Duration = Duration::from_secs(86_400);
        let sender_uses_all = self.schedule.max_age == Some(self.lifetime.retry_window);
        if self.schedule.max_age.is_some() {
            // A sender stops a little before the window ends, so that its last attempt still arrives within it.
            self.schedule.max_age = Some(if sender_uses_all { window } else { window - window / 24 });
        }
        // Clients that may be away for days deserve a margin of a day.
        if window > DAY && !self.lifetime.margin.is_zero() {
            self.lifetime.margin = self.lifetime.margin.max(DAY);
        }
        self.lifetime.retry_window = window;
    }
}

impl Lifetime {
    /// How long a record lives from its anchor.
    pub fn record(&self) -> Duration {
        self.record.unwrap_or_else(|| self.derived())
    }

    /// Whether retries up to this age are safe, without a margin of the sender's own, at a server of this profile that
    /// announces this retry window: its records outlive what it announces, and a retry may be under way for a while.
    pub fn covers(&self, max_age: Duration, announced: Duration) -> bool {
        max_age <= announced && self.record() > self.retry_window
    }

    /// What follows from the retry window.
    pub fn derived(&self) -> Duration {
        self.retry_window.saturating_add(self.skew.saturating_mul(2)).saturating_add(self.margin)
    }
}

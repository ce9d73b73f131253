//! The presets: `ietf`, the default, and what each of the others does differently. Each is a file that the reader of users'
//! settings reads.

use std::sync::LazyLock;
use std::time::Duration;

use super::settings::Settings;
use super::{
    Anchor, Charge, FailedKey, Generator, GiveUp, InFlight, Lane, Lifetime, Limits, Mismatch, OnError,
    OnUnknown, Profile, Replay, Reveal, StateNames, Stored, Sweep, SweepWhen,
};
use crate::classify::{Class, Classify};
use crate::key::{Format, KeyPolicy, Presence, Syntax};
use crate::problem::render::{Form, Wire};
use crate::record::Guarantee;
use crate::schedule::{Jitter, Schedule};
use crate::scope::ScopePolicy;

/// A preset's name and how it is made.
pub type Preset = (&'static str, fn() -> Profile);

macro_rules! presets {
    ($($(#[$about:meta])* $name:ident $below:ident;)*) => {
        /// The presets by name.
        pub const PRESETS: [Preset; [$(stringify!($name)),*].len()] = [$((stringify!($name), $name)),*];

        $($(#[$about])*
        pub fn $name() -> Profile {
            static READ: LazyLock<Profile> = LazyLock::new(|| {
                let text = include_str!(concat!("../../profiles/", stringify!($name), ".toml"));
                read(stringify!($name), text, $below())
            });
            READ.clone()
        })*
    };
}

presets! {
    /// The Idempotency-Key draft, with the defaults that are safe for most.
    ietf blank;
    /// As Stripe's API behaves.
    stripe ietf;
    /// A game's server behind the offline queue of a mobile client.
    walker ietf;
    /// A platform of agents: an optional header on every call that changes something.
    agents ietf;
    /// A relay of scores: accepted at once, merged for each lane.
    scores ietf;
    /// A community's feed: failed attempts stay visible and may be tried again.
    feed ietf;
    /// A mesh of daemons and its broker: ids of messages, unique in the mesh.
    mesh ietf;
}

/// The preset of this name.
pub fn preset(name: &str) -> Option<Profile> {
    PRESETS.iter().find(|(known, _)| *known == name).map(|(_, make)| make())
}

/// A preset's file over the profile that it begins with. The files are part of the program: a test reads every one.
fn read(name: &'static str, text: &str, below: Profile) -> Profile {
    let mut profile = Profile { name: name.into(), ..below };
    let settings: Settings = toml::from_str(text).expect("the presets are well formed");
    settings.apply_to(&mut profile).expect("the presets say what can be done");
    profile
}

/// What holds where `ietf` says nothing.
fn blank() -> Profile {
    let zero = Duration::ZERO;
    let name = |text: &'static str| text.into();
    Profile {
        name: name(""),
        key: KeyPolicy {
            sources: Vec::new(),
            syntax: Syntax::Bare,
            format: Format::Printable255,
            presence: Presence::Required,
            require_headers: Vec::new(),
        },
        generator: Generator::Uuid4,
        scope: ScopePolicy { tenant: true, principal: true, endpoint: true },
        fingerprint: None,
        mismatch: Mismatch::Refuse { status: 422, reveal: Reveal::None },
        in_flight: InFlight::Accepted,
        on_unknown: OnUnknown::Hold,
        on_error: OnError::Replay,
        guarantee: Guarantee::Fenced,
        wire: Wire { form: Form::Problem, wording: Vec::new(), stripe_headers: false },
        lifetime: Lifetime {
            retry_window: zero,
            skew: zero,
            margin: zero,
            record: None,
            released: None,
            anchor: Anchor::Settled,
            sweep_grace: zero,
            least: zero,
            least_margin: zero,
        },
        record: Vec::new(),
        replay: Replay::Verbatim,
        limits: Limits {
            request: None,
            request_refuses_known: false,
            admission: None,
            admission_charge: Charge::IdWindow,
            attempts_per_id: 1,
        },
        methods: Vec::new(),
        failed_key: FailedKey::Reclaim,
        state_names: StateNames {
            claimed: name(""),
            settled: name(""),
            released: name(""),
            unknown: name(""),
        },
        guard: None,
        age: None,
        classify: Classify { rules: Vec::new(), otherwise: Class::Dead("rejected".into()) },
        schedule: Schedule {
            base: zero,
            factor: 1.0,
            cap: zero,
            jitter: Jitter::None,
            burst_attempts: None,
            burst_budget: None,
            period: zero,
            max_attempts: None,
            max_age: None,
            blocked: zero,
        },
        give_up: GiveUp::Dead,
        lane: Lane::Fifo,
        sweep: Sweep { when: SweepWhen::Every(Duration::from_secs(3600)), batch: 1, log: false },
        stored: Stored { max_body_bytes: 0, max_response_bytes: 0, compress: false },
    }
}

//! The presets: `ietf`, the default, and what each of the others does differently.

use std::borrow::Cow;
use std::time::Duration;

use super::{
    Anchor, Charge, FailedKey, Generator, GiveUp, Guard, InFlight, Lane, Lifetime, Limits, Mismatch, OnError,
    OnUnknown, Profile, Rate, Reducer, Replay, Reveal, StateNames, Stored, Sweep, SweepWhen,
};
use crate::classify::{Class, Classify, Rule};
use crate::fingerprint::{Input, Recipe};
use crate::json::Pointer;
use crate::key::{Format, KeyPolicy, Presence, RequiredHeader, Source, Syntax};
use crate::outcome::{Keep, KeepRule};
use crate::problem::Kind;
use crate::problem::render::{Form, Wire, Wording};
use crate::record::Guarantee;
use crate::schedule::{Jitter, Schedule};
use crate::scope::ScopePolicy;
use crate::staleness::{Staleness, Submitted};

/// A preset's name and how it is made.
pub type Preset = (&'static str, fn() -> Profile);

/// The presets by name.
pub const PRESETS: [Preset; 7] = [
    ("ietf", ietf),
    ("stripe", stripe),
    ("walker", walker),
    ("agents", agents),
    ("scores", scores),
    ("feed", feed),
    ("mesh", mesh),
];

/// The preset of this name.
pub fn preset(name: &str) -> Option<Profile> {
    PRESETS.iter().find(|(known, _)| *known == name).map(|(_, make)| make())
}

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

const WAITING: [&str; 5] =
    ["in-flight", "too-many-waiters", "outcome-unknown", "superseded", "idempotency-in-flight"];
const SPENT: [&str; 6] = [
    "fingerprint-mismatch",
    "key-sealed",
    "credential-changed",
    "answer-not-kept",
    "idempotency-conflict",
    "idempotency-key-reused",
];

/// The Idempotency-Key draft, with the defaults that are safe for most.
pub fn ietf() -> Profile {
    Profile {
        name: "ietf",
        key: KeyPolicy {
            sources: vec![Source::Header("Idempotency-Key".to_owned())],
            syntax: Syntax::Both,
            format: Format::Printable255,
            presence: Presence::Required,
            require_headers: Vec::new(),
        },
        generator: Generator::Uuid4,
        scope: ScopePolicy { tenant: true, principal: true, endpoint: true },
        fingerprint: Some(Recipe {
            inputs: vec![Input::Method, Input::Route, Input::Params, Input::Query, Input::Body],
            exclude: Vec::new(),
            include: Vec::new(),
        }),
        mismatch: Mismatch::Refuse { status: 422, reveal: Reveal::None },
        in_flight: InFlight::Wait { deadline: 25 * SECOND },
        on_unknown: OnUnknown::Hold,
        on_error: OnError::Replay,
        guarantee: Guarantee::Fenced,
        wire: wire(Form::Problem, &[]),
        lifetime: lifetime(DAY, 5 * MINUTE, HOUR, Anchor::Settled),
        record: ietf_record(),
        replay: Replay::Verbatim,
        limits: Limits {
            request: None,
            request_refuses_known: false,
            admission: None,
            admission_charge: Charge::IdWindow,
            attempts_per_id: 100,
        },
        methods: vec!["POST", "PATCH"],
        failed_key: FailedKey::Reclaim,
        state_names: names("in_progress", "completed", "released"),
        guard: None,
        age: None,
        classify: classify(vec![on(409, &WAITING, Class::RetryAfter)]),
        schedule: Schedule {
            base: SECOND,
            factor: 2.0,
            cap: 5 * MINUTE,
            jitter: Jitter::Full,
            burst_attempts: None,
            burst_budget: None,
            period: 15 * MINUTE,
            max_attempts: None,
            max_age: Some(23 * HOUR),
            blocked: 10 * MINUTE,
        },
        give_up: GiveUp::Dead,
        lane: Lane::Fifo,
        sweep: Sweep { when: SweepWhen::Every(HOUR), batch: 1000, log: false },
        stored: Stored { max_body_bytes: 1 << 20, max_response_bytes: 1 << 20, compress: false },
    }
}

/// As Stripe's API behaves.
pub fn stripe() -> Profile {
    let mut profile = ietf();
    profile.name = "stripe";
    profile.key.presence = Presence::Optional;
    profile.mismatch = Mismatch::Refuse { status: 400, reveal: Reveal::None };
    profile.in_flight = InFlight::Reject { retry_after: SECOND };
    profile.wire.stripe_headers = true;
    profile.lifetime = lifetime(DAY, Duration::ZERO, Duration::ZERO, Anchor::Created);
    profile.methods = vec!["POST"];
    profile.classify = classify(vec![on(409, &SPENT, rejected()), on(409, &[], Class::RetryAfter)]);
    profile
}

/// The walker game: an offline queue of a mobile client, guarded by the age of an action.
pub fn walker() -> Profile {
    let mut profile = ietf();
    profile.name = "walker";
    profile.key.syntax = Syntax::Bare;
    profile.key.format = Format::Uuid4Lower;
    profile.scope.tenant = false;
    if let Some(recipe) = &mut profile.fingerprint {
        recipe.exclude = vec![pointer("/clientSubmittedAt")];
    }
    profile.mismatch = Mismatch::Refuse { status: 409, reveal: Reveal::PayloadHashes };
    profile.wire = wire(
        Form::Envelope,
        &[
            code(Kind::KeyMissing, "IDEMPOTENCY_KEY_REQUIRED"),
            code(Kind::KeyInvalid, "IDEMPOTENCY_KEY_INVALID"),
            code(Kind::KeyAmbiguous, "IDEMPOTENCY_KEY_INVALID"),
            code(Kind::KeyTooWeak, "IDEMPOTENCY_KEY_INVALID"),
            code(Kind::FingerprintMismatch, "IDEMPOTENCY_CONFLICT"),
            code(Kind::InFlight, "IDEMPOTENCY_IN_FLIGHT"),
        ],
    );
    profile.lifetime = lifetime(7 * DAY, 6 * HOUR, 12 * HOUR, Anchor::Created);
    profile.record =
        rules_before(&[KeepRule::one(503, Keep::Release), KeepRule::range(400, 499, Keep::Release)]);
    profile.methods = vec!["POST"];
    profile.guard = Some(Guard {
        generated_at: pointer("/clientGeneratedAt"),
        submitted_at: Some(pointer("/clientSubmittedAt")),
        bounds: Staleness {
            cap: 7 * DAY,
            grace: 6 * HOUR,
            submitted: Submitted::Ignore,
            submitted_gap: None,
        },
    });
    profile.classify = walker_classify();
    profile.schedule.base = 5 * SECOND;
    profile.schedule.jitter = Jitter::Ratio(0.25);
    profile.schedule.burst_attempts = Some(12);
    profile.schedule.max_age = Some(7 * DAY);
    profile.give_up = GiveUp::Drop;
    profile.sweep = Sweep { when: SweepWhen::DailyAt(3 * HOUR), batch: 1000, log: false };
    profile
}

/// The agent platform: an optional header on every mutating call.
pub fn agents() -> Profile {
    let mut profile = ietf();
    profile.name = "agents";
    profile.key.sources = vec![Source::Header("X-Idempotency-Key".to_owned())];
    profile.key.syntax = Syntax::Bare;
    profile.key.presence = Presence::Optional;
    profile.scope.endpoint = false;
    profile.in_flight = InFlight::Reject { retry_after: SECOND };
    profile.wire = wire(Form::Text, &[words(Kind::InFlight, "Request is being processed")]);
    profile.lifetime = lifetime(DAY, Duration::ZERO, Duration::ZERO, Anchor::Created);
    profile.methods = vec!["POST", "PUT", "PATCH"];
    profile.state_names = names("in_progress", "completed", "failed");
    profile.classify = classify(vec![on(409, &SPENT, rejected()), on(409, &[], Class::RetryAfter)]);
    profile
}

/// The score relay: accepted at once, merged per lane.
pub fn scores() -> Profile {
    let mut profile = ietf();
    profile.name = "scores";
    profile.key.sources = vec![Source::Header("X-Idempotency-Key".to_owned())];
    profile.key.syntax = Syntax::Bare;
    profile.key.format = Format::Any255;
    profile.scope.endpoint = false;
    profile.in_flight = InFlight::Accepted;
    profile.wire = wire(Form::Message, &[words(Kind::KeyMissing, "Idempotency key required")]);
    profile.lifetime = lifetime(23 * HOUR, Duration::ZERO, HOUR, Anchor::Settled);
    profile.lifetime.released = Some(7 * DAY);
    profile.methods = vec!["POST"];
    profile.state_names =
        StateNames { claimed: "processing", settled: "completed", released: "failed", unknown: "in_doubt" };
    profile.classify = classify(vec![on(409, &SPENT, rejected()), on(409, &[], Class::RetryAfter)]);
    profile.schedule.cap = 16 * SECOND;
    profile.schedule.jitter = Jitter::None;
    profile.schedule.burst_attempts = Some(6);
    profile.schedule.period = 5 * MINUTE;
    profile.lane = Lane::Coalesce(Reducer::Sum);
    profile
}

/// The community feed: failed attempts stay visible and may be tried again.
pub fn feed() -> Profile {
    let mut profile = ietf();
    profile.name = "feed";
    profile.key.syntax = Syntax::Bare;
    profile.key.format = Format::Token255;
    profile.key.require_headers =
        vec![RequiredHeader { name: "X-Client-Tx-Id".to_owned(), format: Format::Token255 }];
    profile.generator = Generator::Uuid4Millis;
    profile.scope.tenant = false;
    profile.in_flight = InFlight::Reject { retry_after: SECOND };
    profile.on_error = OnError::Release;
    profile.wire = wire(
        Form::Error,
        &[
            words(Kind::KeyMissing, "Missing Idempotency-Key header"),
            words(Kind::KeyInvalid, "Invalid Idempotency-Key format"),
            words(Kind::KeyAmbiguous, "Invalid Idempotency-Key format"),
            words(Kind::FingerprintMismatch, "Idempotency key reused with different payload"),
            words(Kind::InFlight, "Request already being processed"),
        ],
    );
    profile.lifetime = lifetime(DAY, Duration::ZERO, Duration::ZERO, Anchor::Settled);
    profile.lifetime.released = Some(7 * DAY);
    profile.record =
        rules_before(&[KeepRule::one(503, Keep::Release), KeepRule::range(400, 499, Keep::Release)]);
    profile.limits.admission = Some(Rate { count: 1000, window: HOUR });
    profile.limits.admission_charge = Charge::NewKey;
    profile.methods = vec!["POST", "PUT", "PATCH", "DELETE"];
    profile.state_names = names("processing", "completed", "failed");
    profile.classify = Classify {
        rules: vec![
            range(200, 299, Class::Success),
            on(401, &[], Class::Auth),
            on(409, &SPENT, rejected()),
            on(409, &[], Class::RetryAfter),
            on(422, &[], Class::Dead(Cow::Borrowed("conflicting-payload"))),
            on(408, &[], Class::RetryAfter),
            on(425, &[], Class::RetryAfter),
            on(429, &[], Class::RetryAfter),
            on(503, &[], Class::RetryAfter),
            range(500, 599, Class::Retry),
        ],
        otherwise: rejected(),
    };
    profile.schedule.cap = 32 * SECOND;
    profile.schedule.jitter = Jitter::None;
    profile.sweep = Sweep { when: SweepWhen::Every(6 * HOUR), batch: 1000, log: true };
    profile.stored.compress = true;
    profile
}

/// The mesh daemon and its broker: ids of messages, unique in the mesh.
pub fn mesh() -> Profile {
    let mut profile = ietf();
    profile.name = "mesh";
    // The outbox sends its id as a header, also where the body does not repeat it.
    profile.key.sources =
        vec![Source::Json(pointer("/client_message_id")), Source::Header("Idempotency-Key".to_owned())];
    profile.key.syntax = Syntax::Bare;
    profile.key.presence = Presence::Mint;
    profile.generator = Generator::Ulid;
    profile.scope = ScopePolicy { tenant: true, principal: false, endpoint: false };
    if let Some(recipe) = &mut profile.fingerprint {
        recipe.inputs.push(Input::Principal);
    }
    profile.mismatch = Mismatch::Refuse { status: 409, reveal: Reveal::Prefix8 };
    profile.in_flight = InFlight::Accepted;
    profile.wire = wire(Form::Mesh, &[code(Kind::FingerprintMismatch, "idempotency_key_reused")]);
    profile.lifetime = lifetime(6 * DAY, Duration::ZERO, DAY, Anchor::Settled);
    profile.lifetime.least = 7 * DAY;
    profile.lifetime.least_margin = DAY;
    profile.record =
        rules_before(&[KeepRule::one(503, Keep::Release), KeepRule::range(400, 499, Keep::Release)]);
    profile.replay = Replay::Duplicate { status: 200 };
    profile.methods = vec!["POST"];
    profile.state_names =
        StateNames { claimed: "inflight", settled: "done", released: "dead", unknown: "unknown" };
    profile.classify = classify(vec![
        on(403, &["identity-refused"], Class::Auth),
        // A member that may not do this may do other things: its lanes do not wait for a new credential.
        on(403, &[], Class::RetryAtMost(3, Box::new(Class::Dead(Cow::Borrowed("forbidden"))))),
        on(409, &WAITING, Class::RetryAfter),
    ]);
    profile.schedule.max_age = Some(6 * DAY);
    profile.lane = Lane::Independent;
    profile
}

fn ietf_record() -> Vec<KeepRule> {
    let transient = [401, 403, 408, 409, 425, 429, 503].map(|status| KeepRule::one(status, Keep::Release));
    rules_before(&transient)
}

/// These rules, then everything below 500 is settled. Other server errors have no rule: they fall to `on_error`.
fn rules_before(rules: &[KeepRule]) -> Vec<KeepRule> {
    rules.iter().copied().chain([KeepRule::range(200, 499, Keep::Settle)]).collect()
}

fn lifetime(retry_window: Duration, skew: Duration, margin: Duration, anchor: Anchor) -> Lifetime {
    Lifetime {
        retry_window,
        skew,
        margin,
        record: None,
        released: None,
        anchor,
        sweep_grace: Duration::ZERO,
        least: Duration::ZERO,
        least_margin: Duration::ZERO,
    }
}

fn wire(form: Form, wording: &[Wording]) -> Wire {
    Wire { form, wording: wording.to_vec(), stripe_headers: false }
}

fn code(kind: Kind, code: &'static str) -> Wording {
    Wording { kind, code: Some(code), text: None }
}

fn words(kind: Kind, text: &'static str) -> Wording {
    Wording { kind, code: None, text: Some(text) }
}

fn names(claimed: &'static str, settled: &'static str, released: &'static str) -> StateNames {
    StateNames { claimed, settled, released, unknown: "unknown" }
}

fn range(from: u16, to: u16, class: Class) -> Rule {
    Rule { from, to, codes: Vec::new(), class }
}

fn on(status: u16, codes: &[&'static str], class: Class) -> Rule {
    Rule { from: status, to: status, codes: codes.iter().copied().map(Cow::Borrowed).collect(), class }
}

fn rejected() -> Class {
    Class::Dead(Cow::Borrowed("rejected"))
}

/// The common table, with a profile's own rules in its middle.
fn classify(own: Vec<Rule>) -> Classify {
    let mut rules = vec![range(200, 299, Class::Success), on(401, &[], Class::Auth)];
    rules.extend(own);
    rules.extend([408, 425, 429, 503].map(|status| on(status, &[], Class::RetryAfter)));
    rules.push(range(500, 599, Class::Retry));
    Classify { rules, otherwise: rejected() }
}

fn walker_classify() -> Classify {
    let dropped = |reason| Class::Drop(Cow::Borrowed(reason));
    classify(vec![
        on(409, &["idempotency-conflict"], dropped("idempotency-conflict")),
        on(
            409,
            &["already-allocated", "quest-already-completed", "quest-already-in-progress"],
            Class::Success,
        ),
        on(409, &WAITING, Class::RetryAfter),
        on(422, &["stale-action"], dropped("stale-action")),
        on(422, &["prerequisites-not-met"], dropped("prereq-slipped")),
        on(422, &["insufficient-points"], dropped("points-changed")),
        on(422, &["step-out-of-order", "ordering-violation"], Class::Rebuild),
        on(422, &[], Class::RetryAtMost(1, Box::new(dropped("unknown-422")))),
        on(400, &[], dropped("bad-request")),
    ])
}

fn pointer(text: &str) -> Pointer {
    Pointer::parse(text).expect("the presets' pointers are well formed")
}

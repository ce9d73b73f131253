//! Presets are safe, unsafe profiles are refused with the number to change, and problems are written as designed.

use std::time::Duration;

use semel_contract::fingerprint::Input;
use semel_contract::problem::{Kind, Problem};
use semel_contract::profile::{FailedKey, Hashes, InFlight, Mismatch, Profile, Reveal, presets};
use serde_json::{Value, json};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

fn refusals(profile: &Profile) -> Vec<&'static str> {
    profile.unsafeties().iter().map(|found| found.setting).collect()
}

fn changed(mut profile: Profile, change: impl Fn(&mut Profile)) -> Profile {
    change(&mut profile);
    profile
}

#[test]
fn presets_are_safe() {
    for (name, make) in presets::PRESETS {
        assert_eq!(make().unsafeties(), [], "{name}");
        assert_eq!(make().name, name);
    }
}

#[test]
fn record_lifetimes_follow_the_retry_window() {
    let lifetime = |name: &str| presets::preset(name).unwrap().lifetime.record();
    assert_eq!(lifetime("ietf"), 25 * HOUR + Duration::from_secs(600));
    assert_eq!(
        lifetime("walker"),
        8 * DAY,
        "seven days, a grace of six hours each way, twelve hours of margin"
    );
    assert_eq!(
        (lifetime("agents"), lifetime("stripe"), lifetime("feed"), lifetime("scores")),
        (DAY, DAY, DAY, DAY)
    );
    assert_eq!(lifetime("mesh"), 7 * DAY);
    let offline = changed(presets::ietf(), |profile| profile.set_retry_window(7 * DAY));
    assert_eq!(offline.lifetime.record(), 8 * DAY + Duration::from_secs(600));
    assert_eq!(offline.unsafeties(), []);
}

#[test]
fn any_retry_window_gives_a_safe_profile() {
    for (name, make) in presets::PRESETS.iter().filter(|(name, _)| !["mesh", "walker"].contains(name)) {
        for window in [Duration::from_secs(1), HOUR, DAY, 30 * DAY] {
            assert_eq!(
                changed(make(), |profile| profile.set_retry_window(window)).unsafeties(),
                [],
                "{name} {window:?}"
            );
        }
    }
}

#[test]
fn a_lifetime_that_ends_before_the_retries_is_refused() {
    let short = changed(presets::ietf(), |profile| profile.lifetime.record = Some(24 * HOUR));
    let found = short.unsafeties();
    assert_eq!(found[0].setting, "record_lifetime");
    assert!(
        found[0].reason.contains("record lifetime 1d ≥ retry_window 1d + 2 × skew 5m + margin 1h = 1d1h10m"),
        "{}",
        found[0]
    );
}

#[test]
fn a_lifetime_that_ends_before_the_guard_is_refused() {
    let short = changed(presets::walker(), |profile| {
        profile.lifetime.retry_window = 6 * DAY;
        profile.schedule.max_age = Some(6 * DAY);
    });
    assert_eq!(refusals(&short), ["retry_window"]);
}

#[test]
fn a_sender_that_outlives_the_records_is_refused() {
    let late = changed(presets::scores(), |profile| profile.schedule.max_age = Some(2 * DAY));
    assert_eq!(refusals(&late), ["max_age", "max_age"]);
}

#[test]
fn a_mesh_below_its_least_retention_or_margin_is_refused() {
    let short = changed(presets::mesh(), |profile| profile.set_retry_window(5 * DAY));
    assert_eq!(refusals(&short), ["retry_window"]);
    let thin = changed(presets::mesh(), |profile| {
        profile.lifetime.margin = 23 * HOUR;
        profile.lifetime.record = Some(7 * DAY);
    });
    assert_eq!(refusals(&thin), ["margin"]);
}

#[test]
fn scope_without_principal_is_refused() {
    let shared = changed(presets::ietf(), |profile| profile.scope.principal = false);
    assert_eq!(refusals(&shared), ["scope"]);
    let nobody = changed(presets::mesh(), |profile| profile.scope.tenant = false);
    assert_eq!(refusals(&nobody), ["scope"]);
}

#[test]
fn fingerprints_that_compare_nothing_are_refused() {
    assert_eq!(refusals(&changed(presets::ietf(), |profile| profile.fingerprint = None)), ["fingerprint"]);
    let no_body = changed(presets::walker(), |profile| {
        profile.fingerprint.as_mut().unwrap().inputs.retain(|input| *input != Input::Body);
    });
    assert_eq!(refusals(&no_body), ["fingerprint"]);
    let ignored = changed(presets::ietf(), |profile| {
        profile.fingerprint = None;
        profile.mismatch = Mismatch::Ignore;
    });
    assert_eq!(refusals(&ignored), [""; 0]);
}

#[test]
fn ignoring_mismatches_never_shares_answers_between_principals() {
    let shared = changed(presets::mesh(), |profile| profile.mismatch = Mismatch::Ignore);
    assert_eq!(refusals(&shared), ["scope"]);
}

#[test]
fn a_sealed_key_must_outlive_its_retries() {
    let forgotten = changed(presets::ietf(), |profile| profile.failed_key = FailedKey::Sealed);
    assert_eq!(refusals(&forgotten), ["released_lifetime"]);
    let kept = changed(presets::feed(), |profile| profile.failed_key = FailedKey::Sealed);
    assert_eq!(kept.unsafeties(), []);
}

#[test]
fn values_that_make_no_sense_are_refused() {
    let with = |change: fn(&mut Profile)| refusals(&changed(presets::ietf(), change));
    assert_eq!(
        with(|profile| profile.mismatch = Mismatch::Refuse { status: 200, reveal: Reveal::None }),
        ["mismatch"]
    );
    assert_eq!(with(|profile| profile.stored.max_body_bytes = 0), ["max_body"]);
    assert_eq!(with(|profile| profile.key.sources.clear()), ["key_sources"]);
    let root = semel_contract::json::Pointer::parse("").unwrap();
    let all = changed(presets::ietf(), |profile| {
        profile.fingerprint.as_mut().unwrap().exclude = vec![root.clone()]
    });
    assert_eq!(refusals(&all), ["fingerprint"]);
}

#[test]
fn waits_without_bound_are_refused() {
    for deadline in [Duration::ZERO, HOUR] {
        let profile = changed(presets::ietf(), |profile| profile.in_flight = InFlight::Wait { deadline });
        assert_eq!(refusals(&profile), ["in_flight"]);
    }
}

/// A problem as a preset writes it, with its status.
fn written(preset: &str, problem: &Problem) -> (u16, Value) {
    let profile = presets::preset(preset).unwrap();
    let rendered = profile.wire.render(problem, Some(profile.status_of(problem.kind)), "req-1");
    let body = serde_json::from_str(&rendered.body).unwrap_or(Value::String(rendered.body));
    (rendered.status, body)
}

#[test]
fn the_default_form_is_problem_json() {
    let problem = Problem::new(Kind::OutcomeUnknown, "ask the operator")
        .retry_after(Duration::from_millis(1500))
        .with("since", 7);
    let rendered = presets::ietf().wire.render(&problem, None, "req-1");
    let body: Value = serde_json::from_str(&rendered.body).unwrap();
    assert_eq!(
        body,
        json!({
            "type": "urn:semel:problem:outcome-unknown", "title": Kind::OutcomeUnknown.title(), "status": 409,
            "detail": "ask the operator", "retry": "same-key", "retry_after": 2, "request_id": "req-1", "details": {"since": 7},
        })
    );
    let header =
        |name| rendered.headers.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str());
    assert_eq!(header("content-type"), Some("application/problem+json"));
    assert_eq!(header("link"), Some("</.well-known/semel/problems/outcome-unknown>; rel=\"describedby\""));
    assert_eq!((header("x-should-retry"), header("retry-after")), (Some("true"), Some("2")));
}

#[test]
fn feed_errors_have_their_exact_bodies() {
    let second = Duration::from_secs(1);
    for (problem, status, body) in [
        (Kind::KeyMissing.into(), 400, json!({"error": "Missing Idempotency-Key header"})),
        (Kind::KeyInvalid.into(), 400, json!({"error": "Invalid Idempotency-Key format"})),
        (
            Kind::FingerprintMismatch.into(),
            422,
            json!({"error": "Idempotency key reused with different payload"}),
        ),
        (
            Problem::from(Kind::InFlight).retry_after(second),
            409,
            json!({"error": "Request already being processed", "retry_after": 1000}),
        ),
    ] {
        assert_eq!(written("feed", &problem), (status, body));
    }
}

#[test]
fn walker_errors_use_the_envelope() {
    let hashes = |byte: &'static [u8; 32]| Hashes { fingerprint: None, payload: Some(byte) };
    let conflict = presets::walker().mismatch_problem(hashes(&[0xaa; 32]), hashes(&[0xbb; 32]));
    let (status, body) = written("walker", &conflict);
    assert_eq!(status, 409);
    assert_eq!(body["error"], "IDEMPOTENCY_CONFLICT");
    assert_eq!(body["details"], json!({"expectedHash": "aa".repeat(32), "receivedHash": "bb".repeat(32)}));
    assert_eq!(body["requestId"], "req-1");
    assert!(body["message"].is_string());
    let code = |kind: Kind| written("walker", &kind.into()).1["error"].clone();
    assert_eq!(code(Kind::KeyMissing), "IDEMPOTENCY_KEY_REQUIRED");
    assert_eq!(code(Kind::KeyInvalid), "IDEMPOTENCY_KEY_INVALID");
    assert_eq!(code(Kind::StaleAction), "STALE_ACTION");
    assert_eq!(code(Kind::OrderingViolation), "ORDERING_VIOLATION");
    assert_eq!(code(Kind::InsufficientEnergy), "INSUFFICIENT_ENERGY");
}

#[test]
fn the_other_forms_keep_their_shapes() {
    assert_eq!(written("agents", &Kind::InFlight.into()), (409, json!("Request is being processed")));
    assert_eq!(
        written("scores", &Kind::KeyMissing.into()),
        (400, json!({"message": "Idempotency key required"}))
    );
    let own = Hashes { fingerprint: Some(&[0x1f; 32]), payload: None };
    let (status, body) = written("mesh", &presets::mesh().mismatch_problem(own, Hashes::default()));
    assert_eq!((status, &body["error"]), (409, &json!("idempotency_key_reused")));
    assert_eq!(body["request_fingerprint"], "1f".repeat(8), "sixteen digits");
    let plain = presets::ietf().mismatch_problem(own, Hashes::default());
    assert_eq!(plain.fields, [], "the default shows nothing of either request");
    assert_eq!(written("stripe", &Kind::FingerprintMismatch.into()).0, 400);
    let stripe = presets::stripe().wire.render(&Kind::InFlight.into(), None, "req-1");
    assert!(stripe.headers.contains(&("stripe-should-retry", "true".to_owned())));
}

#[test]
fn slugs_are_unique_and_readable() {
    let mut slugs: Vec<&str> = Kind::ALL.iter().map(|kind| kind.slug()).collect();
    slugs.sort_unstable();
    slugs.dedup();
    assert_eq!(slugs.len(), Kind::ALL.len());
    assert!(slugs.iter().all(|slug| slug.bytes().all(|b| b.is_ascii_lowercase() || b == b'-')));
}

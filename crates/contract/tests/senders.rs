//! What senders share: schedules, classification, staleness, timestamps, against the vectors.

mod vectors;

use std::time::Duration;

use semel_contract::classify::{Class, code_of};
use semel_contract::profile::presets;
use semel_contract::schedule::{Cause, GiveUpReason, Jitter, Next, Progress, Schedule};
use semel_contract::staleness::{Staleness, Submitted, Verdict};
use semel_contract::time::Timestamp;
use serde_json::{Value, json};
use vectors::text;

fn millis(value: &Value) -> Option<Duration> {
    value.as_u64().map(Duration::from_millis)
}

fn count(value: &Value) -> Option<u32> {
    value.as_u64().map(|count| u32::try_from(count).unwrap())
}

fn schedule(value: &Value) -> Schedule {
    Schedule {
        base: millis(&value["base_ms"]).unwrap(),
        factor: value["factor"].as_f64().unwrap(),
        cap: millis(&value["cap_ms"]).unwrap(),
        jitter: match value["jitter"].as_str() {
            Some("none") => Jitter::None,
            Some("full") => Jitter::Full,
            Some(other) => panic!("unknown jitter {other}"),
            None => Jitter::Ratio(value["jitter"]["ratio"].as_f64().unwrap()),
        },
        burst_attempts: count(&value["burst_attempts"]),
        burst_budget: millis(&value["burst_budget_ms"]),
        period: millis(&value["period_ms"]).unwrap_or_default(),
        max_attempts: count(&value["max_attempts"]),
        max_age: millis(&value["max_age_ms"]),
        blocked: millis(&value["blocked_ms"]).unwrap(),
    }
}

#[test]
fn schedules_wait_as_the_contract_says() {
    vectors::check("schedules.json", "vectors", |vector| {
        let at = &vector["progress"];
        let progress = Progress {
            attempts: count(&at["attempts"]).unwrap(),
            attempts_in_burst: count(&at["attempts_in_burst"]).unwrap(),
            burst_elapsed: millis(&at["burst_elapsed_ms"]).unwrap(),
            age: millis(&at["age_ms"]).unwrap(),
        };
        let cause = match vector["cause"].as_str() {
            Some("failed") => Cause::Failed,
            Some("blocked") => Cause::Blocked,
            Some(other) => panic!("unknown cause {other}"),
            None => Cause::Told(millis(&vector["cause"]["told_ms"]).unwrap()),
        };
        match schedule(&vector["schedule"]).next(&progress, cause, vector["u"].as_f64().unwrap()) {
            Next::After(wait) => json!({"after_ms": wait.as_millis() as u64}),
            Next::NextPeriod(wait) => json!({"period_ms": wait.as_millis() as u64}),
            Next::GiveUp(GiveUpReason::Attempts) => json!({"give_up": "attempts"}),
            Next::GiveUp(GiveUpReason::Age) => json!({"give_up": "age"}),
        }
    });
}

/// The delays of a burst in seconds, with no luck either way.
fn burst(profile: &str, attempts: u32) -> Vec<u64> {
    let schedule = presets::preset(profile).unwrap().schedule;
    let mut elapsed = Duration::ZERO;
    let mut delays = Vec::new();
    for attempt in 1..=attempts {
        let progress =
            Progress { attempts: attempt, attempts_in_burst: attempt, burst_elapsed: elapsed, age: elapsed };
        match schedule.next(&progress, Cause::Failed, 0.5) {
            Next::After(delay) | Next::NextPeriod(delay) => {
                elapsed += delay;
                delays.push(delay.as_secs());
            }
            Next::GiveUp(reason) => panic!("gave up: {reason:?}"),
        }
    }
    delays
}

#[test]
fn the_presets_wait_as_their_designs_say() {
    assert_eq!(burst("walker", 12), [5, 10, 20, 40, 80, 160, 300, 300, 300, 300, 300, 900]);
    assert_eq!(burst("walker", 11).iter().sum::<u64>(), 1815, "the eleven pauses of a burst of twelve");
    assert_eq!(burst("scores", 6), [1, 2, 4, 8, 16, 300]);
    assert_eq!(burst("feed", 8), [1, 2, 4, 8, 16, 32, 32, 32]);
}

fn class(class: &Class) -> Value {
    let plain = |name: &str| json!({"class": name, "reason": null, "max": null, "then": null});
    let final_ =
        |name: &str, reason: &str| json!({"class": name, "reason": reason, "max": null, "then": null});
    match class {
        Class::Success => plain("success"),
        Class::Retry => plain("retry"),
        Class::RetryAfter => plain("retry-after"),
        Class::Auth => plain("auth"),
        Class::Rebuild => plain("rebuild"),
        Class::Drop(reason) => final_("drop", reason),
        Class::Dead(reason) => final_("dead", reason),
        Class::RetryAtMost(max, then) => {
            let then = match then.as_ref() {
                Class::Drop(reason) => json!({"class": "drop", "reason": reason}),
                Class::Dead(reason) => json!({"class": "dead", "reason": reason}),
                other => panic!("no profile ends in {other:?}"),
            };
            json!({"class": "retry", "reason": null, "max": max, "then": then})
        }
    }
}

#[test]
fn answers_mean_what_the_contract_says() {
    vectors::check("classification.json", "vectors", |vector| {
        let profile = presets::preset(text(vector, "profile")).unwrap();
        let status = vector["status"].as_u64().map(|status| u16::try_from(status).unwrap());
        class(profile.classify.classify(status, vector["code"].as_str()))
    });
}

#[test]
fn codes_are_read_from_bodies() {
    vectors::check("classification.json", "codes", |vector| json!(code_of(text(vector, "body").as_bytes())));
}

#[test]
fn actions_go_stale_as_the_contract_says() {
    vectors::check("staleness.json", "vectors", |vector| {
        let guard = Staleness {
            cap: millis(&vector["cap_ms"]).unwrap(),
            grace: millis(&vector["grace_ms"]).unwrap(),
            submitted: match text(vector, "submitted") {
                "ignore" => Submitted::Ignore,
                "refuse" => Submitted::Refuse,
                "correct" => Submitted::Correct,
                other => panic!("unknown submitted {other}"),
            },
            submitted_gap: millis(&vector["submitted_gap_ms"]),
        };
        let at = |field: &str| vector[field].as_i64().map(Timestamp::from_millis);
        let verdict = guard.judge(at("generated_at").unwrap(), at("submitted_at"), at("now").unwrap());
        let mut found = json!({"verdict": match verdict {
            Verdict::Fresh => "fresh",
            Verdict::Stale { .. } => "stale",
            Verdict::Future => "future",
            Verdict::Invalid => "invalid",
        }});
        if let Verdict::Stale { age_days } = verdict {
            found["age_days"] = json!(age_days);
            found["cap_days"] = json!(guard.cap_days());
        }
        if matches!(verdict, Verdict::Stale { .. } | Verdict::Future) {
            found["grace_hours"] = json!(guard.grace_hours());
        }
        found
    });
}

#[test]
fn stale_actions_report_the_values_in_force() {
    let guard = Staleness {
        cap: Duration::from_secs(7 * 86_400),
        grace: Duration::from_secs(3600),
        submitted: Submitted::Ignore,
        submitted_gap: None,
    };
    let at = |text| Timestamp::parse(text).unwrap();
    let problem = guard.check(at("2026-01-01T00:00:00+02:00"), None, at("2026-01-09T12:00:00Z")).unwrap_err();
    let field =
        |name| problem.fields.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone());
    assert_eq!(field("clientGeneratedAt"), Some(json!("2025-12-31T22:00:00Z")));
    assert_eq!(field("serverNow"), Some(json!("2026-01-09T12:00:00Z")));
    assert_eq!(
        (field("ageDays"), field("capDays"), field("graceHours")),
        (Some(json!(8)), Some(json!(7)), Some(json!(1)))
    );
}

#[test]
fn timestamps_are_read_as_rfc_3339_says() {
    vectors::check("timestamps.json", "vectors", |vector| {
        json!(Timestamp::parse(text(vector, "text")).ok().map(Timestamp::millis))
    });
}

//! The decision table, cell by cell, and what is recorded, against the vectors.

mod vectors;

use std::time::Duration;

use semel_contract::decide::{Age, Arrival, Cell, Claim, Decision, Sameness, Standing, decide};
use semel_contract::fingerprint::{Fingerprint, Version};
use semel_contract::outcome::{Disposition, Ending, Told, dispose};
use semel_contract::profile::{FailedKey, InFlight, Mismatch, OnError, OnUnknown, Profile, Reveal, presets};
use semel_contract::record::{Fence, Guarantee, Record, State};
use semel_contract::time::Timestamp;
use serde_json::{Value, json};
use vectors::text;

const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

fn in_flight(name: &str) -> InFlight {
    match name {
        "wait" => InFlight::Wait { deadline: Duration::from_secs(25) },
        "reject" => InFlight::Reject { retry_after: Duration::from_secs(1) },
        "accepted" => InFlight::Accepted,
        other => panic!("unknown in_flight {other}"),
    }
}

fn on_unknown(name: &str) -> OnUnknown {
    let all = [OnUnknown::Hold, OnUnknown::Probe, OnUnknown::Forward, OnUnknown::Rerun];
    all.into_iter()
        .find(|policy| policy.name() == name)
        .unwrap_or_else(|| panic!("unknown on_unknown {name}"))
}

fn named(decision: Decision) -> String {
    let claim = |claim| match claim {
        Claim::New => "new",
        Claim::TakeOver => "take-over",
        Claim::Supersede => "supersede",
        Claim::Reclaim => "reclaim",
        Claim::Forward => "forward",
        Claim::Rerun => "rerun",
    };
    match decision {
        Decision::Execute(how) => format!("execute:{}", claim(how)),
        Decision::Replay => "replay".to_owned(),
        Decision::Wait => "wait".to_owned(),
        Decision::Accepted => "accepted".to_owned(),
        Decision::Probe => "probe".to_owned(),
        Decision::Refuse(kind) => format!("refuse:{}", kind.slug()),
    }
}

fn fingerprint(byte: u8) -> Fingerprint {
    Fingerprint { version: Version::Plain, bytes: [byte; 32] }
}

/// A record that has this standing at `NOW`.
fn record(standing: &str) -> Option<Record> {
    let (state, guarantee, lease, expiry) = match standing {
        "absent" => return None,
        "claimed" => (State::Claimed, Guarantee::Fenced, 1, None),
        "abandoned" => (State::Claimed, Guarantee::Atomic, -1, None),
        "unknown" => (State::Unknown, Guarantee::Fenced, -1, None),
        "settled" => (State::Settled, Guarantee::Fenced, -1, Some(1)),
        "unkept" => (State::Unkept, Guarantee::Fenced, -1, Some(1)),
        "released" => (State::Released, Guarantee::Fenced, -1, Some(1)),
        "sealed" => (State::Sealed, Guarantee::Fenced, -1, Some(1)),
        "expired" => (State::Settled, Guarantee::Fenced, -2, Some(-1)),
        other => panic!("unknown standing {other}"),
    };
    let at = |offset: i64| Timestamp::from_millis(NOW.millis() + offset);
    Some(Record {
        state,
        guarantee,
        fence: Fence { number: 1, nonce: 1 },
        fingerprint: Some(fingerprint(1)),
        payload_hash: None,
        lease_until: at(lease),
        created_at: at(-10),
        expires_at: expiry.map(at),
    })
}

fn profile(vector: &Value) -> Profile {
    let mut profile = presets::ietf();
    profile.in_flight = in_flight(text(vector, "in_flight"));
    profile.on_unknown = on_unknown(text(vector, "on_unknown"));
    profile.failed_key = match text(vector, "failed_key") {
        "reclaim" => FailedKey::Reclaim,
        "sealed" => FailedKey::Sealed,
        other => panic!("unknown failed_key {other}"),
    };
    profile.mismatch = match text(vector, "mismatch") {
        "refuse" => Mismatch::Refuse { status: 422, reveal: Reveal::None },
        "ignore" => Mismatch::Ignore,
        other => panic!("unknown mismatch {other}"),
    };
    profile
}

#[test]
fn every_cell_decides_as_the_contract_says() {
    vectors::check("decisions.json", "vectors", |vector| {
        let profile = profile(vector);
        let own = fingerprint(if vector["same"] == true { 1 } else { 2 });
        let window = profile.lifetime.retry_window;
        let sent = if vector["too_old"] == true {
            NOW.minus(window + Duration::from_millis(1))
        } else {
            NOW.minus(window)
        };
        let arrival = Arrival { fingerprints: &[own], first_sent: Some(sent) };
        json!(named(decide(&profile, &arrival, record(text(vector, "standing")).as_ref(), NOW)))
    });
}

#[test]
fn cells_that_no_record_can_produce_decide_the_same() {
    vectors::check("decisions.json", "vectors", |vector| {
        let profile = profile(vector);
        let other = vector["same"] == false && vector["mismatch"] == "refuse";
        let cell = Cell {
            standing: Standing::ALL
                .into_iter()
                .find(|standing| standing.name() == text(vector, "standing"))
                .unwrap(),
            sameness: if other { Sameness::Other } else { Sameness::Same },
            in_flight: profile.in_flight,
            on_unknown: profile.on_unknown,
            failed_key: profile.failed_key,
            age: if vector["too_old"] == true { Age::TooOld } else { Age::InTime },
        };
        json!(named(cell.decide()))
    });
}

#[test]
fn the_vectors_reach_every_cell() {
    let mut reached = std::collections::BTreeSet::new();
    for vector in vectors::list("decisions.json", "vectors") {
        let fields = ["standing", "in_flight", "on_unknown", "failed_key", "same", "too_old", "mismatch"];
        reached.insert(fields.map(|field| vector[field].to_string()));
    }
    assert_eq!(reached.len(), 9 * 3 * 4 * 2 * 2 * 2 * 2);
}

#[test]
fn standings_are_read_off_the_record_and_the_clock() {
    vectors::check("decisions.json", "standings", |vector| {
        let now = Timestamp::from_millis(vector["now"].as_i64().unwrap());
        let known = (!vector["record"].is_null()).then(|| {
            let facts = &vector["record"];
            let at = |field: &str| facts[field].as_i64().map(Timestamp::from_millis);
            Record {
                state: State::ALL.into_iter().find(|state| state.name() == text(facts, "state")).unwrap(),
                guarantee: if text(facts, "guarantee") == "atomic" {
                    Guarantee::Atomic
                } else {
                    Guarantee::Fenced
                },
                fence: Fence { number: 1, nonce: 1 },
                fingerprint: None,
                payload_hash: None,
                lease_until: at("lease_until").unwrap_or(Timestamp::from_millis(0)),
                created_at: Timestamp::from_millis(0),
                expires_at: at("expires_at"),
            }
        });
        json!(Standing::of(known.as_ref(), now).name())
    });
}

#[test]
fn ages_are_counted_from_the_first_attempt() {
    vectors::check("decisions.json", "ages", |vector| {
        let mut profile = presets::ietf();
        profile.lifetime.retry_window = Duration::from_millis(vector["retry_window_ms"].as_u64().unwrap());
        let sent = vector["first_sent"].as_i64().map(Timestamp::from_millis);
        json!(match Age::of(&profile, sent, Timestamp::from_millis(vector["now"].as_i64().unwrap())) {
            Age::InTime => "in-time",
            Age::TooOld => "too-old",
        })
    });
}

#[test]
fn a_fingerprint_of_another_version_is_compared_in_the_records_version() {
    let keyed = Fingerprint { version: Version::Keyed, bytes: [1; 32] };
    let profile = presets::ietf();
    let sameness = |own: &[Fingerprint]| {
        let arrival = Arrival { fingerprints: own, first_sent: None };
        Sameness::of(&profile, &arrival, record("settled").as_ref())
    };
    assert_eq!(sameness(&[keyed]), Sameness::Other, "equal bytes of another version are not the same");
    assert_eq!(sameness(&[keyed, fingerprint(1)]), Sameness::Same);
}

#[test]
fn a_key_sealed_before_it_was_seen_is_refused_whatever_arrives() {
    let mut sealed = record("sealed").unwrap();
    sealed.fingerprint = None;
    let arrival = Arrival { fingerprints: &[fingerprint(9)], first_sent: None };
    assert_eq!(named(decide(&presets::ietf(), &arrival, Some(&sealed), NOW)), "refuse:key-sealed");
}

#[test]
fn what_is_recorded_follows_the_contract() {
    vectors::check("dispositions.json", "vectors", |vector| {
        let mut profile = presets::preset(text(vector, "profile")).unwrap();
        profile.on_error =
            if text(vector, "on_error") == "replay" { OnError::Replay } else { OnError::Release };
        profile.on_unknown = on_unknown(text(vector, "on_unknown"));
        let guarantee =
            if text(vector, "guarantee") == "atomic" { Guarantee::Atomic } else { Guarantee::Fenced };
        let event = &vector["event"];
        let ending = match event.as_str() {
            Some("not-sent") => Ending::NotSent,
            Some("cut-off") => Ending::CutOff,
            Some(other) => panic!("unknown event {other}"),
            None => Ending::Answered {
                status: u16::try_from(event["status"].as_u64().unwrap()).unwrap(),
                told: event["outcome"].as_str().and_then(|told| Told::parse(told.as_bytes())),
            },
        };
        json!(match dispose(&profile, guarantee, ending) {
            Disposition::Settle => "settle",
            Disposition::SettleUnknown => "settle-unknown",
            Disposition::Release => "release",
            Disposition::Unknown => "unknown",
            Disposition::NotSettled => "not-settled",
        })
    });
}

#[test]
fn transient_answers_release_the_key() {
    for (name, make) in presets::PRESETS {
        for status in [408, 409, 425, 429, 503] {
            let ending = Ending::Answered { status, told: None };
            assert_eq!(dispose(&make(), Guarantee::Fenced, ending), Disposition::Release, "{name} {status}");
        }
    }
}

#[test]
fn a_cell_does_not_depend_on_how_long_the_wait_is() {
    let cell = |deadline| Cell {
        standing: Standing::Claimed,
        sameness: Sameness::Same,
        in_flight: InFlight::Wait { deadline },
        on_unknown: OnUnknown::Hold,
        failed_key: FailedKey::Reclaim,
        age: Age::InTime,
    };
    assert_eq!(cell(Duration::from_secs(1)).decide(), cell(Duration::from_secs(9)).decide());
}

//! What must hold for every input, not only for the vectors.

use std::time::Duration;

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use semel_contract::classify::code_of;
use semel_contract::fingerprint::{Form, Input, Parts, Recipe, Secret};
use semel_contract::identity::Identity;
use semel_contract::json::{Document, Pointer};
use semel_contract::key::{Format, Source};
use semel_contract::profile::presets;
use semel_contract::record::Fence;
use semel_contract::request::Body;
use semel_contract::schedule::{Cause, Jitter, Next, Progress, Schedule};
use semel_contract::time::{Timestamp, format_duration, parse_duration};
use serde_json::Value;

/// Any JSON document whose numbers survive a double.
fn document() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-(1i64 << 53)..=(1 << 53)).prop_map(Value::from),
        any::<f64>().prop_filter("JSON has no NaN", |n| n.is_finite()).prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 48, 6, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Value::from),
            btree_map(".{0,6}", inner, 0..6).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Writes a document with its members in another order and with white space wherever it may stand.
fn written_otherwise(value: &Value, seed: u64) -> String {
    let space = [" ", "\n", "\t", "", "\r\n "][(seed % 5) as usize];
    match value {
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| written_otherwise(item, seed / 3 + 1)).collect();
            format!("[{space}{}{space}]", items.join(&format!("{space},{space}")))
        }
        Value::Object(members) => {
            let mut members: Vec<String> = members
                .iter()
                .map(|(name, value)| {
                    format!(
                        "{}{space}:{space}{}",
                        Value::from(name.as_str()),
                        written_otherwise(value, seed / 2 + 1)
                    )
                })
                .collect();
            if !members.is_empty() {
                let turn = seed as usize % members.len();
                members.rotate_left(turn);
                if seed.is_multiple_of(2) {
                    members.reverse();
                }
            }
            format!("{{{space}{}{space}}}", members.join(&format!("{space},{space}")))
        }
        leaf => format!("{space}{leaf}{space}"),
    }
}

/// How many leaves a document has.
fn leaves(value: &Value) -> usize {
    match value {
        Value::Array(items) if !items.is_empty() => items.iter().map(leaves).sum(),
        Value::Object(members) if !members.is_empty() => members.values().map(leaves).sum(),
        _ => 1,
    }
}

/// The document with its n-th leaf replaced by something else.
fn with_leaf_changed(value: &Value, n: &mut usize) -> Value {
    match value {
        Value::Array(items) if !items.is_empty() => {
            items.iter().map(|item| with_leaf_changed(item, n)).collect()
        }
        Value::Object(members) if !members.is_empty() => {
            members.iter().map(|(name, value)| (name.clone(), with_leaf_changed(value, n))).collect()
        }
        leaf => {
            *n = n.wrapping_sub(1);
            match leaf {
                leaf if *n != usize::MAX => leaf.clone(),
                Value::String(text) => Value::from(format!("{text}!")),
                Value::Number(number) if number.as_f64() == Some(7.0) => Value::from(8),
                Value::Number(_) => Value::from(7),
                Value::Bool(flag) => Value::from(!flag),
                Value::Null | Value::Array(_) | Value::Object(_) => Value::from("changed"),
            }
        }
    }
}

/// The document with every number as the double it stands for.
fn as_doubles(value: &Value) -> Value {
    match value {
        Value::Number(number) => Value::from(number.as_f64().unwrap() + 0.0),
        Value::Array(items) => items.iter().map(as_doubles).collect(),
        Value::Object(members) => {
            members.iter().map(|(name, value)| (name.clone(), as_doubles(value))).collect()
        }
        leaf => leaf.clone(),
    }
}

/// Any JSON in which no object has two members of one name, as another parser sees it.
struct NamesOnce;

impl<'de> serde::Deserialize<'de> for NamesOnce {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NamesOnce)
    }
}

impl<'de> serde::de::Visitor<'de> for NamesOnce {
    type Value = NamesOnce;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("names that are not repeated")
    }

    fn visit_unit<E>(self) -> Result<NamesOnce, E> {
        Ok(NamesOnce)
    }

    fn visit_bool<E>(self, _: bool) -> Result<NamesOnce, E> {
        Ok(NamesOnce)
    }

    fn visit_i64<E>(self, _: i64) -> Result<NamesOnce, E> {
        Ok(NamesOnce)
    }

    fn visit_u64<E>(self, _: u64) -> Result<NamesOnce, E> {
        Ok(NamesOnce)
    }

    fn visit_f64<E>(self, _: f64) -> Result<NamesOnce, E> {
        Ok(NamesOnce)
    }

    fn visit_str<E>(self, _: &str) -> Result<NamesOnce, E> {
        Ok(NamesOnce)
    }

    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut items: A) -> Result<NamesOnce, A::Error> {
        while items.next_element::<NamesOnce>()?.is_some() {}
        Ok(NamesOnce)
    }

    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut members: A) -> Result<NamesOnce, A::Error> {
        let mut names = std::collections::BTreeSet::new();
        while let Some((name, _)) = members.next_entry::<String, NamesOnce>()? {
            if !names.insert(name) {
                return Err(serde::de::Error::custom("a repeated name"));
            }
        }
        Ok(NamesOnce)
    }
}

fn canonical(text: &str) -> String {
    let body = Body::new(Some(b"application/json"), text.as_bytes());
    match presets::ietf().fingerprint.unwrap().form(&body).unwrap() {
        Form::Json(text) => text,
        other => panic!("{text} is not canonical JSON: {other:?}"),
    }
}

proptest! {
    #[test]
    fn canonical_text_ignores_member_order_and_white_space(value in document(), seed in any::<u64>()) {
        prop_assert_eq!(canonical(&value.to_string()), canonical(&written_otherwise(&value, seed)));
    }

    #[test]
    fn canonical_text_is_a_fixed_point(value in document()) {
        // Read as a document, not as a body: 1e20 becomes an integer literal, which a body keeps raw.
        let again = |text: &str| Document::parse(text.as_bytes()).unwrap().root.canonical();
        let once = again(&value.to_string());
        prop_assert_eq!(&again(&once), &once);
    }

    #[test]
    fn canonical_text_is_sensitive_to_every_value(value in document(), at in any::<prop::sample::Index>()) {
        let mut n = at.index(leaves(&value));
        let changed = with_leaf_changed(&value, &mut n);
        prop_assert_ne!(canonical(&value.to_string()), canonical(&changed.to_string()));
    }

    #[test]
    fn array_order_counts(items in vec(document(), 2..5)) {
        let mut turned = items.clone();
        turned.rotate_left(1);
        prop_assume!(turned != items);
        prop_assert_ne!(canonical(&Value::from(items).to_string()), canonical(&Value::from(turned).to_string()));
    }

    #[test]
    fn every_input_changes_the_fingerprint(values in prop::array::uniform6("[a-z/?&=]{1,6}"), at in 0usize..6, keyed in any::<bool>()) {
        let mut inputs = presets::ietf().fingerprint.unwrap();
        inputs.inputs.push(Input::Principal);
        let secret = keyed.then(|| Secret::new(b"secret"));
        let fingerprint = |values: &[String; 6]| {
            let [method, route, param, query, principal, body] = values;
            let parts = Parts { method, route, params: &[("id", param)], query, principal };
            inputs.fingerprint(&parts, &inputs.form(&Body::new(Some(b"text/plain"), body.as_bytes())).unwrap(), secret.as_ref())
        };
        let mut changed = values.clone();
        changed[at].push('!');
        prop_assert!(!fingerprint(&values).same(&fingerprint(&changed)));
        prop_assert!(fingerprint(&values).same(&fingerprint(&values.clone())));
    }

    #[test]
    fn keyed_fingerprints_need_the_secret(body in ".{0,20}", a in vec(any::<u8>(), 16), b in vec(any::<u8>(), 16)) {
        prop_assume!(a != b);
        let recipe = Recipe { inputs: vec![Input::Body], exclude: vec![], include: vec![] };
        let form = recipe.form(&Body::new(None, body.as_bytes())).unwrap();
        let parts = Parts { method: "POST", route: "r", params: &[], query: "", principal: "" };
        let with = |secret: Option<&Secret>| recipe.fingerprint(&parts, &form, secret).to_string();
        let (plain, one, other) = (with(None), with(Some(&Secret::new(&a))), with(Some(&Secret::new(&b))));
        prop_assert!(plain != one && one != other);
    }

    #[test]
    fn parsing_never_panics_on_arbitrary_bytes(bytes in vec(any::<u8>(), 0..200), content_type in prop::option::of(vec(any::<u8>(), 0..30))) {
        let lossy = String::from_utf8_lossy(&bytes);
        let _ = Document::parse(&bytes);
        let _ = (Pointer::parse(&lossy), lossy.parse::<Source>(), lossy.parse::<Identity>(), lossy.parse::<Fence>());
        let _ = (Timestamp::parse(&lossy), parse_duration(&lossy), code_of(&bytes));
        if let Ok(format) = lossy.parse::<Format>() {
            let _ = semel_contract::key::Key::parse(&format, &lossy);
        }
        let body = Body::new(content_type.as_deref(), &bytes);
        for (_, make) in presets::PRESETS {
            let profile = make();
            let lines = [("Idempotency-Key", &bytes), ("X-Idempotency-Key", &bytes), ("Authorization", &bytes), ("Cookie", &bytes)];
            let _ = profile.key.read(lines.as_slice(), &body);
            let _ = profile.key.read_required(lines.as_slice());
            let _ = profile.fingerprint.unwrap().form(&body);
            let _ = Identity::Cookie("a".to_owned()).read(lines.as_slice());
        }
    }

    #[test]
    fn parsing_never_panics_on_almost_json(text in r#"[\[\]{}",:0-9eE.+\-\\utrfnalsb ]{0,60}"#) {
        let body = Body::new(None, text.as_bytes());
        let recipe = presets::walker().fingerprint.unwrap();
        let _ = (recipe.form(&body), code_of(text.as_bytes()));
    }

    #[test]
    fn a_text_is_json_here_exactly_when_it_is_json_elsewhere(text in r#"[\[\]{}",:0-9eE.+\-\\utrfnalsbdDcC \n]{0,24}"#) {
        let elsewhere = serde_json::from_str::<Value>(&text);
        let here = Document::parse(text.as_bytes());
        // The other parser keeps the last of two members with one name; here such a text is refused.
        let repeats = || serde_json::from_str::<NamesOnce>(&text).is_err();
        prop_assert_eq!(here.is_ok(), elsewhere.is_ok() && !repeats(), "{}", text);
    }

    #[test]
    fn a_document_reads_as_it_does_elsewhere(value in document(), seed in any::<u64>()) {
        let text = written_otherwise(&value, seed);
        let canonical = Document::parse(text.as_bytes()).unwrap().root.canonical();
        let elsewhere: Value = serde_json::from_str(&text).unwrap();
        let again: Value = serde_json::from_str(&canonical).unwrap();
        prop_assert_eq!(as_doubles(&again), as_doubles(&elsewhere));
    }

    #[test]
    fn a_schedule_stays_within_its_bounds(
        base in 0u64..1_000_000, factor in 1.0f64..10.0, cap in 0u64..10_000_000, ratio in 0.0f64..=1.0,
        attempt in 1u32.., random in 0.0f64..1.0, max_age in 0u64..10_000_000, age in 0u64..10_000_000,
    ) {
        for jitter in [Jitter::None, Jitter::Ratio(ratio), Jitter::Full] {
            let schedule = Schedule {
                base: Duration::from_millis(base), factor, cap: Duration::from_millis(cap), jitter,
                burst_attempts: None, burst_budget: None, period: Duration::ZERO, max_attempts: None,
                max_age: Some(Duration::from_millis(max_age)), blocked: Duration::from_secs(600),
            };
            let progress = Progress {
                attempts: attempt, attempts_in_burst: attempt, burst_elapsed: Duration::ZERO, age: Duration::from_millis(age),
            };
            prop_assert!(schedule.delay(attempt, random) <= schedule.cap);
            for cause in [Cause::Failed, Cause::Told(Duration::from_millis(base)), Cause::Blocked] {
                if let Next::After(wait) = schedule.next(&progress, cause, random) {
                    prop_assert!(age + wait.as_millis() as u64 <= max_age, "no attempt starts past the maximum age");
                }
            }
        }
    }

    #[test]
    fn jitter_stays_within_its_ratio_and_spreads(attempt in 1u32..8, random in 0.0f64..1.0) {
        let schedule = presets::walker().schedule;
        let nominal = schedule.delay(attempt, 0.5).as_millis() as f64;
        let delay = schedule.delay(attempt, random).as_millis() as f64;
        prop_assert!(delay >= (nominal * 0.75).floor() && delay <= nominal * 1.25);
        prop_assert!(schedule.delay(attempt, 0.0) < schedule.delay(attempt, 0.4));
    }

    #[test]
    fn timestamps_read_back_whatever_they_are(millis in -62_135_596_800_000i64..253_402_300_800_000) {
        let at = Timestamp::from_millis(millis);
        prop_assert_eq!(Timestamp::parse(&at.to_string()), Ok(at));
    }

    #[test]
    fn durations_read_back_whatever_they_are(millis in 0u64..300_000_000_000) {
        let duration = Duration::from_millis(millis);
        prop_assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
    }

    #[test]
    fn fences_read_back_and_have_one_spelling(number in any::<u64>(), nonce in any::<u64>()) {
        let fence = Fence { number, nonce };
        prop_assert_eq!(fence.to_string().parse(), Ok(fence));
        for prefix in ["0", "+", " "] {
            prop_assert!([prefix, &fence.to_string()].concat().parse::<Fence>().is_err());
        }
    }
}

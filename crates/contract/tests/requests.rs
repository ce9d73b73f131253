//! Reading a request: keys, scopes and fingerprints, against the vectors.

mod vectors;

use semel_contract::fingerprint::{Form, Input, Parts, Recipe, Secret};
use semel_contract::hex::hex;
use semel_contract::identity::{Identity, Reading};
use semel_contract::json::Pointer;
use semel_contract::key::{Format, KeyPolicy, Presence, RequiredHeader, Source, Syntax};
use semel_contract::problem::{Kind, Problem};
use semel_contract::profile::presets;
use semel_contract::request::Body;
use semel_contract::scope::Scope;
use serde_json::{Value, json};
use vectors::text;

fn decode_base64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bits = text.bytes().filter(|b| *b != b'=').flat_map(|b| {
        let digit = DIGITS.iter().position(|known| *known == b).expect("a base64 digit");
        (0..6).rev().map(move |bit| (digit >> bit & 1) as u8)
    });
    let mut bytes = Vec::new();
    while let Some(first) = bits.next() {
        let rest: Vec<u8> = bits.by_ref().take(7).collect();
        if rest.len() == 7 {
            bytes.push(rest.iter().fold(first, |byte, bit| byte << 1 | bit));
        }
    }
    bytes
}

fn refused(problem: &Problem) -> Value {
    json!({"problem": problem.kind.slug()})
}

fn policy(vector: &Value) -> KeyPolicy {
    let policy = &vector["policy"];
    KeyPolicy {
        sources: policy["sources"]
            .as_array()
            .unwrap()
            .iter()
            .map(|s| s.as_str().unwrap().parse().unwrap())
            .collect(),
        syntax: match text(policy, "syntax") {
            "bare" => Syntax::Bare,
            "sf-string" => Syntax::SfString,
            "both" => Syntax::Both,
            other => panic!("unknown syntax {other}"),
        },
        format: text(policy, "format").parse().unwrap(),
        presence: if text(policy, "presence") == "required" {
            Presence::Required
        } else {
            Presence::Optional
        },
        require_headers: Vec::new(),
    }
}

fn headers(vector: &Value) -> Vec<(String, Vec<u8>)> {
    let lines = |field: &str, decode: &dyn Fn(&str) -> Vec<u8>| -> Option<Vec<(String, Vec<u8>)>> {
        let line = |line: &Value| (line[0].as_str().unwrap().to_owned(), decode(line[1].as_str().unwrap()));
        Some(vector.get(field)?.as_array()?.iter().map(line).collect())
    };
    lines("headers_base64", &decode_base64)
        .or_else(|| lines("headers", &|text| text.as_bytes().to_vec()))
        .unwrap()
}

#[test]
fn keys_are_read_as_the_contract_says() {
    vectors::check("keys.json", "vectors", |vector| {
        let body = vector["body"].as_str().unwrap_or("");
        let headers = headers(vector);
        match policy(vector).read(headers.as_slice(), &Body::new(None, body.as_bytes())) {
            Ok(Some(found)) if vector["policy"]["shared"] == true && !found.key.is_random_uuid() => {
                json!({"problem": "key-too-weak"})
            }
            Ok(Some(found)) => {
                json!({"key": found.key.as_str(), "source": found.source.to_string(), "syntax": found.written.name()})
            }
            Ok(None) => json!({"key": null}),
            Err(problem) => refused(&problem),
        }
    });
}

#[test]
fn scopes_and_principals_hash_as_the_contract_says() {
    vectors::check("scopes.json", "vectors", |vector| {
        if let Some(identity) = vector["identity"].as_str() {
            let identity: Identity = identity.parse().unwrap();
            let line = match &identity {
                Identity::Cookie(name) => {
                    ("cookie", format!("other=1; {name}={}", text(vector, "credential")))
                }
                _ => ("authorization", text(vector, "credential").to_owned()),
            };
            return match identity.read([line].as_slice()) {
                Ok(Reading::Known(caller)) => json!(caller.principal),
                other => panic!("{other:?}"),
            };
        }
        let part = |field: &str| vector[field].as_str();
        let host = part("host").map(semel_contract::scope::host);
        let scope = Scope::at(part("tenant"), part("principal"), part("endpoint"), host.as_deref());
        json!(scope.to_string())
    });
}

#[test]
fn fingerprints_agree_with_other_implementations() {
    vectors::check("fingerprints.json", "vectors", |vector| {
        let strings = |field: &str| -> Vec<&str> {
            vector[field]
                .as_array()
                .map_or(Vec::new(), |list| list.iter().map(|item| item.as_str().unwrap()).collect())
        };
        let pointers = |field| strings(field).into_iter().map(|text| Pointer::parse(text).unwrap()).collect();
        let input = |name| Input::ALL.into_iter().find(|input| input.name() == name).unwrap();
        let recipe = Recipe {
            inputs: strings("inputs").into_iter().map(input).collect(),
            exclude: pointers("exclude"),
            include: pointers("include"),
        };
        let bytes = match vector["body_base64"].as_str() {
            Some(encoded) => decode_base64(encoded),
            None => vector["body"].as_str().unwrap_or("").as_bytes().to_vec(),
        };
        let pair =
            |pair: &Value| (pair[0].as_str().unwrap().to_owned(), pair[1].as_str().unwrap().to_owned());
        let params: Vec<(String, String)> = vector["params"].as_array().unwrap().iter().map(pair).collect();
        let params: Vec<(&str, &str)> =
            params.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let body = Body::new(vector["content_type"].as_str().map(str::as_bytes), &bytes);
        let form = match recipe.form(&body) {
            Ok(form) => form,
            Err(problem) => return refused(&problem),
        };
        let parts = Parts {
            method: text(vector, "method"),
            route: text(vector, "route"),
            params: &params,
            query: text(vector, "query"),
            principal: vector["principal"].as_str().unwrap_or(""),
        };
        let secret = vector["secret_hex"].as_str().map(|digits| {
            let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
            Secret::new(&(0..digits.len()).step_by(2).map(byte).collect::<Vec<u8>>())
        });
        let (name, canonical) = match &form {
            Form::Empty => ("none", None),
            Form::Json(text) => ("json", Some(text.clone())),
            Form::Raw(_) => ("raw", None),
        };
        json!({
            "form": name,
            "canonical": canonical,
            "fingerprint": recipe.fingerprint(&parts, &form, secret.as_ref()).to_string(),
            "payload_hash": hex(&form.payload_hash()),
        })
    });
}

#[test]
fn doubled_key_lines_are_refused() {
    let policy = presets::ietf().key;
    let lines = [("Idempotency-Key", "a"), ("idempotency-key", "a")];
    let problem = policy.read(lines.as_slice(), &Body::new(None, b"")).unwrap_err();
    assert_eq!(problem.kind, Kind::KeyAmbiguous);
}

#[test]
fn shared_identity_demands_random_keys() {
    let format = Format::Printable255;
    let key = |text| semel_contract::key::Key::parse(&format, text).unwrap();
    assert!(key("3f1f9c1e-6f0a-4c3b-9b0f-0a1b2c3d4e5f").is_random_uuid());
    assert!(key("3F1F9C1E-6F0A-4C3B-AB0F-0A1B2C3D4E5F").is_random_uuid());
    for guessable in
        ["order-1", "018f3f1e-6f0a-7c3b-9b0f-0a1b2c3d4e5f", "3f1f9c1e-6f0a-4c3b-cb0f-0a1b2c3d4e5f"]
    {
        assert!(!key(guessable).is_random_uuid(), "{guessable}");
    }
}

#[test]
fn required_headers_are_read_and_checked() {
    let mut policy = presets::feed().key;
    policy.require_headers.push(RequiredHeader { name: "X-Device".to_owned(), format: Format::Uuid });
    let device = "3f1f9c1e-6f0a-4c3b-9b0f-0a1b2c3d4e5f";
    let read = |lines: &[(&str, &str)]| policy.read_required(lines);
    assert_eq!(read(&[("x-client-tx-id", " tx_1 "), ("X-Device", device)]).unwrap(), ["tx_1", device]);
    for bad in [
        vec![],
        vec![("X-Client-Tx-Id", "")],
        vec![("X-Client-Tx-Id", "a b")],
        vec![("X-Client-Tx-Id", "a"); 2],
    ] {
        let lines: Vec<(&str, &str)> = bad.into_iter().chain([("X-Device", device)]).collect();
        assert_eq!(read(&lines).unwrap_err().kind, Kind::HeaderMissing, "{lines:?}");
    }
}

#[test]
fn no_identity_can_pose_as_another_kind() {
    let trusted: Identity = "trusted:X-User".parse().unwrap();
    let read = |value: &str| trusted.read([("x-user", value)].as_slice());
    assert!(matches!(read("alice"), Ok(Reading::Known(caller)) if caller.principal == "alice"));
    for pose in ["shared:public", "authorization:00", "cookie:sid:00", "", "  "] {
        assert_eq!(read(pose).unwrap_err().kind, Kind::IdentityMissing, "{pose:?}");
    }
    let doubled = [("x-user", "alice"), ("X-User", "bob")];
    assert_eq!(trusted.read(doubled.as_slice()).unwrap_err().kind, Kind::IdentityMissing);
}

#[test]
fn sources_and_identities_read_back_as_written() {
    for text in ["header:Idempotency-Key", "json:/a~1b/0"] {
        assert_eq!(text.parse::<Source>().unwrap().to_string(), text);
    }
    for text in [
        "authorization",
        "cookie:sid",
        "trusted:X-User",
        "jwt:/etc/keys.json",
        "check:https://a/b",
        "shared:all",
    ] {
        assert_eq!(text.parse::<Identity>().unwrap().to_string(), text);
    }
    for text in ["", "anonymous", "shared:", "trusted:a b", "check:ftp://x", "jwt:"] {
        assert!(text.parse::<Identity>().is_err(), "{text}");
    }
}

//! Who is let in: verified tokens, services that are asked, and peers that are trusted.

use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use ring::{hmac, signature};
use semel_gateway::Peers;
use serde_json::{Value, json};

use crate::upstream::{Reply, Upstream};
use crate::world::{Answer, Wish, World, post};

const SECRET: &[u8] = b"a secret of thirty-two bytes or more";

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

fn part(value: &Value) -> String {
    BASE64.encode(value.to_string())
}

fn token(header: &Value, claims: &Value, sign: impl Fn(&[u8]) -> Vec<u8>) -> String {
    let signed = format!("{}.{}", part(header), part(claims));
    let signature = BASE64.encode(sign(signed.as_bytes()));
    format!("{signed}.{signature}")
}

fn with_secret(claims: &Value) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET);
    token(&json!({"alg": "HS256"}), claims, |signed| hmac::sign(&key, signed).as_ref().to_vec())
}

async fn shop() -> Upstream {
    Upstream::start(|_, before| Reply::status(201, "", &format!("order {before}"))).await
}

async fn gate(upstream: &Upstream, identity: &str) -> World {
    Wish { identity: identity.parse().unwrap(), ..Wish::behind(&upstream.url()) }.start().await
}

async fn ask(world: &World, credential: &str, key: &str) -> Answer {
    world.ask(post("/orders", &format!("{credential}Idempotency-Key: {key}\r\n"), "{}")).await
}

async fn with_token(world: &World, token: &str, key: &str) -> Answer {
    ask(world, &format!("Authorization: Bearer {token}\r\n"), key).await
}

fn file(content: &[u8]) -> String {
    let path = tempfile::tempdir().unwrap().keep().join("keys");
    std::fs::write(&path, content).unwrap();
    path.display().to_string()
}

#[tokio::test]
async fn a_new_token_of_the_same_person_finds_the_first_answer() {
    let upstream = shop().await;
    let world = gate(&upstream, &format!("jwt:{}", file(SECRET))).await;
    let first = with_secret(&json!({"sub": "alice", "exp": now() + 60, "jti": 1}));
    let later = with_secret(&json!({"sub": "alice", "exp": now() + 90, "jti": 2}));
    let other = with_secret(&json!({"sub": "bob", "exp": now() + 60}));
    assert_eq!(with_token(&world, &first, "k1").await.body, "order 0");
    let again = with_token(&world, &later, "k1").await;
    assert_eq!((again.body.as_str(), again.header("idempotency-replayed")), ("order 0", Some("true")));
    assert_eq!(with_token(&world, &other, "k1").await.body, "order 1");
    let tenant = with_secret(&json!({"sub": "alice", "tenant": "acme"}));
    assert_eq!(with_token(&world, &tenant, "k1").await.body, "order 2");
}

#[tokio::test]
async fn tokens_that_do_not_hold_are_refused() {
    let upstream = shop().await;
    let spec = format!("jwt:{},issuer=me,audience=shop,tenant=org", file(SECRET));
    let world = gate(&upstream, &spec).await;
    let good = json!({"sub": "a", "iss": "me", "aud": ["x", "shop"], "org": "o", "exp": now() + 60, "nbf": now() - 60});
    assert_eq!(with_token(&world, &with_secret(&good), "k1").await.status, 201);
    let mut bad = Vec::new();
    for (claim, value) in [
        ("exp", json!(now() - 60)),
        ("exp", json!("soon")),
        ("nbf", json!(now() + 60)),
        ("iss", json!("you")),
        ("aud", json!("else")),
        ("org", json!(null)),
        ("sub", json!("")),
        ("sub", json!("shared:x")),
    ] {
        let mut claims = good.clone();
        claims[claim] = value;
        bad.push(with_secret(&claims));
    }
    let forged = hmac::Key::new(hmac::HMAC_SHA256, b"another secret of thirty-two bytes or more");
    let forge = |signed: &[u8]| hmac::sign(&forged, signed).as_ref().to_vec();
    bad.push(token(&json!({"alg": "HS256"}), &good, forge));
    for alg in ["none", "None", "HS512", "RS256"] {
        bad.push(token(&json!({"alg": alg}), &good, |_| Vec::new()));
    }
    bad.push(token(&json!({"alg": "HS256", "crit": ["b64"]}), &good, |signed| {
        hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, SECRET), signed).as_ref().to_vec()
    }));
    bad.push("eyJ.x.y".to_owned());
    for token in bad {
        let answer = with_token(&world, &token, "k1").await;
        assert_eq!(answer.status, 401, "{token}");
        assert!(
            !answer.body.contains("--identity"),
            "what an operator could change is not the client's: {answer:?}"
        );
    }
    assert_eq!(ask(&world, "", "k1").await.status, 401);
    assert_eq!(ask(&world, "Authorization: Basic eA==\r\n", "k1").await.status, 401);
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn every_algorithm_is_verified_by_its_own_kind_of_key() {
    let upstream = shop().await;
    let random = SystemRandom::new();
    let ed = Ed25519KeyPair::from_pkcs8(Ed25519KeyPair::generate_pkcs8(&random).unwrap().as_ref()).unwrap();
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
    let ec = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.as_ref(), &random).unwrap();
    let rsa = signature::RsaKeyPair::from_pkcs8(&rsa_pkcs8()).unwrap();
    let point = ec.public_key().as_ref();
    let components = ring::rsa::PublicKeyComponents::<Vec<u8>>::from(rsa.public());
    let set = json!({"keys": [
        {"kty": "OKP", "crv": "Ed25519", "kid": "ed", "x": BASE64.encode(ed.public_key().as_ref())},
        {"kty": "EC", "crv": "P-256", "kid": "ec", "x": BASE64.encode(&point[1..33]), "y": BASE64.encode(&point[33..])},
        {"kty": "RSA", "kid": "rsa", "n": BASE64.encode(&components.n), "e": BASE64.encode(&components.e)},
        {"kty": "EC", "crv": "P-521", "kid": "other"},
    ]});
    let world = gate(&upstream, &format!("jwt:{}", file(set.to_string().as_bytes()))).await;
    let sign_ed = |signed: &[u8]| ed.sign(signed).as_ref().to_vec();
    let sign_ec = |signed: &[u8]| ec.sign(&random, signed).unwrap().as_ref().to_vec();
    let sign_rsa = |signed: &[u8]| {
        let mut signature = vec![0; rsa.public().modulus_len()];
        rsa.sign(&signature::RSA_PKCS1_SHA256, &random, signed, &mut signature).unwrap();
        signature
    };
    let claims = json!({"sub": "alice"});
    let tokens = [
        token(&json!({"alg": "EdDSA", "kid": "ed"}), &claims, sign_ed),
        token(&json!({"alg": "ES256", "kid": "ec"}), &claims, sign_ec),
        token(&json!({"alg": "RS256", "kid": "rsa"}), &claims, sign_rsa),
        token(&json!({"alg": "RS256"}), &claims, sign_rsa),
    ];
    for token in &tokens {
        assert_eq!(with_token(&world, token, "k1").await.body, "order 0", "{token}");
    }
    // The key says what it is for, not the token: the public key is no secret of HS256.
    let public = hmac::Key::new(hmac::HMAC_SHA256, ed.public_key().as_ref());
    let confused = |signed: &[u8]| hmac::sign(&public, signed).as_ref().to_vec();
    for bad in [
        token(&json!({"alg": "HS256", "kid": "ed"}), &claims, confused),
        token(&json!({"alg": "EdDSA", "kid": "ec"}), &claims, sign_ed),
        token(&json!({"alg": "ES256", "kid": "ec"}), &claims, sign_ed),
        token(&json!({"alg": "ES256", "kid": "ed"}), &claims, sign_ed),
    ] {
        assert_eq!(with_token(&world, &bad, "k1").await.status, 401, "{bad}");
    }
    // The same keys as PEM.
    let wrapped = |der: Vec<u8>| {
        let text = base64::engine::general_purpose::STANDARD.encode(der);
        format!("-----BEGIN PUBLIC KEY-----\n{text}\n-----END PUBLIC KEY-----\n")
    };
    let prefix = |hex: &[u8], key: &[u8]| [hex, key].concat();
    let of_ed = prefix(b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00", ed.public_key().as_ref());
    let of_ec = prefix(
        b"\x30\x59\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\x03\x42\x00",
        point,
    );
    let body = rsa.public_key().as_ref();
    let of_rsa = prefix(
        b"\x30\x82\x01\x22\x30\x0d\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01\x05\x00\x03\x82\x01\x0f\x00",
        body,
    );
    for (der, token) in [(of_ed, &tokens[0]), (of_ec, &tokens[1]), (of_rsa, &tokens[2])] {
        let world = gate(&upstream, &format!("jwt:{}", file(wrapped(der).as_bytes()))).await;
        assert_eq!(with_token(&world, token, "k1").await.status, 201);
    }
}

#[tokio::test]
async fn keys_behind_a_url_are_fetched_once_and_again_when_one_is_missing() {
    let service = shop().await;
    let key = |id: &str| json!({"kty": "oct", "kid": id, "k": BASE64.encode(SECRET)});
    let keys = Upstream::start(move |_, before| {
        let all = if before == 0 { vec![key("one")] } else { vec![key("one"), key("two")] };
        Reply::status(200, "", &json!({"keys": all}).to_string())
    })
    .await;
    let world = gate(&service, &format!("jwt:{}/jwks", keys.url())).await;
    let with_key = |id: &str| {
        let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET);
        token(&json!({"alg": "HS256", "kid": id}), &json!({"sub": "alice"}), |signed| {
            hmac::sign(&key, signed).as_ref().to_vec()
        })
    };
    for key in ["k1", "k2", "k3"] {
        assert_eq!(with_token(&world, &with_key("one"), key).await.status, 201);
    }
    assert_eq!(keys.count(), 1);
    assert_eq!(keys.seen()[0].line(), "GET /jwks HTTP/1.1");
    // A key that was added since is found at once.
    assert_eq!(with_token(&world, &with_key("two"), "k4").await.status, 201);
    assert_eq!(keys.count(), 2);
    // Tokens with made-up keys do not make it ask again and again.
    for _ in 0..5 {
        assert_eq!(with_token(&world, &with_key("three"), "k5").await.status, 401);
    }
    assert_eq!(keys.count(), 2, "looked for another just now: not again so soon");
    let away = gate(&service, "jwt:http://127.0.0.1:1/jwks").await;
    let answer = with_token(&away, &with_key("one"), "k5").await;
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")));
}

#[tokio::test]
async fn a_service_that_is_asked_names_the_caller_or_refuses() {
    let service = shop().await;
    let checks = Upstream::start(|seen, _| match seen.header("authorization") {
        Some("alice") => Reply::status(204, "Semel-Principal: alice\r\nSemel-Tenant: acme\r\n", ""),
        Some("alice2") => Reply::status(200, "Semel-Principal: alice\r\nSemel-Tenant: acme\r\n", ""),
        Some("mallory") => Reply::status(403, "", ""),
        Some("broken") => Reply::status(500, "", ""),
        Some("nobody") => Reply::status(200, "", ""),
        Some("moved") => Reply::status(302, "Location: /\r\n", ""),
        Some("slow") => Reply::Reset,
        _ => Reply::status(401, "", ""),
    })
    .await;
    let world = gate(&service, &format!("check:{}/who?x=1", checks.url())).await;
    let by = |name: &'static str| format!("Authorization: {name}\r\nCookie: sid=1\r\n");
    assert_eq!(ask(&world, &by("alice"), "k1").await.body, "order 0");
    let again = ask(&world, &by("alice2"), "k1").await;
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    for (name, status) in
        [("eve", 401), ("mallory", 403), ("broken", 503), ("nobody", 503), ("moved", 503), ("slow", 503)]
    {
        assert_eq!(ask(&world, &by(name), "k1").await.status, status, "{name}");
    }
    assert_eq!(service.count(), 1);
    let asked = &checks.seen()[0];
    assert_eq!(asked.line(), "GET /who?x=1 HTTP/1.1");
    assert_eq!((asked.header("cookie"), asked.header("idempotency-key")), (Some("sid=1"), None));
    assert_eq!(
        (asked.header("x-original-method"), asked.header("x-original-uri")),
        (Some("POST"), Some("/orders"))
    );
}

/// The service is asked for every request: what it said of the last one is not what it says of this one.
#[tokio::test]
async fn a_caller_that_was_shut_out_since_gets_no_replay() {
    let service = shop().await;
    let checks = Upstream::start(|_, before| match before {
        0 => Reply::status(200, "Semel-Principal: alice\r\n", ""),
        _ => Reply::status(401, "", ""),
    })
    .await;
    let world = gate(&service, &format!("check:{}", checks.url())).await;
    assert_eq!(ask(&world, "Authorization: a\r\n", "k1").await.status, 201);
    assert_eq!(ask(&world, "Authorization: a\r\n", "k1").await.status, 401);
    assert_eq!((service.count(), checks.count()), (1, 2));
}

#[tokio::test]
async fn a_header_that_names_users_is_believed_from_trusted_peers_only() {
    let upstream = shop().await;
    let identity = "trusted:X-User".parse::<semel_contract::identity::Identity>().unwrap();
    let near = Wish { identity: identity.clone(), ..Wish::behind(&upstream.url()) }.start().await;
    assert_eq!(ask(&near, "X-User: alice\r\n", "k1").await.status, 201);
    assert_eq!(ask(&near, "", "k1").await.status, 401);
    let peers = Peers::of(&["10.0.0.0/8"]).unwrap();
    let far = Wish { identity, peers, ..Wish::behind(&upstream.url()) }.start().await;
    let refused = ask(&far, "X-User: alice\r\n", "k1").await;
    assert_eq!(refused.status, 401);
    assert!(refused.body.contains("trusted peers only"), "{refused:?}");
    // Nor does the service behind get to see it.
    assert_eq!(far.ask(post("/orders", "X-User: alice\r\n", "{}")).await.status, 201);
    assert_eq!(upstream.seen().last().unwrap().header("x-user"), None);
}

#[tokio::test]
async fn a_rotated_credential_does_not_run_the_request_again() {
    let upstream = shop().await;
    let world = gate(&upstream, "authorization").await;
    let key = "8e03978e-40d5-43e8-bc93-6894a57f9324";
    assert_eq!(ask(&world, "Authorization: Bearer old\r\n", key).await.status, 201);
    let rotated = ask(&world, "Authorization: Bearer new\r\n", key).await;
    assert_eq!(rotated.status, 409);
    assert!(rotated.body.contains("credential-changed"), "{rotated:?}");
    assert_eq!(upstream.count(), 1);
}

/// An RSA key of 2048 bits, made for this test.
fn rsa_pkcs8() -> Vec<u8> {
    let text: String =
        include_str!("rsa_of_tests.pem").lines().filter(|line| !line.starts_with('-')).collect();
    base64::engine::general_purpose::STANDARD.decode(text).unwrap()
}

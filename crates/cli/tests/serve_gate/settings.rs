//! Settings from a file, and other settings while it runs.

use std::time::Duration;

use crate::client::post;
use crate::process::Folder;
use crate::upstream::{Reply, Upstream};

fn routes(upstream: &Upstream, more: &str) -> String {
    format!("identity = \"trusted:X-User\"\n[gate]\nupstream = \"{}\"\n{more}", upstream.url())
}

fn by(user: &str, path: &str, key: &str) -> String {
    post(path, &format!("X-User: {user}\r\nIdempotency-Key: {key}\r\n"), "{}")
}

#[tokio::test]
async fn routes_are_protected_and_what_is_none_passes_and_says_so() {
    let upstream = Upstream::start(|_, before| Reply::status(201, "", &before.to_string())).await;
    let folder = Folder::new();
    let config = routes(&upstream, "[route.orders]\nmatch = \"POST /orders/{id}\"\nkey = \"required\"\n");
    folder.write("semel.toml", &config);
    let gate = folder.start(&[]);
    assert!(gate.said.contains("POST /orders/{id} as orders"), "{}", gate.said);
    assert_eq!(gate.ask(by("a", "/orders/1", "k1")).await.body, "0");
    assert_eq!(gate.ask(by("a", "/orders/1", "k1")).await.body, "0");
    assert_eq!(gate.ask(post("/orders/1", "X-User: a\r\n", "{}")).await.status, 400);
    let other = gate.ask(by("a", "/other", "k1")).await;
    assert_eq!((other.body.as_str(), other.header("semel-guarantee")), ("1", Some("none")));
    assert_eq!(gate.ask(by("a", "/other", "k1")).await.body, "2");
}

#[tokio::test]
async fn a_new_file_is_in_force_at_once_and_a_bad_one_changes_nothing() {
    let one = Upstream::start(|_, _| Reply::status(201, "", "one")).await;
    let two = Upstream::start(|_, _| Reply::status(201, "", "two")).await;
    let folder = Folder::new();
    let route = "[route.orders]\nmatch = \"POST /orders\"\n";
    folder.write("semel.toml", &routes(&one, route));
    let gate = folder.start(&[]);
    assert_eq!(gate.ask(by("a", "/orders", "k1")).await.body, "one");
    for (bad, said) in [
        ("nonsense".to_owned(), "semel.toml"),
        (routes(&two, "colour = \"red\"\n"), "colour"),
        (routes(&two, &format!("tls = {{ cert = \"/nowhere\", key = \"/nowhere\" }}\n{route}")), "/nowhere"),
        (
            routes(&two, &format!("listen = \"127.0.0.1:1\"\n{route}record_lifetime = \"1s\"\n")),
            "record_lifetime",
        ),
        (format!("store = \"sqlite:else.db\"\n{}", routes(&two, route)), "store"),
        (routes(&two, &format!("at_rest = {{ compress = true }}\n{route}")), "gate.at_rest"),
        (routes(&two, &format!("limits = {{ connections = 7 }}\n{route}")), "gate.limits.connections"),
        (routes(&two, &format!("cores = 7\n{route}")), "gate.cores"),
        (routes(&two, &format!("log_format = \"json\"\n{route}")), "gate.log_format"),
        (routes(&two, &format!("admin_token_file = \"/nowhere/token\"\n{route}")), "/nowhere/token"),
    ] {
        folder.write("semel.toml", &bad);
        let before = gate.errors().len();
        gate.signal("HUP");
        gate.until_said("the old one stays").await;
        let started = std::time::Instant::now();
        while !gate.errors()[before..].contains("the old one stays") {
            assert!(started.elapsed() < Duration::from_secs(10));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(gate.errors()[before..].contains(said), "{said:?} in {}", &gate.errors()[before..]);
        let key = format!("bad-{before}");
        assert_eq!(gate.ask(by("a", "/orders", &key)).await.body, "one");
    }
    folder
        .write("semel.toml", &routes(&two, &format!("{route}[route.refunds]\nmatch = \"POST /refunds\"\n")));
    gate.signal("HUP");
    gate.until_said("is in force").await;
    assert_eq!(gate.ask(by("a", "/orders", "k2")).await.body, "two");
    assert_eq!(gate.ask(by("a", "/orders", "k1")).await.body, "one", "records stay");
    assert_eq!(gate.ask(by("a", "/refunds", "k1")).await.header("semel-guarantee"), Some("fenced"));
}

#[tokio::test]
async fn unknown_outcomes_are_asked_about_where_the_route_says_so() {
    let upstream = Upstream::start(|seen, _| match seen.line() {
        "POST /orders/7/refund HTTP/1.1" => Reply::Reset,
        "GET /orders/7/refunds/known HTTP/1.1" => Reply::status(200, "", "there"),
        "GET /orders/7/refunds/absent HTTP/1.1" => Reply::status(404, "", ""),
        _ => Reply::status(500, "", ""),
    })
    .await;
    let folder = Folder::new();
    let route = format!(
        "[route.refund]\nmatch = \"POST /orders/{{id}}/refund\"\nlate_window = \"0s\"\n\
         on_unknown = {{ probe = \"{}/orders/{{id}}/refunds/{{key}}\" }}\n",
        upstream.url()
    );
    folder.write("semel.toml", &routes(&upstream, &route));
    let gate = folder.start(&[]);
    for (key, status, said) in
        [("known", 409, "answer-not-kept"), ("absent", 409, "notBefore"), ("broken", 409, "outcome-unknown")]
    {
        let first = gate.ask(by("a", "/orders/7/refund", key)).await;
        assert_eq!((first.status, first.header("semel-outcome")), (502, Some("unknown")), "{key}");
        let retry = gate.ask(by("a", "/orders/7/refund", key)).await;
        assert_eq!(retry.status, status, "{key}: {retry:?}");
        assert!(retry.body.contains(said), "{key}: {retry:?}");
    }
    let sent = upstream.seen().iter().filter(|seen| seen.line().starts_with("POST")).count();
    assert_eq!(sent, 3, "nothing was sent again");
}

#[tokio::test]
async fn forward_and_rerun_send_again_and_release_frees_the_key() {
    let upstream = Upstream::start(|seen, before| match (seen.line(), before) {
        ("POST /forward HTTP/1.1" | "POST /rerun HTTP/1.1", 0 | 2) => Reply::Reset,
        ("POST /release HTTP/1.1", 4) => Reply::status(500, "", "rolled back"),
        _ => Reply::status(201, "", "done"),
    })
    .await;
    let folder = Folder::new();
    let route = |name: &str, setting: &str| format!("[route.{name}]\nmatch = \"POST /{name}\"\n{setting}\n");
    let all = [
        route("forward", "on_unknown = \"forward\""),
        route("rerun", "on_unknown = \"rerun\""),
        route("release", "on_error = \"release\""),
    ];
    folder.write("semel.toml", &routes(&upstream, &all.concat()));
    let gate = folder.start(&[]);
    for (path, status) in [("/forward", 502), ("/rerun", 502), ("/release", 500)] {
        assert_eq!(gate.ask(by("a", path, "k1")).await.status, status, "{path}");
        assert_eq!(gate.ask(by("a", path, "k1")).await.status, 201, "{path}");
    }
    let keys: Vec<_> =
        upstream.seen().iter().map(|seen| seen.header("idempotency-key").map(str::to_owned)).collect();
    assert_eq!(keys, vec![Some("k1".to_owned()); 6]);
}

#[tokio::test]
async fn a_mode_that_observes_changes_nothing() {
    let upstream = Upstream::start(|_, before| Reply::status(201, "", &before.to_string())).await;
    let folder = Folder::new();
    folder
        .write("semel.toml", &routes(&upstream, "mode = \"observe\"\n[route.o]\nmatch = \"POST /orders\"\n"));
    let gate = folder.start(&[]);
    assert!(gate.said.contains("observe"), "{}", gate.said);
    for number in 0..3 {
        assert_eq!(gate.ask(by("a", "/orders", "k1")).await.body, number.to_string());
    }
    gate.until_said("a duplicate passed").await;
}

#[tokio::test]
async fn an_atomic_route_needs_a_database_that_the_service_can_settle_in() {
    let upstream = Upstream::start(|_, _| Reply::status(201, "", "")).await;
    let folder = Folder::new();
    folder.write(
        "semel.toml",
        &routes(&upstream, "[route.o]\nmatch = \"POST /orders\"\nguarantee = \"atomic\"\n"),
    );
    let (code, words) = folder.fails(&[]);
    assert!(code == Some(3) && words.contains("route.o") && words.contains("PostgreSQL"), "{words}");
}

#[tokio::test]
async fn answers_are_encrypted_and_compressed_where_they_lie() {
    let upstream = Upstream::start(|_, _| Reply::status(201, "", &"recognisable ".repeat(100))).await;
    let folder = Folder::new();
    let keys = folder.write("keys", "one AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n");
    std::fs::set_permissions(&keys, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let at_rest = format!("at_rest = {{ keys = \"{}\", compress = true }}\n", keys.display());
    folder
        .write("semel.toml", &routes(&upstream, &format!("{at_rest}[route.o]\nmatch = \"POST /orders\"\n")));
    let mut gate = folder.start(&[]);
    let first = gate.ask(by("a", "/orders", "k1")).await;
    let again = gate.ask(by("a", "/orders", "k1")).await;
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    assert_eq!(first.body, again.body);
    gate.signal("TERM");
    gate.ended().await;
    for name in ["semel.db", "semel.db-wal"] {
        let content = std::fs::read(folder.path().join(name)).unwrap_or_default();
        assert!(!content.windows(12).any(|window| window == b"recognisable"), "{name}");
    }
}

#[tokio::test]
async fn fingerprints_are_keyed_and_those_made_before_are_still_known() {
    let upstream = Upstream::start(|_, before| Reply::status(201, "", &before.to_string())).await;
    let folder = Folder::new();
    let route = "[route.o]\nmatch = \"POST /orders\"\n";
    folder.write("semel.toml", &routes(&upstream, route));
    let gate = folder.start(&[]);
    assert_eq!(gate.ask(by("a", "/orders", "k1")).await.body, "0");
    let secrets = folder.write("secrets", "short\n");
    let keyed = format!("fingerprint_keys = \"{}\"\n{route}", secrets.display());
    folder.write("semel.toml", &routes(&upstream, &keyed));
    gate.signal("HUP");
    gate.until_said("at least 32 characters").await;
    folder.write("secrets", "0123456789abcdef0123456789abcdef\n");
    gate.signal("HUP");
    gate.until_said("is in force").await;
    assert_eq!(gate.ask(by("a", "/orders", "k1")).await.body, "0", "made without a secret");
    assert_eq!(gate.ask(by("a", "/orders", "k2")).await.body, "1");
    assert_eq!(gate.ask(by("a", "/orders", "k2")).await.body, "1");
}

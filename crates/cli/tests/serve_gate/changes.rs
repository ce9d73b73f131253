//! Another configuration for the same service: what was used before it stays known.

use crate::client::post;
use crate::process::Folder;
use crate::upstream::{Reply, Upstream};

async fn counting() -> Upstream {
    Upstream::start(|_, before| Reply::status(201, "", &before.to_string())).await
}

fn order(key: &str) -> String {
    post("/orders", &format!("Authorization: Bearer a\r\nX-User: a\r\nIdempotency-Key: {key}\r\n"), "{}")
}

fn config(upstream: &Upstream, identity: &str, more: &str) -> String {
    format!("identity = \"{identity}\"\n[gate]\nupstream = \"{}\"\n{more}", upstream.url())
}

#[tokio::test]
async fn the_first_file_and_every_one_after_it_know_the_keys_from_before() {
    let upstream = counting().await;
    let folder = Folder::new();
    let mut gate = folder.start(&["--upstream", &upstream.url()]);
    assert_eq!(gate.ask(order("k1")).await.body, "0");
    gate.signal("TERM");
    gate.ended().await;
    let route = |name: &str| format!("[route.{name}]\nmatch = \"POST /orders\"\n");
    folder.write("semel.toml", &config(&upstream, "authorization", &route("create")));
    let gate = folder.start(&[]);
    for (key, answer) in [("k1", "0"), ("k2", "1"), ("k1", "0")] {
        assert_eq!(gate.ask(order(key)).await.body, answer);
    }
    for (identity, name, more) in [
        ("authorization", "create-order", ""),
        ("authorization", "create-order", "fingerprint = { exclude = [\"/at\"] }\n"),
        ("authorization", "create-order", "scope = [\"principal\"]\n"),
        ("trusted:X-User", "create-order", ""),
    ] {
        let text = config(&upstream, identity, &format!("{}{more}", route(name)));
        folder.write("semel.toml", &text);
        let before = gate.errors().matches("is in force").count();
        gate.signal("HUP");
        while gate.errors().matches("is in force").count() == before {
            assert!(!gate.errors().contains("the old one stays"), "{}", gate.errors());
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        for (key, answer) in [("k1", "0"), ("k2", "1")] {
            let seen = gate.ask(order(key)).await;
            assert_eq!((seen.status, seen.body.as_str()), (201, answer), "{text}: {seen:?}");
        }
    }
    assert_eq!(upstream.count(), 2);
}

#[tokio::test]
async fn a_file_that_cannot_know_the_keys_from_before_is_refused_and_says_what_to_write() {
    let upstream = counting().await;
    let folder = Folder::new();
    let route = "[route.create]\nmatch = \"POST /orders\"\n";
    folder.write("semel.toml", &config(&upstream, "trusted:X-User", route));
    let mut gate = folder.start(&[]);
    assert_eq!(gate.ask(order("k1")).await.body, "0");
    folder.write("semel.toml", &config(&upstream, "authorization", route));
    gate.signal("HUP");
    gate.until_said("the old one stays").await;
    assert!(gate.errors().contains("gate.was_identity = [\"trusted:X-User\"]"), "{}", gate.errors());
    assert_eq!(gate.ask(order("k1")).await.body, "0");
    gate.signal("TERM");
    gate.ended().await;
    let (code, said) = folder.fails(&[]);
    assert!(code != Some(0) && said.contains("gate.forget_former = true"), "{code:?} {said}");
    let vouched = format!("was_identity = [\"trusted:X-User\"]\n{route}");
    folder.write("semel.toml", &config(&upstream, "authorization", &vouched));
    let gate = folder.start(&[]);
    assert_eq!(gate.ask(order("k1")).await.body, "0");
    assert_eq!(upstream.count(), 1);
}

/// One gate before several services that are told apart by their host.
#[tokio::test]
async fn one_hosts_answer_is_not_given_to_anothers_client() {
    let upstream = Upstream::start(|seen, _| Reply::status(201, "", seen.header("host").unwrap())).await;
    let folder = Folder::new();
    let gate = folder.start(&["--upstream", &upstream.url()]);
    let at = |host: &str| order("k1").replace("shop.example", host);
    for host in ["a.example", "b.example", "a.example", "b.example"] {
        assert_eq!(gate.ask(at(host)).await.body, host);
    }
    assert_eq!(gate.ask(at("A.EXAMPLE:80")).await.body, "a.example");
    assert_eq!(upstream.count(), 2);
}

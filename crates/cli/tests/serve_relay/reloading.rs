//! SIGHUP: all of the settings at once, or none of them.

use crate::world::{Folder, Habit, Relay, Service, call, eventually};

const ONE: &str = r#"[{"lane":"a","value":5}]"#;

fn hang_up(relay: &Relay) {
    // SAFETY: the process is a child of ours that has not been waited for.
    assert_eq!(unsafe { libc::kill(relay.child.id() as i32, libc::SIGHUP) }, 0);
}

#[test]
fn other_targets_and_credentials_are_in_force_at_once_and_what_was_given_stays() {
    let (service, other) = (Service::start(), Service::start());
    let folder = Folder::for_service(&service, "");
    let relay = folder.start();
    let given = r#"{"target":"scores","principal":"alice","value":"Bearer given"}"#;
    assert_eq!(relay.operator("POST", "/v1/relay/credentials", given).status, 200);
    assert_eq!(relay.submit("alice", "1", "interactive", ONE).status, 200);
    let sent = |name: &str, key: &str| {
        let headers = [("x-user", "bob"), ("x-idempotency-key", key)];
        call(relay.listen, "POST", &format!("/v1/relay/{name}"), &headers, &format!(r#"{{"items":{ONE}}}"#))
            .status
    };
    assert_eq!(sent("more", "2"), 404);
    folder.write("token", "of-a-file");
    folder.rewrite(|text| {
        let (_, of_target) = text.split_once("[relay.target.scores]").unwrap();
        let of_target = of_target.replace(&service.address.to_string(), &other.address.to_string());
        format!(
            "{text}\n[relay.target.more]{of_target}\n[[relay.credential]]\ntarget = \"more\"\nfile = \"token\"\n"
        )
    });
    hang_up(&relay);
    eventually("the new target is there", || sent("more", "2") == 200);
    assert_eq!(other.score("a"), 5);
    assert!(other.books.lock().unwrap().tokens.contains(&"Bearer of-a-file".to_owned()));
    assert_eq!(relay.submit("alice", "3", "interactive", ONE).status, 200);
    assert_eq!(service.books.lock().unwrap().tokens.last().map(String::as_str), Some("Bearer given"));
    let metrics = relay.operator("GET", "/metrics", "").text;
    assert!(metrics.contains("semel_relay_accepted_total 3\n"), "counters go on: {metrics}");
    // Without its target, what is accepted waits and is not lost.
    assert_eq!(relay.submit("alice", "4", "background", ONE).status, 202);
}

#[test]
fn what_is_unsafe_is_refused_and_the_old_settings_stay() {
    let service = Service::start();
    let folder = Folder::for_service(&service, "");
    let relay = folder.start();
    let good = std::fs::read_to_string(folder.path().join("semel.toml")).unwrap();
    let bad = [
        good.replace("[relay]", "[relay]\nclient_max_age = \"30d\""),
        good.replace("[relay]", "[relay]\nstore = \"sqlite:other.db\""),
        good.replace("tier = \"read-back\"", "tier = \"hopeful\""),
        "this is no toml".to_owned(),
    ];
    for (at, text) in bad.iter().enumerate() {
        // Were it taken, there would be no target of this name any more.
        folder.rewrite(|_| text.replace("target.scores", "target.renamed"));
        hang_up(&relay);
        std::thread::sleep(std::time::Duration::from_millis(300));
        assert_eq!(relay.submit("alice", &at.to_string(), "interactive", ONE).status, 200, "{text}");
    }
    assert_eq!(service.score("a"), 20);
    assert!(!folder.path().join("other.db").exists());
}

#[test]
fn a_write_under_way_ends_as_it_began_and_nothing_is_written_twice() {
    let service = Service::start();
    let folder = Folder::for_service(&service, "");
    let relay = folder.start();
    service.next(&[Habit::AppliesAndHangs]);
    assert_eq!(relay.submit("alice", "1", "background", ONE).status, 202);
    eventually("a write is under way", || service.writes().len() == 1);
    for _ in 0..3 {
        hang_up(&relay);
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert_eq!(relay.submit("bob", "2", "background", r#"[{"lane":"a","value":3}]"#).status, 202);
    eventually("both are applied", || service.score("a") == 8);
    eventually("and known to be", || relay.submit("alice", "1", "background", ONE).status == 200);
    assert_eq!(service.score("a"), 8);
}

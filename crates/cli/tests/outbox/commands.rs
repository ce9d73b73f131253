//! `semel outbox`: with a daemon and without one; requeues, chains and seals.

use semel_contract::profile::presets;
use serde_json::json;

use super::daemon::Daemon;
use super::server::{gated, gated_at, gated_losing_the_first, obedient};

#[tokio::test(flavor = "multi_thread")]
async fn a_requeue_aborts_the_old_id_for_ever_and_the_chain_is_shown() {
    let (address, seen) = obedient().await;
    let daemon = Daemon::start(&["--upstream", &format!("http://{address}")]);
    let sent = daemon.command(&[
        "send",
        "/x/400",
        "-H",
        "X-A: b",
        "-d",
        r#"{"n": 1}"#,
        "--id",
        "first",
        "--wait",
        "30",
        "--json",
    ]);
    assert_eq!(sent.status.code(), Some(1), "it was given up");
    let sent: serde_json::Value = serde_json::from_slice(&sent.stdout).unwrap();
    assert_eq!((sent["status"].as_str(), sent["response"]["status"].as_u64()), (Some("dead"), Some(400)));
    let row = sent["id"].to_string();
    let taken = daemon.command(&["requeue", "--id", &row, "--new-client-id", "first"]);
    assert_eq!(taken.status.code(), Some(5), "a used id is refused: {taken:?}");
    assert_eq!(daemon.receipt("first").await["status"], "dead", "and nothing changed");
    let patch = daemon.folder.path().join("patch.json");
    std::fs::write(&patch, r#"{"n":2}"#).unwrap();
    let requeued = daemon.json(&[
        "requeue",
        "--id",
        &row,
        "--new-client-id",
        "second",
        "--patch-payload",
        patch.to_str().unwrap(),
    ]);
    assert_eq!(
        (requeued["old"]["status"].as_str(), requeued["old"]["aborted_by"].as_str()),
        (Some("aborted"), Some("operator"))
    );
    assert_eq!(requeued["old"]["superseded_by"], "second");
    assert_ne!(requeued["old"]["request_fingerprint"], requeued["new"]["request_fingerprint"]);
    daemon.until("second", "dead").await;
    let third = daemon.json(&["requeue", "--id", "second", "--auto"])["new"]["client_message_id"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(third.len(), 26, "a ULID: {third}");
    daemon.until(&third, "dead").await;
    let shown = daemon.json(&["show", "first"]);
    let chain: Vec<&str> = shown["chain"]
        .as_array()
        .unwrap()
        .iter()
        .map(|link| link["client_message_id"].as_str().unwrap())
        .collect();
    assert_eq!(chain, ["first", "second", &third]);
    let text = String::from_utf8(daemon.command(&["show", "--id", "first"]).stdout).unwrap();
    assert!(text.contains("second aborted") && text.contains(&third), "{text}");
    let conflict = daemon.send(&json!({"client_message_id": "first", "request": {"method": "POST", "url": "/x/400", "headers": {"X-A": "b"}, "body": {"n": 1}}})).await;
    assert_eq!(
        (conflict.0, conflict.1["conflict"].as_str()),
        (409, Some("outbox_aborted_fingerprint_match"))
    );
    let bodies: Vec<Vec<u8>> = seen
        .requests
        .lock()
        .unwrap()
        .iter()
        .filter(|(path, _, _)| path == "/x/400")
        .map(|(_, _, body)| body.clone())
        .collect();
    assert_eq!(bodies, [&br#"{"n": 1}"#[..], br#"{"n":2}"#, br#"{"n":2}"#]);
    let again = daemon.command(&["requeue", "--id", "first", "--auto"]);
    assert_eq!(again.status.code(), Some(5), "what is aborted is not requeued");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_may_have_been_delivered_is_requeued_by_force_only() {
    let (address, _) = obedient().await;
    let daemon = Daemon::start(&["--upstream", &format!("http://{address}")]);
    daemon.json(&["send", "/x/500", "-d", "{}", "--id", "doubt", "--lane", "a"]);
    daemon.until_it("doubt", |receipt| receipt["attempts"] != 0 && receipt["status"] == "pending").await;
    daemon.json(&["pause", "a"]);
    // Another attempt may have begun before the pause.
    daemon.until("doubt", "pending").await;
    let refused = daemon.command(&["requeue", "--id", "doubt", "--auto"]);
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(5) && why.contains("may have been delivered"), "{why}");
    let forced = daemon.json(&["requeue", "--id", "doubt", "--auto", "--force"]);
    assert_eq!(
        (&forced["possibly_delivered"], &forced["new"]["supersedes"]),
        (&json!(true), &json!("doubt"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_gate_the_old_key_is_sealed_first() {
    // Every reply is lost: the first attempt took effect, and the outbox does not know.
    let (address, seen) = gated(1).await;
    let flags = ["--upstream", &format!("http://{address}"), "--credential", "command:echo x"];
    let daemon = Daemon::start(&flags);
    let user = ["-H", "X-User: tester"];
    let id = "00000000-0000-4000-8000-000000000001";
    daemon.json(&[&["send", "/notes", "-d", r#"{"lane":"a","n":1}"#, "--id", id][..], &user].concat());
    let took_effect = || !seen.effects.lock().unwrap().is_empty();
    daemon.until_it(id, |receipt| took_effect() && receipt["possibly_delivered"] == true).await;
    daemon.json(&["pause", "default"]);
    let receipt = daemon.until(id, "pending").await;
    assert_eq!(receipt["possibly_delivered"], true);
    let refused = daemon.command(&["requeue", "--id", id, "--auto"]);
    assert_eq!(refused.status.code(), Some(5), "its seal was lost as well: {refused:?}");
    assert_eq!(seen.effects.lock().unwrap().len(), 1);
    assert!(seen.paths().iter().any(|path| path.ends_with("/seal")), "{:?}", seen.paths());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_never_arrived_is_sealed_and_its_successor_takes_effect_once() {
    // A server that takes requests and dies of them.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let dying = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = tokio::io::AsyncReadExt::read(&mut stream, &mut [0; 100]).await;
        }
    });
    let secrets = tempfile::tempdir().unwrap();
    let token = secrets.path().join("token");
    std::fs::write(&token, "tester").unwrap();
    let place = format!("file:{}", token.display());
    let daemon = Daemon::start(&["--upstream", &format!("http://{address}"), "--credential", &place]);
    let id = "00000000-0000-4000-8000-000000000002";
    daemon.json(&["send", "/notes", "-d", r#"{"lane":"a","n":1}"#, "--id", id]);
    daemon.until_it(id, |receipt| receipt["possibly_delivered"] == true).await;
    daemon.json(&["pause", "default"]);
    daemon.until(id, "pending").await;
    dying.abort();
    let _ = dying.await;
    let (_, seen) = gated_at(&address, "shared:notes", 0).await;
    let requeued = daemon.json(&["requeue", "--id", id, "--auto"]);
    assert_eq!((&requeued["sealed"], &requeued["possibly_delivered"]), (&json!(true), &json!(false)));
    daemon.json(&["resume", "default"]);
    let new = requeued["new"]["client_message_id"].as_str().unwrap();
    daemon.until(new, "done").await;
    assert_eq!(seen.effects.lock().unwrap().len(), 1);
    let requests = seen.requests.lock().unwrap();
    assert_eq!(requests.last().unwrap().1["semel-supersedes"], id, "receivers can tell");
    drop(requests);
    // What took effect is not requeued; what the gate kept is said.
    let done = daemon.command(&["requeue", "--id", new, "--auto"]);
    assert_eq!(done.status.code(), Some(5));
}

/// The token is rotated between two attempts, and the first one took effect without the outbox knowing. Whoever believes
/// the receipts cannot make a second effect.
#[tokio::test(flavor = "multi_thread")]
async fn a_rotated_token_does_not_make_a_second_effect() {
    let (address, seen) = gated_losing_the_first("authorization", presets::ietf()).await;
    let secrets = tempfile::tempdir().unwrap();
    let token = secrets.path().join("token");
    std::fs::write(&token, "first").unwrap();
    let place = format!("file:{}", token.display());
    let daemon = Daemon::start(&["--upstream", &format!("http://{address}"), "--credential", &place]);
    let id = "00000000-0000-4000-8000-000000000003";
    daemon.json(&["pause", "default", "--new"]);
    daemon.json(&["send", "/notes", "-d", r#"{"lane":"a","n":1}"#, "--id", id]);
    // The reply is lost once the token is another one.
    let rotate = token.clone();
    *seen.on_first.lock().unwrap() =
        Some(Box::new(move || std::fs::write(&rotate, "second").expect("the token is rotated")));
    daemon.json(&["resume", "default"]);
    let receipt = daemon.until(id, "dead").await;
    assert_eq!(receipt["possibly_delivered"], true, "{receipt}");
    assert!(receipt["last_error"].as_str().unwrap().contains("credential-changed"), "{receipt}");
    let refused = daemon.command(&["requeue", "--id", id, "--auto"]);
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(5) && why.contains("another credential"), "{why}");
    assert_eq!(seen.effects.lock().unwrap().len(), 1, "one effect");
    let forced = daemon.json(&["requeue", "--id", id, "--auto", "--force"]);
    assert_eq!((&forced["sealed"], &forced["possibly_delivered"]), (&json!(false), &json!(true)));
}

/// An outbox and a gate of one preset understand each other: what is sent again is known again.
#[tokio::test(flavor = "multi_thread")]
async fn every_preset_of_the_outbox_fits_the_gate_of_the_same_name() {
    for (name, preset) in presets::PRESETS {
        let mut profile = preset();
        // What the application puts into its bodies is not the outbox's.
        profile.guard = None;
        let (address, seen) = gated_losing_the_first("trusted:X-User", profile).await;
        let daemon = Daemon::start(&["--upstream", &format!("http://{address}"), "--profile", name]);
        let id = "00000000-0000-4000-8000-000000000004";
        let body = r#"{"lane":"a","n":1}"#;
        daemon.json(&["send", "/notes", "-H", "X-User: ann", "-d", body, "--id", id, "--lane", "a"]);
        let receipt = daemon.until(id, "done").await;
        assert!(receipt["attempts"].as_u64() > Some(1), "{name}: the first reply is lost: {receipt}");
        assert_eq!(seen.effects.lock().unwrap().len(), 1, "{name}: {receipt}");
        assert_eq!(receipt["response"]["headers"]["idempotency-replayed"], "true", "{name}: {receipt}");
    }
}

/// Everything that waits says what for, and a person can lift a hold or give another credential.
#[tokio::test(flavor = "multi_thread")]
async fn what_waits_says_what_for_and_holds_can_be_lifted() {
    let ((strict, seen), (mild, _)) = (obedient().await, obedient().await);
    let daemon = Daemon::start(&["--upstream", &format!("http://{strict}")]);
    let held = daemon.command(&["send", "/x/401", "-d", "{}", "--id", "held", "--lane", "a", "--wait", "2"]);
    let why = String::from_utf8_lossy(&held.stderr).into_owned();
    assert_eq!(held.status.code(), Some(7), "{why}");
    assert!(
        why.contains("not delivered within 2 s") && why.contains("a fresh credential of default"),
        "{why}"
    );
    let other = format!("http://{mild}/x");
    let sent = daemon.command(&["send", &other, "-d", "{}", "--id", "other", "--lane", "b", "--wait", "30"]);
    assert_eq!(sent.status.code(), Some(0), "another origin is not held: {sent:?}");
    daemon.json(&["send", "/x/401", "-d", "{}", "--id", "behind", "--lane", "a"]);
    let text = |arguments: &[&str]| {
        let output = daemon.command(arguments);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let list = text(&["list"]);
    assert!(list.contains("message held before it"), "{list}");
    assert!(text(&["show", "behind"]).contains("waits_for"), "{}", text(&["show", "behind"]));
    let lanes = text(&["lanes"]);
    assert!(lanes.contains("held") && lanes.contains("a fresh credential of default"), "{lanes}");
    let holds = daemon.json(&["credentials"]);
    assert_eq!(holds["holds"][0]["origin"], format!("http://{strict}"), "{holds}");
    assert_eq!(holds["holds"][0]["held"], 1, "{holds}");
    // The same credential again.
    let before = seen.paths().len();
    assert!(text(&["release"]).contains("tried again"));
    daemon.until_it("held", |receipt| receipt["status"] == "held" && seen.paths().len() > before).await;
    assert_eq!(daemon.command(&["release", "nobody"]).status.code(), Some(5));
    // Another one.
    let token = daemon.folder.path().join("token");
    std::fs::write(&token, "good\n").unwrap();
    let given = text(&["credentials", "--give", token.to_str().unwrap()]);
    assert!(given.contains("default has a credential for") && !given.contains("good"), "{given}");
    daemon.until("held", "done").await;
    daemon.until("behind", "done").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_do_not_exist_are_refused_and_nothing_is_made_by_looking() {
    let (address, _) = obedient().await;
    let daemon = Daemon::start(&["--upstream", &format!("http://{address}")]);
    daemon.command(&["send", "/x", "-d", "{}", "--id", "one", "--lane", "alice", "--wait", "30"]);
    for what in ["pause", "resume"] {
        let refused = daemon.command(&[what, "alise"]);
        let why = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(5) && why.contains("alise"), "{why}");
    }
    assert!(!daemon.json(&["lanes"]).to_string().contains("alise"));
    daemon.json(&["pause", "alice"]);
    assert!(String::from_utf8(daemon.command(&["lanes"]).stdout).unwrap().contains("paused"));
    let bad = daemon.command(&["list", "--status", "waiting"]);
    let why = String::from_utf8_lossy(&bad.stderr).into_owned();
    assert!(why.contains("pending, inflight, held, done, dead, aborted"), "{why}");
    let empty = tempfile::tempdir().unwrap();
    for command in [&["list"][..], &["show", "x"], &["lanes"], &["pause", "x"], &["credentials"]] {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_semel"))
            .arg("outbox")
            .args(command)
            .current_dir(empty.path())
            .output()
            .unwrap();
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(4) && why.contains("there is no outbox"), "{command:?} {why}");
    }
    assert_eq!(std::fs::read_dir(empty.path()).unwrap().count(), 0, "looking makes nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_daemon_the_commands_open_the_file() {
    let (address, seen) = obedient().await;
    let mut daemon = Daemon::start(&["--upstream", &format!("http://{address}")]);
    daemon.json(&["pause", "later", "--new"]);
    assert_eq!(daemon.end(), 0);
    assert!(!daemon.socket().exists(), "a socket that nobody serves is gone");
    let url = format!("http://{address}/x");
    let sent = daemon
        .json(&["send", &url, "-X", "PUT", "-d", "a=1", "-d", "b=2", "--id", "offline", "--lane", "later"]);
    assert_eq!(sent["status"], "queued");
    let bad = daemon.command(&["send", &url, "-H", "Authorization: Bearer x"]);
    assert!(
        bad.status.code() == Some(5)
            && String::from_utf8_lossy(&bad.stderr).contains("credential-in-request")
    );
    let list = daemon.json(&["list", "--status", "pending", "--lane", "later"]);
    assert_eq!(list["messages"][0]["client_message_id"], "offline");
    assert!(seen.paths().is_empty());
    assert_eq!(daemon.command(&["show", "nobody"]).status.code(), Some(5));
    daemon.json(&["resume", "later"]);
    daemon.start_again();
    daemon.until("offline", "done").await;
    let (_, headers, body) = seen.requests.lock().unwrap()[0].clone();
    assert_eq!(
        (body.as_slice(), headers["content-type"].to_str().unwrap()),
        (&b"a=1&b=2"[..], "application/x-www-form-urlencoded")
    );
    daemon.json(&["pause", "later"]);
    daemon.json(&["send", "/x", "--id", "gone", "--lane", "later"]);
    assert_eq!(daemon.json(&["abort", "gone"])["status"], "aborted");
}

#[test]
fn the_outbox_of_semel_up_sends_through_its_gate() {
    use std::io::BufRead;
    let folder = tempfile::tempdir().unwrap();
    let mut up = std::process::Command::new(env!("CARGO_BIN_EXE_semel"))
        .args(["up", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--delay", "1ms", "--data"])
        .arg(folder.path())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let said: Vec<String> = std::io::BufReader::new(up.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap)
        .take_while(|line| !line.contains("Ctrl-C"))
        .collect();
    let line = said.iter().find(|line| line.contains("semel outbox send")).unwrap();
    let line = line.replace("semel outbox", &format!("{} outbox", env!("CARGO_BIN_EXE_semel")));
    let sent =
        std::process::Command::new("sh").args(["-c", &format!("{line} --wait 30 --json")]).output().unwrap();
    up.kill().unwrap();
    up.wait().unwrap();
    let receipt: serde_json::Value = serde_json::from_slice(&sent.stdout).unwrap();
    assert_eq!(receipt["status"], "done", "{receipt}");
    assert_eq!(receipt["response"]["headers"]["semel-guarantee"], "fenced", "{receipt}");
}

#[tokio::test(flavor = "multi_thread")]
async fn in_the_place_of_a_uuid_a_random_uuid_is_minted() {
    let (address, _) = obedient().await;
    let daemon = Daemon::start(&["--upstream", &format!("http://{address}")]);
    // Where keys must be random UUIDs, a ULID would be refused.
    let uuid = "6f1c2b0e-7c1d-4f55-9c1a-0d8e6f1b2a33";
    daemon.command(&["send", "/x/400", "--id", uuid, "--wait", "30"]);
    let successor = daemon.json(&["requeue", "--id", uuid, "--auto"])["new"]["client_message_id"].clone();
    let successor = successor.as_str().unwrap();
    assert_eq!((successor.len(), successor.as_bytes()[14]), (36, b'4'), "a random UUID: {successor}");
}

/// The same words as for gate and relay: flags before or after the command, states, keys, the newest first.
#[tokio::test(flavor = "multi_thread")]
async fn lists_have_the_newest_first_and_take_the_flags_of_the_other_parts() {
    let (address, _) = obedient().await;
    let daemon = Daemon::start(&["--upstream", &format!("http://{address}")]);
    for id in ["m-1", "m-2", "m-3"] {
        assert!(daemon.command(&["send", "/x/200", "-d", "{}", "--id", id, "--wait", "30"]).status.success());
    }
    let listed = |args: &[&str]| {
        let found = daemon.json(&[&["list"], args].concat());
        let ids = found["messages"].as_array().unwrap().iter();
        let ids: Vec<&str> = ids.map(|row| row["client_message_id"].as_str().unwrap()).collect();
        (ids.join(" "), found.clone())
    };
    assert_eq!(listed(&[]).0, "m-3 m-2 m-1");
    assert_eq!(listed(&["--oldest-first"]).0, "m-1 m-2 m-3");
    let (first, found) = listed(&["--limit", "2"]);
    let before = found["next_before"].to_string();
    assert_eq!((first.as_str(), listed(&["--before", &before]).0.as_str()), ("m-3 m-2", "m-1"));
    assert_eq!(listed(&["--after", &before]).0, "m-3");
    assert_eq!((listed(&["--key", "m-2"]).0, listed(&["--key", "m-4"]).0), ("m-2".to_owned(), String::new()));
    assert_eq!(
        (listed(&["--state", "done"]).0, listed(&["--status", "dead"]).0),
        ("m-3 m-2 m-1".to_owned(), String::new())
    );
    assert_eq!(found["messages"][0]["state"], "done", "the name that gate and relay have for it");
    let bad = daemon.command(&["list", "--state", "lost"]);
    assert!(
        bad.status.code() == Some(2) && String::from_utf8_lossy(&bad.stderr).contains("aborted"),
        "{bad:?}"
    );
    let early = daemon.command(&["--json", "list"]);
    assert!(serde_json::from_slice::<serde_json::Value>(&early.stdout).is_ok(), "{early:?}");
    let text = String::from_utf8(daemon.command(&["list"]).stdout).unwrap();
    assert!(text.ends_with("3 messages: 3 done\n"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_jump_of_the_clock_is_shown_and_confirmed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("outbox.db");
    let store = format!("sqlite:{}", path.display());
    let run = |args: &[&str]| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_semel"))
            .args(["outbox", "--store", &store])
            .args(args)
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    assert_eq!(run(&["send", "http://127.0.0.1:9/x", "-d", "{}", "--id", "old"]).0, Some(0));
    let (code, _, error) = run(&["clock", "--confirm", "--reason", "no"]);
    assert!(code == Some(5) && error.contains("clock-not-frozen"), "{error}");
    // As if the machine had been started anew, with a clock that is ahead by thirty days.
    let file = semel_store::sqlite::rusqlite::Connection::open(&path).unwrap();
    let days = 30 * 86_400_000_i64;
    for sql in [
        "UPDATE outbox_events SET at = at - ?1",
        "UPDATE outbox SET enqueued_at = enqueued_at - ?1, next_attempt_at = next_attempt_at - ?1",
        "UPDATE outbox_meta SET value = value - ?1 WHERE name IN ('time', 'high_water')",
    ] {
        file.execute(sql, [days]).unwrap();
    }
    file.execute("UPDATE outbox_meta SET value = 1 WHERE name IN ('time_boot', 'time_ahead')", []).unwrap();
    drop(file);
    let (_, text, error) = run(&["clock"]);
    assert!(text.contains("semel outbox clock --confirm --reason TEXT"), "{text} {error}");
    assert!(run(&["list"]).1.contains("semel outbox clock"), "the list says it");
    let (code, text, error) = run(&["clock", "--confirm", "--reason", "it is right"]);
    assert!(code == Some(0) && !text.contains("--confirm"), "{text} {error}");
    assert!(!run(&["clock"]).1.contains("--confirm"), "the next process believes it");
}

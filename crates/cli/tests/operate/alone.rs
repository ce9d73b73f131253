//! On a file that nobody owns: the program opens it itself.

use std::time::{Duration, Instant};

use serde_json::json;

use super::seed::Seed;
use super::*;

const STORE: [&str; 2] = ["--store", "sqlite:semel.db"];

fn with<'a>(args: &[&'a str]) -> Vec<&'a str> {
    args.iter().copied().chain(STORE).collect()
}

#[test]
fn records_are_listed_with_filters_and_pages() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let seed = Seed::at(&here.join("semel.db"));
    let (a, b, c) =
        (seed.settled("alice", "a"), seed.unknown("bob", "b", Duration::ZERO), seed.settled("alice", "c"));
    drop(seed);
    let list = |args: &[&str]| ids(&json(here, &with(&[&["gate", "list"], args].concat())));
    assert_eq!(list(&[]), [a.clone(), b.clone(), c.clone()]);
    assert_eq!(list(&["--state", "unknown"]), std::slice::from_ref(&b));
    assert_eq!(list(&["--principal", "alice"]), [a.clone(), c.clone()]);
    assert_eq!(list(&["--route", "pay", "--limit", "1"]), std::slice::from_ref(&a));
    assert_eq!(list(&["--route", "other"]), [] as [String; 0]);
    assert_eq!(list(&["--age", "0s"]), [a.clone(), b.clone(), c.clone()]);
    assert_eq!(list(&["--older-than", "1h"]), [] as [String; 0]);
    assert_eq!(list(&["--after", &b]), [c]);
    // Without an option the default is meant, which is this file.
    let text = says(here, &["gate", "list", "--limit", "2"]);
    assert!(text.starts_with("ID") && text.contains("STATE") && text.contains("req-b"), "{text}");
    assert!(text.contains(&format!("--after {b}")), "{text}");
    assert!(says(here, &["gate", "list", "--state", "sealed"]).contains("no records"));
    let (code, why) = refused(here, &["gate", "list", "--state", "lost"]);
    assert!(code == 2 && why.contains("possible values: claimed, settled"), "{why}");
}

#[test]
fn an_unknown_outcome_is_shown_with_the_commands_that_resolve_it() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let seed = Seed::at(&here.join("semel.db"));
    let id = seed.unknown("alice", "order 7", Duration::ZERO);
    drop(seed);
    std::fs::write(here.join("answer.json"), "{\"id\":7}").unwrap();
    for name in [id.as_str(), "req-order 7", "order 7"] {
        let text = says(here, &with(&["gate", "show", name]));
        assert!(
            text.contains(&format!("record {id}, unknown")) && text.contains("claimed by request"),
            "{text}"
        );
        assert!(text.contains("--as not-applied --reason TEXT"), "{text}");
    }
    let shown = json(here, &with(&["gate", "show", &id]));
    assert_eq!(shown["records"][0]["commands"].as_array().map(Vec::len), Some(3), "scripts get them too");
    // The command as it is printed, with its places filled in.
    let text = says(here, &with(&["gate", "show", &id]));
    let command =
        text.lines().find(|line| line.contains("--body-file FILE")).expect("the command is printed");
    let command = command.trim().replace("FILE", "answer.json");
    let args: Vec<&str> = command.split(' ').skip(1).collect();
    let resolved = json(here, &args);
    assert_eq!((&resolved["state"], &resolved["answer"]["status"]), (&json!("settled"), &json!(201)));
    assert_eq!(resolved["answer"]["body_bytes"], 8);
    assert_eq!(resolved["audit"][0]["actor"], "carol (command line)");
    let again = json(here, &with(&["gate", "show", &id]));
    assert_eq!(again["records"][0]["state"], "settled", "the old id still finds it");
    let (code, why) = refused(here, &with(&["gate", "resolve", &id, "--as", "applied"]));
    assert!(code == 5 && why.contains("not unknown"), "{why}");
}

/// Retries get a kept failure again and again: `show` says how that ends.
#[test]
fn a_kept_failure_is_lifted_by_the_command_that_show_prints() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let seed = Seed::at(&here.join("semel.db"));
    let id = seed.failed("alice", "k");
    drop(seed);
    let text = says(here, &with(&["gate", "show", &id]));
    assert!(text.contains("every retry gets this 500"), "{text}");
    let shown = json(here, &with(&["gate", "show", &id]));
    assert_eq!(shown["records"][0]["commands"].as_array().map(Vec::len), Some(3), "{shown}");
    let command =
        text.lines().find(|line| line.contains("--as not-applied")).expect("the command is printed");
    let command = command.trim().replace("TEXT", "nothing-in-the-books");
    let args: Vec<&str> = command.split(' ').skip(1).collect();
    let resolved = json(here, &args);
    assert_ne!(resolved["standing"], "settled", "the key is free again: {resolved}");
}

#[test]
fn a_premature_not_applied_says_when_and_waits_if_asked() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let seed = Seed::at(&here.join("semel.db"));
    let id = seed.unknown("alice", "k", Duration::from_millis(2500));
    drop(seed);
    let began = Instant::now();
    let (code, why) = refused(here, &with(&["gate", "resolve", &id, "--as", "not-applied"]));
    assert!(code == 2 && why.contains("--reason"), "a reason is needed: {why}");
    let resolve = with(&["gate", "resolve", "k", "--as", "not-applied", "--reason", "not in the books"]);
    if began.elapsed() < Duration::from_secs(2) {
        let (code, why) = refused(here, &resolve);
        assert!(code == 5 && why.contains("too early") && why.contains("--wait"), "{why}");
        assert!(why.contains("until 20"), "it says when: {why}");
    }
    let text = says(here, &[&resolve[..], &["--wait"]].concat());
    assert!(text.starts_with("resolved as not-applied"), "{text}");
    assert!(began.elapsed() >= Duration::from_millis(2400), "it waited");
    let audit = json(here, &with(&["gate", "audit"]));
    assert_eq!(audit["audit"][0]["action"], "resolve-not-applied");
    assert_eq!(audit["audit"][0]["reason"], "not in the books");
}

#[test]
fn upkeep_is_done_and_on_the_trail() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let seed = Seed::at(&here.join("semel.db"));
    seed.settled("alice", "a");
    let b = seed.unknown("alice", "b", Duration::ZERO);
    seed.settled("bob", "c");
    drop(seed);
    assert_eq!(json(here, &with(&["gate", "sweep"]))["removed"], 0);
    let erased = says(here, &with(&["gate", "forget", "alice", "--yes"]));
    assert!(
        erased.contains("erased 1 record of alice\n") && erased.contains("1 is claimed or unknown and stays"),
        "{erased}"
    );
    let again = json(here, &with(&["gate", "forget", "--principal", "alice", "--yes"]));
    assert_eq!((&again["forgotten"], &again["left"]), (&json!(0), &json!(1)));
    let restored = json(here, &with(&["gate", "restored", "--backup-time", "2026-01-01T00:00:00Z", "--yes"]));
    assert_eq!(restored["undated"], "unknown");
    let trusting =
        with(&["gate", "restored", "--backup-time", "2026-01-01T00:00:00Z", "--trust-undated", "-y"]);
    assert!(says(here, &trusting).contains("keys without a time are run"));
    let shown = says(here, &with(&["gate", "restores"]));
    assert!(shown.contains("2026-01-01T00:00:00Z") && shown.contains("in force until"), "{shown}");
    let (code, _) = refused(here, &with(&["gate", "restored", "--backup-time", "yesterday"]));
    assert_eq!(code, 2);
    let (code, why) = refused(here, &with(&["gate", "seal", &b, "--reason", "x"]));
    assert!(code == 5 && why.contains("unknown"), "{why}");
    let clock = says(here, &with(&["gate", "clock"]));
    assert!(clock.starts_with("the store's time is 20"), "{clock}");
    let (code, _) = refused(here, &with(&["gate", "clock", "--confirm", "--reason", "x"]));
    assert_eq!(code, 5, "there is nothing to confirm");
    let audit = json(here, &with(&["gate", "audit"]));
    let actions: Vec<&str> =
        audit["audit"].as_array().unwrap().iter().map(|row| row["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["restored", "restored", "forget", "forget", "sweep"]);
    let text = says(here, &with(&["gate", "cleanups"]));
    assert!(text.contains("REMOVED") && text.contains("record"), "{text}");
    assert!(says(here, &with(&["gate", "stale"])).contains("nothing"));
}

#[test]
fn a_store_that_is_not_there_is_not_made() {
    let folder = tempfile::tempdir().unwrap();
    let (code, why) = refused(folder.path(), &with(&["gate", "list"]));
    assert!(code == 4 && why.contains("there is no store at sqlite:semel.db"), "{why}");
    assert!(!folder.path().join("semel.db").exists());
    let (code, why) = refused(folder.path(), &["gate", "list", "--admin", "http://127.0.0.1:1"]);
    assert!(code == 6 && why.contains("127.0.0.1:1"), "{why}");
}

#[test]
fn a_migration_is_shown_and_then_done() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let plan = json(here, &with(&["migrate", "--dry-run"]));
    assert_eq!((&plan["found"], &plan["applied"]), (&json!(0), &json!([])));
    assert_eq!(plan["missing"][0], json!({"number": 1, "name": "records"}));
    assert!(!here.join("semel.db").exists(), "nothing was changed");
    assert!(says(here, &with(&["migrate", "--dry-run"])).contains("would apply 0001 records"));
    assert!(says(here, &with(&["migrate"])).contains("applied 0002 operating"));
    assert!(says(here, &with(&["migrate"])).contains("nothing to do"));
}

#[test]
fn a_file_of_another_user_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    drop(Seed::at(&here.join("semel.db")));
    // Only root may give a file away; everybody else cannot get into this situation by themselves.
    if std::os::unix::fs::chown(here.join("semel.db"), Some(12_345), None).is_err() {
        return;
    }
    let (code, why) = refused(here, &with(&["gate", "list"]));
    assert!(code == 4 && why.contains("sudo -u '#12345'"), "{why}");
}

#[test]
fn nobody_is_forgotten_by_mistake() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let seed = Seed::at(&here.join("semel.db"));
    let long = "authorization:b7f09a9914ddb57b52c8f1a0af7a0f3730123456789abcdef";
    seed.settled(long, "a");
    seed.settled("authorization:b8", "b");
    drop(seed);
    for (given, said) in [
        ("authorization:b7f09a9914ddb57b52c8f1a0af7a0f373…", "was cut"),
        ("authorization:nobody", "no record is of a principal"),
        ("authorization:b", "several principals begin with"),
    ] {
        let (code, why) = refused(here, &with(&["gate", "forget", given, "--yes"]));
        assert!(code == 5 && why.contains(said), "{given}: {code} {why}");
    }
    let (code, why) = refused(here, &with(&["gate", "forget", "authorization:b7"]));
    assert!(code == 5 && why.contains("1 settled") && why.contains("add --yes"), "{why}");
    assert_eq!(ids(&json(here, &with(&["gate", "list"]))).len(), 2, "nothing was erased");
    // A script that repeats an erasure would take whoever begins so.
    let (code, why) = refused(here, &with(&["gate", "forget", "authorization:b7", "--yes"]));
    assert!(code == 5 && why.contains("--yes takes the full name") && why.contains(long), "{why}");
    assert_eq!(ids(&json(here, &with(&["gate", "list"]))).len(), 2, "nothing was erased");
    let erased = says(here, &with(&["gate", "forget", long, "--yes", "--reason", "ticket 7"]));
    assert!(erased.contains("erased 1 record of authorization:b7f09a"), "{erased}");
    let trail = json(here, &with(&["gate", "audit"]));
    assert_eq!(trail["audit"].as_array().unwrap().len(), 2, "what was refused is not on the trail");
    assert!(trail.to_string().contains("ticket 7"), "{trail}");
}

#[test]
fn a_restore_is_previewed_and_confirmed() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    Seed::at(&here.join("semel.db")).settled("alice", "a");
    let restored = ["gate", "restored", "--backup-time", "2026-01-01T00:00:00Z"];
    let (code, why) = refused(here, &with(&restored));
    assert!(code == 5 && why.contains("outcome-unknown") && why.contains("add --yes"), "{why}");
    assert!(says(here, &with(&["gate", "restores"])).contains("was not restored"));
}

#[test]
fn a_list_is_filtered_by_key_and_ends_with_a_summary() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let seed = Seed::at(&here.join("semel.db"));
    seed.settled("alice", "a");
    let b = seed.unknown("alice", "b", Duration::ZERO);
    drop(seed);
    let all = says(here, &with(&["gate", "list"]));
    assert!(all.ends_with("2 records: 1 settled, 1 unknown\n"), "{all}");
    let listed = json(here, &with(&["gate", "list", "--key", "b"]));
    assert_eq!(ids(&listed), [b]);
    assert!(says(here, &with(&["gate", "list", "--key", "no such key"])).contains("no records"));
    let (code, why) = refused(here, &with(&["gate", "list", "--state", "setled"]));
    assert!(code == 2 && why.contains("settled"), "the states are named: {why}");
    let narrow = semel(here, &with(&["gate", "list"])).env("COLUMNS", "60").output().unwrap();
    assert!(stdout(&narrow).lines().all(|line| line.chars().count() <= 60), "{}", stdout(&narrow));
}

//! The file: one owner, what a restart finds, what a kill cannot take away, what is refused at the door.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use semel_contract::record::State;
use semel_store::Filter;
use semel_store::sqlite::OpenError;
use semel_store::sqlite::rusqlite::Connection;

use super::*;

/// Says to the test binary that it is to be killed.
const DOOMED: &str = "SEMEL_TEST_DOOMED";

#[test]
fn a_second_store_of_one_file_is_refused() {
    let sqlite = Sqlite::new();
    let roundabout = sqlite.directory.path().join(".").join("semel.db");
    for path in [sqlite.path(), roundabout] {
        match SqliteStore::open_with_clock(path, Arc::clone(&sqlite.clock) as _) {
            Err(OpenError::Locked { lock_file, holder }) => {
                assert_eq!(lock_file, sqlite.store.lock_file());
                assert_eq!(holder, Some(std::process::id()));
            }
            other => panic!("expected a lock, found {other:?}"),
        }
    }
    sqlite.reopened();
}

#[cfg(unix)]
#[test]
fn a_file_behind_a_link_has_one_lock() {
    let sqlite = Sqlite::new();
    let link = sqlite.directory.path().join("link.db");
    std::os::unix::fs::symlink(sqlite.path(), &link).expect("a link");
    let second = SqliteStore::open_with_clock(link, Arc::clone(&sqlite.clock) as _);
    assert!(matches!(second, Err(OpenError::Locked { .. })), "{second:?}");
}

/// A way to a second lock file of one database. Says where the second store is then opened.
#[cfg(unix)]
type Way = (&'static str, fn(&Path) -> PathBuf);

#[cfg(unix)]
const WAYS_AROUND: [Way; 4] = [
    ("the lock file is removed", |path| {
        std::fs::remove_file(lock_file_of(path)).expect("a lock file");
        path.to_owned()
    }),
    ("the lock file is replaced", |path| {
        std::fs::remove_file(lock_file_of(path)).expect("a lock file");
        std::fs::write(lock_file_of(path), "1\n").expect("a lock file");
        path.to_owned()
    }),
    ("a second name", |path| {
        let link = path.with_file_name("hard.db");
        std::fs::hard_link(path, &link).expect("a hard link");
        link
    }),
    ("another name", |path| {
        let moved = path.with_file_name("moved.db");
        std::fs::rename(path, &moved).expect("a new name");
        moved
    }),
];

#[cfg(unix)]
fn lock_file_of(path: &Path) -> PathBuf {
    path.with_file_name("semel.db.lock")
}

#[cfg(unix)]
#[test]
fn no_way_around_the_lock_file_leads_to_a_second_owner() {
    for (way, go) in WAYS_AROUND {
        let sqlite = Sqlite::new();
        let path = go(&sqlite.path());
        let second = SqliteStore::open_with_clock(&path, Arc::clone(&sqlite.clock) as _);
        assert!(matches!(second, Err(OpenError::Locked { .. })), "{way}: {second:?}");
        assert_eq!(in_another_process(SECOND, &path), "locked", "{way}");
        let raw = in_another_process(RAW, &path);
        assert!(raw.contains("locked") || raw.contains("wal"), "{way}: SQLite's own locks stand: {raw}");
        drop(sqlite.store);
        assert_eq!(in_another_process(SECOND, &path), "opened", "{way}: the owner is gone");
    }
}

/// Says to the test binary which file to open, as a store or with SQLite alone.
#[cfg(unix)]
const SECOND: &str = "SEMEL_TEST_SECOND";
#[cfg(unix)]
const RAW: &str = "SEMEL_TEST_RAW";

#[cfg(unix)]
fn in_another_process(variable: &str, path: &Path) -> String {
    let child = Command::new(std::env::current_exe().expect("the test binary"))
        .args(["--exact", "files::second_process", "--nocapture"])
        .env(variable, path)
        .output()
        .expect("the test binary runs");
    let said = String::from_utf8(child.stdout).expect("text");
    said.lines().find_map(|line| line.strip_prefix("said ")).expect("an answer").to_owned()
}

/// Opens a file that another process may own, and says how that went.
#[cfg(unix)]
#[test]
fn second_process() {
    if let Ok(path) = std::env::var(SECOND) {
        match SqliteStore::open(path) {
            Ok(_) => println!("\nsaid opened"),
            Err(OpenError::Locked { .. }) => println!("\nsaid locked"),
            Err(error) => println!("\nsaid {error}"),
        }
    }
    if let Ok(path) = std::env::var(RAW) {
        let raw = Connection::open(path).expect("a database");
        // Succeeds only where nobody has the file open.
        let mode = raw.pragma_update_and_check(None, "journal_mode", "DELETE", |row| row.get::<_, String>(0));
        println!("\nsaid {mode:?}");
    }
}

#[tokio::test]
async fn a_restart_keeps_answers_and_makes_open_claims_unknown() {
    let sqlite = Sqlite::new();
    let (done, open, reserved) = (id("done"), id("open"), id("reserved"));
    let fence = won(&sqlite.store, &done, Guarantee::Fenced).await;
    assert_eq!(settle(&sqlite.store, &done, fence, settled("kept")).await, FencedWrite::Done);
    let orphan = won(&sqlite.store, &open, Guarantee::Fenced).await;
    let last = won(&sqlite.store, &reserved, Guarantee::Atomic).await;

    let sqlite = sqlite.reopened();
    let (entry, _) = sqlite.store.look_up(&done).await.expect("the store answers");
    assert_eq!(entry.expect("it was settled").answer, Some(answer("kept")));
    let (entry, now) = sqlite.store.look_up(&open).await.expect("the store answers");
    let entry = entry.expect("it was claimed");
    assert_eq!((entry.record.state, entry.record.fence), (State::Unknown, orphan));
    assert!(entry.record.lease_until <= now, "nobody holds it any more");
    assert_eq!(standing(&sqlite.store, &reserved).await, Standing::Absent, "a reservation had no effect");
    let next = won(&sqlite.store, &id("next"), Guarantee::Fenced).await;
    assert!(next.number > last.number, "{next} after {last}");
    assert_eq!(settle(&sqlite.store, &open, orphan, settled("late")).await, FencedWrite::Done);
    assert_eq!(settle(&sqlite.store, &reserved, last, settled("late")).await, FencedWrite::Superseded);
}

#[tokio::test]
async fn a_record_for_ever_is_known_after_a_restart() {
    let sqlite = Sqlite::new();
    let id = id("for ever");
    let fence = won(&sqlite.store, &id, Guarantee::Fenced).await;
    let lifetime = Lifetime { record: Some(Duration::MAX), ..lifetime() };
    let written = sqlite.store.settle(&id, fence, settled("kept"), &lifetime).await;
    assert_eq!(written, Ok(FencedWrite::Done));
    let sqlite = sqlite.reopened();
    let (entry, _) = sqlite.store.look_up(&id).await.expect("the store answers");
    assert_eq!(entry.expect("it was settled").answer, Some(answer("kept")));
}

#[tokio::test]
async fn time_does_not_go_back_over_a_restart() {
    let sqlite = Sqlite::new();
    sqlite.clock.advance(Duration::from_secs(3600));
    won(&sqlite.store, &id("one"), Guarantee::Fenced).await;
    let (_, before) = sqlite.store.look_up(&id("one")).await.expect("the store answers");
    sqlite.clock.set_wall_off(-7_200_000);
    let sqlite = sqlite.reopened();
    let (_, after) = sqlite.store.look_up(&id("one")).await.expect("the store answers");
    assert!(after >= before, "{after} after {before}");
}

/// Claims and settles until it is killed, and says after each acknowledgement what was acknowledged.
#[test]
fn doomed_process() {
    let Ok(path) = std::env::var(DOOMED) else { return };
    let store = SqliteStore::open(path).expect("the file can be opened");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        for at in 0.. {
            let id = id(&format!("key-{at}"));
            let fence = won(&store, &id, Guarantee::Fenced).await;
            println!("\nclaimed {at} {fence}");
            if at % 2 == 0 {
                assert_eq!(
                    settle(&store, &id, fence, settled(&format!("body-{at}"))).await,
                    FencedWrite::Done
                );
                println!("\nsettled {at} {fence}");
            }
        }
    });
}

#[tokio::test]
async fn what_was_acknowledged_survives_a_kill() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("semel.db");
    let mut child = Command::new(std::env::current_exe().expect("the test binary"))
        .args(["--exact", "files::doomed_process", "--nocapture"])
        .env(DOOMED, &path)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the test binary runs");
    let mut acknowledged = Vec::new();
    let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    for line in lines.map_while(Result::ok) {
        if line.starts_with("claimed ") || line.starts_with("settled ") {
            acknowledged.push(line);
        }
        if acknowledged.len() == 200 {
            child.kill().expect("it can be killed");
        }
    }
    child.wait().expect("it ends");
    assert!(acknowledged.len() >= 200, "only {} were acknowledged", acknowledged.len());

    let store = SqliteStore::open(&path).expect("the lock died with the process");
    let mut last = 0;
    for line in acknowledged {
        let parts: Vec<&str> = line.split(' ').collect();
        let fence: Fence = parts[2].parse().expect("a fence");
        let (entry, _) = store.look_up(&id(&format!("key-{}", parts[1]))).await.expect("the store answers");
        let entry = entry.unwrap_or_else(|| panic!("{line}, and it is gone"));
        assert_eq!(entry.record.fence, fence);
        if parts[0] == "settled" {
            assert_eq!(entry.answer, Some(answer(&format!("body-{}", parts[1]))));
        }
        last = last.max(fence.number);
    }
    assert!(won(&store, &id("next"), Guarantee::Fenced).await.number > last);
}

#[test]
fn a_schema_of_a_later_release_is_refused() {
    let sqlite = Sqlite::new();
    let path = sqlite.path();
    let Sqlite { clock, store, directory } = sqlite;
    drop(store);
    let raw = Connection::open(&path).expect("a database");
    let set = |name: &str, value: i64| {
        let sql = "UPDATE semel_meta SET value = ?2 WHERE name = ?1";
        assert_eq!(raw.execute(sql, (name, value)).expect("the schema says its version"), 1);
    };
    set("schema_version", 99);
    let opened = SqliteStore::open_with_clock(&path, Arc::clone(&clock) as _);
    drop(opened.expect("the newer schema says that it works for this release"));
    set("schema_works_for", 99);
    let opened = SqliteStore::open_with_clock(&path, clock as _);
    assert!(matches!(opened, Err(OpenError::TooNew { found: 99, .. })), "{opened:?}");
    drop(raw);
    drop(directory);
}

#[test]
fn a_file_that_is_no_database_is_refused_and_left_alone() {
    let directory = tempfile::tempdir().expect("a directory");
    let open = |name: &str| SqliteStore::open(directory.path().join(name));

    let text = "this is not a database, however long it may be\n".repeat(100);
    std::fs::write(directory.path().join("text"), &text).expect("a file");
    assert!(matches!(open("text"), Err(OpenError::Corrupt(_))));
    assert_eq!(std::fs::read_to_string(directory.path().join("text")).expect("the file"), text);
}

#[tokio::test]
async fn an_applications_own_file_may_carry_the_records() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("application.db");
    let raw = Connection::open(&path).expect("a database");
    raw.execute_batch("CREATE TABLE orders (x); INSERT INTO orders VALUES (1)").expect("a table");
    for (pragma, value) in [("application_id", 7), ("user_version", 3)] {
        raw.pragma_update(None, pragma, value).expect("a header field");
    }
    drop(raw);
    let store = SqliteStore::open(&path).expect("the file can be opened");
    assert_eq!(number(&store, "SELECT count(*) FROM orders").await, 1);
    let raw = Connection::open(&path).expect("a database");
    for (pragma, value) in [("application_id", 7_i64), ("user_version", 3)] {
        let kept: i64 = raw.pragma_query_value(None, pragma, |row| row.get(0)).expect("a header field");
        assert_eq!(kept, value, "{pragma} is the application's");
    }
}

#[tokio::test]
async fn the_audit_trail_can_only_grow() {
    let sqlite = Sqlite::new();
    assert_eq!(sqlite.store.forget(None, "alice", "carol").await, Ok(0));
    let rows = sqlite.store.audit(10).expect("the store answers");
    assert_eq!((rows.len(), rows[0].actor.as_str()), (1, "carol"));
    let path = sqlite.path();
    let Sqlite { store, directory, .. } = sqlite;
    drop(store);
    let raw = Connection::open(&path).expect("a database");
    for sql in [
        "DELETE FROM semel_audit",
        "UPDATE semel_audit SET actor = 'mallory'",
        "INSERT OR REPLACE INTO semel_audit SELECT * FROM semel_audit",
    ] {
        let error = raw.execute(sql, []).expect_err("it is append-only");
        assert!(error.to_string().contains("append-only"), "{error}");
    }
    drop(directory);
}

/// A copy of a frozen file of an older release.
fn frozen(directory: &Path, version: u32) -> PathBuf {
    let path = directory.join("old.db");
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    std::fs::copy(fixtures.join(format!("sqlite_{version}.db")), &path).expect("the fixture is copied");
    path
}

#[tokio::test]
async fn files_of_older_releases_are_upgraded_without_loss() {
    for version in [1, 3] {
        let directory = tempfile::tempdir().expect("a directory");
        let path = frozen(directory.path(), version);
        let store = SqliteStore::open(&path).expect("the file can be opened");
        crate::upgrades::holds(&store).await;
        drop(store);
        drop(SqliteStore::open(&path).expect("an upgrade is made once"));
        let raw = Connection::open(&path).expect("a database");
        let found: String = raw.query_row("PRAGMA integrity_check", [], |row| row.get(0)).expect("a check");
        assert_eq!(found, "ok", "version {version}");
        let forged = "UPDATE semel_record SET state = 'forged'";
        assert!(raw.execute(forged, []).is_err(), "the checks are still there, in version {version}");
    }
}

#[tokio::test]
async fn rows_of_an_older_release_are_known_by_their_principal_and_rotation() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = frozen(directory.path(), 3);
    // Twice: the second start finds rows of both releases.
    for round in 0..2 {
        let store = SqliteStore::open(&path).expect("the file can be opened");
        let mut rotated = claim_request(&id("settled under another credential"), Guarantee::Fenced);
        rotated.rotation = Some([9; 16]);
        let claimed = store.claim(rotated).await;
        assert!(matches!(claimed, Ok(ClaimOutcome::CredentialChanged)), "{claimed:?}");
        let filter = Filter { principal: Some("alice".to_owned()), limit: 100, ..Filter::default() };
        assert_eq!(store.list(&filter).await.expect("the store lists").len(), 7 + round);
        let id = id(&format!("new-{round}"));
        let fence = won(&store, &id, Guarantee::Fenced).await;
        assert_eq!(settle(&store, &id, fence, settled("x")).await, FencedWrite::Done);
    }
    let store = SqliteStore::open(&path).expect("the file can be opened");
    assert_eq!(store.forget(None, "alice", "carol").await, Ok(7), "all but the two unknown outcomes");
    let filter = Filter { principal: Some("alice".to_owned()), limit: 100, ..Filter::default() };
    assert_eq!(store.list(&filter).await.expect("the store lists").len(), 2);
}

#[tokio::test]
async fn a_restore_outlives_its_process() {
    use semel_contract::restore::Undated;
    use semel_contract::time::Timestamp;
    let sqlite = Sqlite::new();
    let backup_at = Timestamp::from_millis(1_700_000_000_000);
    let told = sqlite.store.restored(backup_at, Undated::Unknown, "carol", "disk died").await;
    let restores = vec![told.expect("the store answers")];
    let sqlite = sqlite.reopened();
    assert_eq!(sqlite.store.restores().await, Ok(restores));
}

#[tokio::test]
async fn a_restart_does_not_confirm_a_jump_of_the_clock() {
    let sqlite = Sqlite::new();
    let path = sqlite.path();
    let Sqlite { clock, store, directory } = sqlite;
    let id = id("order");
    let fence = won(&store, &id, Guarantee::Fenced).await;
    assert_eq!(settle(&store, &id, fence, settled("x")).await, FencedWrite::Done);
    clock.set_wall_off(30 * 86_400_000);
    assert_eq!(standing(&store, &id).await, Standing::Settled);
    drop(store);
    clock.advance(Duration::from_secs(3600));
    let store =
        Arc::new(SqliteStore::open_with_clock(&path, Arc::clone(&clock) as _).expect("the file again"));
    assert_eq!(standing(&store, &id).await, Standing::Settled, "a restart is nobody's word");
    assert!(store.clock_frozen().is_some());
    let (_, now) = store.look_up(&id).await.expect("the store answers");
    assert_eq!(now.millis(), 1_800_000_000_000 + 3_600_000, "an hour has passed, as the ticks say");
    store.confirm_clock();
    assert_eq!(standing(&store, &id).await, Standing::Expired);
    drop(directory);
}

/// What a process before has written stands in the log alone, and may not be on the disk. While somebody reads an older
/// moment, the log cannot be copied into the file: a store that served then could lose what it shows as kept.
#[test]
fn a_log_that_cannot_be_copied_is_waited_for_and_then_refused() {
    let sqlite = Sqlite::new();
    let (path, clock) = (sqlite.path(), Arc::clone(&sqlite.clock));
    let Sqlite { store, directory, .. } = sqlite;
    drop(store);
    let open = || SqliteStore::open_with_clock(&path, Arc::clone(&clock) as _);
    let (reader, writer) = (Connection::open(&path).unwrap(), Connection::open(&path).unwrap());
    writer.execute_batch("CREATE TABLE own (it); INSERT INTO own VALUES (1)").expect("a log");
    reader.execute_batch("BEGIN; SELECT * FROM own").expect("somebody reads");
    writer.execute_batch("INSERT INTO own VALUES (2)").expect("and somebody writes");
    let refused = open().expect_err("a log that stays in the way");
    assert!(matches!(refused, OpenError::LogInUse { .. }), "{refused:?}");
    for word in ["reads", "close", "start again"] {
        assert!(refused.to_string().contains(word), "{refused}");
    }
    let ends = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(700));
        reader.execute_batch("COMMIT").expect("the reader ends");
        reader
    });
    drop(open().expect("a reader that ends is waited for"));
    drop((ends.join().unwrap(), writer, directory));
}

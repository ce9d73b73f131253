//! Both stores pass one suite; the file survives restarts, full disks and old releases, and says what is wrong with it.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use semel_delivery::sqlite::SqliteStore;
use semel_delivery::store::{Find, OutboxStore, StoreError};
use semel_delivery::{Enqueue, Operator, Outbox, OutboxError, Request, Settings, Status, conformance};
use semel_store::sqlite::OpenError;
use semel_store::sqlite::rusqlite::Connection;

#[tokio::test]
async fn the_store_in_memory_agrees() {
    conformance::run(|| async { Arc::new(SqliteStore::memory().unwrap()) as Arc<dyn OutboxStore> }).await;
}

#[tokio::test]
async fn the_store_in_a_file_agrees() {
    let folder = tempfile::tempdir().unwrap();
    let mut count = 0;
    conformance::run(|| {
        count += 1;
        let path = folder.path().join(format!("{count}.db"));
        async move { Arc::new(SqliteStore::open(&path).unwrap()) as Arc<dyn OutboxStore> }
    })
    .await;
}

fn message(id: &str) -> Enqueue {
    let request = Request::json("POST", "http://127.0.0.1:9/x", "{}");
    Enqueue { client_message_id: Some(id.to_owned()), ..Enqueue::new(request) }
}

async fn open(path: &Path) -> Result<Outbox, OutboxError> {
    Outbox::open(path, Settings::default()).await
}

#[tokio::test]
async fn a_file_has_one_owner_and_keeps_what_it_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("outbox.db");
    let outbox = open(&path).await.unwrap();
    outbox.enqueue(message("m1")).await.unwrap();
    assert!(matches!(open(&path).await, Err(OutboxError::Open(OpenError::Locked { .. }))));
    drop(outbox);
    let again = open(&path).await.unwrap();
    assert_eq!(again.receipt("m1").await.unwrap().unwrap().status, Status::Pending);
    assert!(path.metadata().unwrap().permissions().mode() & 0o077 == 0, "nobody else reads it");
}

/// Opens a file as a store of either kind.
type OpenFile = fn(&Path) -> Result<Box<dyn std::any::Any>, OpenError>;

#[test]
fn a_second_name_or_a_removed_lock_file_makes_no_second_owner() {
    use semel_delivery::relay::store::sqlite::Sqlite;
    use semel_store::clock::SystemClock;
    let opens: [OpenFile; 2] = [
        |path| SqliteStore::open(path).map(|it| Box::new(it) as _),
        |path| Sqlite::open(path, Arc::new(SystemClock)).map(|it| Box::new(it) as _),
    ];
    for open in opens {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("x.db"), folder.path().join("y.db"));
        let owner = open(&path).unwrap();
        std::fs::remove_file(folder.path().join("x.db.lock")).unwrap();
        std::fs::hard_link(&path, &link).unwrap();
        for second in [&path, &link] {
            assert!(matches!(open(second), Err(OpenError::Locked { .. })), "{second:?}");
        }
        drop(owner);
        open(&path).unwrap();
    }
}

#[tokio::test]
async fn a_full_disk_refuses_and_leaves_the_id_free() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("outbox.db");
    let store = Arc::new(SqliteStore::open(&path).unwrap());
    let outbox = Outbox::with_store(Arc::clone(&store) as _, Settings::default()).await.unwrap();
    outbox.enqueue(message("before")).await.unwrap();
    store.faults().fill_disk(true);
    let refused = outbox.enqueue(message("m1")).await;
    assert!(matches!(refused, Err(OutboxError::Store(StoreError::DiskFull(_)))));
    assert!(outbox.receipt("m1").await.unwrap().is_none());
    store.faults().fill_disk(false);
    outbox.enqueue(message("m1")).await.unwrap();
    drop((outbox, store));
    let again = open(&path).await.unwrap();
    for id in ["before", "m1"] {
        assert!(again.receipt(id).await.unwrap().is_some(), "{id}");
    }
}

#[tokio::test]
async fn a_file_that_cannot_be_used_is_said_to_be_so_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("outbox.db");
    let garbage = b"this is not a database, it is a letter to my aunt, and a long one".repeat(100);
    std::fs::write(&path, &garbage).unwrap();
    let error = open(&path).await.unwrap_err();
    assert!(matches!(error, OutboxError::Open(OpenError::Corrupt(_))), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), garbage);
    assert!(matches!(
        open(&folder.path().join("no/such/folder.db")).await,
        Err(OutboxError::Open(OpenError::Io(_)))
    ));
}

#[tokio::test]
async fn a_damaged_page_is_found_at_start() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("outbox.db");
    let outbox = open(&path).await.unwrap();
    for number in 0..200 {
        outbox.enqueue(message(&format!("m{number}"))).await.unwrap();
    }
    drop(outbox);
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..].iter_mut().for_each(|byte| *byte = 0xA5);
    std::fs::write(&path, &bytes).unwrap();
    let error = open(&path).await.unwrap_err();
    assert!(matches!(error, OutboxError::Open(OpenError::Corrupt(_))), "{error}");
}

#[tokio::test]
async fn a_folder_that_is_read_only_is_said_to_be_so() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o500)).unwrap();
    let opened = open(&folder.path().join("outbox.db")).await;
    let probe = std::fs::write(folder.path().join("probe"), "x");
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    // An almighty user writes anywhere: then there is nothing to see here.
    if probe.is_err() {
        assert!(matches!(opened, Err(OutboxError::Open(OpenError::Io(_)))));
    }
}

#[tokio::test]
async fn an_old_file_is_upgraded_without_loss() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("outbox.db");
    std::fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/outbox-1.db"), &path).unwrap();
    let outbox = open(&path).await.unwrap();
    let rows = outbox.list(semel_delivery::store::Filter { limit: 100, ..Default::default() }).await.unwrap();
    assert_eq!(rows.len(), 6, "every row is kept");
    let ids: Vec<&str> = rows.iter().map(|row| row.client_message_id.as_str()).collect();
    assert_eq!(&ids[..2], ["given-1", "in-payload-1"], "an id, and the key inside the payload");
    let is_uuid = |id: &str| id.len() == 36 && id.as_bytes()[14] == b'4';
    assert!(is_uuid(ids[2]), "a payload without a key: {}", ids[2]);
    assert!(is_uuid(ids[3]), "a key that an earlier row has: {}", ids[3]);
    assert_eq!(&ids[4..], ["flying-1", "done-1"]);
    let statuses: Vec<Status> = rows.iter().map(|row| row.status).collect();
    assert_eq!(
        statuses,
        [Status::Pending, Status::Pending, Status::Dead, Status::Pending, Status::Pending, Status::Done]
    );
    assert!(rows[4].ambiguous && !rows[0].ambiguous, "what was in flight may have arrived");
    assert_eq!(rows[5].broker_message_id.as_deref(), Some("broker-9"));
    for row in &rows {
        assert_eq!(row.client_generated_at, row.enqueued_at);
        assert!(is_uuid(&row.client_tx_id));
    }
    drop(outbox);
    let again = open(&path).await.unwrap();
    let found = again.found(Find::Row(rows[2].id)).await.unwrap().unwrap();
    assert_eq!(found.client_message_id, ids[2], "what was minted stays");
}

#[tokio::test]
async fn a_file_with_lanes_is_upgraded_and_purged_by_when_messages_finished() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("outbox.db");
    let file = Connection::open(&path).unwrap();
    file.execute_batch(include_str!("../migrations/0001_outbox.sql")).unwrap();
    file.execute_batch(include_str!("../migrations/0002_lanes.sql")).unwrap();
    file.execute_batch("INSERT INTO outbox_meta (name, value) VALUES ('schema_version', 2)").unwrap();
    for (id, status, delivered_at) in
        [("late", "done", Some(900)), ("early", "done", Some(100)), ("waits", "pending", None)]
    {
        let sql = "INSERT INTO outbox (client_message_id, client_tx_id, request_fingerprint, principal, lane, profile,
                method, url, headers, payload, payload_bytes, client_generated_at, enqueued_at, epoch, next_attempt_at,
                status, delivered_at)
            VALUES (?1, 't', zeroblob(32), 'default', 'a', '', 'POST', '/x', '[]', x'7b7d', 2, 1, 1, 1, 1, ?2, ?3)";
        file.execute(sql, (id, status, delivered_at)).unwrap();
    }
    drop(file);
    assert_eq!(SqliteStore::version(&path).unwrap(), (2, 6));
    let store = SqliteStore::open(&path).unwrap();
    let at = semel_contract::time::Timestamp::from_millis;
    assert_eq!(store.purge(at(500)).await.unwrap(), 1);
    for (row, is_kept) in [(1, true), (2, false), (3, true)] {
        assert_eq!(store.request(row).await.unwrap().is_some(), is_kept, "{row}");
    }
    assert_eq!(store.purge(at(1000)).await.unwrap(), 1, "the late one, and never what waits");
    let lane = store.lane("a").await.unwrap();
    assert_eq!((lane.depth, lane.is_paused, lane.blocked_by), (1, false, None));
    drop(store);
    assert_eq!(SqliteStore::version(&path).unwrap(), (6, 6));
    let file = Connection::open(&path).unwrap();
    let sql = "EXPLAIN QUERY PLAN SELECT id FROM outbox INDEXED BY outbox_purge WHERE payload IS NOT NULL
        AND status IN ('done', 'aborted') AND coalesce(delivered_at, aborted_at) < 5
        ORDER BY coalesce(delivered_at, aborted_at) LIMIT 10";
    let plan: String = file.query_row(sql, [], |row| row.get(3)).unwrap();
    assert!(plan.starts_with("SEARCH outbox USING INDEX outbox_purge"), "{plan}");
}

/// People look for what is due and for what was taken back with SQL of their own.
#[test]
fn what_is_due_and_what_was_aborted_is_found_by_an_index() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("outbox.db");
    drop(SqliteStore::open(&path).unwrap());
    let file = semel_store::sqlite::rusqlite::Connection::open(&path).unwrap();
    let plan = |sql: &str| -> String {
        file.query_row(&format!("EXPLAIN QUERY PLAN {sql}"), [], |row| row.get(3)).unwrap()
    };
    let due = plan(
        "SELECT id FROM outbox WHERE status = 'pending' AND next_attempt_at <= 5 ORDER BY next_attempt_at",
    );
    assert!(due.contains("outbox_due"), "{due}");
    let aborted = plan(
        "SELECT id FROM outbox INDEXED BY outbox_aborted WHERE status = 'aborted' AND aborted_at > 5 ORDER BY aborted_at",
    );
    assert!(aborted.contains("outbox_aborted"), "{aborted}");
}

/// What somebody does stands in the trail with it, or neither is there; and nobody takes it out again.
#[tokio::test]
async fn what_is_done_by_hand_stands_in_a_trail_that_is_only_added_to() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("outbox.db");
    let store = SqliteStore::open(&path).unwrap();
    let at = semel_contract::time::Timestamp::from_millis;
    let alice = || store.by(Operator::new("alice", Some("maintenance")).unwrap());
    store.set_paused("a", true, at(1)).await.unwrap();
    assert_eq!(store.trail(None, 10).await.unwrap(), [], "what the engine does has nobody");
    alice().set_paused("b", true, at(2)).await.unwrap();
    assert_eq!(alice().abort(7, "operator", "no more", at(3)).await.unwrap().map(|row| row.id), None);
    store.faults().fill_disk(true);
    assert!(alice().set_paused("c", true, at(4)).await.is_err());
    store.faults().fill_disk(false);
    alice().set_paused("b", false, at(5)).await.unwrap();
    let rows = store.trail(None, 10).await.unwrap();
    let told: Vec<_> = rows
        .iter()
        .map(|row| {
            (
                row.at.millis(),
                row.actor.as_str(),
                row.action.as_str(),
                row.subject.as_str(),
                row.reason.as_str(),
            )
        })
        .collect();
    assert_eq!(
        told,
        [(5, "alice", "resume", "b", "maintenance"), (2, "alice", "pause", "b", "maintenance")],
        "what did not happen is not told"
    );
    assert_eq!(store.trail(Some(rows[0].number), 10).await.unwrap(), rows[1..], "page by page");
    drop(store);
    let file = Connection::open(&path).unwrap();
    for sql in [
        "UPDATE outbox_audit SET reason = ''",
        "DELETE FROM outbox_audit",
        "REPLACE INTO outbox_audit SELECT number, at, 'bob', action, subject, detail, reason FROM outbox_audit",
    ] {
        let refused = file.execute(sql, []).unwrap_err().to_string();
        assert!(refused.contains("append-only"), "{sql}: {refused}");
    }
}

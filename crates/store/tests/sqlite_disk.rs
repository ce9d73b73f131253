//! A disk that fails under SQLite: syncs of the log that fail, with or without what was to be synced, and writes that
//! find no room. What the store says then must be true, and what it has acknowledged must stay.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI64, AtomicPtr, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once};
use std::time::Duration;

use bytes::Bytes;
use semel_contract::decide::{Claim, Standing};
use semel_contract::key::{Format, Key};
use semel_contract::profile::{Lifetime, presets};
use semel_contract::record::{Fence, Guarantee};
use semel_contract::scope::Scope;
use semel_store::clock::SystemClock;
use semel_store::sqlite::SqliteStore;
use semel_store::sqlite::rusqlite::ffi;
use semel_store::{About, Answer, ClaimStore, Claimed, Id, Settlement, StoreError, Wish, Written};

/// What the disk does to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Disk {
    Works = 0,
    /// The next sync fails, and what was written stays all the same.
    SyncFails = 1,
    /// The next sync fails, and what was written since the last one is gone.
    SyncLoses = 2,
    /// Nothing can be written.
    Full = 3,
}

static DISK: AtomicU8 = AtomicU8::new(Disk::Works as u8);
static SYNCED_BYTES: AtomicI64 = AtomicI64::new(0);
static METHODS: AtomicPtr<ffi::sqlite3_io_methods> = AtomicPtr::new(std::ptr::null_mut());
static FILES: AtomicPtr<ffi::sqlite3_vfs> = AtomicPtr::new(std::ptr::null_mut());
static FAILURES: AtomicU64 = AtomicU64::new(0);

/// One test at a time: there is one disk.
fn the_disk() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    static REGISTER: Once = Once::new();
    REGISTER.call_once(register);
    let disk = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    becomes(Disk::Works);
    disk
}

fn becomes(disk: Disk) {
    DISK.store(disk as u8, Ordering::SeqCst);
}

/// Puts itself between SQLite and the operating system, for every file that is opened from now on.
fn register() {
    // SAFETY: the default file system is registered for as long as the process lives; the copy is leaked and differs in
    // its name and in how it opens files.
    unsafe {
        let default = ffi::sqlite3_vfs_find(std::ptr::null());
        FILES.store(default, Ordering::SeqCst);
        let mut failing = Box::new(std::ptr::read(default));
        failing.zName = c"failing".as_ptr();
        failing.xOpen = Some(open);
        assert_eq!(ffi::sqlite3_vfs_register(Box::into_raw(failing), 1), ffi::SQLITE_OK);
    }
}

unsafe extern "C" fn open(
    files: *mut ffi::sqlite3_vfs,
    name: ffi::sqlite3_filename,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    flags_out: *mut c_int,
) -> c_int {
    // SAFETY: the arguments are passed on as they came, and a file that was opened has methods.
    unsafe {
        let open = (*FILES.load(Ordering::SeqCst)).xOpen.expect("files can be opened");
        let opened = open(files, name, file, flags, flags_out);
        if opened == ffi::SQLITE_OK && flags & ffi::SQLITE_OPEN_WAL != 0 {
            let methods = (*file).pMethods.cast_mut();
            METHODS.store(methods, Ordering::SeqCst);
            let mut failing = Box::new(std::ptr::read(methods));
            failing.xSync = Some(sync);
            failing.xWrite = Some(write);
            failing.xTruncate = Some(truncate);
            (*file).pMethods = Box::leak(failing);
        }
        opened
    }
}

fn methods() -> &'static ffi::sqlite3_io_methods {
    // SAFETY: set by the first open, to a static of SQLite.
    unsafe { &*METHODS.load(Ordering::SeqCst) }
}

unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, flags: c_int) -> c_int {
    let take = |disk: Disk| {
        DISK.compare_exchange(disk as u8, Disk::Works as u8, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    };
    let mut bytes = 0;
    // SAFETY: the file is the one that SQLite asks to sync.
    unsafe { methods().xFileSize.expect("files have a size")(file, &raw mut bytes) };
    if take(Disk::SyncFails) {
        FAILURES.fetch_add(1, Ordering::SeqCst);
        return ffi::SQLITE_IOERR_FSYNC;
    }
    if take(Disk::SyncLoses) {
        FAILURES.fetch_add(1, Ordering::SeqCst);
        let kept = SYNCED_BYTES.load(Ordering::SeqCst).min(bytes);
        // SAFETY: as above.
        unsafe { methods().xTruncate.expect("files can be cut")(file, kept) };
        return ffi::SQLITE_IOERR_FSYNC;
    }
    SYNCED_BYTES.store(bytes, Ordering::SeqCst);
    // SAFETY: as above.
    unsafe { methods().xSync.expect("files can be synced")(file, flags) }
}

unsafe extern "C" fn write(
    file: *mut ffi::sqlite3_file,
    from: *const c_void,
    bytes: c_int,
    at: ffi::sqlite3_int64,
) -> c_int {
    if DISK.load(Ordering::SeqCst) == Disk::Full as u8 {
        return ffi::SQLITE_FULL;
    }
    // SAFETY: the arguments are passed on as they came.
    unsafe { methods().xWrite.expect("files can be written")(file, from, bytes, at) }
}

unsafe extern "C" fn truncate(file: *mut ffi::sqlite3_file, bytes: ffi::sqlite3_int64) -> c_int {
    SYNCED_BYTES.fetch_min(bytes, Ordering::SeqCst);
    // SAFETY: the arguments are passed on as they came.
    unsafe { methods().xTruncate.expect("files can be cut")(file, bytes) }
}

fn id(key: &str) -> Id {
    let scope = Scope::of(None, Some("alice"), Some("create-order"));
    Id { scope, key: Key::parse(&Format::Printable255, key).expect("a printable key") }
}

fn wish(id: &Id) -> Wish {
    static NONCE: AtomicU64 = AtomicU64::new(1);
    Wish {
        id: id.clone(),
        how: Claim::New,
        replaces: None,
        nonce: NONCE.fetch_add(1, Ordering::SeqCst),
        lease: Duration::from_secs(300),
        late: Duration::from_secs(300),
        guarantee: Guarantee::Fenced,
        fingerprint: None,
        payload_hash: None,
        rotation: None,
        terms: None,
        about: About::default(),
    }
}

fn lifetime() -> Lifetime {
    presets::ietf().lifetime
}

fn settled(body: &str) -> Settlement {
    let body = Bytes::copy_from_slice(body.as_bytes());
    Settlement::Settle(Answer { status: 200, headers: Vec::new(), body, outcome_unknown: false })
}

async fn recovered(store: &SqliteStore) {
    for _ in 0..500 {
        if store.ready().await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the store did not recover");
}

/// Claims until the store knows whether it did.
async fn claim(store: &SqliteStore, id: &Id) -> Fence {
    let wished = wish(id);
    loop {
        match store.claim(wished.clone()).await {
            Ok(Claimed::Won { fence, .. }) => return fence,
            Err(StoreError::Unknown(_) | StoreError::Unavailable(_)) => recovered(store).await,
            other => panic!("expected to win or not to know, found {other:?}"),
        }
    }
}

/// Settles until the store knows whether it did.
async fn settle(store: &SqliteStore, id: &Id, fence: Fence) {
    loop {
        match store.settle(id, fence, settled(id.key.as_str()), &lifetime()).await {
            Ok(written) => return assert_eq!(written, Written::Done, "nobody else holds it"),
            Err(StoreError::Unknown(_) | StoreError::Unavailable(_)) => recovered(store).await,
            Err(error) => panic!("expected not to know, found {error}"),
        }
    }
}

async fn standing(store: &SqliteStore, id: &Id) -> Standing {
    let (entry, now) = store.look_up(id).await.expect("the store answers");
    Standing::of(entry.as_ref().map(|entry| &entry.record), now)
}

fn run<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build();
    runtime.expect("a runtime").block_on(test)
}

#[test]
fn a_failed_sync_is_an_unknown_result_and_then_the_truth() {
    let _disk = the_disk();
    run(async {
        for (disk, stays) in [(Disk::SyncFails, Standing::Claimed), (Disk::SyncLoses, Standing::Absent)] {
            let directory = tempfile::tempdir().expect("a directory");
            let path = directory.path().join("semel.db");
            let store = SqliteStore::open(&path, Arc::new(SystemClock)).expect("a new file");
            let (before, during) = (id("before"), id("during"));
            let fence = claim(&store, &before).await;
            settle(&store, &before, fence).await;
            becomes(disk);
            let wished = wish(&during);
            let claimed = store.claim(wished.clone()).await;
            assert!(matches!(claimed, Err(StoreError::Unknown(_))), "{disk:?}: {claimed:?}");
            recovered(&store).await;
            assert_eq!(standing(&store, &before).await, Standing::Settled, "{disk:?}");
            assert_eq!(standing(&store, &during).await, stays, "{disk:?}");
            let Ok(Claimed::Won { fence, .. }) = store.claim(wished).await else { panic!("it wins") };
            settle(&store, &during, fence).await;
            drop(store);
            let store = SqliteStore::open(&path, Arc::new(SystemClock)).expect("the file again");
            assert_eq!(standing(&store, &during).await, Standing::Settled, "{disk:?}");
        }
    });
}

#[test]
fn a_log_without_room_refuses_and_loses_nothing() {
    let _disk = the_disk();
    run(async {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("semel.db");
        let store = SqliteStore::open(&path, Arc::new(SystemClock)).expect("a new file");
        let (before, during) = (id("before"), id("during"));
        let fence = claim(&store, &before).await;
        becomes(Disk::Full);
        let claimed = store.claim(wish(&during)).await;
        assert!(matches!(claimed, Err(StoreError::Full(_))), "{claimed:?}");
        let written = store.settle(&before, fence, settled("before"), &lifetime()).await;
        assert!(matches!(written, Err(StoreError::Full(_))), "{written:?}");
        assert_eq!(standing(&store, &during).await, Standing::Absent);
        assert_eq!(standing(&store, &before).await, Standing::Claimed);
        becomes(Disk::Works);
        assert_eq!(store.ready().await, Ok(()), "a full disk is not a doubt");
        settle(&store, &before, fence).await;
        drop(store);
        let store = SqliteStore::open(&path, Arc::new(SystemClock)).expect("the file again");
        assert_eq!(standing(&store, &before).await, Standing::Settled);
        assert_eq!(standing(&store, &during).await, Standing::Absent);
    });
}

#[test]
fn nothing_acknowledged_is_lost_while_syncs_fail_again_and_again() {
    const TASKS: usize = 16;
    const REQUESTS: usize = 60;
    let _disk = the_disk();
    let failures = FAILURES.load(Ordering::SeqCst);
    run(async {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("semel.db");
        let store = Arc::new(SqliteStore::open(&path, Arc::new(SystemClock)).expect("a new file"));
        let keys = |task: usize| (0..REQUESTS).map(move |at| id(&format!("key-{task}-{at}")));
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let store = Arc::clone(&store);
                tokio::spawn(async move {
                    for (at, id) in keys(task).enumerate() {
                        if task == 0 && at % 5 == 0 {
                            becomes(if at % 2 == 0 { Disk::SyncFails } else { Disk::SyncLoses });
                        }
                        let fence = claim(&store, &id).await;
                        settle(&store, &id, fence).await;
                        assert_eq!(standing_when_ready(&store, &id).await, Standing::Settled);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("no task panics");
        }
        becomes(Disk::Works);
        drop(store);
        let store = SqliteStore::open(&path, Arc::new(SystemClock)).expect("the file again");
        for id in (0..TASKS).flat_map(keys) {
            assert_eq!(standing(&store, &id).await, Standing::Settled, "{}", id.key);
        }
    });
    assert!(FAILURES.load(Ordering::SeqCst) >= failures + 10, "the disk did fail");
}

async fn standing_when_ready(store: &SqliteStore, id: &Id) -> Standing {
    loop {
        recovered(store).await;
        match store.look_up(id).await {
            Ok((entry, now)) => return Standing::of(entry.as_ref().map(|entry| &entry.record), now),
            Err(StoreError::Unavailable(_)) => {}
            Err(error) => panic!("expected an answer, found {error}"),
        }
    }
}

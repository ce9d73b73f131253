//! Loss of power below the relay's SQLite file, at any write and sync: a request that was accepted is known again with all
//! its items, a batch that was frozen is found with the bytes that may have been sent, and what was settled stays settled,
//! whole.

#[path = "../../store/tests/disk/mod.rs"]
mod disk;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use disk::{Disk, Mood};
use semel_delivery::relay::RelayStore;
use semel_delivery::relay::reduce::Reducer;
use semel_delivery::relay::store::accept::{Accepted, Submission};
use semel_delivery::relay::store::claim::LaneClaim;
use semel_delivery::relay::store::look::{ItemState, LaneDetail};
use semel_delivery::relay::store::sqlite::Sqlite;
use semel_delivery::relay::store::{FencedWrite, Intent, conformance};
use semel_store::clock::SystemClock;
use semel_store::sqlite::rusqlite::Connection;

/// Losses of a plain `cargo test`; the variable asks for more.
const LOSSES: u64 = 24;
const VARIABLE: &str = "SEMEL_TEST_POWER_LOSSES";
const TASKS: u64 = 6;
const REQUESTS: u64 = 4;
const LEASE_MS: i64 = 60_000;
const LIFE_TIME_MAX: Duration = Duration::from_secs(60);

/// What the store has said of a request, and what it was asked.
#[derive(Clone, Debug, Default)]
struct Told {
    request: Option<i64>,
    fence: i64,
    freeze_asked: bool,
    is_frozen: bool,
    apply_asked: bool,
    is_applied: bool,
}

#[derive(Debug, Default)]
struct Book {
    requests: BTreeMap<u64, Told>,
    acknowledged: u64,
}

fn lane(number: u64) -> String {
    format!("lane-{number}")
}

fn submission(number: u64) -> Submission {
    let value = i64::try_from(number % 90).unwrap_or(0) + 1;
    conformance::submission("alice", &format!("key-{number}"), &[(&lane(number), value), (&lane(number), 5)])
}

fn batch(number: u64, lo: i64, hi: i64) -> Intent {
    Intent {
        principal: "alice".to_owned(),
        lo,
        hi,
        before: Some(0),
        after: Some(submission(number).items.iter().map(|item| item.value).sum()),
        version: None,
        key: format!("batch-{number}"),
        // Long enough to need more than one page.
        request: lane(number).repeat(1 + usize::try_from(number % 7).unwrap_or(0) * 120),
        tries: 1,
        first: 1,
        last: 2,
        evidence: "[]".to_owned(),
    }
}

fn open(path: &Path) -> Result<RelayStore, String> {
    let opened = Sqlite::open(path, Arc::new(SystemClock)).map_err(|error| error.to_string())?;
    Ok(RelayStore::new(Arc::new(opened)))
}

/// One life of a store on a disk. Ends early when the power goes.
fn live(path: &Path, book: &Arc<Mutex<Book>>, seed: u64) {
    let Ok(store) = open(path) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        if store.start().await.is_err() {
            return;
        }
        let work = |task: u64| {
            let (store, book) = (store.clone(), Arc::clone(book));
            tokio::spawn(async move {
                let mut random = semel_fuzz::Random::new(seed * TASKS + task);
                for _ in 0..REQUESTS {
                    if request(&store, &book, random.number()).await.is_none() {
                        return;
                    }
                }
            })
        };
        for task in (0..TASKS).map(work).collect::<Vec<_>>() {
            let ended = tokio::time::timeout(LIFE_TIME_MAX, task).await;
            ended.expect("nothing hangs when the power goes").unwrap();
        }
    });
}

/// One request: accepted, perhaps frozen, perhaps settled. `None`: the store does not answer any more.
async fn request(store: &RelayStore, book: &Mutex<Book>, random: u64) -> Option<()> {
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    let number = NUMBER.fetch_add(1, Ordering::SeqCst);
    let asks = |write: &dyn Fn(&mut Told)| {
        write(book.lock().unwrap().requests.entry(number).or_default());
    };
    let hears = |write: &dyn Fn(&mut Told)| {
        asks(write);
        book.lock().unwrap().acknowledged += 1;
    };
    asks(&|_| {});
    let Ok(Accepted::New { request, lanes, .. }) = store.accept(&submission(number)).await else {
        return None;
    };
    hears(&|told| told.request = Some(request));
    if random.is_multiple_of(3) {
        return Some(());
    }
    let Ok(LaneClaim::Held(work)) = store.claim(lanes[0], "w", LEASE_MS, 10).await else { return None };
    hears(&|told| told.fence = work.hold.fence);
    asks(&|told| told.freeze_asked = true);
    let hi = work.entries.last().expect("what was accepted waits").seq;
    match store.freeze(&work.hold, &batch(number, work.lane.watermark, hi)).await {
        Ok(FencedWrite::Done) => hears(&|told| told.is_frozen = true),
        Ok(FencedWrite::Stale) => panic!("nobody else holds it"),
        Err(_) => return None,
    }
    if random % 3 == 1 {
        return Some(());
    }
    asks(&|told| told.apply_asked = true);
    match store.applied(&work.hold, Reducer::Sum, 0, "answered").await.map(|settled| settled.written) {
        Ok(FencedWrite::Done) => hears(&|told| told.is_applied = true),
        Ok(FencedWrite::Stale) => panic!("nobody else holds it"),
        Err(_) => return None,
    }
    Some(())
}

/// Opens what the loss left, as the next run of the process does, and compares it with the book.
fn examine(path: &Path, book: &mut Book) -> Result<(), String> {
    let store = open(path).map_err(|error| format!("it does not open: {error}"))?;
    let connection = Connection::open(path).map_err(|error| error.to_string())?;
    let sound: String = connection
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .map_err(|error| error.to_string())?;
    if sound != "ok" {
        return Err(format!("the file is damaged: {sound}"));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        store.start().await.map_err(|error| error.to_string())?;
        for (number, told) in &mut book.requests {
            *told = look(&store, *number, told).await?;
        }
        Ok(())
    })
}

/// Looks at one request as its sender and the next worker do. Returns what is true of it from now on.
async fn look(store: &RelayStore, number: u64, told: &Told) -> Result<Told, String> {
    let wrong =
        |why: &str, found: &dyn std::fmt::Debug| format!("{number}: {why}: {told:?}, found {found:?}");
    let failed = |error: semel_delivery::relay::store::StoreError| error.to_string();
    let known = store.accept(&submission(number)).await.map_err(failed)?;
    let request = match &known {
        Accepted::Known { request } if told.request.is_none_or(|known| known == *request) => *request,
        Accepted::New { request, .. } if told.request.is_none() => *request,
        _ => {
            return Err(wrong("it was accepted and is not known again", &known));
        }
    };
    let found = store.request(request).await.map_err(failed)?.ok_or_else(|| wrong("it is gone", &known))?;
    let wanted: Vec<i64> = submission(number).items.iter().map(|item| item.value).collect();
    if found.items.iter().map(|item| item.value).collect::<Vec<_>>() != wanted {
        return Err(wrong("it is not whole", &found));
    }
    let row = store.find_lane("t", "g", &lane(number)).await.map_err(failed)?;
    let id = row.ok_or_else(|| wrong("it has no lane", &found))?.id;
    let detail = store.detail(id).await.map_err(failed)?.ok_or_else(|| wrong("it has no lane", &found))?;
    let is_applied = found.items.iter().all(|item| item.state == ItemState::Completed);
    compare(number, told, &detail, is_applied).map_err(|why| wrong(&why, &detail))?;
    let claimed = store.claim(id, "next", LEASE_MS, 10).await.map_err(failed)?;
    let fence = match &claimed {
        LaneClaim::Held(work) if work.hold.fence > told.fence => work.hold.fence,
        LaneClaim::Idle if is_applied => told.fence,
        LaneClaim::Held(_) | LaneClaim::Busy { .. } | LaneClaim::Idle => {
            return Err(wrong("a fence is given again, or what waits is not found", &claimed));
        }
    };
    let is_frozen = detail.intent.is_some();
    Ok(Told {
        request: Some(request),
        fence,
        freeze_asked: is_frozen,
        is_frozen,
        apply_asked: is_applied,
        is_applied,
    })
}

fn compare(number: u64, told: &Told, detail: &LaneDetail, is_applied: bool) -> Result<(), String> {
    let rows = detail.audit.iter().filter(|row| row.event == "applied").count();
    if rows != if is_applied { submission(number).items.len() } else { 0 } {
        return Err("it is settled by half".to_owned());
    }
    if (told.is_applied && !is_applied) || (is_applied && !told.apply_asked) {
        return Err("this is not what was acknowledged".to_owned());
    }
    if told.is_frozen && !is_applied && detail.intent.is_none() {
        return Err("a batch that may have been sent is forgotten".to_owned());
    }
    match &detail.intent {
        Some(_) if is_applied || !told.freeze_asked => Err("a batch that nobody froze".to_owned()),
        Some(intent) => {
            let (frozen, wanted) = ((&intent.key, &intent.request), batch(number, 0, 0));
            match frozen == (&wanted.key, &wanted.request) {
                true => Ok(()),
                false => Err("a batch with other bytes than were frozen".to_owned()),
            }
        }
        None => Ok(()),
    }
}

fn play(seed: u64, ends_at: u64, mood: Mood) -> Result<u64, String> {
    let mut random = semel_fuzz::Random::new(seed);
    let mut folder = tempfile::tempdir().unwrap();
    let book = Arc::new(Mutex::new(Book::default()));
    for life in 0..=random.below(2) {
        let disk = Disk::under(folder.path());
        disk.becomes(mood);
        disk.loses_power_at(if life == 0 { ends_at } else { random.number() % (ends_at + 2) });
        live(&folder.path().join("relay.db"), &book, seed);
        disk.loses_power();
        let after = tempfile::tempdir().unwrap();
        disk.after_power_loss(after.path(), &mut || random.number());
        folder = after;
        examine(&folder.path().join("relay.db"), &mut book.lock().unwrap())
            .map_err(|why| format!("seed {seed}, power lost at step {ends_at}, life {life}: {why}"))?;
    }
    let acknowledged = book.lock().unwrap().acknowledged;
    Ok(acknowledged)
}

fn steps_of_a_life() -> u64 {
    let folder = tempfile::tempdir().unwrap();
    let disk = Disk::under(folder.path());
    live(&folder.path().join("relay.db"), &Arc::default(), 0);
    disk.steps()
}

#[test]
fn what_was_accepted_and_frozen_survives_a_loss_of_power_at_any_step() {
    let losses = std::env::var(VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or(LOSSES);
    let steps = steps_of_a_life();
    let mut acknowledged = 0;
    for seed in 0..losses {
        acknowledged += play(seed, seed * steps / losses, Mood::Works).unwrap_or_else(|why| panic!("{why}"));
    }
    println!("{losses} losses of power over {steps} steps, {acknowledged} acknowledgements, none lost");
    assert!(acknowledged > losses, "{acknowledged} acknowledgements prove nothing");
}

#[test]
fn a_disk_that_only_says_that_it_synced_is_found_out() {
    let steps = steps_of_a_life();
    let found = (0..12).filter(|seed| play(*seed, steps * (20 + seed) / 40, Mood::Lies).is_err()).count();
    assert!(found >= 4, "only {found} of 12 losses were noticed");
}

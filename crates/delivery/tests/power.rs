//! Loss of power below the outbox's SQLite file, at any write and sync: a message that was accepted is there with all that
//! it says, what was settled stays settled, an attempt that was begun is known to have been, and a message that was requeued
//! has its successor.

#[path = "../../store/tests/disk/mod.rs"]
mod disk;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use disk::{Disk, Mood};
use semel_contract::time::Timestamp;
use semel_delivery::envelope::Draft;
use semel_delivery::judge::{Ended, To, Verdict};
use semel_delivery::message::{Answer, Progress};
use semel_delivery::sqlite::SqliteStore;
use semel_delivery::store::{
    Arrived, FencedWrite, Find, Head, Judged, OutboxStore, Replaced, Room, Successor, Terms,
};
use semel_delivery::{HeadPolicy, Request, Row, Status};
use semel_store::sqlite::rusqlite::Connection;

/// Losses of a plain `cargo test`; the variable asks for more.
const LOSSES: u64 = 24;
const VARIABLE: &str = "SEMEL_TEST_POWER_LOSSES";
const TASKS: u64 = 8;
const MESSAGES: u64 = 4;
const ROOM: Room = Room { rows: 100_000, bytes: 1 << 30 };
const LIFE_TIME_MAX: Duration = Duration::from_secs(60);

/// What the store has said of a message.
#[derive(Clone, Debug, Default)]
struct Told {
    is_accepted: bool,
    /// The number of the last attempt whose claim was acknowledged, and how many were asked for.
    attempts: u32,
    claims_asked: u32,
    is_done: bool,
    done_asked: bool,
    is_requeued: bool,
    requeue_asked: bool,
}

#[derive(Debug, Default)]
struct Book {
    messages: BTreeMap<u64, Told>,
    highest_fence: u64,
    acknowledged: u64,
}

impl Book {
    fn gave(&mut self, fence: u64) {
        self.highest_fence = self.highest_fence.max(fence);
    }
}

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn name(number: u64) -> String {
    format!("message-{number}")
}

/// The id of the message that takes the place of one that was requeued.
fn successor_name(number: u64) -> String {
    format!("{}-again", name(number))
}

fn draft(number: u64) -> Draft {
    let body = format!("\"{}\"", name(number).repeat(1 + (number % 7) as usize * 60));
    Draft {
        client_message_id: name(number),
        is_callers: true,
        client_tx_id: format!("tx-{number}"),
        fingerprint: [number as u8; 32],
        principal: "default".to_owned(),
        lane: format!("lane-{number}"),
        logical_key: None,
        operation: None,
        profile: String::new(),
        client_generated_at: at(5),
        request: Request::json("POST", "/x", body),
    }
}

fn done() -> Verdict {
    Verdict {
        to: To::Done(vec![("id".to_owned(), "7".to_owned())]),
        at: at(30),
        ended: Some(Ended { outcome: "answered", status: Some(201) }),
        error: None,
        ambiguous: false,
        deduplicated: false,
        progress: Progress::default(),
        answer: Some(Answer { status: 201, headers: Vec::new(), body: b"created".to_vec() }),
        head: HeadPolicy::Skip,
    }
}

/// One life of a store on a disk. Ends early when the power goes.
fn live(path: &Path, book: &Arc<Mutex<Book>>, seed: u64) {
    let Ok(store) = SqliteStore::open(path) else { return };
    let store = Arc::new(store);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        if store.recover(at(1)).await.is_err() {
            return;
        }
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let (store, book) = (Arc::clone(&store), Arc::clone(book));
                tokio::spawn(async move {
                    let mut random = semel_fuzz::Random::new(seed * TASKS + task);
                    for _ in 0..MESSAGES {
                        if message(&store, &book, random.number()).await.is_none() {
                            return;
                        }
                    }
                })
            })
            .collect();
        for task in tasks {
            tokio::time::timeout(LIFE_TIME_MAX, task)
                .await
                .expect("nothing hangs when the power goes")
                .unwrap();
        }
    });
    drop(runtime);
    drop(Arc::try_unwrap(store).expect("nobody else uses the store"));
}

/// One message: accepted, perhaps claimed, perhaps settled. `None`: the store does not answer any more.
async fn message(store: &SqliteStore, book: &Mutex<Book>, random: u64) -> Option<()> {
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    let number = NUMBER.fetch_add(1, Ordering::SeqCst);
    let note = |write: &dyn Fn(&mut Told)| {
        let mut book = book.lock().unwrap();
        book.acknowledged += 1;
        write(book.messages.entry(number).or_default());
    };
    book.lock().unwrap().messages.insert(number, Told::default());
    let Ok(Arrived::New(row)) = store.accept(draft(number), at(10), 1, ROOM).await else { return None };
    note(&|told| told.is_accepted = true);
    if random.is_multiple_of(3) {
        return if random.is_multiple_of(2) { requeue(store, book, number, row.id).await } else { Some(()) };
    }
    book.lock().unwrap().messages.entry(number).or_default().claims_asked += 1;
    let terms = Terms { now: at(20), lease_until: at(1 << 40), nonce: random };
    let Ok(Head::Claimed(row, _)) = store.claim(&row.lane, terms).await else { return None };
    let fence = row.fence.expect("a claim has a fence");
    note(&|told| told.attempts = row.attempts);
    book.lock().unwrap().gave(fence.number);
    if random % 3 == 1 {
        return Some(());
    }
    book.lock().unwrap().messages.entry(number).or_default().done_asked = true;
    match store.settle(row.id, fence, done()).await {
        Ok(FencedWrite::Done(_)) => note(&|told| told.is_done = true),
        Ok(FencedWrite::Stale) => panic!("nobody else holds it"),
        Err(_) => return None,
    }
    Some(())
}

/// Requeues a message that nobody has sent. `None`: the store does not answer any more.
async fn requeue(store: &SqliteStore, book: &Mutex<Book>, number: u64, row: i64) -> Option<()> {
    let note = |write: &dyn Fn(&mut Told)| {
        write(book.lock().unwrap().messages.entry(number).or_default());
    };
    note(&|told| told.requeue_asked = true);
    let draft = Draft { client_message_id: successor_name(number), ..draft(number) };
    let judged = Judged { attempts: 0, ambiguous: false };
    let successor = Successor { draft, possibly_delivered: false, fence: None, judged, by: "operator" };
    let Ok(Replaced::Done(..)) = store.replace(row, successor, at(12), 1).await else { return None };
    note(&|told| told.is_requeued = true);
    book.lock().unwrap().acknowledged += 1;
    Some(())
}

/// Opens what the loss left, as the next run of the process does, and compares it with the book.
fn examine(path: &Path, book: &mut Book) -> Result<(), String> {
    let store = SqliteStore::open(path).map_err(|error| format!("it does not open: {error}"))?;
    let connection = Connection::open(path).map_err(|error| error.to_string())?;
    let sound: String = connection
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .map_err(|error| error.to_string())?;
    if sound != "ok" {
        return Err(format!("the file is damaged: {sound}"));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let highest = book.highest_fence;
    let examined = runtime.block_on(async {
        store.recover(at(2)).await.map_err(|error| error.to_string())?;
        let mut gone = Vec::new();
        for (number, told) in &mut book.messages {
            let found = store.find(Find::Id(name(*number))).await.map_err(|error| error.to_string())?;
            let request = match &found {
                Some(row) => store.request(row.id).await.map_err(|error| error.to_string())?,
                None => None,
            };
            let again = store.find(Find::Id(successor_name(*number))).await;
            let again = again.map_err(|error| error.to_string())?;
            match found {
                Some(row) => {
                    has_successor(*number, told, &row, again.as_ref())?;
                    compare(*number, told, &row, request)?;
                }
                None if told.is_accepted => {
                    return Err(format!("{} was accepted and is gone: {told:?}", name(*number)));
                }
                None => gone.push(*number),
            }
        }
        book.messages.retain(|number, _| !gone.contains(number));
        let fresh = u64::MAX - highest;
        let arrived = store.accept(draft(fresh), at(10), 1, ROOM).await.map_err(|error| error.to_string())?;
        let Arrived::New(row) = arrived else { return Err(format!("a fresh id is new, not {arrived:?}")) };
        let terms = Terms { now: at(20), lease_until: at(1 << 40), nonce: 1 };
        let head = store.claim(&row.lane, terms).await.map_err(|error| error.to_string())?;
        let Head::Claimed(row, _) = head else {
            return Err(format!("a fresh message can be claimed: {head:?}"));
        };
        let fence = row.fence.expect("a claim has a fence").number;
        if fence <= highest {
            return Err(format!("the fence {fence} is given again, {highest} was given before"));
        }
        book.highest_fence = fence;
        Ok(())
    });
    drop(runtime);
    examined
}

/// A message is aborted by a requeue if, and only if, its successor is there.
fn has_successor(number: u64, told: &mut Told, row: &Row, again: Option<&Row>) -> Result<(), String> {
    let is_requeued = row.status == Status::Aborted;
    let is_linked =
        again.is_some_and(|again| again.supersedes == Some(row.id) && row.superseded_by == Some(again.id));
    let is_known = (!told.is_requeued || is_requeued) && (!is_requeued || told.requeue_asked);
    if is_requeued != again.is_some() || is_requeued != is_linked || !is_known {
        return Err(format!("{}: requeued by half: {told:?}, found {row:?} and {again:?}", name(number)));
    }
    (told.is_requeued, told.requeue_asked) = (is_requeued, is_requeued);
    Ok(())
}

fn compare(number: u64, told: &mut Told, row: &Row, request: Option<Request>) -> Result<(), String> {
    let wrong = |why: &str| Err(format!("{}: {why}: {told:?}, found {row:?}", name(number)));
    if request != Some(draft(number).request) || row.fingerprint != draft(number).fingerprint {
        return wrong("the message is not whole");
    }
    let is_done = row.status == Status::Done;
    let answer_is_whole =
        row.answer.as_ref().is_some_and(|answer| (answer.status, &answer.body[..]) == (201, b"created"));
    if is_done != answer_is_whole {
        return wrong("it is settled by half");
    }
    if (told.is_done && !is_done) || (is_done && !told.done_asked) {
        return wrong("this is not what was acknowledged");
    }
    if row.attempts < told.attempts || row.attempts > told.claims_asked {
        return wrong("attempts are not counted");
    }
    if !is_done && !told.is_requeued && (row.status != Status::Pending || row.ambiguous != (row.attempts > 0))
    {
        return wrong("an attempt that was begun may have been delivered");
    }
    *told = Told { is_accepted: true, attempts: row.attempts, is_done, done_asked: is_done, ..told.clone() };
    Ok(())
}

fn play(seed: u64, ends_at: u64, mood: Mood) -> Result<u64, String> {
    let mut random = semel_fuzz::Random::new(seed);
    let mut folder = tempfile::tempdir().unwrap();
    let book = Arc::new(Mutex::new(Book::default()));
    for life in 0..=random.below(2) {
        let disk = Disk::under(folder.path());
        disk.becomes(mood);
        disk.loses_power_at(if life == 0 { ends_at } else { random.number() % (ends_at + 2) });
        live(&folder.path().join("outbox.db"), &book, seed);
        disk.loses_power();
        let after = tempfile::tempdir().unwrap();
        disk.after_power_loss(after.path(), &mut || random.number());
        folder = after;
        examine(&folder.path().join("outbox.db"), &mut book.lock().unwrap())
            .map_err(|why| format!("seed {seed}, power lost at step {ends_at}, life {life}: {why}"))?;
    }
    let book = book.lock().unwrap();
    Ok(book.acknowledged)
}

fn steps_of_a_life() -> u64 {
    let folder = tempfile::tempdir().unwrap();
    let disk = Disk::under(folder.path());
    live(&folder.path().join("outbox.db"), &Arc::default(), 0);
    disk.steps()
}

#[test]
fn what_was_accepted_survives_a_loss_of_power_at_any_step() {
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

//! Loss of power below SQLite, at every write and sync, under concurrent requests that share commits. After each: the
//! file is sound, what was acknowledged is there, nothing is there by half, and no fence is given twice.

#[path = "sqlite_power/book.rs"]
mod book;
mod disk;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use book::{Book, End, answer, claim_request, id, lifetime};
use disk::{Disk, Mood};
use semel_contract::record::Guarantee;
use semel_store::sqlite::rusqlite::Connection;
use semel_store::sqlite::{SqliteStore, TransactOutcome};
use semel_store::{ClaimOutcome, ClaimStore, FencedWrite, Settlement};

/// Losses of a plain `cargo test`; the variable asks for more.
const LOSSES: u64 = 24;
const VARIABLE: &str = "SEMEL_TEST_POWER_LOSSES";
/// Requests at a time, and one after another.
const TASKS: u64 = 8;
const REQUESTS: u64 = 4;
/// Bodies that make the log so large that it is copied while requests go on.
const LARGE_BYTES: usize = 160 << 10;
/// One life in so many has such bodies.
const LARGE_ONE_IN: u64 = 16;
/// How long the whole life of a store may take, however slow the machine.
const LIFE_TIME_MAX: Duration = Duration::from_secs(60);

fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut random = semel_fuzz::Random::new(seed);
    move || random.number()
}

/// One life of a store on a disk: opened, used by many at a time, closed. Ends early when the power goes.
fn live(path: &Path, book: &Arc<Mutex<Book>>, seed: u64) {
    let Ok(store) = SqliteStore::open(path) else { return };
    let store = Arc::new(store);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build();
    let runtime = runtime.expect("a runtime");
    let body_bytes = if seed % LARGE_ONE_IN == 7 { LARGE_BYTES } else { 40 };
    runtime.block_on(async {
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let (store, book) = (Arc::clone(&store), Arc::clone(book));
                tokio::spawn(async move {
                    let mut random = random(seed * TASKS + task);
                    for _ in 0..REQUESTS {
                        if request(&store, &book, random(), body_bytes).await.is_none() {
                            return;
                        }
                    }
                })
            })
            .collect();
        for task in tasks {
            let ended = tokio::time::timeout(LIFE_TIME_MAX, task).await;
            ended.expect("no request hangs when the power goes").expect("no request panics");
        }
    });
    drop(Arc::try_unwrap(store).expect("nobody else uses the store"));
}

/// One request from its claim to its end, written down step by step. `None`: the store does not answer any more.
async fn request(store: &SqliteStore, book: &Mutex<Book>, random: u64, body_bytes: usize) -> Option<()> {
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    let number = NUMBER.fetch_add(1, Ordering::SeqCst);
    let (id, end) = (id(number), End::ALL[(random % End::ALL.len() as u64) as usize]);
    let guarantee = if end == End::Transacted { Guarantee::Atomic } else { Guarantee::Fenced };
    let note = |write: &dyn Fn(&mut Book)| write(&mut book.lock().expect("the book is whole"));
    note(&|book| book.asked(number, end, body_bytes));
    let fence = match store.claim(claim_request(&id, number, guarantee)).await {
        Ok(ClaimOutcome::Won { fence, .. }) => fence,
        Ok(other) => panic!("a new key is won, not {other:?}"),
        Err(_) => return None,
    };
    note(&|book| book.won(number, fence));
    let answer = answer(number, body_bytes);
    let settlement = match end {
        End::Left => return Some(()),
        End::Settled => Settlement::Settle(answer),
        End::Unkept => Settlement::Unkept(answer),
        End::Released => Settlement::Release,
        End::Unknown => Settlement::Unknown,
        End::Transacted => {
            let row = i64::try_from(number).expect("a small number");
            let done = store.transact(&id, fence, &lifetime(), move |work| {
                work.execute("INSERT INTO orders VALUES (?1)", [row])?;
                Ok(((), Settlement::Settle(answer.clone())))
            });
            return match done.await {
                Ok(TransactOutcome::Done(()) | TransactOutcome::AlreadyDone) => {
                    note(&|book| book.ended(number));
                    Some(())
                }
                Ok(other) => panic!("it is done, not {other:?}"),
                Err(_) => None,
            };
        }
    };
    match store.settle(&id, fence, settlement, &lifetime()).await {
        Ok(FencedWrite::Done) => note(&|book| book.ended(number)),
        Ok(FencedWrite::Superseded) => panic!("nobody else holds it"),
        Err(_) => return None,
    }
    Some(())
}

/// Opens what the loss left, and compares it with the book.
fn examine(path: &Path, book: &mut Book) -> Result<(), String> {
    let store = SqliteStore::open(path).map_err(|error| format!("it does not open: {error}"))?;
    let connection = Connection::open(path).map_err(|error| error.to_string())?;
    let sound: String = connection
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .map_err(|error| error.to_string())?;
    if sound != "ok" {
        return Err(format!("the file is damaged: {sound}"));
    }
    let has_orders = |number: u64| {
        let count = connection.query_row(
            "SELECT count(*) FROM orders WHERE number = ?1",
            [number.cast_signed()],
            |row| row.get(0),
        );
        count.map(|count: i64| count == 1).map_err(|error| error.to_string())
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async {
        for number in book.numbers() {
            let (entry, _) = store.look_up(&id(number)).await.map_err(|error| error.to_string())?;
            book.compare(number, entry.as_ref(), has_orders(number)?)?;
        }
        let fresh = id(u64::MAX - book.highest());
        match store.claim(claim_request(&fresh, 1, Guarantee::Fenced)).await {
            Ok(ClaimOutcome::Won { fence, .. }) => book.gives(fence),
            other => Err(format!("a new key is won, not {other:?}")),
        }
    })
}

/// Plays one seed: a disk, some lives that end in a loss of power, an examination after each.
fn play(seed: u64, ends_at: u64, mood: Mood) -> Result<u64, String> {
    let mut random = random(seed);
    let mut folder = tempfile::tempdir().expect("a folder");
    let book = Arc::new(Mutex::new(Book::default()));
    prepare(folder.path());
    for life in 0..=random() % 2 {
        let disk = Disk::under(folder.path());
        disk.becomes(mood);
        // A second life ends anywhere, also while it still opens the file.
        disk.loses_power_at(if life == 0 { ends_at } else { random() % (ends_at + 2) });
        live(&folder.path().join("semel.db"), &book, seed);
        disk.loses_power();
        let after = tempfile::tempdir().expect("a folder");
        disk.after_power_loss(after.path(), &mut random);
        folder = after;
        examine(&folder.path().join("semel.db"), &mut book.lock().expect("the book is whole"))
            .map_err(|why| format!("seed {seed}, power lost at step {ends_at}, life {life}: {why}"))?;
    }
    Ok(book.lock().expect("the book is whole").acknowledged())
}

/// A file with the application's own table, safely on its disk.
fn prepare(folder: &Path) {
    let connection = Connection::open(folder.join("semel.db")).expect("a new file");
    connection.execute_batch("CREATE TABLE orders (number INTEGER PRIMARY KEY)").expect("a table");
}

/// Steps of a life in which nothing fails.
fn steps_of_a_life(seed: u64) -> u64 {
    let folder = tempfile::tempdir().expect("a folder");
    prepare(folder.path());
    let disk = Disk::under(folder.path());
    live(&folder.path().join("semel.db"), &Arc::default(), seed);
    disk.steps()
}

#[test]
fn what_was_acknowledged_survives_a_loss_of_power_at_any_step() {
    let losses = std::env::var(VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or(LOSSES);
    let (small, large) = (steps_of_a_life(0), steps_of_a_life(7));
    let mut acknowledged = 0;
    for seed in 0..losses {
        let steps = if seed % LARGE_ONE_IN == 7 { large } else { small };
        acknowledged += play(seed, seed * steps / losses, Mood::Works).unwrap_or_else(|why| panic!("{why}"));
    }
    println!(
        "{losses} losses of power over {small} and {large} steps, {acknowledged} acknowledgements, none lost"
    );
    assert!(acknowledged > losses, "{acknowledged} acknowledgements prove nothing");
}

#[test]
fn a_disk_that_only_says_that_it_synced_is_found_out() {
    let steps = steps_of_a_life(0);
    let found = (0..12).filter(|seed| play(*seed, steps * (20 + seed) / 40, Mood::Lies).is_err()).count();
    assert!(found >= 4, "only {found} of 12 losses were noticed");
}

//! Loss of power below the broker's SQLite file, at any write and sync: what was accepted is told again with the same receipt and is
//! there whole, what was cancelled stays cancelled, what was acknowledged stays so, and no number is given twice.

#[path = "../../store/tests/disk/mod.rs"]
mod disk;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use disk::{Disk, Mood};
use semel_broker::{
    Beside, Broker, Caller, Draft, LineName, MeshWish, Parts, Published, Receipt, Role, SealAnswer, Settings,
    database,
};
use semel_store::clock::SystemClock;
use semel_store::sqlite::rusqlite::Connection;

/// Losses of a plain `cargo test`; the variable asks for more.
const LOSSES: u64 = 16;
const VARIABLE: &str = "SEMEL_TEST_POWER_LOSSES";
const TASKS: u64 = 6;
const MESSAGES: u64 = 6;
const LIFE_TIME_MAX: Duration = Duration::from_secs(60);
const TOPIC: &str = "t";

/// What the broker has said of an id, and what it was asked.
#[derive(Clone, Debug, Default)]
struct Told {
    receipt: Option<Receipt>,
    seal_asked: bool,
    is_sealed: bool,
}

#[derive(Debug, Default)]
struct Book {
    ids: BTreeMap<u64, Told>,
    /// How far bob was told that the topic is acknowledged.
    acknowledged: i64,
    answers: u64,
    /// Whether the mesh was made; before that nothing is said of messages.
    is_made: bool,
}

fn caller(member: &str) -> Caller {
    Caller { mesh: "m".to_owned(), member: member.to_owned() }
}

/// Some have bodies that need more than one page of the file.
fn draft(number: u64) -> Draft {
    let body = "x".repeat(1 + usize::try_from(number % 5).unwrap_or(0) * 3000);
    let text = format!(r#"{{"to":{{"topic":"{TOPIC}"}},"body":"{body}","mentions":["bob"]}}"#);
    let id = format!("id-{number}");
    let beside = Beside { key: Some(&id), ..Beside::default() };
    Draft::parse(text.as_bytes(), beside, "m", "alice").expect("it is well formed")
}

async fn open(path: &Path) -> Result<Broker, String> {
    let db = database::open_file(path, Arc::new(SystemClock)).map_err(|error| error.to_string())?;
    Broker::open(Parts::new(Arc::new(db)), Settings::default()).await.map_err(|error| error.to_string())
}

/// Makes the mesh, as often as it takes.
async fn make(broker: &Broker) -> Option<()> {
    broker.put_mesh("m", MeshWish { bytes_max: None, search: true }).await.ok()?;
    for member in ["alice", "bob"] {
        broker.put_member("m", member, Role::Member, &[]).await.ok()?;
    }
    broker.put_topic("m", TOPIC, "subscribers").await.ok()?;
    for member in ["alice", "bob"] {
        broker.put_subscription("m", TOPIC, member).await.ok()?;
    }
    Some(())
}

/// One life of a broker on a disk. Ends early when the power goes.
fn live(path: &Path, book: &Arc<Mutex<Book>>, seed: u64) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let Ok(broker) = open(path).await else { return };
        if make(&broker).await.is_none() {
            return;
        }
        book.lock().unwrap().is_made = true;
        let work = |task: u64| {
            let (broker, book) = (broker.clone(), Arc::clone(book));
            tokio::spawn(async move {
                let mut random = semel_fuzz::Random::new(seed * TASKS + task);
                for _ in 0..MESSAGES {
                    if message(&broker, &book, random.number()).await.is_none() {
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

/// One id: published and perhaps acknowledged, or cancelled. `None`: the store does not answer any more.
async fn message(broker: &Broker, book: &Mutex<Book>, random: u64) -> Option<()> {
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    let number = NUMBER.fetch_add(1, Ordering::SeqCst);
    if random.is_multiple_of(4) {
        book.lock().unwrap().ids.entry(number).or_default().seal_asked = true;
        let sealed = broker.seal(&caller("alice"), &format!("id-{number}")).await.ok()?;
        assert_eq!(sealed, SealAnswer::Sealed, "nobody else has the id");
        let mut book = book.lock().unwrap();
        book.ids.entry(number).or_default().is_sealed = true;
        book.answers += 1;
        return Some(());
    }
    book.lock().unwrap().ids.entry(number).or_default();
    let receipt = match broker.publish(&caller("alice"), draft(number)).await {
        Published::Accepted(receipt) => receipt,
        Published::Refused(_) => return None,
        other => panic!("nobody else has the id: {other:?}"),
    };
    let up_to = receipt.history_id.to_string();
    {
        let mut book = book.lock().unwrap();
        book.ids.entry(number).or_default().receipt = Some(receipt);
        book.answers += 1;
    }
    if random % 4 == 1 {
        let line = LineName::Topic(TOPIC.to_owned());
        let acknowledged = broker.acknowledge(&caller("bob"), &line, &up_to, "").await.ok()?;
        let mut book = book.lock().unwrap();
        book.acknowledged = book.acknowledged.max(acknowledged);
        book.answers += 1;
    }
    Some(())
}

/// Opens what the loss left, as the next run of the process does, and compares it with the book.
fn examine(path: &Path, book: &mut Book) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let broker = open(path).await.map_err(|error| format!("it does not open: {error}"))?;
        let connection = Connection::open(path).map_err(|error| error.to_string())?;
        let sound: String = connection
            .query_row("PRAGMA integrity_check", [], |row| row.get(0))
            .map_err(|error| error.to_string())?;
        if sound != "ok" {
            return Err(format!("the file is damaged: {sound}"));
        }
        let orphans = broker.orphans().await.map_err(|error| error.to_string())?;
        if !orphans.findings.is_empty() {
            return Err(format!("rows are missing: {:?}", orphans.findings));
        }
        make(&broker).await.ok_or("the mesh cannot be made")?;
        if !book.is_made {
            return Ok(());
        }
        for (number, told) in &mut book.ids {
            *told =
                look(&broker, *number, told).await.map_err(|why| format!("id-{number}: {why}: {told:?}"))?;
        }
        let acked: i64 = connection
            .query_row("SELECT coalesce(max(acked), 0) FROM ack_cursor WHERE member = 'bob'", [], |row| {
                row.get(0)
            })
            .map_err(|error| error.to_string())?;
        if acked < book.acknowledged {
            return Err(format!("{} was acknowledged, and {acked} is known", book.acknowledged));
        }
        read_all(&broker, book).await
    })
}

/// Asks for one id as its sender does who heard nothing. Returns what is true of it from now on.
async fn look(broker: &Broker, number: u64, told: &Told) -> Result<Told, String> {
    let known = |receipt: Receipt| Told { receipt: Some(receipt), ..Told::default() };
    match broker.publish(&caller("alice"), draft(number)).await {
        Published::Duplicate(receipt) => match &told.receipt {
            Some(first) if *first != receipt => Err(format!("it is told another receipt: {receipt:?}")),
            Some(_) => Ok(known(receipt)),
            None if told.seal_asked => Err("a cancelled id has a message".to_owned()),
            None => Ok(known(receipt)),
        },
        Published::Sealed if told.seal_asked => Ok(Told { seal_asked: true, is_sealed: true, receipt: None }),
        Published::Accepted(receipt) if told.receipt.is_none() && !told.is_sealed => Ok(known(receipt)),
        other => Err(format!("this is not what was acknowledged: {other:?}")),
    }
}

/// The topic as its reader sees it: every number once, without a hole, and every receipt at its place.
async fn read_all(broker: &Broker, book: &Book) -> Result<(), String> {
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    let (mut after, mut number) = ("0".to_owned(), 0);
    loop {
        let line = LineName::Topic(TOPIC.to_owned());
        let page = broker.history(&caller("bob"), &line, Some(&after), Some(500)).await;
        let page = page.map_err(|error| format!("{error:?}"))?;
        for message in &page.messages {
            let message: serde_json::Value =
                serde_json::from_str(message.get()).map_err(|error| error.to_string())?;
            let id = message["id"].as_str().unwrap_or_default().to_owned();
            number += 1;
            if id.split('.').nth(1) != Some(&number.to_string()) {
                return Err(format!("{id} stands where number {number} should be"));
            }
            found.insert(message["client_message_id"].as_str().unwrap_or_default().to_owned(), id);
        }
        match page.next_after {
            Some(next) => after = next,
            None => break,
        }
    }
    for (number, told) in &book.ids {
        let Some(receipt) = &told.receipt else { continue };
        if found.get(&format!("id-{number}")) != Some(&receipt.history_id.to_string()) {
            return Err(format!("id-{number} is not where its receipt says: {receipt:?}"));
        }
    }
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
        live(&folder.path().join("broker.db"), &book, seed);
        disk.loses_power();
        let after = tempfile::tempdir().unwrap();
        disk.after_power_loss(after.path(), &mut || random.number());
        folder = after;
        examine(&folder.path().join("broker.db"), &mut book.lock().unwrap())
            .map_err(|why| format!("seed {seed}, power lost at step {ends_at}, life {life}: {why}"))?;
    }
    let answers = book.lock().unwrap().answers;
    Ok(answers)
}

fn steps_of_a_life() -> u64 {
    let folder = tempfile::tempdir().unwrap();
    let disk = Disk::under(folder.path());
    live(&folder.path().join("broker.db"), &Arc::default(), 0);
    disk.steps()
}

#[test]
fn what_was_accepted_survives_a_loss_of_power_at_any_step() {
    let losses = std::env::var(VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or(LOSSES);
    let steps = steps_of_a_life();
    let mut answers = 0;
    for seed in 0..losses {
        answers += play(seed, seed * steps / losses, Mood::Works).unwrap_or_else(|why| panic!("{why}"));
    }
    println!("{losses} losses of power over {steps} steps, {answers} answers, none lost");
    assert!(answers > losses, "{answers} answers prove nothing");
}

#[test]
fn a_disk_that_only_says_that_it_synced_is_found_out() {
    let steps = steps_of_a_life();
    let found = (0..12).filter(|seed| play(*seed, steps * (20 + seed) / 40, Mood::Lies).is_err()).count();
    assert!(found >= 4, "only {found} of 12 losses were noticed");
}

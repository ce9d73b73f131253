//! Drives the embedded store as fast as it goes, without HTTP around it, and says how fast that was: fresh keys
//! (claim, then settle), look-ups of distinct settled keys, or atomic settlements with a row of the handler's own.
//!
//! `embedded_load FILE fresh|replay|atomic|fill TASKS SECONDS [RECORDS]`; `fill` writes so many records and ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use semel_contract::decide::Claim;
use semel_contract::fingerprint::{Fingerprint, Version};
use semel_contract::key::{Format, Key};
use semel_contract::profile::presets;
use semel_contract::record::Guarantee;
use semel_contract::scope::Scope;
use semel_store::sqlite::{SqliteStore, TransactOutcome};
use semel_store::{About, Answer, ClaimOutcome, ClaimRequest, ClaimStore, FencedWrite, Id, Settlement};

/// Keys that `fill` writes, and `replay` reads back.
const FILLED: u64 = 1 << 40;
const PRINCIPALS: u64 = 1000;

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Fresh,
    Replay,
    Atomic,
    Fill,
}

struct Load {
    store: SqliteStore,
    next: AtomicU64,
    slowest_micros: AtomicU64,
    first: u64,
    records: u64,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let at = |at: usize| arguments.get(at).map(String::as_str);
    let number =
        |index: usize, default: u64| at(index).map_or(default, |text| text.parse().expect("a number"));
    let mode = match at(1) {
        Some("fresh") => Mode::Fresh,
        Some("replay") => Mode::Replay,
        Some("atomic") => Mode::Atomic,
        Some("fill") => Mode::Fill,
        Some(_) | None => {
            panic!("usage: embedded_load FILE fresh|replay|atomic|fill TASKS SECONDS [RECORDS]")
        }
    };
    let (tasks, seconds, records) = (number(2, 64), number(3, 5), number(4, 0));
    let opened = Instant::now();
    let store = SqliteStore::open(at(0).expect("a file")).expect("the file can be opened");
    println!("open {:.2} s, resident {} MB", opened.elapsed().as_secs_f64(), resident_megabytes());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build();
    let first =
        u64::try_from(std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_nanos()).expect("before 2500");
    let load = Arc::new(Load {
        store,
        next: AtomicU64::new(0),
        slowest_micros: AtomicU64::new(0),
        first: if matches!(mode, Mode::Fill | Mode::Replay) { FILLED } else { first },
        records,
    });
    runtime.expect("a runtime").block_on(drive(load, mode, tasks, Duration::from_secs(seconds)));
}

async fn drive(load: Arc<Load>, mode: Mode, tasks: u64, span: Duration) {
    if mode == Mode::Atomic {
        let id = id(load.first - 1);
        let fence = claim(&load, &id, Guarantee::Atomic).await;
        let made = load.store.transact(&id, fence, &presets::ietf().lifetime, |db| {
            db.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT)", [])?;
            Ok(((), settlement()))
        });
        assert!(matches!(made.await, Ok(TransactOutcome::Done(()))));
    }
    let (started, commits, cpu) = (Instant::now(), load.store.commits(), cpu_seconds());
    let until = started + span;
    let workers: Vec<_> = (0..tasks).map(|_| tokio::spawn(work(Arc::clone(&load), mode, until))).collect();
    let mut latencies = Vec::new();
    for worker in workers {
        latencies.extend(worker.await.expect("no task panics"));
    }
    let took = started.elapsed().as_secs_f64();
    let (done, commits) = (latencies.len() as f64, (load.store.commits() - commits) as f64);
    latencies.sort_unstable();
    let share = |part: f64| latencies.get((done * part) as usize).copied().unwrap_or(0);
    println!(
        "{:.0}/s, p50 {} us, p99 {} us, longest {:.1} ms, {:.2} commits each, {:.1} us of CPU each, resident {} MB",
        done / took,
        share(0.5),
        share(0.99),
        load.slowest_micros.load(Ordering::Relaxed) as f64 / 1000.0,
        commits / done,
        (cpu_seconds() - cpu) * 1e6 / done,
        resident_megabytes(),
    );
}

async fn work(load: Arc<Load>, mode: Mode, until: Instant) -> Vec<u32> {
    let mut latencies = Vec::new();
    loop {
        let at = load.next.fetch_add(1, Ordering::Relaxed);
        let is_over = if mode == Mode::Fill { at >= load.records } else { Instant::now() >= until };
        if is_over {
            return latencies;
        }
        let began = Instant::now();
        match mode {
            Mode::Fresh => {
                let id = id(load.first + at);
                let fence = claim(&load, &id, Guarantee::Fenced).await;
                let settled = load.store.settle(&id, fence, settlement(), &presets::ietf().lifetime).await;
                assert_eq!(settled, Ok(FencedWrite::Done));
            }
            Mode::Fill => {
                let id = id(load.first + at);
                let fence = claim(&load, &id, Guarantee::Atomic).await;
                let settled = load.store.settle(&id, fence, settlement(), &presets::ietf().lifetime).await;
                assert_eq!(settled, Ok(FencedWrite::Done));
            }
            Mode::Replay => {
                // Far apart from each other, so that no two in a row are neighbours.
                let at = at.wrapping_mul(0x9E37_79B9_7F4A_7C15) % load.records.max(1);
                let (entry, _) = load.store.look_up(&id(load.first + at)).await.expect("the store answers");
                assert!(entry.is_some_and(|entry| entry.answer.is_some()), "a filled key is settled");
                tokio::task::yield_now().await;
            }
            Mode::Atomic => {
                let id = id(load.first + at);
                let fence = claim(&load, &id, Guarantee::Atomic).await;
                let item = format!("item {at}");
                let done = load.store.transact(&id, fence, &presets::ietf().lifetime, move |db| {
                    db.execute("INSERT INTO orders (item) VALUES (?1)", [&item])?;
                    Ok(((), settlement()))
                });
                assert!(matches!(done.await, Ok(TransactOutcome::Done(()))));
            }
        }
        let micros = u32::try_from(began.elapsed().as_micros()).unwrap_or(u32::MAX);
        load.slowest_micros.fetch_max(u64::from(micros), Ordering::Relaxed);
        latencies.push(micros);
    }
}

/// A key that is as good as random, the same for the same number.
fn id(number: u64) -> Id {
    let mix = |number: u64| {
        let mixed = (number ^ (number >> 31)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB)
    };
    let key = format!("{:016x}{:016x}", mix(number), mix(!number));
    let principal = format!("user-{}", number % PRINCIPALS);
    Id {
        scope: Scope::of(None, Some(&principal), Some("create-order")),
        key: Key::parse(&Format::Printable255, &key).expect("a printable key"),
    }
}

async fn claim(load: &Load, id: &Id, guarantee: Guarantee) -> semel_contract::record::Fence {
    let hash = id.hash();
    let number = u64::from_be_bytes(*hash.first_chunk().expect("sixteen bytes"));
    let request = ClaimRequest {
        id: id.clone(),
        how: Claim::New,
        replaces: None,
        nonce: number,
        lease: Duration::from_secs(30),
        late: Duration::from_secs(60),
        guarantee,
        fingerprint: Some(Fingerprint { version: Version::Plain, bytes: [5; 32] }),
        payload_hash: None,
        rotation: std::env::var_os("ROTATION").map(|_| hash),
        terms: None,
        about: About {
            endpoint: "create-order".to_owned(),
            principal: format!("user-{}", number % PRINCIPALS),
            request_id: format!("{number:032x}"),
            ..About::default()
        }
        .into(),
    };
    match load.store.claim(request).await {
        Ok(ClaimOutcome::Won { fence, .. }) => fence,
        other => panic!("a fresh key is won: {other:?}"),
    }
}

/// An answer of 300 bytes with the usual headers.
fn settlement() -> Settlement {
    Settlement::Settle(Answer {
        status: 201,
        headers: vec![
            ("content-type".to_owned(), b"application/json".to_vec()),
            ("content-length".to_owned(), b"300".to_vec()),
        ]
        .into(),
        body: Bytes::from_static(&[b'x'; 300]),
        outcome_unknown: false,
    })
}

fn resident_megabytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) / 1024
}

fn cpu_seconds() -> f64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is to a live value of the type that the call fills; all zeroes is a valid one.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

//! The process is killed at every step, on the embedded store: never an effect without its record, never a second effect.
#![cfg(all(feature = "failpoints", feature = "sqlite"))]

mod crash;

use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::post;
use crash::{Found, RUNS, Task, gate, generated_at, judge, key, send};
use semel_contract::record::{Guarantee, State};
use semel_gate::Step;
use semel_gate::sqlite::Grant;
use semel_store::sqlite::{SqliteStore, rusqlite};
use semel_store::{ClaimStore, Filter};

const TEST: &str = "a_killed_process_leaves_no_half_truth";

/// The ledger of a fenced handler: a database of its own, committed on its own.
fn ledger(folder: &Path) -> rusqlite::Connection {
    let ledger = rusqlite::Connection::open(folder.join("ledger.db")).expect("the ledger opens");
    ledger
        .execute_batch("PRAGMA synchronous=FULL; CREATE TABLE IF NOT EXISTS effect (key TEXT NOT NULL)")
        .expect("a table");
    ledger
}

fn store(folder: &Path) -> Arc<SqliteStore> {
    Arc::new(SqliteStore::open(folder.join("shop.db")).expect("the store opens"))
}

fn app(folder: &Path, store: &Arc<SqliteStore>, guarantee: Guarantee) -> Router {
    let folder = folder.to_path_buf();
    let atomic = |grant: Grant| async move {
        let key = grant.id().key.to_string();
        grant
            .transact(move |db| {
                db.execute("CREATE TABLE IF NOT EXISTS effect (key TEXT NOT NULL)", [])?;
                db.execute("INSERT INTO effect (key) VALUES (?1)", [&key])?;
                Ok((StatusCode::CREATED, "done"))
            })
            .await
            .into_response()
    };
    let fenced = move |grant: Grant| {
        let folder = folder.clone();
        async move {
            ledger(&folder)
                .execute("INSERT INTO effect (key) VALUES (?1)", [grant.id().key.as_str()])
                .expect("an effect");
            (StatusCode::CREATED, "done").into_response()
        }
    };
    let handler = match guarantee {
        Guarantee::Atomic => post(atomic),
        Guarantee::Fenced | Guarantee::None => post(fenced),
    };
    Router::new().route("/orders", handler).layer(gate(Arc::clone(store) as _, guarantee))
}

fn effects(folder: &Path, task: &Task) -> u32 {
    let file = if task.guarantee == Guarantee::Atomic { "shop.db" } else { "ledger.db" };
    let Ok(database) = rusqlite::Connection::open(folder.join(file)) else { return 0 };
    let count =
        database.query_row("SELECT count(*) FROM effect WHERE key = ?1", [&task.key], |row| row.get(0));
    count.unwrap_or(0)
}

async fn has_record(store: &SqliteStore, task: &Task) -> bool {
    let entries =
        store.list(&Filter { limit: 10_000, ..Filter::default() }).await.expect("the store answers");
    entries.iter().any(|entry| entry.id.key.as_str() == task.key && entry.record.state == State::Settled)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_process_leaves_no_half_truth() {
    let at = generated_at();
    if let Some(task) = Task::of_this_process() {
        let folder = Path::new(&task.world);
        let store = store(folder);
        task.stop_at_step();
        send(app(folder, &store, task.guarantee), &task.key, &at).await;
        unreachable!("every step is taken");
    }
    for guarantee in [Guarantee::Atomic, Guarantee::Fenced] {
        for step in Step::ALL {
            // An atomic handler has settled before its answer is read, and the gate settles nothing.
            if guarantee == Guarantee::Atomic && matches!(step, Step::Captured | Step::Settled) {
                continue;
            }
            let folder = tempfile::tempdir().expect("a folder");
            for run in 0..RUNS {
                let world = folder.path().to_str().expect("a path").to_owned();
                let task = Task { world, guarantee, step, key: key(run, step) };
                task.kill_at_step(TEST);
                let effects_after_crash = effects(folder.path(), &task);
                let store = store(folder.path());
                let has_record = has_record(&store, &task).await;
                let retry = send(app(folder.path(), &store, guarantee), &task.key, &at).await;
                drop(store);
                let effects_after_retry = effects(folder.path(), &task);
                judge(&task, &Found { effects_after_crash, has_record, retry, effects_after_retry });
            }
        }
    }
}

//! Rows of an outbox that were damaged: they are refused or shown as they are; what is sent is never half of a message.

use std::path::Path;

use semel_contract::time::Timestamp;
use semel_delivery::envelope::Draft;
use semel_delivery::judge::{Ended, To, Verdict as Judged};
use semel_delivery::message::{Answer, Progress};
use semel_delivery::sqlite::SqliteStore;
use semel_delivery::store::{Arrived, FencedWrite, Filter, Find, Head, OutboxStore, Room, Terms};
use semel_delivery::{HeadPolicy, Request};
use semel_fuzz::cells::{Cells, Damage};
use semel_fuzz::{Target, Verdict};

const IDS: [&str; 5] = ["pending", "done", "dead", "inflight", "aborted"];

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn draft(id: &str) -> Draft {
    Draft {
        client_message_id: id.to_owned(),
        is_callers: true,
        client_tx_id: format!("tx-{id}"),
        fingerprint: [id.len() as u8; 32],
        principal: "default".to_owned(),
        lane: format!("lane-{id}"),
        logical_key: Some(format!("action-{id}")),
        operation: None,
        profile: String::new(),
        client_generated_at: at(5),
        request: Request::json("POST", "/x", format!("\"{id}\"")),
    }
}

fn verdict(to: To) -> Judged {
    Judged {
        to,
        at: at(30),
        ended: Some(Ended { outcome: "answered", status: Some(200) }),
        error: None,
        ambiguous: false,
        deduplicated: true,
        progress: Progress::default(),
        answer: Some(Answer {
            status: 200,
            headers: vec![("a".to_owned(), "b".to_owned())],
            body: b"ok".to_vec(),
        }),
        head: HeadPolicy::Skip,
    }
}

struct World {
    store: SqliteStore,
    rows: Vec<i64>,
    runtime: tokio::runtime::Runtime,
}

impl World {
    fn new(path: &Path) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let store = SqliteStore::open(path).unwrap();
        let rows = runtime.block_on(async {
            store.recover(at(1)).await.unwrap();
            let mut rows = Vec::new();
            for id in IDS {
                let arrived =
                    store.accept(draft(id), at(10), 1, Room { rows: 100, bytes: 10_000 }).await.unwrap();
                let Arrived::New(row) = arrived else { panic!("{id} is new") };
                rows.push(row.id);
                if id == "aborted" {
                    store.abort(row.id, "operator", "no more", at(11)).await.unwrap().unwrap();
                    continue;
                }
                if id == "pending" {
                    continue;
                }
                let terms = Terms { now: at(20), lease_until: at(1_000_000), nonce: 7 };
                let Head::Claimed(row, _) = store.claim(&row.lane, terms).await.unwrap() else {
                    panic!("{id}")
                };
                let to = match id {
                    "done" => To::Done(vec![("id".to_owned(), "7".to_owned())]),
                    "dead" => To::Dead,
                    _ => continue,
                };
                let written = store.settle(row.id, row.fence.unwrap(), verdict(to)).await.unwrap();
                assert!(matches!(written, FencedWrite::Done(_)));
            }
            rows
        });
        Self { store, rows, runtime }
    }

    /// What the store says of every message, and what it would send.
    fn look(&self) -> Result<Vec<String>, String> {
        self.runtime.block_on(async {
            let mut said = Vec::new();
            for (id, row) in IDS.iter().zip(&self.rows) {
                let found = self.store.find(Find::Id((*id).to_owned())).await;
                if let Ok(Some(found)) = &found
                    && found.client_message_id != *id
                {
                    return Err(format!("asked for {id}, it shows {}", found.client_message_id));
                }
                let request = self.store.request(*row).await;
                let attempts = self.store.attempts(*row).await;
                said.push(format!("{found:?} {request:?} {attempts:?}"));
            }
            let filter = Filter { limit: 100, ..Filter::default() };
            let listed = self.store.list(filter).await;
            let events = self.store.events(0, 100).await;
            said.push(format!(
                "{listed:?} {:?} {events:?} {:?}",
                self.store.lanes().await,
                self.store.depth().await
            ));
            match said.iter().find(|text| text.contains("the store has ended")) {
                Some(text) => Err(format!("a reader panicked: {text}")),
                None => Ok(said),
            }
        })
    }
}

#[test]
fn fuzz_outbox_row() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("outbox.db");
    let world = World::new(&path);
    let mut cells = Cells::of(&path, |_| true).unwrap();
    let before = world.look().unwrap();
    let mut target = Target::new("outbox-row").bytes_max(200).words(&[
        "pending",
        "inflight",
        "held",
        "done",
        "dead",
        "aborted",
        "auth",
        "rebuild",
        r#"[["a","b"]]"#,
        r#"[["a"]]"#,
        "[]",
        "{}",
        "default",
        "\u{7f}\u{ff}",
    ]);
    for table in 0..10 {
        for column in 0..45 {
            target = target.seed([table, 0, column, column % 6, 0, 0, 0, 0, 0, 0, 0, 1]);
        }
    }
    target.run(|input| {
        let damage = cells.damage(input);
        let verdict = judge(&world, &before, &damage, input);
        cells.mend();
        if world.look()? != before {
            return Err("a mended file is not read as before".to_owned());
        }
        verdict
    });
}

fn judge(world: &World, before: &[String], damage: &Damage, input: &[u8]) -> Verdict {
    let after = world.look()?;
    let Damage::Done { table, column, kind, is_same } = damage else {
        return if after == before {
            Ok("refused by the schema".into())
        } else {
            Err("it changed".to_owned())
        };
    };
    if *is_same && after != before {
        return Err("the same cell is read otherwise".to_owned());
    }
    if table == "outbox" && column == "headers" {
        what_is_sent_is_whole(world, &input[4..])?;
    }
    let changed = after.iter().zip(before).filter(|(after, before)| after != before).count();
    Ok(format!("{table}.{column} {kind}: {changed} changed").into())
}

/// A message whose headers cannot be read is not sent without them.
fn what_is_sent_is_whole(world: &World, written: &[u8]) -> Result<(), String> {
    let text = String::from_utf8_lossy(written);
    let is_list = serde_json::from_str::<Vec<(String, String)>>(&text).is_ok();
    for row in &world.rows {
        let request = world.runtime.block_on(async { world.store.request(*row).await });
        let has_headers = |request: &Request| request.header("content-type").is_some();
        if let Ok(Some(request)) = request
            && !has_headers(&request)
            && !is_list
        {
            return Err(format!("row {row} is sent as {request:?}, its headers being {text:?}"));
        }
    }
    Ok(())
}

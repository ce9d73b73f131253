//! The notice of what was too old: it is complete whatever a process that died had told already.

mod scripted;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use scripted::{World, answer, message, pass, uuid};
use semel_delivery::hooks::Hooks;
use semel_delivery::sqlite::SqliteStore;
use semel_delivery::{Outbox, Row, expiry};
use semel_store::sqlite::rusqlite::Connection;

const DAY: Duration = Duration::from_secs(86_400);
const COUNT: u32 = 4;

#[derive(Default)]
struct Notices(Mutex<Vec<Vec<String>>>);

impl Hooks for Notices {
    fn expired(&self, messages: &[Row]) {
        let ids = messages.iter().map(|row| row.client_message_id.clone());
        self.0.lock().unwrap().push(ids.collect());
    }
}

/// A world in which four messages were too old, and whose process died when its notice told of these; `None`: of none.
async fn died_when_it_had_told(before: Option<&[u32]>) -> (World, Arc<Notices>) {
    let world = World::quick("walker", |_, _| answer(200, &[], ""));
    let outbox = world.open().await;
    for number in 1..=COUNT {
        outbox.enqueue(message(number, &format!("lane-{number}"))).await.unwrap();
    }
    pass(8 * DAY).await;
    let sending = outbox.start();
    pass(Duration::from_secs(5)).await;
    assert_eq!(told(&outbox).await.len(), COUNT as usize, "all of them are told of, in one notice");
    let image = world.store.image().unwrap();
    drop((sending, outbox));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("outbox.db");
    std::fs::write(&file, image).unwrap();
    let edited = Connection::open(&file).unwrap();
    let changed = match before {
        Some(before) => {
            let told: Vec<_> =
                before.iter().map(|number| serde_json::json!([number, uuid(*number)])).collect();
            let detail = serde_json::Value::from(told).to_string();
            edited.execute("UPDATE outbox_events SET detail = ?1 WHERE kind = 'expiry'", [detail])
        }
        None => edited.execute("DELETE FROM outbox_events WHERE kind = 'expiry'", []),
    };
    assert_eq!(changed.unwrap(), 1);
    drop(edited);
    let image = std::fs::read(&file).unwrap();
    let notices = Arc::new(Notices::default());
    let mut after = World { store: Arc::new(SqliteStore::of_image(&image).unwrap()), ..world };
    after.settings.hooks = Arc::clone(&notices) as _;
    (after, notices)
}

/// What the notices of the event log tell, one after the other.
async fn told(outbox: &Outbox) -> Vec<String> {
    let (events, _) = outbox.events(0, 1000).await.unwrap();
    let messages = events.iter().filter_map(expiry::messages).flatten();
    messages.map(|(_, id)| id).collect()
}

async fn start(world: &World) -> Outbox {
    let outbox = world.open().await;
    let _sending = outbox.start();
    pass(Duration::from_secs(5)).await;
    outbox
}

fn uuids(numbers: &[u32]) -> Vec<String> {
    numbers.iter().map(|number| uuid(*number)).collect()
}

#[tokio::test(start_paused = true)]
async fn what_a_process_that_died_had_told_only_in_part_is_told_to_its_end_and_once() {
    // Some of the drain, wherever in it they stand: the notice's own number says nothing of the others.
    for before in [None, Some(&[1][..]), Some(&[3]), Some(&[2, 4])] {
        let (world, notices) = died_when_it_had_told(before).await;
        let outbox = start(&world).await;
        let before = before.unwrap_or_default();
        let after: Vec<u32> = (1..=COUNT).filter(|number| !before.contains(number)).collect();
        assert_eq!(*notices.0.lock().unwrap(), [uuids(&after)], "told before: {before:?}");
        let all = [uuids(before), uuids(&after)].concat();
        assert_eq!(told(&outbox).await, all);
        drop(outbox);
        let outbox = start(&world).await;
        assert_eq!((told(&outbox).await, notices.0.lock().unwrap().len()), (all, 1), "nothing is told again");
    }
}

/// A file of a release that knew no notices: its upgrade says so with an empty one.
#[tokio::test(start_paused = true)]
async fn what_an_earlier_release_had_told_in_its_own_way_is_not_told_again() {
    let (world, notices) = died_when_it_had_told(Some(&[])).await;
    let outbox = start(&world).await;
    assert!(told(&outbox).await.is_empty() && notices.0.lock().unwrap().is_empty());
}

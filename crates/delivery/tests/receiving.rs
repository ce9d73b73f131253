//! Lines on a scripted broker: nothing is told before it is kept, what could not be kept comes again, and a full inbox reads no
//! further.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt as _;
use semel_delivery::receive::{LineName, Link, Linked, Receive, State, Stream, Unlinked};
use semel_delivery::sqlite::SqliteStore;
use semel_delivery::url::Target;
use semel_delivery::{Outbox, Settings};
use semel_store::sqlite::rusqlite::Connection;

/// A broker with so many messages, which holds its outbox to what it says.
struct Script {
    outbox: Outbox,
    messages: i64,
    /// What was acknowledged, and what was opened.
    told: Mutex<Vec<String>>,
    opened: Mutex<Vec<String>>,
    /// Said that was not kept.
    lies: Mutex<Vec<String>>,
    /// How often it breaks off in the middle.
    breaks: Mutex<u32>,
}

impl Script {
    fn new(outbox: &Outbox, messages: i64, breaks: u32) -> Arc<Self> {
        Arc::new(Self {
            outbox: outbox.clone(),
            messages,
            told: Mutex::default(),
            opened: Mutex::default(),
            lies: Mutex::default(),
            breaks: Mutex::new(breaks),
        })
    }
}

fn event(number: i64) -> String {
    format!(
        "id: 1.{number}.00ff\ndata: {{\"line\":\"topic:news\",\"broker_message_id\":\"B{number}\",\
         \"client_message_id\":\"m{number}\",\"sender\":\"bob\",\"body\":{number}}}\n\n"
    )
}

fn number(id: &str) -> i64 {
    id.split('.').nth(1).and_then(|number| number.parse().ok()).unwrap_or(0)
}

impl Link for Script {
    fn open<'a>(&'a self, after: &'a str) -> Linked<'a, Stream> {
        self.opened.lock().unwrap().push(after.to_owned());
        let mut breaks = self.breaks.lock().unwrap();
        let is_cut = *breaks > 0;
        *breaks = breaks.saturating_sub(1);
        let first = number(after) + 1;
        let last = if is_cut { self.messages.min(first + 1) } else { self.messages };
        let pieces: Vec<Result<bytes::Bytes, String>> =
            (first..=last).map(|number| Ok(event(number).into())).collect();
        let rest = if is_cut {
            futures_util::stream::iter(vec![Err("cut".to_owned())]).boxed()
        } else {
            futures_util::stream::pending().boxed()
        };
        Box::pin(async move { Ok(Box::pin(futures_util::stream::iter(pieces).chain(rest)) as Stream) })
    }

    fn acknowledge<'a>(&'a self, up_to: &'a str) -> Linked<'a, ()> {
        Box::pin(async move {
            let inbox = self.outbox.inbox();
            let cursor = inbox.line_cursor("team", "topic:news").await.ok().flatten().unwrap_or_default();
            let kept = inbox.find("bob", &format!("m{}", number(up_to))).await.unwrap_or_default();
            if number(&cursor) < number(up_to) || kept.is_empty() {
                self.lies.lock().unwrap().push(up_to.to_owned());
            }
            self.told.lock().unwrap().push(up_to.to_owned());
            Ok::<(), Unlinked>(())
        })
    }
}

fn line() -> Receive {
    Receive {
        broker: Target::absolute("http://127.0.0.1:1").unwrap(),
        mesh: "team".to_owned(),
        line: LineName::Topic("news".to_owned()),
        credential: None,
        consumer: None,
        ca: None,
    }
}

async fn until(what: &str, mut is: impl AsyncFnMut() -> bool) {
    for _ in 0..6000 {
        if is().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what} did not come about");
}

fn last_told(script: &Script) -> i64 {
    script.told.lock().unwrap().last().map_or(0, |id| number(id))
}

#[tokio::test]
async fn nothing_is_told_before_it_is_kept_and_breaks_lose_and_repeat_nothing() {
    let store = Arc::new(SqliteStore::memory().unwrap());
    let outbox = Outbox::with_store(store, Settings::default()).await.unwrap();
    let script = Script::new(&outbox, 20, 5);
    let receiving = outbox.receive(Vec::new()).await.unwrap();
    receiving.follow(line(), Arc::clone(&script) as _);
    until("everything told", async || last_told(&script) == 20).await;
    let kept = outbox.inbox().list(0, 100).await.unwrap();
    let ids: Vec<&str> = kept.iter().map(|message| message.message_id.as_str()).collect();
    assert_eq!(ids, (1..=20).map(|number| format!("m{number}")).collect::<Vec<_>>());
    assert_eq!(*script.lies.lock().unwrap(), [""; 0], "told, and not kept");
    let opened = script.opened.lock().unwrap().clone();
    assert_eq!(opened[0], "0", "the first time from the first that is kept");
    assert_eq!(opened.iter().collect::<BTreeSet<_>>().len(), opened.len(), "each time after what was kept");
    assert_eq!(receiving.lines()[0].state, State::Live);
    receiving.stop(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn what_cannot_be_kept_is_not_told_and_comes_again() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(SqliteStore::open(&folder.path().join("outbox.db")).unwrap());
    let outbox = Outbox::with_store(Arc::clone(&store) as _, Settings::default()).await.unwrap();
    let receiving = outbox.receive(Vec::new()).await.unwrap();
    store.faults().fill_disk(true);
    let script = Script::new(&outbox, 3, 0);
    receiving.follow(line(), Arc::clone(&script) as _);
    until("a failure", async || receiving.lines()[0].state == State::Failed).await;
    assert_eq!(last_told(&script), 0);
    assert!(receiving.lines()[0].why.as_ref().is_some_and(|why| why.contains("full")), "{receiving:?}");
    store.faults().fill_disk(false);
    until("everything told", async || last_told(&script) == 3).await;
    assert_eq!(outbox.inbox().list(0, 10).await.unwrap().len(), 3);
    assert_eq!(*script.lies.lock().unwrap(), [""; 0]);
}

#[tokio::test]
async fn a_line_never_passes_a_message_that_could_not_be_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("outbox.db");
    let store = Arc::new(SqliteStore::open(&path).unwrap());
    let outbox = Outbox::with_store(store, Settings::default()).await.unwrap();
    // The file takes everything but one message, as one does that is damaged in one place.
    let file = Connection::open(&path).unwrap();
    file.execute_batch(
        "CREATE TRIGGER refuses BEFORE INSERT ON outbox_inbox WHEN NEW.message_id = 'm2'
            BEGIN SELECT RAISE(ABORT, 'not this one'); END",
    )
    .unwrap();
    let receiving = outbox.receive(Vec::new()).await.unwrap();
    let script = Script::new(&outbox, 3, 0);
    receiving.follow(line(), Arc::clone(&script) as _);
    until("a failure", async || receiving.lines()[0].state == State::Failed).await;
    let cursor = outbox.inbox().line_cursor("team", "topic:news").await.unwrap().unwrap_or_default();
    let kept = outbox.inbox().list(0, 10).await.unwrap().len();
    assert!(number(&cursor) <= kept as i64 && kept < 2, "{cursor:?} of {kept} messages that are kept");
    file.execute_batch("DROP TRIGGER refuses").unwrap();
    until("everything told", async || last_told(&script) == 3).await;
    let kept = outbox.inbox().list(0, 10).await.unwrap();
    let ids: Vec<&str> = kept.iter().map(|message| message.message_id.as_str()).collect();
    assert_eq!(ids, ["m1", "m2", "m3"], "what could not be kept came again");
    assert_eq!(*script.lies.lock().unwrap(), [""; 0]);
}

#[tokio::test]
async fn a_full_inbox_reads_no_further_until_something_is_acknowledged() {
    let store = Arc::new(SqliteStore::memory().unwrap());
    let settings = Settings { rows_max: 2, ..Settings::default() };
    let outbox = Outbox::with_store(store, settings).await.unwrap();
    let inbox = outbox.inbox();
    for id in ["a", "b"] {
        assert!(inbox.receive("carol", id, None, b"1").await.unwrap());
    }
    let script = Script::new(&outbox, 1, 0);
    let receiving = outbox.receive(Vec::new()).await.unwrap();
    receiving.follow(line(), Arc::clone(&script) as _);
    until("a full inbox", async || receiving.lines()[0].state == State::Full).await;
    assert!(script.opened.lock().unwrap().is_empty(), "nothing is asked for");
    inbox.acknowledge(None, "carol", "a").await.unwrap();
    until("the message", async || last_told(&script) == 1).await;
    assert_eq!(inbox.depth().await.unwrap().waiting, 2);
}

//! The suite that every store of an outbox passes. Each check gets a fresh store and panics where it does not agree.

use std::future::Future;
use std::sync::Arc;

use semel_contract::record::Fence;
use semel_contract::time::Timestamp;
use semel_store::clock::{Ahead, Mark};

use crate::envelope::Draft;
use crate::judge::{Ended, To, Verdict};
use crate::message::{Answer, Came, Gap, HeldFor, Progress, Published, Received, Request, Row, Status};
use crate::settings::HeadPolicy;
use crate::store::{
    Arrived, FencedWrite, Filter, Find, Head, InboxDepth, Judged, KeptTime, OutboxStore, Replaced, Room,
    StoreError, Successor, Terms,
};

type Store = Arc<dyn OutboxStore>;

const ROOM: Room = Room { rows: 100, bytes: 10_000 };

/// Runs every check, each on a store that `fresh` makes.
pub async fn run<F, S>(mut fresh: F)
where
    F: FnMut() -> S,
    S: Future<Output = Store>,
{
    one_id_inserts_once(fresh().await).await;
    a_logical_action_waits_once(fresh().await).await;
    lanes_are_first_in_first_out(fresh().await).await;
    stale_fences_change_nothing(fresh().await).await;
    what_was_in_flight_waits_again_under_its_key(fresh().await).await;
    a_claim_that_sent_nothing_gives_its_number_back(fresh().await).await;
    a_requeue_is_all_or_nothing(fresh().await).await;
    holds_are_by_principal(fresh().await).await;
    who_signed_out_is_known_to_the_next_process(fresh().await).await;
    room_is_counted(fresh().await).await;
    bodies_are_purged_and_ids_stay(fresh().await).await;
    the_time_is_kept_for_the_next_process(fresh().await).await;
    events_are_numbered_without_gaps(fresh().await).await;
    the_inbox_knows_what_it_received(fresh().await).await;
    a_line_comes_as_far_as_its_messages_are_kept(fresh().await).await;
}

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn draft(id: &str, lane: &str) -> Draft {
    Draft {
        client_message_id: id.to_owned(),
        is_callers: true,
        client_tx_id: format!("tx-{id}"),
        fingerprint: [id.len() as u8; 32],
        principal: "default".to_owned(),
        lane: lane.to_owned(),
        logical_key: None,
        operation: None,
        profile: String::new(),
        client_generated_at: at(5),
        request: Request::json("POST", "/x", format!("\"{id}\"")),
    }
}

fn terms(now: i64) -> Terms {
    Terms { now: at(now), lease_until: at(now + 1000), nonce: 7 }
}

fn verdict(to: To, now: i64) -> Verdict {
    Verdict {
        to,
        at: at(now),
        ended: Some(Ended { outcome: "answered", status: Some(200) }),
        error: None,
        ambiguous: false,
        deduplicated: false,
        progress: Progress::default(),
        answer: Some(Answer { status: 200, headers: Vec::new(), body: b"ok".to_vec() }),
        head: HeadPolicy::Skip,
    }
}

async fn insert(store: &Store, id: &str, lane: &str) -> Row {
    match store.accept(draft(id, lane), at(10), 1, ROOM).await.expect("there is room") {
        Arrived::New(row) => row,
        other => panic!("{id} is new, not {other:?}"),
    }
}

async fn claimed(store: &Store, lane: &str, now: i64) -> (Row, Fence) {
    match store.claim(lane, terms(now)).await.expect("the store answers") {
        Head::Claimed(row, request) => {
            assert_eq!(request.body, format!("\"{}\"", row.client_message_id).into_bytes());
            let fence = row.fence.expect("a claim has a fence");
            (*row, fence)
        }
        other => panic!("the head of {lane} can be taken, not {other:?}"),
    }
}

async fn find(store: &Store, id: &str) -> Row {
    store.find(Find::Id(id.to_owned())).await.expect("the store answers").expect("the row is there")
}

async fn one_id_inserts_once(store: Store) {
    let sends: Vec<_> = (0..50)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                store.accept(draft("one", "a"), at(10), 1, ROOM).await.expect("there is room")
            })
        })
        .collect();
    let mut new = 0;
    for send in sends {
        match send.await.expect("no panic") {
            Arrived::New(_) => new += 1,
            Arrived::Known { row, fingerprint, is_alias } => {
                assert_eq!((row.client_message_id.as_str(), fingerprint, is_alias), ("one", [3; 32], false));
            }
            Arrived::SameAction(_) => panic!("there is no logical key"),
        }
    }
    assert_eq!(new, 1, "one of fifty inserts");
    assert_eq!(
        store.list(Filter { limit: 10, ..Filter::default() }).await.expect("the store answers").len(),
        1
    );
}

async fn a_logical_action_waits_once(store: Store) {
    let action = |id: &str| Draft { logical_key: Some("tap".to_owned()), ..draft(id, "a") };
    assert!(matches!(store.accept(action("first"), at(10), 1, ROOM).await, Ok(Arrived::New(_))));
    let second = store.accept(action("second"), at(11), 1, ROOM).await.expect("the store answers");
    assert!(matches!(second, Arrived::SameAction(row) if row.client_message_id == "first"));
    // The caller's id is durably another name of it.
    let again = store.accept(draft("second", "b"), at(12), 1, ROOM).await.expect("the store answers");
    assert!(matches!(again, Arrived::Known { row, is_alias: true, .. } if row.client_message_id == "first"));
    let other = Draft { principal: "bob".to_owned(), ..action("bobs") };
    assert!(matches!(store.accept(other, at(13), 1, ROOM).await, Ok(Arrived::New(_))), "another principal's");
    let (row, fence) = claimed(&store, "a", 20).await;
    store.settle(row.id, fence, verdict(To::Done(Vec::new()), 21)).await.expect("it settles");
    assert!(
        matches!(store.accept(action("third"), at(22), 1, ROOM).await, Ok(Arrived::New(_))),
        "the first is over"
    );
}

async fn lanes_are_first_in_first_out(store: Store) {
    for id in ["a1", "a2", "b1"] {
        insert(&store, id, &id[..1]).await;
    }
    let (first, fence) = claimed(&store, "a", 20).await;
    assert_eq!(
        (first.client_message_id.as_str(), first.attempts, first.first_attempt_at),
        ("a1", 1, Some(at(20)))
    );
    assert!(matches!(store.claim("a", terms(21)).await, Ok(Head::Stuck)), "one in flight");
    let (other, _) = claimed(&store, "b", 21).await;
    assert_eq!(other.client_message_id, "b1", "lanes do not wait for each other");
    store.settle(first.id, fence, verdict(To::Retry(at(100)), 30)).await.expect("it settles");
    assert!(
        matches!(store.claim("a", terms(99)).await, Ok(Head::Wait(due)) if due == at(100)),
        "never passed"
    );
    let (again, fence) = claimed(&store, "a", 100).await;
    assert_eq!((again.id, again.attempts, again.first_attempt_at), (first.id, 2, Some(at(20))));
    store.settle(again.id, fence, verdict(To::Done(Vec::new()), 101)).await.expect("it settles");
    let (second, _) = claimed(&store, "a", 102).await;
    assert_eq!(second.client_message_id, "a2");
    assert!(matches!(store.claim("nobody", terms(1)).await, Ok(Head::Empty)));
    store.set_paused("c", true, at(1)).await.expect("it pauses");
    insert(&store, "c1", "c").await;
    assert!(matches!(store.claim("c", terms(500)).await, Ok(Head::Stuck)));
    let lane = store.lane("c").await.expect("the store answers");
    assert_eq!((lane.lane.as_str(), lane.is_paused, lane.blocked_by, lane.depth), ("c", true, None, 1));
    let unused = store.lane("nobody").await.expect("the store answers");
    assert_eq!((unused.is_paused, unused.blocked_by, unused.depth), (false, None, 0));
    store.set_paused("c", false, at(2)).await.expect("it resumes");
    claimed(&store, "c", 501).await;
}

async fn stale_fences_change_nothing(store: Store) {
    insert(&store, "one", "a").await;
    let (row, fence) = claimed(&store, "a", 20).await;
    for stale in [Fence { nonce: 8, ..fence }, Fence { number: fence.number + 1, ..fence }] {
        let written = store.settle(row.id, stale, verdict(To::Dead, 21)).await;
        assert!(matches!(written, Ok(FencedWrite::Stale)));
    }
    assert_eq!(find(&store, "one").await.status, Status::Inflight);
    let done = store
        .settle(row.id, fence, verdict(To::Done(vec![("broker_message_id".into(), "b".into())]), 22))
        .await;
    assert!(
        matches!(done, Ok(FencedWrite::Done(row)) if row.status == Status::Done && row.broker_message_id.as_deref() == Some("b"))
    );
    assert!(
        matches!(store.settle(row.id, fence, verdict(To::Dead, 23)).await, Ok(FencedWrite::Stale)),
        "once"
    );
    insert(&store, "two", "a").await;
    let (_, later) = claimed(&store, "a", 24).await;
    assert!(later.number > fence.number, "fences only grow");
}

async fn what_was_in_flight_waits_again_under_its_key(store: Store) {
    insert(&store, "one", "a").await;
    let (before, fence) = claimed(&store, "a", 20).await;
    let recovered = store.recover(at(30)).await.expect("it recovers");
    assert_eq!(recovered.interrupted, 1);
    let row = find(&store, "one").await;
    assert_eq!((row.status, row.ambiguous, row.client_tx_id), (Status::Pending, true, before.client_tx_id));
    assert!(matches!(store.settle(row.id, fence, verdict(To::Dead, 31)).await, Ok(FencedWrite::Stale)));
    let log = store.attempts(row.id).await.expect("the store answers");
    assert!(log.len() == 1 && log[0].outcome.is_none(), "the log says that it never ended");
    let (_, fence) = claimed(&store, "a", 40).await;
    assert_eq!(store.end_leases(at(900)).await.expect("the store answers"), Vec::<String>::new());
    assert_eq!(store.end_leases(at(2000)).await.expect("the store answers"), ["a"]);
    assert!(matches!(store.settle(row.id, fence, verdict(To::Dead, 2001)).await, Ok(FencedWrite::Stale)));
    let second = store.recover(at(3000)).await.expect("it recovers");
    assert!(second.epoch > recovered.epoch && second.interrupted == 0);
}

async fn a_claim_that_sent_nothing_gives_its_number_back(store: Store) {
    insert(&store, "one", "a").await;
    let (row, fence) = claimed(&store, "a", 20).await;
    let nothing = Verdict { ended: None, answer: None, ..verdict(To::Retry(at(30)), 21) };
    store.settle(row.id, fence, nothing).await.expect("it settles");
    let row = find(&store, "one").await;
    assert_eq!((row.attempts, row.first_attempt_at), (0, None));
    assert!(store.attempts(row.id).await.expect("the store answers").is_empty());
}

async fn a_requeue_is_all_or_nothing(store: Store) {
    let old = insert(&store, "old", "a").await;
    insert(&store, "taken", "b").await;
    let successor = |id: &str, judged: &Row| Successor {
        draft: draft(id, "a"),
        possibly_delivered: true,
        fence: None,
        judged: Judged::of(judged),
        by: "operator",
    };
    assert!(matches!(
        store.replace(old.id, successor("taken", &old), at(20), 1).await,
        Ok(Replaced::IdTaken)
    ));
    assert_eq!(find(&store, "old").await.status, Status::Pending, "nothing changed");
    let Ok(Replaced::Done(before, new)) = store.replace(old.id, successor("new", &old), at(20), 1).await
    else {
        panic!("it is replaced");
    };
    assert_eq!(
        (before.status, before.aborted_at, before.aborted_by.as_deref()),
        (Status::Aborted, Some(at(20)), Some("operator"))
    );
    assert_eq!(
        (before.superseded_by, new.supersedes, before.ambiguous),
        (Some(new.id), Some(before.id), true)
    );
    assert!(
        matches!(store.replace(old.id, successor("newer", &old), at(21), 1).await, Ok(Replaced::Stale)),
        "once"
    );
    // A row that was sent before is replaced under a claim only.
    let (row, fence) = claimed(&store, "a", 22).await;
    store.settle(row.id, fence, verdict(To::Retry(at(30)), 23)).await.expect("it settles");
    let sent = find(&store, "new").await;
    assert!(matches!(store.replace(new.id, successor("newer", &sent), at(24), 1).await, Ok(Replaced::Stale)));
    assert!(store.set_aside(new.id, terms(25)).await.expect("the store answers"));
    assert!(matches!(store.claim("a", terms(40)).await, Ok(Head::Stuck)), "nobody sends it meanwhile");
    let fence = find(&store, "new").await.fence.expect("it is set aside");
    assert!(store.put_back(new.id, fence).await.expect("the store answers"));
    assert!(!store.put_back(new.id, fence).await.expect("the store answers"));
    assert!(store.set_aside(new.id, terms(26)).await.expect("the store answers"));
    let fence = find(&store, "new").await.fence;
    let by_an_old_row = Successor { fence, ..successor("newer", &new) };
    let replaced = store.replace(new.id, by_an_old_row, at(27), 1).await;
    assert!(matches!(replaced, Ok(Replaced::Stale)), "it was sent since it was judged");
    let under_claim = Successor { fence, ..successor("newer", &sent) };
    assert!(matches!(store.replace(new.id, under_claim, at(27), 1).await, Ok(Replaced::Done(..))));
    let aborted = store.abort(find(&store, "newer").await.id, "operator", "why", at(28)).await;
    assert!(matches!(aborted, Ok(Some(row)) if row.status == Status::Aborted));
    assert!(matches!(store.abort(old.id, "operator", "why", at(29)).await, Ok(None)), "it is over");
}

async fn holds_are_by_principal(store: Store) {
    insert(&store, "one", "a").await;
    insert(&store, "two", "b").await;
    let bobs = Draft { principal: "bob".to_owned(), ..draft("bobs", "c") };
    store.accept(bobs, at(10), 1, ROOM).await.expect("there is room");
    let (row, fence) = claimed(&store, "a", 20).await;
    store.settle(row.id, fence, verdict(To::Held(HeldFor::Auth), 21)).await.expect("it settles");
    assert_eq!(find(&store, "one").await.status, Status::Held);
    assert!(matches!(store.claim("a", terms(22)).await, Ok(Head::Stuck)));
    claimed(&store, "c", 22).await;
    let mut lanes = store.release("default", at(23)).await.expect("it releases");
    lanes.sort();
    assert_eq!(lanes, ["a", "b"]);
    claimed(&store, "a", 24).await;
    claimed(&store, "b", 24).await;
}

async fn who_signed_out_is_known_to_the_next_process(store: Store) {
    let signed_out = async || store.recover(at(9)).await.expect("the store recovers").signed_out;
    for principal in ["ann", "ben", "ann"] {
        assert_eq!(store.set_signed_out(principal, true, at(1)).await, Ok(()));
    }
    assert_eq!(signed_out().await, ["ann", "ben"]);
    store.release("ann", at(2)).await.expect("the store answers");
    assert_eq!(signed_out().await, ["ann", "ben"], "a credential that works again is no word of a person");
    assert_eq!(store.set_signed_out("ann", false, at(3)).await, Ok(()));
    assert_eq!(signed_out().await, ["ben"]);
}

async fn room_is_counted(store: Store) {
    let small = Room { rows: 2, bytes: 100 };
    let accept = async |id: &str| store.accept(draft(id, "a"), at(10), 1, small).await;
    accept("one").await.expect("there is room");
    accept("two").await.expect("there is room");
    assert!(matches!(accept("three").await, Err(StoreError::QueueFull(_))));
    assert!(accept("one").await.is_ok(), "a known id needs no room");
    let (row, fence) = claimed(&store, "a", 20).await;
    store.settle(row.id, fence, verdict(To::Done(Vec::new()), 21)).await.expect("it settles");
    accept("three").await.expect("one left");
    let wide = Room { rows: 100, bytes: 15 };
    assert!(matches!(store.accept(draft("four", "a"), at(10), 1, wide).await, Err(StoreError::QueueFull(_))));
    assert!(
        store.find(Find::Id("four".to_owned())).await.expect("the store answers").is_none(),
        "the id is free"
    );
}

async fn bodies_are_purged_and_ids_stay(store: Store) {
    insert(&store, "one", "a").await;
    insert(&store, "two", "b").await;
    let (row, fence) = claimed(&store, "a", 20).await;
    store.settle(row.id, fence, verdict(To::Done(Vec::new()), 30)).await.expect("it settles");
    assert_eq!(store.purge(at(30)).await.expect("it purges"), 0, "too early");
    assert_eq!(store.purge(at(31)).await.expect("it purges"), 1);
    assert_eq!(store.request(row.id).await.expect("the store answers"), None);
    let arrived = store.accept(draft("one", "a"), at(60), 1, ROOM).await.expect("the store answers");
    assert!(matches!(arrived, Arrived::Known { fingerprint, .. } if fingerprint == [3; 32]), "for ever");
    let waiting = find(&store, "two").await.id;
    assert!(store.request(waiting).await.expect("the store answers").is_some(), "what waits is kept");
}

async fn the_time_is_kept_for_the_next_process(store: Store) {
    assert_eq!(store.kept_time().await, Ok(None), "nothing happened yet");
    insert(&store, "one", "a").await;
    let kept = store.kept_time().await.expect("the store answers").expect("something happened");
    assert_eq!((kept.mark.boot, kept.last_event), (0, Some(at(10))), "no ticks are known");
    assert_eq!(kept.mark_for(7).time, at(10));
    for ahead in [Ahead::No, Ahead::Unexplained, Ahead::Contradicted] {
        let mark = Mark { time: at(8), ticks: 5, boot: u64::MAX, ahead };
        store.keep_time(mark).await.expect("it is kept");
        let kept = store.kept_time().await.expect("the store answers").expect("it is kept");
        assert_eq!(kept, KeptTime { mark, last_event: Some(at(10)), boot_epoch: kept.boot_epoch });
        assert_eq!(kept.mark_for(u64::MAX), mark, "the ticks tell the rest");
        assert_eq!(kept.mark_for(7).time, at(10), "what happened does not lie ahead");
    }
}

async fn events_are_numbered_without_gaps(store: Store) {
    let mut watch = store.watch();
    insert(&store, "one", "a").await;
    watch.changed().await.expect("the store lives");
    let (row, fence) = claimed(&store, "a", 20).await;
    store.settle(row.id, fence, verdict(To::Done(Vec::new()), 21)).await.expect("it settles");
    store.note("retention", "shorter".to_owned(), at(22)).await.expect("it notes");
    let (events, first) = store.events(0, 10).await.expect("the store answers");
    let kinds: Vec<(i64, &str)> = events.iter().map(|event| (event.number, event.kind.as_str())).collect();
    assert_eq!(kinds, [(1, "queued"), (2, "done"), (3, "retention")]);
    assert_eq!((first, *watch.borrow()), (1, 3));
    let (rest, _) = store.events(2, 10).await.expect("the store answers");
    assert_eq!(rest.len(), 1);
}

async fn the_inbox_knows_what_it_received(store: Store) {
    let message = |id: &str, supersedes: Option<&str>| Received {
        sender: "bob".to_owned(),
        message_id: id.to_owned(),
        supersedes: supersedes.map(str::to_owned),
        received_at: at(10),
        payload: b"hello".to_vec(),
        ..Received::default()
    };
    let receive = async |message| store.receive(message, at(10)).await.expect("the store answers");
    assert!(receive(message("m1", None)).await);
    assert!(!receive(message("m1", None)).await, "once");
    assert!(receive(Received { sender: "eve".to_owned(), ..message("m1", None) }).await, "another sender's");
    assert!(!receive(message("m2", Some("m1"))).await, "it stands for one that arrived");
    assert!(receive(message("m4", Some("m3"))).await);
    assert!(!receive(message("m3", None)).await, "its successor arrived");
    assert!(receive(message("m6", Some("m5"))).await);
    assert!(
        !receive(message("m7", Some("m5"))).await,
        "another of its chain arrived, and the first never did"
    );
    assert!(!receive(message("m5", None)).await, "two of its successors arrived");
    assert!(!receive(message("m9", Some("m6"))).await, "it names one in the middle, which arrived");
    let listed = store.received(0, 10).await.expect("the store answers");
    let ids: Vec<&str> = listed.iter().map(|message| message.message_id.as_str()).collect();
    assert_eq!(ids, ["m1", "m1", "m4", "m6"]);
    assert!(store.acknowledge("", "bob", "m1", at(20)).await.expect("the store answers"));
    assert!(!store.acknowledge("", "bob", "m1", at(20)).await.expect("the store answers"));
    assert!(!receive(message("m1", None)).await, "known for ever");
    assert_eq!(store.received(0, 10).await.expect("the store answers").len(), 3);
}

async fn a_line_comes_as_far_as_its_messages_are_kept(store: Store) {
    let message = |mesh: &str, id: &str| Received {
        mesh: mesh.to_owned(),
        sender: "bob".to_owned(),
        message_id: id.to_owned(),
        received_at: at(10),
        payload: b"1".to_vec(),
        about: Some(Published { line: "topic:news".to_owned(), ..Published::default() }),
        ..Received::default()
    };
    let came = |mesh: &str, ids: &[&str], cursor: &str| Came {
        mesh: mesh.to_owned(),
        line: "topic:news".to_owned(),
        messages: ids.iter().map(|id| message(mesh, id)).collect(),
        gaps: Vec::new(),
        cursor: cursor.to_owned(),
    };
    assert_eq!(store.line_cursor("team", "topic:news").await, Ok(None));
    assert_eq!(store.receive_line(came("team", &["m1", "m2"], "1.2.00ff"), at(10)).await, Ok(2));
    assert_eq!(store.line_cursor("team", "topic:news").await, Ok(Some("1.2.00ff".to_owned())));
    assert_eq!(store.receive_line(came("team", &["m2", "m3"], "1.3.00ff"), at(11)).await, Ok(1), "each once");
    assert_eq!(
        store.receive_line(came("other", &["m1"], "1.1.00ff"), at(12)).await,
        Ok(1),
        "another mesh's bob"
    );
    assert_eq!(store.line_cursor("team", "topic:news").await, Ok(Some("1.3.00ff".to_owned())));
    assert_eq!(store.inbox_depth().await, Ok(InboxDepth { waiting: 4, oldest: Some(at(10)), newest: 4 }));
    assert_eq!(store.received_as("bob", "m1").await.expect("the store answers").len(), 2);
    assert_eq!(store.acknowledge("other", "bob", "m1", at(20)).await, Ok(true));
    let left = store.received_as("bob", "m1").await.expect("the store answers");
    let acked: Vec<bool> = left.iter().map(|message| message.acked_at.is_some()).collect();
    assert_eq!(acked, [false, true]);
    let gap = Gap {
        number: 0,
        at: at(30),
        mesh: "team".to_owned(),
        line: "topic:news".to_owned(),
        since: "1.3.00ff".to_owned(),
        oldest: "1.9.0000".to_owned(),
        reason: "swept".to_owned(),
    };
    let gone = Came { gaps: vec![gap.clone()], ..came("team", &[], "1.8.0000") };
    assert_eq!(store.receive_line(gone, at(30)).await, Ok(0));
    assert_eq!(store.gaps(0, 10).await, Ok(vec![Gap { number: 1, ..gap }]));
    let number = store.own_number(7).await;
    assert_eq!((number.clone(), store.own_number(8).await), (Ok(7), number), "the first one stays");
}

//! The suite that every database of a relay passes.

use std::future::Future;

use super::accept::{Accepted, Age, NewItem, Submission};
use super::claim::{LaneClaim, Work};
use super::settle::Seen;
use super::{AuditRow, FencedWrite, Hold, Intent, RelayStore};
use crate::relay::debounce::{Debounce, Mode};
use crate::relay::reduce::Reducer;

const LEASE: i64 = 30_000;

/// A request for the target `t`, interactive.
pub fn submission(principal: &str, key: &str, items: &[(&str, i64)]) -> Submission {
    let item = |(lane, value): &(&str, i64)| NewItem {
        lane: (*lane).to_owned(),
        group: "g".to_owned(),
        label: Some(format!("the {lane}")),
        session: Some("s1".to_owned()),
        value: *value,
    };
    Submission {
        target: "t".to_owned(),
        principal: principal.to_owned(),
        key: key.to_owned(),
        fingerprint: format!("{items:?}"),
        mode: Mode::Interactive,
        debounce: Debounce::default(),
        groups: true,
        items: items.iter().map(item).collect(),
        age: None,
    }
}

/// What is too old, or from the future, is not taken in; what is known is known however old it is.
async fn ages(store: &RelayStore) {
    let now = store.now().await.unwrap();
    let aged = |key: &str, ago: i64| Submission {
        age: Some(Age { first_sent: now - ago, most: 60_000, skew: 5_000 }),
        ..submission("old", key, &[("aged", 1)])
    };
    for key in ["1", "2"] {
        assert_eq!(
            store.accept(&aged(key, 90_000)).await.unwrap(),
            Accepted::TooOld,
            "asked again it is the same"
        );
    }
    assert_eq!(store.accept(&aged("1", -60_000)).await.unwrap(), Accepted::FromFuture);
    let Accepted::New { request, .. } = store.accept(&aged("1", 30_000)).await.unwrap() else { panic!() };
    assert_eq!(store.accept(&aged("1", 90_000)).await.unwrap(), Accepted::Known { request });
    assert_eq!(store.accept(&aged("1", -60_000)).await.unwrap(), Accepted::Known { request });
    let views = store.lanes("t", None, Reducer::Sum).await.unwrap();
    assert_eq!((views.len(), views[0].pending), (1, 1), "nothing of what was refused is there: {views:?}");
}

/// Where groups do not count, one name is one lane, whoever is first and whatever group is said.
async fn names(store: &RelayStore) {
    let of = |key: &str, group: &str| {
        let mut made = submission("alice", key, &[("b", 1), ("a", 1)]);
        made.groups = false;
        made.items.iter_mut().for_each(|item| group.clone_into(&mut item.group));
        made.items[0].group = "other".to_owned();
        made
    };
    let tasks: Vec<_> = (0..8)
        .map(|at| {
            let (store, submission) = (store.clone(), of(&at.to_string(), &format!("g{at}")));
            tokio::spawn(async move { store.accept(&submission).await.unwrap() })
        })
        .collect();
    let mut lanes = std::collections::BTreeSet::new();
    for task in tasks {
        let Accepted::New { lanes: found, .. } = task.await.unwrap() else { panic!("each is new") };
        lanes.extend(found);
    }
    assert_eq!(lanes.len(), 2, "one lane for each name");
    store.accept(&of("last", "")).await.unwrap();
    let last = store.accept(&of("more", "mine")).await.unwrap();
    assert!(matches!(last, Accepted::New { .. }));
    let views = store.lanes("t", Some("mine"), Reducer::Sum).await.unwrap();
    assert_eq!((views.len(), views[0].lane.name.as_str(), views[0].pending), (1, "a", 10));
    assert_eq!(store.lanes("t", None, Reducer::Sum).await.unwrap().len(), 2);
    assert_eq!(store.list(None, 0, 10).await.unwrap().len(), 2);
}

/// Runs the suite, each part on a store of its own.
///
/// # Panics
/// The store does not keep a promise.
pub async fn run<F: Future<Output = RelayStore>>(fresh: impl Fn() -> F) {
    keys(&fresh().await).await;
    ages(&fresh().await).await;
    items(&fresh().await).await;
    names(&fresh().await).await;
    batches(&fresh().await).await;
    fences(&fresh().await).await;
    holding(&fresh().await).await;
    forgetting(&fresh().await).await;
    audit(&fresh().await).await;
    races(&fresh().await).await;
    together(&fresh().await).await;
    gone_away(&fresh().await).await;
}

async fn lanes_of(store: &RelayStore, submission: &Submission) -> (i64, Vec<i64>) {
    match store.accept(submission).await.unwrap() {
        Accepted::New { request, lanes, .. } => (request, lanes),
        other => panic!("{other:?} is not new"),
    }
}

async fn claim(store: &RelayStore, lane: i64) -> Work {
    match store.claim(lane, "me", LEASE, 100).await.unwrap() {
        LaneClaim::Held(work) => *work,
        other => panic!("{other:?} is no hold"),
    }
}

fn batch(work: &Work, hi: i64) -> Intent {
    let members = work.entries.iter().filter(|entry| entry.seq <= hi);
    Intent {
        principal: work.entries[0].principal.clone(),
        lo: work.lane.watermark,
        hi,
        before: Some(100),
        after: Some(100 + members.map(|entry| entry.value).sum::<i64>()),
        version: Some("v1".to_owned()),
        key: "k".to_owned(),
        request: "{}".to_owned(),
        tries: 1,
        first: 1,
        last: 2,
        evidence: "[]".to_owned(),
    }
}

async fn keys(store: &RelayStore) {
    let one = submission("alice", "1", &[("a", 5)]);
    let (request, _) = lanes_of(store, &one).await;
    assert_eq!(store.accept(&one).await.unwrap(), Accepted::Known { request });
    assert_eq!(store.accept(&submission("alice", "1", &[("a", 6)])).await.unwrap(), Accepted::Mismatch);
    assert!(matches!(
        store.accept(&submission("bob", "1", &[("a", 5)])).await.unwrap(),
        Accepted::New { .. }
    ));
    assert_eq!(store.counts().await.unwrap().pending, 2, "a known or refused request adds nothing");
    let of_alice = store.pending("alice", Some("g"), Some("s1")).await.unwrap();
    assert_eq!((of_alice.len(), of_alice[0].1), (1, 1));
    assert!(store.pending("alice", Some("g"), Some("s2")).await.unwrap().is_empty());
    assert!(store.pending("alice", Some("h"), None).await.unwrap().is_empty());
}

async fn items(store: &RelayStore) {
    let (request, lanes) = lanes_of(store, &submission("alice", "1", &[("b", 1), ("a", 2), ("b", 3)])).await;
    assert_eq!(lanes.len(), 2);
    let found = store.request(request).await.unwrap().unwrap();
    let told: Vec<_> =
        found.items.iter().map(|item| (item.lane.as_str(), item.value, item.state.name())).collect();
    assert_eq!(told, [("b", 1, "pending"), ("a", 2, "pending"), ("b", 3, "pending")]);
    let b = store.find_lane("t", "g", "b").await.unwrap().unwrap();
    assert_eq!(b.label.as_deref(), Some("the b"));
    let work = claim(store, b.id).await;
    assert_eq!(
        work.entries.iter().map(|entry| (entry.seq, entry.value)).collect::<Vec<_>>(),
        [(1, 1), (2, 3)]
    );
}

async fn batches(store: &RelayStore) {
    let (request, lanes) = lanes_of(store, &submission("alice", "1", &[("a", 5)])).await;
    let work = claim(store, lanes[0]).await;
    assert!(store.freeze(&work.hold, &batch(&work, 2)).await.is_err(), "it ends among known entries");
    assert_eq!(store.freeze(&work.hold, &batch(&work, 1)).await.unwrap(), FencedWrite::Done);
    assert!(store.freeze(&work.hold, &batch(&work, 1)).await.is_err(), "one at a time");
    // What comes now is not part of it.
    lanes_of(store, &submission("bob", "1", &[("a", 3)])).await;
    assert_eq!(store.request(request).await.unwrap().unwrap().items[0].state.name(), "processing");
    assert_eq!(
        store.applied(&work.hold, Reducer::Sum, 0, "answered").await.unwrap().written,
        FencedWrite::Done
    );
    let lane = store.find_lane("t", "g", "a").await.unwrap().unwrap();
    assert_eq!((lane.watermark, lane.applied), (1, Some(105)));
    let found = store.request(request).await.unwrap().unwrap();
    assert_eq!(
        (found.open, found.items[0].state.name(), found.items[0].applied),
        (0, "completed", Some(105))
    );
    let work = claim(store, lanes[0]).await;
    assert_eq!((work.intent, work.entries.len(), work.entries[0].seq), (None, 1, 2));
}

async fn fences(store: &RelayStore) {
    let (_, lanes) = lanes_of(store, &submission("alice", "1", &[("a", 5)])).await;
    let work = claim(store, lanes[0]).await;
    assert!(matches!(store.claim(lanes[0], "you", LEASE, 9).await.unwrap(), LaneClaim::Busy { .. }));
    let stale = Hold { fence: work.hold.fence - 1, ..work.hold };
    let seen = Seen { error: "", evidence: "[]", last: None, is_counted: true };
    let intent = batch(&work, 1);
    for fence in [stale, Hold { fence: work.hold.fence + 1, ..work.hold }] {
        assert_eq!(store.freeze(&fence, &intent).await.unwrap(), FencedWrite::Stale);
        assert_eq!(store.resending(&fence, 9).await.unwrap(), FencedWrite::Stale);
        assert_eq!(store.applied(&fence, Reducer::Sum, 0, "").await.unwrap().written, FencedWrite::Stale);
        assert_eq!(
            store.settled_without_call(&fence, &intent, Reducer::Sum, 0).await.unwrap().written,
            FencedWrite::Stale
        );
        assert_eq!(store.dissolve(&fence, "", true, 0).await.unwrap(), FencedWrite::Stale);
        assert_eq!(store.keep(&fence, &seen, 0).await.unwrap(), FencedWrite::Stale);
        assert_eq!(store.in_doubt(&fence, &seen).await.unwrap(), FencedWrite::Stale);
        assert_eq!(store.park(&fence, "alice", "d", Reducer::Sum).await.unwrap(), FencedWrite::Stale);
        assert_eq!(store.refuse(&fence, "alice", "d", 0).await.unwrap(), FencedWrite::Stale);
        assert_eq!(store.block(&fence, "").await.unwrap(), FencedWrite::Stale);
        assert_eq!(store.bury(&fence, 1, "", Reducer::Sum).await.unwrap(), FencedWrite::Stale);
        assert_eq!(store.let_go(&fence, None, 0).await.unwrap(), FencedWrite::Stale);
    }
    let counts = store.counts().await.unwrap();
    assert_eq!(
        (counts.pending, counts.parked, counts.dead, counts.in_doubt, counts.blocked),
        (1, 0, 0, 0, 0)
    );
    assert!(store.all_refused().await.unwrap().is_empty());
    assert_eq!(store.let_go(&work.hold, None, 0).await.unwrap(), FencedWrite::Done);
    assert_eq!(store.let_go(&work.hold, None, 0).await.unwrap(), FencedWrite::Stale, "it was given back");
    let again = claim(store, lanes[0]).await;
    assert!(again.hold.fence > work.hold.fence, "fences only grow");
    assert_eq!(store.freeze(&work.hold, &intent).await.unwrap(), FencedWrite::Stale);
}

async fn holding(store: &RelayStore) {
    let (request, lanes) = lanes_of(store, &submission("alice", "1", &[("a", 5)])).await;
    lanes_of(store, &submission("bob", "1", &[("a", 3)])).await;
    let work = claim(store, lanes[0]).await;
    store.freeze(&work.hold, &batch(&work, 2)).await.unwrap();
    assert_eq!(store.park(&work.hold, "alice", "digest", Reducer::Sum).await.unwrap(), FencedWrite::Done);
    assert_eq!(store.refused("t", &["alice".to_owned()]).await.unwrap()["alice"], "digest");
    let work = claim(store, lanes[0]).await;
    assert_eq!(
        (work.intent.is_none(), work.entries.len(), work.entries[0].principal.as_str()),
        (true, 1, "bob")
    );
    assert_eq!(store.request(request).await.unwrap().unwrap().items[0].state.name(), "auth_revoked");
    store.freeze(&work.hold, &batch(&work, 2)).await.unwrap();
    store.applied(&work.hold, Reducer::Sum, 0, "answered").await.unwrap();
    assert!(matches!(store.claim(lanes[0], "me", LEASE, 9).await.unwrap(), LaneClaim::Idle));
    assert_eq!(store.release("t", "alice", "x", &|| 0).await.unwrap(), 1);
    assert_eq!(store.release("t", "alice", "x", &|| 0).await.unwrap(), 0);
    assert!(store.all_refused().await.unwrap().is_empty());
    let work = claim(store, lanes[0]).await;
    assert_eq!(work.entries.iter().map(|entry| (entry.seq, entry.value)).collect::<Vec<_>>(), [(3, 5)]);
    assert_eq!(store.bury(&work.hold, 3, "no", Reducer::Sum).await.unwrap(), FencedWrite::Done);
    let found = store.request(request).await.unwrap().unwrap();
    assert_eq!((found.open, found.dead, found.items[0].state.name()), (0, 1, "failed"));
    assert_eq!(store.requeue(lanes[0], "x").await.unwrap(), 1);
    let found = store.request(request).await.unwrap().unwrap();
    assert_eq!(
        (found.open, found.dead, found.items.len(), found.items[0].state.name()),
        (1, 0, 1, "pending")
    );
}

/// Writes what waits in a lane.
async fn write(store: &RelayStore, lane: i64) {
    let work = claim(store, lane).await;
    let hi = work.entries.last().map_or(0, |entry| entry.seq);
    store.freeze(&work.hold, &batch(&work, hi)).await.unwrap();
    store.applied(&work.hold, Reducer::Sum, 0, "answered").await.unwrap();
}

/// Forgets what is done, whenever that was.
async fn forget(store: &RelayStore) -> i64 {
    store.forget(i64::MAX).await.unwrap()
}

/// A request of one entry is done by its lane's watermark, any other once all of its entries are; and what is done, and
/// nothing else, is forgotten.
async fn forgetting(store: &RelayStore) {
    let alice = lanes_of(store, &submission("alice", "1", &[("a", 5)])).await.0;
    let (dave, in_a) = lanes_of(store, &submission("dave", "1", &[("a", 7)])).await;
    let (carol, in_both) = lanes_of(store, &submission("carol", "1", &[("a", 1), ("b", 2)])).await;
    let bob = lanes_of(store, &submission("bob", "1", &[("a", 3)])).await.0;
    let work = claim(store, in_a[0]).await;
    assert_eq!(store.park(&work.hold, "dave", "digest", Reducer::Sum).await.unwrap(), FencedWrite::Done);
    assert_eq!(forget(store).await, 0);
    write(store, in_a[0]).await;
    let mut done = Vec::new();
    for request in [alice, bob, carol, dave] {
        let found = store.request(request).await.unwrap().unwrap();
        done.push((store.is_done(request).await.unwrap(), found.open));
    }
    assert_eq!(done, [(true, 0), (true, 0), (false, 1), (false, 1)]);
    let mut waiting = Vec::new();
    for principal in ["alice", "bob", "carol", "dave"] {
        let found = store.pending(principal, None, None).await.unwrap();
        waiting.push(found.iter().map(|(lane, many)| (lane.name.clone(), *many)).collect::<Vec<_>>());
    }
    let one = |lane: &str| vec![(lane.to_owned(), 1)];
    assert_eq!(waiting, [vec![], vec![], one("b"), one("a")]);
    assert_eq!(forget(store).await, 2, "alice's and bob's");
    assert_eq!(store.release("t", "dave", "x", &|| 0).await.unwrap(), 1);
    assert_eq!(store.request(dave).await.unwrap().unwrap().open, 1);
    for lane in in_both {
        write(store, lane).await;
    }
    assert!(store.is_done(carol).await.unwrap() && store.is_done(dave).await.unwrap());
    assert_eq!(forget(store).await, 2, "carol's and dave's");
    assert_eq!(forget(store).await, 0);
    for request in [alice, bob, carol, dave] {
        assert_eq!(store.request(request).await.unwrap(), None);
    }
    let sums: i64 = store.audit_after(0, 100).await.unwrap().iter().map(applied).sum();
    assert_eq!(sums, 5 + 7 + 1 + 2 + 3, "each was applied once");
    let again = store.accept(&submission("alice", "1", &[("a", 5)])).await.unwrap();
    assert!(matches!(again, Accepted::New { .. }), "{again:?}");
}

/// Requests that come at once share transactions, and each is told what it would be told alone.
async fn together(store: &RelayStore) {
    let of = |number: usize| {
        let (a, b) = (format!("a{}", number % 3), format!("b{}", number % 5));
        let items = [(a.as_str(), 1), (b.as_str(), 10), (a.as_str(), 100)];
        submission("alice", &number.to_string(), &items[..1 + number % 3])
    };
    // Each of 40 keys comes twice with the same items and once with others.
    let all: Vec<Submission> = (0..120)
        .map(|number| match number / 40 {
            0 | 1 => of(number % 40),
            _ => Submission { fingerprint: "other".to_owned(), ..of(number % 40) },
        })
        .collect();
    let told = futures_util::future::join_all(all.iter().map(|one| store.accept(one))).await;
    // Whoever is first: where all together were refused, each is tried alone, in any order.
    let mut requests = std::collections::BTreeMap::new();
    for (number, told) in told.iter().enumerate() {
        if let Accepted::New { request, lanes, found } = told.as_ref().unwrap() {
            let first = (*request, &all[number].fingerprint);
            assert_eq!(requests.insert(number % 40, first), None, "{number} is new once");
            assert_eq!(lanes.len(), 1 + usize::from(all[number].items.len() > 1));
            assert_eq!(store.request(*request).await.unwrap().as_ref(), Some(found), "as it is read");
        }
    }
    for (number, told) in told.iter().enumerate() {
        let (first, fingerprint) = requests[&(number % 40)];
        match told.as_ref().unwrap() {
            Accepted::New { .. } => {}
            Accepted::Known { request } => {
                assert_eq!(
                    (*request, fingerprint),
                    (first, &all[number].fingerprint),
                    "{number} is the same"
                );
            }
            Accepted::Mismatch => assert_ne!(fingerprint, &all[number].fingerprint, "{number} is another"),
            Accepted::TooOld | Accepted::FromFuture => panic!("{number} has no age"),
        }
    }
    assert_eq!(requests.len(), 40);
    let wanted: i64 = (0..40).flat_map(|number| of(number).items).map(|item| item.value).sum();
    let views = store.lanes("t", None, Reducer::Sum).await.unwrap();
    assert_eq!((views.len(), views.iter().map(|view| view.delta).sum::<i64>()), (8, wanted));
    for view in &views {
        let entries = store.detail(view.lane.id).await.unwrap().unwrap().entries;
        assert!(entries.iter().map(|entry| entry.seq).eq(1..=entries.len() as i64), "numbers have no gaps");
    }
}

/// Whoever takes others along may go away in the middle: they are accepted all the same, once.
async fn gone_away(store: &RelayStore) {
    for round in 0..10 {
        let tasks: Vec<_> = (0..24)
            .map(|number| {
                let one = submission("alice", &format!("{round}-{number}"), &[("a", 1)]);
                let store = store.clone();
                tokio::spawn(async move { store.accept(&one).await })
            })
            .collect();
        tokio::time::sleep(std::time::Duration::from_micros(300 * round)).await;
        for task in tasks.iter().step_by(3) {
            task.abort();
        }
        for task in tasks {
            match task.await {
                Ok(told) => assert!(matches!(told, Ok(Accepted::New { .. } | Accepted::Known { .. }))),
                Err(error) => assert!(error.is_cancelled(), "{error}"),
            }
        }
        for number in 0..24 {
            store.accept(&submission("alice", &format!("{round}-{number}"), &[("a", 1)])).await.unwrap();
        }
    }
    assert_eq!(store.counts().await.unwrap().pending, 240);
}

fn applied(row: &AuditRow) -> i64 {
    row.value.filter(|_| row.event == "applied").unwrap_or(0)
}

async fn audit(store: &RelayStore) {
    let (_, lanes) = lanes_of(store, &submission("alice", "1", &[("a", 5), ("a", 2)])).await;
    let work = claim(store, lanes[0]).await;
    store.freeze(&work.hold, &batch(&work, 2)).await.unwrap();
    store.applied(&work.hold, Reducer::Sum, 0, "answered").await.unwrap();
    let rows = store.audit_after(0, 10).await.unwrap();
    let told: Vec<_> = rows.iter().map(|row| (row.value, row.before, row.after)).collect();
    assert_eq!(told, [(Some(5), Some(100), Some(105)), (Some(2), Some(105), Some(107))]);
    for sql in [
        "UPDATE relay_audit SET after = 1",
        "DELETE FROM relay_audit",
        "UPDATE relay_item SET value = 1",
        "INSERT INTO relay_item (lane, seq, request, pos, principal, value, created_ms) SELECT id, 1, 1, 9, 'x', 1, 1 FROM relay_lane",
    ] {
        let mut tx = store.db.begin().await.unwrap();
        let changed = match tx.run(sql, vec![]).await {
            Ok(_) => tx.commit().await,
            Err(error) => Err(error),
        };
        assert!(changed.is_err(), "{sql}");
    }
    assert_eq!(store.audit_after(0, 10).await.unwrap(), rows);
}

async fn races(store: &RelayStore) {
    // One request sent many times at once is one request.
    let same = submission("alice", "same", &[("a", 1), ("b", 1)]);
    let all = (0..8).map(|_| {
        let (store, same) = (store.clone(), same.clone());
        tokio::spawn(async move { store.accept(&same).await })
    });
    let mut new = 0;
    for racer in all.collect::<Vec<_>>() {
        match racer.await.unwrap() {
            Ok(Accepted::New { .. }) => new += 1,
            Ok(Accepted::Known { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(new, 1);
    // Many requests on the same lanes, in whatever order, all get a number of their own.
    let many = (0..20).map(|at| {
        let store = store.clone();
        let lanes: &[(&str, i64)] = if at % 2 == 0 { &[("a", 1), ("b", 1)] } else { &[("b", 1), ("a", 1)] };
        let one = submission("bob", &at.to_string(), lanes);
        tokio::spawn(async move { store.accept(&one).await })
    });
    for racer in many.collect::<Vec<_>>() {
        assert!(matches!(racer.await.unwrap(), Ok(Accepted::New { .. })));
    }
    let lane = store.find_lane("t", "g", "a").await.unwrap().unwrap();
    // Only one of many gets the lane.
    let claims = (0..8).map(|at| {
        let store = store.clone();
        tokio::spawn(async move { store.claim(lane.id, &format!("r{at}"), LEASE, 100).await })
    });
    let mut held = Vec::new();
    for racer in claims.collect::<Vec<_>>() {
        if let LaneClaim::Held(work) = racer.await.unwrap().unwrap() {
            held.push(work);
        }
    }
    assert_eq!(held.len(), 1);
    assert_eq!(
        held[0].entries.iter().map(|entry| entry.seq).collect::<Vec<_>>(),
        (1..=21).collect::<Vec<i64>>()
    );
}

/// What must hold of a store that was made by version 1 and holds lanes in every state: `a` with 5 applied and 3 waiting, `b`
/// with a batch of 7 under way and 1 waiting, `c` with 9 parked, `d` with 4 in doubt, `e` with 2 given up, `f` with 6 that
/// wait for later.
///
/// # Panics
/// Something is lost.
pub async fn upgraded(store: &RelayStore) {
    let counts = store.counts().await.unwrap();
    let told = (counts.pending, counts.parked, counts.dead, counts.in_doubt, counts.blocked);
    assert_eq!(told, (1 + 2 + 1 + 1, 1, 1, 1, 0));
    let lane = async |name: &str| {
        let lane = store.find_lane("t", "g", name).await.unwrap().unwrap();
        store.detail(lane.id).await.unwrap().unwrap()
    };
    let a = lane("a").await;
    assert_eq!((a.lane.watermark, a.lane.applied, a.lane.label.as_deref()), (1, Some(105), Some("the a")));
    assert_eq!((a.entries.len(), a.due.is_some(), a.audit.len()), (1, true, 1));
    let b = lane("b").await;
    assert_eq!((b.intent.as_ref().unwrap().key.as_str(), b.entries.len()), ("key of b", 2));
    assert_eq!((lane("c").await.held.len(), lane("c").await.due), (1, None));
    let d = lane("d").await;
    assert_eq!((d.lane.state.name(), d.intent.unwrap().hi, d.due), ("in-doubt", 1, None));
    assert_eq!(lane("e").await.held[0].0, "dead");
    assert_eq!(lane("f").await.lane.last_error.as_deref(), Some("the target is paused"));
    assert_eq!(store.paused(&["t/alice".to_owned()], 1).await.unwrap().len(), 1);
    assert_eq!(store.refused("t", &["alice".to_owned()]).await.unwrap()["alice"], "digest");

    // Known keys stay known, numbers and fences go on.
    let same = submission("bob", "a2", &[("a", 3)]);
    assert!(matches!(store.accept(&same).await.unwrap(), Accepted::Known { .. }));
    submitted(store).await;
    let work = claim(store, a.lane.id).await;
    assert_eq!((work.hold.fence, work.lane.watermark), (2, 1));
    assert_eq!(work.entries.iter().map(|entry| entry.seq).collect::<Vec<_>>(), [2, 3]);
    store.freeze(&work.hold, &batch(&work, 3)).await.unwrap();
    store.applied(&work.hold, Reducer::Sum, 0, "answered").await.unwrap();
    assert_eq!(store.release("t", "alice", "x", &|| 0).await.unwrap(), 1);
    assert_eq!(store.requeue(lane("e").await.lane.id, "x").await.unwrap(), 1);
    let resolved =
        store.resolve(d.lane.id, super::operate::Resolution::Applied, Reducer::Sum, 0, "x").await.unwrap();
    assert_eq!(resolved, super::operate::Resolved::Done);
    let counts = store.counts().await.unwrap();
    let told = (counts.pending, counts.parked, counts.dead, counts.in_doubt);
    assert_eq!(told, (2 + 1 + 1 + 1, 0, 0, 0), "all that waits is in its lane");
}

/// One more entry in lane `a`, the same each time.
///
/// # Panics
/// It is not taken.
pub async fn submitted(store: &RelayStore) {
    assert_ne!(store.accept(&submission("dora", "later", &[("a", 1)])).await.unwrap(), Accepted::Mismatch);
}

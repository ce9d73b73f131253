//! What every backend promises to operators. Named in
//! [`admin_conformance_tests!`](crate::admin_conformance_tests) like the rest of the suite.

use std::sync::Arc;

use semel_contract::restore::Undated;

use super::*;
use crate::admin::{AdminStore, Audited, Note, Sought, StalePlace, Trail, action, sweep_all};

/// A backend that operators can look into.
pub trait AdminFixture: Fixture {
    /// The store, as operators see it.
    fn admin(&self) -> Arc<dyn AdminStore>;
}

/// Makes a test of every promise to operators.
#[macro_export]
macro_rules! admin_conformance_tests {
    ($fixture:expr) => {
        $crate::conformance_tests!($fixture;
            a_record_is_found_by_number_request_and_key,
            a_resolved_record_is_found_by_its_old_number,
            the_trail_tells_who_did_what_and_is_paged,
            a_seal_by_hand_is_on_the_trail,
            a_run_of_the_sweeper_is_logged,
            stale_actions_are_counted_per_principal,
            a_restore_is_kept_and_told,
            a_jump_of_the_clock_is_shown_and_confirmed,
            open_records_are_listed_among_settled_ones,
        );
    };
}

async fn find(store: &dyn AdminStore, sought: Sought) -> Vec<Fence> {
    let found = store.find(&sought, 10).await.expect("the store answers");
    found.into_iter().map(|entry| entry.record.fence).collect()
}

async fn trail_of(store: &dyn AdminStore, id: &Id) -> Vec<Audited> {
    let trail = Trail { hash: Some(id.hash()), before: None, limit: 10 };
    store.trail(&trail).await.expect("the store answers")
}

/// Whoever it belongs to, and in whatever state it is.
pub async fn a_record_is_found_by_number_request_and_key(fixture: &impl AdminFixture) {
    let store = fixture.admin();
    let hers = id("alice");
    let his = Id { scope: scope("bob"), key: hers.key.clone() };
    let request = format!("request-{}", nonce());
    let about = Arc::new(About { request_id: request.clone(), ..About::default() });
    let first = won(&*store, ClaimRequest { about: about.clone(), ..claim_request(&hers) }).await;
    let second =
        won(&*store, ClaimRequest { guarantee: Guarantee::Atomic, about, ..claim_request(&his) }).await;
    settle(&*store, &hers, first, settled("x")).await;
    assert_eq!(find(&*store, Sought::Record(first.number)).await, [first]);
    assert_eq!(find(&*store, Sought::Record(second.number)).await, [second], "also one that is held");
    let both = [first, second];
    assert_eq!(find(&*store, Sought::Key(hers.key.as_str().to_owned())).await, both, "in every scope");
    assert_eq!(find(&*store, Sought::RequestId(request)).await, both);
    assert_eq!(store.find(&Sought::Key(hers.key.as_str().to_owned()), 1).await.expect("found").len(), 1);
    for nobody in [Sought::Record(u64::MAX), Sought::Record(0), Sought::Key("nobody".to_owned())] {
        assert_eq!(find(&*store, nobody).await, []);
    }
}

/// Its number is new, and whoever wrote the old one down still finds it.
pub async fn a_resolved_record_is_found_by_its_old_number(fixture: &impl AdminFixture) {
    let store = fixture.admin();
    let id = id("alice");
    let fence = won(&*store, claim_request(&id)).await;
    settle(&*store, &id, fence, Settlement::Unknown).await;
    let applied = Resolution::Applied(Some(answer("x")));
    let resolved = store.resolve(&id, fence, applied, &lifetime(), "carol", "the bank says so").await;
    assert_eq!(resolved, Ok(Resolved::Done));
    let now = entry(&*store, &id).await.record.fence;
    assert_ne!(now.number, fence.number);
    assert_eq!(find(&*store, Sought::Record(fence.number)).await, [now]);
    let rows = trail_of(&*store, &id).await;
    let row = rows.first().expect("it is on the trail");
    assert_eq!((row.actor.as_str(), row.action.as_str()), ("carol", action::RESOLVE_APPLIED));
    assert_eq!((row.reason.as_str(), row.count), ("the bank says so", 1));
    assert_eq!(row.fence.as_deref(), Some(fence.to_string().as_str()));
    let other = super::id("alice");
    let fence = won(&*store, claim_request(&other)).await;
    settle(&*store, &other, fence, Settlement::Unknown).await;
    fixture.advance(past(LEASE + LATE + LATE_ADDED_MAX)).await;
    let resolved = store.resolve(&other, fence, Resolution::NotApplied, &lifetime(), "carol", "asked").await;
    assert_eq!(resolved, Ok(Resolved::Done));
    assert_eq!(trail_of(&*store, &other).await[0].action, action::RESOLVE_NOT_APPLIED);
    assert_eq!(
        find(&*store, Sought::Record(fence.number)).await,
        [],
        "it is free, and nothing is kept of it"
    );
}

/// The latest first, page by page, and nothing twice.
pub async fn the_trail_tells_who_did_what_and_is_paged(fixture: &impl AdminFixture) {
    let store = fixture.admin();
    for count in 0..5 {
        let reason = format!("reason {count}");
        let note = Note { actor: "carol".to_owned(), action: action::SWEEP, reason, count };
        store.note(&note).await.expect("the store answers");
    }
    let mut seen = Vec::new();
    let mut before = None;
    loop {
        let page = Trail { hash: None, before, limit: 2 };
        let rows = store.trail(&page).await.expect("the store answers");
        let Some(last) = rows.last() else { break };
        before = Some(last.number);
        assert!(rows.iter().all(|row| row.action == action::SWEEP && row.actor == "carol"));
        seen.extend(rows.into_iter().map(|row| row.count));
    }
    assert_eq!(seen, [4, 3, 2, 1, 0]);
}

/// In the same commit; a key that is in use is not sealed, and nothing is said of it.
pub async fn a_seal_by_hand_is_on_the_trail(fixture: &impl AdminFixture) {
    let store = fixture.admin();
    let (free, used) = (id("alice"), id("alice"));
    let seal = async |id: &Id| {
        let sealed = store.seal_by(id, &About::default(), &lifetime(), "carol", "sent twice").await;
        sealed.expect("the store answers")
    };
    assert!(matches!(seal(&free).await, Sealed::Done));
    assert_eq!(standing(&*store, &free).await, Standing::Sealed);
    let rows = trail_of(&*store, &free).await;
    assert_eq!((rows.len(), rows[0].action.as_str(), rows[0].actor.as_str()), (1, action::SEAL, "carol"));
    won(&*store, claim_request(&used)).await;
    assert!(matches!(seal(&used).await, Sealed::Known(_)));
    assert_eq!(trail_of(&*store, &used).await, []);
}

/// When, how many and how long; a run that did nothing only where it is asked for.
pub async fn a_run_of_the_sweeper_is_logged(fixture: &impl AdminFixture) {
    let store = fixture.admin();
    for _ in 0..5 {
        let id = id("alice");
        let fence = won(&*store, claim_request(&id)).await;
        settle(&*store, &id, fence, settled("old")).await;
    }
    let run =
        async |log| sweep_all(&*store, 2, Duration::ZERO, log).await.expect("the store answers").removed;
    assert_eq!(run(false).await, 0);
    assert_eq!(store.cleanups(None, 10).await.expect("the store answers"), []);
    fixture.advance(past(lifetime().record())).await;
    let (_, before) = store.look_up(&id("alice")).await.expect("the store answers");
    assert_eq!(run(false).await, 5, "batch by batch until nothing is left");
    let rows = store.cleanups(None, 10).await.expect("the store answers");
    assert_eq!((rows.len(), rows[0].swept.removed), (1, 5), "one row for one run");
    assert!(rows[0].at >= before, "by the store's time");
    assert_eq!(run(true).await, 0);
    let rows = store.cleanups(None, 10).await.expect("the store answers");
    assert_eq!(rows.iter().map(|row| row.swept.removed).collect::<Vec<_>>(), [0, 5], "the latest first");
    let page = store.cleanups(Some(rows[0].number), 10).await.expect("the store answers");
    assert_eq!(page, rows[1..]);
}

/// The highest first, and erased with the principal.
pub async fn stale_actions_are_counted_per_principal(fixture: &impl AdminFixture) {
    let store = fixture.admin();
    let (alice, bob) = (format!("alice-{}", nonce()), format!("bob-{}", nonce()));
    let count = async |tenant: Option<&str>, principal: &str| {
        store.count_stale(tenant, principal).await.expect("the store answers");
    };
    count(None, &alice).await;
    fixture.advance(Duration::from_secs(5)).await;
    for _ in 0..3 {
        count(Some("shop"), &bob).await;
    }
    count(None, &alice).await;
    let told = async |principal: Option<&str>| {
        let rows = store.stale(principal, 10).await.expect("the store answers");
        rows.into_iter().map(|row| (row.tenant, row.principal, row.count)).collect::<Vec<_>>()
    };
    let (hers, his) = ((None, alice.clone(), 2), (Some("shop".to_owned()), bob.clone(), 3));
    assert_eq!(told(None).await, [his.clone(), hers.clone()]);
    // Page by page, also where counts are equal.
    count(None, &bob).await;
    count(None, &bob).await;
    let (mut paged, mut after) = (Vec::new(), None);
    loop {
        let page = store.stale_after(None, after.take(), 1).await.expect("the store answers");
        let Some(row) = page.first() else { break };
        after = Some(StalePlace::of(row));
        paged.push((row.tenant.clone(), row.principal.clone(), row.count));
    }
    assert_eq!(paged, [his.clone(), hers.clone(), (None, bob.clone(), 2)]);
    store.forget(None, &bob, "carol").await.expect("the store answers");
    assert_eq!(told(Some(&alice)).await, [hers]);
    let rows = store.stale(Some(&alice), 10).await.expect("the store answers");
    assert!(rows[0].last_at.millis_since(rows[0].first_at) >= 5000, "{rows:?}");
    store.forget(None, &alice, "carol").await.expect("the store answers");
    assert_eq!(told(None).await, [his]);
}

/// The same backup again changes what is done with undated keys, not since when.
pub async fn a_restore_is_kept_and_told(fixture: &impl AdminFixture) {
    let store = fixture.admin();
    assert_eq!(store.restores().await.expect("the store answers"), []);
    let (_, now) = store.look_up(&id("alice")).await.expect("the store answers");
    let backup_at = now.minus(Duration::from_secs(3600));
    let restored = async |undated| {
        store.restored(backup_at, undated, "carol", "disk died").await.expect("the store answers")
    };
    let first = restored(Undated::Unknown).await;
    assert_eq!((first.backup_at, first.undated), (backup_at, Undated::Unknown));
    assert!(first.restored_at >= now);
    assert_eq!(store.restores().await.expect("the store answers"), [first]);
    fixture.advance(Duration::from_secs(60)).await;
    let again = restored(Undated::Trusted).await;
    assert_eq!((again.restored_at, again.undated), (first.restored_at, Undated::Trusted));
    assert_eq!(store.restores().await.expect("the store answers"), [again]);
    let rows = store.trail(&Trail { limit: 10, ..Trail::default() }).await.expect("the store answers");
    assert_eq!(rows.iter().filter(|row| row.action == action::RESTORED && row.actor == "carol").count(), 2);
}

/// Until then nothing expires; afterwards the new time counts.
pub async fn a_jump_of_the_clock_is_shown_and_confirmed(fixture: &impl AdminFixture) {
    let store = fixture.admin();
    let clock = async || store.clock().await.expect("the store answers");
    let before = clock().await;
    assert_eq!(before.jump_millis, None);
    let month = 86_400_000 * 30;
    if !fixture.set_wall_off(month).await {
        return;
    }
    let jumped = clock().await;
    assert!(jumped.now.millis_since(before.now) < month / 2, "not believed");
    let by = clock().await.jump_millis.expect("it is shown");
    assert!((by - month).abs() < 60_000, "{by}");
    store.confirm_jump("carol", "the server's battery was changed").await.expect("the store answers");
    let after = clock().await;
    assert_eq!(after.jump_millis, None);
    assert!(after.now.millis_since(before.now) >= month, "believed");
    let rows = store.trail(&Trail { limit: 1, ..Trail::default() }).await.expect("the store answers");
    assert_eq!((rows[0].action.as_str(), rows[0].actor.as_str()), (action::CONFIRM_CLOCK, "carol"));
}

/// Whatever lies between them, and by age.
pub async fn open_records_are_listed_among_settled_ones(fixture: &impl AdminFixture) {
    let store = fixture.admin();
    let mut open = Vec::new();
    for at in 0..6 {
        let id = id("alice");
        let fence = won(&*store, claim_request(&id)).await;
        let (settlement, is_open) =
            if at % 2 == 0 { (Settlement::Unknown, true) } else { (settled("x"), false) };
        settle(&*store, &id, fence, settlement).await;
        if is_open {
            open.push(fence);
        }
        fixture.advance(Duration::from_secs(1)).await;
    }
    let filter = Filter { state: Some(State::Unknown), limit: 10, ..Filter::default() };
    let list = async |filter: &Filter| store.list(filter).await.expect("the store answers");
    let fences = |found: &[Entry]| found.iter().map(|entry| entry.record.fence).collect::<Vec<_>>();
    let found = list(&filter).await;
    assert_eq!(fences(&found), open);
    let older = Filter { created_before: Some(found[2].record.created_at), ..filter.clone() };
    assert_eq!(fences(&list(&older).await), open[..2]);
    let page = Filter { after: Some(open[0].number), limit: 1, ..filter };
    assert_eq!(fences(&list(&page).await), open[1..2]);
}

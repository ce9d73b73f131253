//! The suite that every backend passes. A backend's test file makes a [`Fixture`] and names it in
//! [`conformance_tests!`](crate::conformance_tests); each claim below then becomes a test of that backend.

mod admin;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use semel_contract::decide::{Claim, Standing};
use semel_contract::fingerprint::{Fingerprint, Version};
use semel_contract::key::{Format, Key};
use semel_contract::profile::{Lifetime, presets};
use semel_contract::record::{Fence, Guarantee, State};
use semel_contract::scope::Scope;
use semel_contract::time::Timestamp;

use crate::claims::{
    About, Answer, ClaimStore, Claimed, Entry, Filter, Id, Resolution, Resolved, Sealed, Settlement, Wish,
    Written,
};
use crate::clock::{Clock, Reading};

pub use admin::*;

/// How long a claim of the suite is exclusive.
pub const LEASE: Duration = Duration::from_secs(30);
/// How long after that a request of the suite may still take effect.
pub const LATE: Duration = Duration::from_secs(60);
/// A store whose clock may be set ahead unnoticed adds as much to the late window; none adds more.
const LATE_ADDED_MAX: Duration = Duration::from_secs(60);

/// A backend under test.
pub trait Fixture: Send + Sync {
    /// The store.
    fn store(&self) -> Arc<dyn ClaimStore>;

    /// Lets the store's time pass.
    fn advance<'a>(&'a self, by: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

    /// Sets the wall clock off by this many milliseconds, as a person or a wrong server would. `false`: this backend
    /// takes its time from elsewhere and has tests of its own for it.
    fn set_wall_off<'a>(&'a self, millis: i64) -> Pin<Box<dyn Future<Output = bool> + Send + 'a>>;
}

/// A clock that tests move.
#[derive(Debug)]
pub struct TestClock {
    ticks: AtomicU64,
    wall_off: AtomicI64,
}

impl Default for TestClock {
    fn default() -> Self {
        Self { ticks: AtomicU64::new(0), wall_off: AtomicI64::new(0) }
    }
}

impl TestClock {
    /// Lets both clocks tick.
    pub fn advance(&self, by: Duration) {
        self.ticks.fetch_add(by.as_millis() as u64, Ordering::SeqCst);
    }

    /// Sets the wall clock off.
    pub fn set_wall_off(&self, millis: i64) {
        self.wall_off.store(millis, Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    fn read(&self) -> Reading {
        let ticks = self.ticks.load(Ordering::SeqCst);
        let wall = 1_800_000_000_000 + ticks as i64 + self.wall_off.load(Ordering::SeqCst);
        Reading { wall: Timestamp::from_millis(wall), ticks: Duration::from_millis(ticks) }
    }
}

/// Makes a test of every claim of the suite. The fixture is an expression that is awaited for each.
#[macro_export]
macro_rules! conformance_tests {
    ($fixture:expr) => {
        $crate::conformance_tests!($fixture;
            one_of_many_concurrent_claims_wins,
            a_claim_keeps_what_it_was_told,
            a_settled_answer_is_found_byte_for_byte,
            settling_twice_with_one_fence_is_success,
            settling_twice_with_another_answer_changes_nothing,
            a_stale_fence_cannot_settle_renew_or_release,
            fences_only_grow_also_after_release_and_sweep,
            a_claim_made_again_with_its_nonce_is_the_same_claim,
            a_lapsed_lease_is_unknown_and_still_accepts_its_holder,
            a_resolved_outcome_no_longer_accepts_its_holder,
            not_applied_is_refused_while_it_could_still_take_effect,
            an_abandoned_atomic_claim_is_superseded,
            a_renewed_lease_does_not_lapse,
            an_unknown_outcome_is_not_revived_by_renewal,
            a_released_key_is_free_again,
            a_released_row_that_is_kept_is_reclaimed_by_its_fence,
            an_expired_record_is_taken_over_by_one,
            an_expired_record_is_not_claimed_as_new,
            lifetimes_count_from_their_anchor,
            an_unkept_answer_keeps_its_status_only,
            an_unknown_mark_keeps_its_fence,
            one_key_in_two_scopes_never_meets,
            a_rotated_credential_is_recognised,
            a_sealed_key_cannot_be_claimed,
            sealing_a_used_key_returns_its_record,
            a_sweep_removes_only_what_is_finished_and_expired,
            a_sweep_is_bounded,
            a_sweep_marks_lapsed_claims_and_frees_abandoned_ones,
            forgetting_a_principal_leaves_claims_and_others,
            lists_are_filtered_and_paged,
            a_clock_set_back_never_revives_or_repeats,
            a_clock_set_forward_never_expires_anything,
            waiters_are_woken_by_a_settlement,
        );
    };
    ($fixture:expr; $($claim:ident),* $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $claim() {
                let fixture = $fixture.await;
                $crate::conformance::$claim(&fixture).await;
            }
        )*
    };
}

/// An id; keys of one test never meet those of another, also where backends share a database.
fn id(principal: &str) -> Id {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let unique = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::SeqCst));
    Id { scope: scope(principal), key: Key::parse(&Format::Printable255, &unique).expect("a printable key") }
}

fn scope(principal: &str) -> Scope {
    Scope::of(None, Some(principal), Some("create-order"))
}

fn fingerprint(byte: u8) -> Fingerprint {
    Fingerprint { version: Version::Plain, bytes: [byte; 32] }
}

fn nonce() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    (u64::from(std::process::id()) << 32) + NEXT.fetch_add(1, Ordering::SeqCst)
}

fn wish(id: &Id) -> Wish {
    Wish {
        id: id.clone(),
        how: Claim::New,
        replaces: None,
        nonce: nonce(),
        lease: LEASE,
        late: LATE,
        guarantee: Guarantee::Fenced,
        fingerprint: Some(fingerprint(1)),
        payload_hash: None,
        rotation: None,
        terms: None,
        about: About {
            endpoint: "create-order".to_owned(),
            principal: "alice".to_owned(),
            request_id: "req-1".to_owned(),
            ..About::default()
        },
    }
}

fn replacing(id: &Id, how: Claim, fence: Fence) -> Wish {
    Wish { how, replaces: Some(fence), ..wish(id) }
}

fn answer(body: &str) -> Answer {
    let header = |name: &str, value: &str| (name.to_owned(), value.as_bytes().to_vec());
    Answer {
        status: 201,
        headers: vec![header("content-type", "text/plain"), header("x-tag", "a"), header("x-tag", "\u{e9}")],
        body: Bytes::copy_from_slice(body.as_bytes()),
        outcome_unknown: false,
    }
}

fn settled(body: &str) -> Settlement {
    Settlement::Settle(answer(body))
}

fn lifetime() -> Lifetime {
    presets::ietf().lifetime
}

fn keeping_released() -> Lifetime {
    presets::feed().lifetime
}

async fn won(store: &dyn ClaimStore, wish: Wish) -> Fence {
    match store.claim(wish).await.expect("the store answers") {
        Claimed::Won { fence, .. } => fence,
        other => panic!("expected to win, found {other:?}"),
    }
}

async fn known(store: &dyn ClaimStore, wish: Wish) -> Entry {
    match store.claim(wish).await.expect("the store answers") {
        Claimed::Known { entry, .. } => *entry,
        other => panic!("expected a record, found {other:?}"),
    }
}

async fn entry(store: &dyn ClaimStore, id: &Id) -> Entry {
    store.look_up(id).await.expect("the store answers").0.expect("there is a record")
}

async fn standing(store: &dyn ClaimStore, id: &Id) -> Standing {
    let (entry, now) = store.look_up(id).await.expect("the store answers");
    Standing::of(entry.as_ref().map(|entry| &entry.record), now)
}

async fn settle(store: &dyn ClaimStore, id: &Id, fence: Fence, settlement: Settlement) -> Written {
    store.settle(id, fence, settlement, &lifetime()).await.expect("the store answers")
}

async fn renew(store: &dyn ClaimStore, id: &Id, fence: Fence) -> Written {
    store.renew(&[(id.clone(), fence)], LEASE).await.expect("the store answers")[0]
}

fn past(duration: Duration) -> Duration {
    duration + Duration::from_secs(1)
}

/// 64 at once, one winner; the others find its claim.
pub async fn one_of_many_concurrent_claims_wins(fixture: &impl Fixture) {
    let store = fixture.store();
    let id = id("alice");
    let claims: Vec<_> = (0..64)
        .map(|_| {
            let (store, wish) = (Arc::clone(&store), wish(&id));
            tokio::spawn(async move { store.claim(wish).await })
        })
        .collect();
    let (mut winners, mut losers) = (Vec::new(), Vec::new());
    for claim in claims {
        match claim.await.expect("no claim panics").expect("the store answers") {
            Claimed::Won { fence, .. } => winners.push(fence),
            Claimed::Known { entry, .. } => losers.push(entry.record.fence),
            other => panic!("neither won nor lost: {other:?}"),
        }
    }
    assert_eq!((winners.len(), losers.len()), (1, 63));
    assert!(losers.iter().all(|fence| *fence == winners[0]), "losers see the winner's fence");
}

/// What a claim says about its request is found again.
pub async fn a_claim_keeps_what_it_was_told(fixture: &impl Fixture) {
    let store = fixture.store();
    let id = id("alice");
    let about = About {
        endpoint: "create-order".to_owned(),
        tenant: Some("acme".to_owned()),
        principal: "alice\u{0301} 'quoted'".to_owned(),
        client_generated_at: Some(Timestamp::from_millis(1_700_000_000_123)),
        headers: vec![("x-client-tx-id".to_owned(), "tx-1".to_owned())],
        request_id: "req-7".to_owned(),
    };
    let wished = Wish { payload_hash: Some([9; 32]), about: about.clone(), ..wish(&id) };
    let fence = won(&*store, wished).await;
    for _ in 0..2 {
        let found = entry(&*store, &id).await;
        assert_eq!((found.about.clone(), found.record.fence), (about.clone(), fence));
        assert_eq!(found.record.payload_hash, Some([9; 32]));
        assert!(found.record.fingerprint.is_some_and(|found| found.same(&fingerprint(1))));
        assert_eq!(
            settle(&*store, &id, fence, settled("x")).await,
            Written::Done,
            "and it survives the settlement"
        );
    }
}

/// Status, headers in order with repeated names, and exact bytes.
pub async fn a_settled_answer_is_found_byte_for_byte(fixture: &impl Fixture) {
    let store = fixture.store();
    let id = id("alice");
    let fence = won(&*store, wish(&id)).await;
    let body: Vec<u8> = (0..=255).cycle().take(10_000).collect();
    let kept = Answer { body: Bytes::from(body), ..answer("") };
    assert_eq!(settle(&*store, &id, fence, Settlement::Settle(kept.clone())).await, Written::Done);
    assert_eq!(entry(&*store, &id).await.answer, Some(kept.clone()));
    let seen = known(&*store, wish(&id)).await;
    assert_eq!((seen.answer, seen.record.state), (Some(kept), State::Settled));
}

/// Its holder may not know whether the first settlement arrived.
pub async fn settling_twice_with_one_fence_is_success(fixture: &impl Fixture) {
    let store = fixture.store();
    let id = id("alice");
    let fence = won(&*store, wish(&id)).await;
    assert_eq!(settle(&*store, &id, fence, settled("once")).await, Written::Done);
    assert_eq!(settle(&*store, &id, fence, settled("once")).await, Written::Done);
}

/// Settled is absorbing.
pub async fn settling_twice_with_another_answer_changes_nothing(fixture: &impl Fixture) {
    let store = fixture.store();
    let id = id("alice");
    let fence = won(&*store, wish(&id)).await;
    settle(&*store, &id, fence, settled("first")).await;
    for other in
        [settled("second"), Settlement::Release, Settlement::Unknown, Settlement::Unkept(answer("first"))]
    {
        assert_eq!(settle(&*store, &id, fence, other).await, Written::Superseded);
    }
    assert_eq!(entry(&*store, &id).await.answer, Some(answer("first")));
}

/// Not even when the row was released, swept and claimed anew.
pub async fn a_stale_fence_cannot_settle_renew_or_release(fixture: &impl Fixture) {
    let store = fixture.store();
    let id = id("alice");
    let stale = won(&*store, wish(&id)).await;
    assert_eq!(settle(&*store, &id, stale, Settlement::Release).await, Written::Done);
    store.sweep(1000, Duration::ZERO).await.expect("the store answers");
    let fence = won(&*store, wish(&id)).await;
    for fence in [
        stale,
        Fence { number: fence.number, nonce: fence.nonce ^ 1 },
        Fence { number: fence.number + 1, nonce: fence.nonce },
    ] {
        for settlement in
            [settled("stale"), Settlement::Release, Settlement::Unknown, Settlement::Unkept(answer(""))]
        {
            assert_eq!(settle(&*store, &id, fence, settlement).await, Written::Superseded);
        }
        assert_eq!(renew(&*store, &id, fence).await, Written::Superseded);
    }
    assert_eq!(entry(&*store, &id).await.record.state, State::Claimed);
    assert_eq!(settle(&*store, &id, fence, settled("true")).await, Written::Done);
}

/// Numbers are never reused.
pub async fn fences_only_grow_also_after_release_and_sweep(fixture: &impl Fixture) {
    let store = fixture.store();
    let mut last = 0;
    let key = id("alice");
    for round in 0..5 {
        let fence = won(&*store, wish(&key)).await;
        assert!(fence.number > last, "round {round}: {} after {last}", fence.number);
        last = fence.number;
        settle(&*store, &key, fence, Settlement::Release).await;
        store.sweep(1000, Duration::ZERO).await.expect("the store answers");
        let other = won(&*store, wish(&id("alice"))).await;
        assert!(other.number > last);
        last = other.number;
    }
}

/// The reply to a claim may be lost.
pub async fn a_claim_made_again_with_its_nonce_is_the_same_claim(fixture: &impl Fixture) {
    let store = fixture.store();
    let id = id("alice");
    let wished = wish(&id);
    let fence = won(&*store, wished.clone()).await;
    assert_eq!(won(&*store, wished.clone()).await, fence);
    settle(&*store, &id, fence, settled("x")).await;
    assert_eq!(
        known(&*store, wished).await.record.state,
        State::Settled,
        "but once it is settled, the record counts"
    );
}

/// Unknown keeps its fence.
pub async fn a_lapsed_lease_is_unknown_and_still_accepts_its_holder(fixture: &impl Fixture) {
    let store = fixture.store();
    let id = id("alice");
    let fence = won(&*store, wish(&id)).await;
    fixture.advance(past(LEASE)).await;
    assert_eq!(standing(&*store, &id).await, Standing::Unknown);
    known(&*store, wish(&id)).await;
    store.sweep(1000, Duration::ZERO).await.expect("the store answers");
    assert_eq!(entry(&*store, &id).await.record.fence, fence);
    assert_eq!(settle(&*store, &id, fence, settled("late")).await, Written::Done);
    assert_eq!(standing(&*store, &id).await, Standing::Settled);
}

/// Neither after a person's word nor after a rerun.
pub async fn a_resolved_outcome_no_longer_accepts_its_holder(fixture: &impl Fixture) {
    let store = fixture.store();
    for resolution in
        [Resolution::Applied(Some(answer("found"))), Resolution::Applied(None), Resolution::NotApplied]
    {
        let id = id("alice");
        let fence = won(&*store, wish(&id)).await;
        fixture.advance(past(LEASE + LATE + LATE_ADDED_MAX)).await;
        let resolved = store
            .resolve(&id, fence, resolution, &lifetime(), "carol", "looked")
            .await
            .expect("the store answers");
        assert_eq!(resolved, Resolved::Done);
        assert_eq!(settle(&*store, &id, fence, settled("late")).await, Written::Superseded);
    }
    let id = id("alice");
    let fence = won(&*store, wish(&id)).await;
    fixture.advance(past(LEASE)).await;
    let second = won(&*store, replacing(&id, Claim::Rerun, fence)).await;
    assert!(second.number > fence.number);
    assert_eq!(settle(&*store, &id, fence, settled("late")).await, Written::Superseded);
    assert_eq!(settle(&*store, &id, second, settled("second")).await, Written::Done);
}

/// Rule 6: a request on its way may still arrive.
pub async fn not_applied_is_refused_while_it_could_still_take_effect(fixture: &impl Fixture) {
    let store = fixture.store();
    let id = id("alice");
    let fence = won(&*store, wish(&id)).await;
    let resolve = async |fence| {
        store
            .resolve(&id, fence, Resolution::NotApplied, &lifetime(), "carol", "looked")
            .await
            .expect("the store answers")
    };
    assert_eq!(resolve(fence).await, Resolved::NotUnknown, "a live claim is not unknown");
    fixture.advance(past(LEASE)).await;
    let known = entry(&*store, &id).await;
    let until = known.late_until;
    assert!(until >= known.record.created_at.plus(LEASE + LATE), "the window is never shorter than declared");
    assert_eq!(resolve(fence).await, Resolved::TooEarly { until });
    fixture.advance(past(LATE + LATE_ADDED_MAX)).await;
    assert_eq!(resolve(Fence { number: fence.number, nonce: fence.nonce ^ 1 }).await, Resolved::NotUnknown);
    assert_eq!(resolve(fence).await, Resolved::Done);
    assert_eq!(standing(&*store, &id).await, Standing::Absent);
    assert_eq!(resolve(fence).await, Resolved::NotUnknown);
}

/// An atomic claim whose lease lapsed has had no effect that outlives it.
pub async fn an_abandoned_atomic_claim_is_superseded(fixture: &impl Fixture) {
    let store = fixture.store();
    let id = id("alice");
    let atomic = |how, replaces| Wish { how, replaces, guarantee: Guarantee::Atomic, ..wish(&id) };
    let first = won(&*store, atomic(Claim::New, None)).await;
    known(&*store, atomic(Claim::Supersede, Some(first))).await;
    fixture.advance(past(LEASE)).await;
    assert_eq!(standing(&*store, &id).await, Standing::Abandoned);
    let second = won(&*store, atomic(Claim::Supersede, Some(first))).await;
    assert_eq!(settle(&*store, &id, first, settled("late")).await, Written::Superseded);
    assert_eq!(settle(&*store, &id, second, settled("second")).await, Written::Done);
}

/// A handler may run longer than one lease.
pub async fn a_renewed_lease_does_not_lapse(fixture: &impl Fixture) {
    let store = fixture.store();
    let id = id("alice");
    let fence = won(&*store, wish(&id)).await;
    for _ in 0..4 {
        fixture.advance(LEASE / 2).await;
        assert_eq!(renew(&*store, &id, fence).await, Written::Done);
    }
    assert_eq!(standing(&*store, &id).await, Standing::Claimed);
}

/// Too late is too late: somebody may already act on it.
pub async fn an_unknown_outcome_is_not_revived_by_renewal(fixture: &impl Fixture) {
    let store = fixture.store();
    let id = id("alice");
    let fence = won(&*store, wish(&id)).await;
    fixture.advance(past(LEASE)).await;
    assert_eq!(renew(&*store, &id, fence).await, Written::Superseded);
    assert_eq!(standing(&*store, &id).await, Standing::Unknown);
}

/// Without a trace, where the lifetime keeps none.
pub async fn a_released_key_is_free_again(fixture: &impl Fixture) {
    let store = fixture.store();
    let id = id("alice");
    let fence = won(&*store, wish(&id)).await;
    assert_eq!(settle(&*store, &id, fence, Settlement::Release).await, Written::Done);
    assert_eq!(standing(&*store, &id).await, Standing::Absent);
    won(&*store, wish(&id)).await;
}

/// One of two retries, not both.
pub async fn a_released_row_that_is_kept_is_reclaimed_by_its_fence(fixture: &impl Fixture) {
    let store = fixture.store();
    let id = id("alice");
    let fence = won(&*store, wish(&id)).await;
    let release = async || {
        store.settle(&id, fence, Settlement::Release, &keeping_released()).await.expect("the store answers")
    };
    assert_eq!(release().await, Written::Done);
    assert_eq!(release().await, Written::Done, "releasing again with the same fence is success");
    assert_eq!(standing(&*store, &id).await, Standing::Released);
    known(&*store, wish(&id)).await;
    let second = won(&*store, replacing(&id, Claim::Reclaim, fence)).await;
    assert!(second.number > fence.number);
    assert_eq!(known(&*store, replacing(&id, Claim::Reclaim, fence)).await.record.state, State::Claimed);
}

/// Also when many try at once.
pub async fn an_expired_record_is_taken_over_by_one(fixture: &impl Fixture) {
    let store = fixture.store();
    let id = id("alice");
    let fence = won(&*store, wish(&id)).await;
    settle(&*store, &id, fence, settled("old")).await;
    let take_over = || replacing(&id, Claim::TakeOver, fence);
    assert_eq!(known(&*store, take_over()).await.record.state, State::Settled, "not before it expired");
    fixture.advance(past(lifetime().record())).await;
    assert_eq!(standing(&*store, &id).await, Standing::Expired);
    let claims: Vec<_> = (0..16)
        .map(|_| {
            let (store, wish) = (Arc::clone(&store), take_over());
            tokio::spawn(async move { store.claim(wish).await })
        })
        .collect();
    let mut winners = 0;
    for claim in claims {
        let claimed = claim.await.expect("no claim panics").expect("the store answers");
        winners += usize::from(matches!(claimed, Claimed::Won { .. }));
    }
    assert_eq!(winners, 1);
    assert_eq!(settle(&*store, &id, fence, settled("old")).await, Written::Superseded);
}

/// It is decided upon first: a metric counts it, and the claim names its fence.
pub async fn an_expired_record_is_not_claimed_as_new(fixture: &impl Fixture) {
    let store = fixture.store();
    let id = id("alice");
    let fence = won(&*store, wish(&id)).await;
    settle(&*store, &id, fence, settled("old")).await;
    fixture.advance(past(lifetime().record())).await;
    assert_eq!(known(&*store, wish(&id)).await.record.fence, fence);
}

/// From the first claim or from the settlement, as the profile says.
pub async fn lifetimes_count_from_their_anchor(fixture: &impl Fixture) {
    let store = fixture.store();
    for (lifetime, from_settlement) in [(presets::feed().lifetime, true), (presets::agents().lifetime, false)]
    {
        let id = id("alice");
        let fence = won(&*store, wish(&id)).await;
        let created = entry(&*store, &id).await.record.created_at;
        fixture.advance(LEASE / 2).await;
        store.settle(&id, fence, settled("x"), &lifetime).await.expect("the store answers");
        let found = entry(&*store, &id).await;
        let anchor = if from_settlement { found.settled_at.expect("it is settled") } else { created };
        assert_eq!(found.record.expires_at, Some(anchor.plus(lifetime.record())));
        assert!(found.settled_at.expect("it is settled") >= created.plus(LEASE / 2));
    }
}

/// The tombstone of a stream or of an answer that was too large.
pub async fn an_unkept_answer_keeps_its_status_only(fixture: &impl Fixture) {
    let store = fixture.store();
    let id = id("alice");
    let fence = won(&*store, wish(&id)).await;
    assert_eq!(settle(&*store, &id, fence, Settlement::Unkept(answer("large"))).await, Written::Done);
    assert_eq!(settle(&*store, &id, fence, Settlement::Unkept(answer("large"))).await, Written::Done);
    assert_eq!(standing(&*store, &id).await, Standing::Unkept);
    assert_eq!(entry(&*store, &id).await.answer, Some(answer("")));
}

/// The holder itself may say that it does not know.
pub async fn an_unknown_mark_keeps_its_fence(fixture: &impl Fixture) {
    let store = fixture.store();
    let id = id("alice");
    let fence = won(&*store, wish(&id)).await;
    assert_eq!(settle(&*store, &id, fence, Settlement::Unknown).await, Written::Done);
    let found = entry(&*store, &id).await;
    assert_eq!(
        (found.record.state, found.record.fence, found.record.expires_at),
        (State::Unknown, fence, None)
    );
    assert_eq!(settle(&*store, &id, fence, Settlement::Unknown).await, Written::Done);
    assert_eq!(settle(&*store, &id, fence, settled("late")).await, Written::Done);
}

/// Whose a key is comes first.
pub async fn one_key_in_two_scopes_never_meets(fixture: &impl Fixture) {
    let store = fixture.store();
    let alices = id("alice");
    let bobs = Id { scope: scope("bob"), key: alices.key.clone() };
    let fence = won(&*store, wish(&alices)).await;
    settle(&*store, &alices, fence, settled("hers")).await;
    let his = won(&*store, wish(&bobs)).await;
    assert_eq!(
        settle(&*store, &bobs, fence, settled("hers")).await,
        Written::Superseded,
        "a fence holds for its own key"
    );
    settle(&*store, &bobs, his, settled("his")).await;
    assert_eq!(entry(&*store, &alices).await.answer, Some(answer("hers")));
    assert_eq!(entry(&*store, &bobs).await.answer, Some(answer("his")));
}

/// Rule 10: the same request under a rotated token is not a second effect.
pub async fn a_rotated_credential_is_recognised(fixture: &impl Fixture) {
    let store = fixture.store();
    let old = id("old-token");
    let new = Id { scope: scope("new-token"), key: old.key.clone() };
    let rotation = old.hash();
    let rotated = |id: &Id| Wish { rotation: Some(rotation), ..wish(id) };
    let fence = won(&*store, rotated(&old)).await;
    assert!(matches!(store.claim(rotated(&new)).await, Ok(Claimed::CredentialChanged)), "while it runs");
    settle(&*store, &old, fence, settled("x")).await;
    assert!(
        matches!(store.claim(rotated(&new)).await, Ok(Claimed::CredentialChanged)),
        "and once it is settled"
    );
    known(&*store, rotated(&old)).await;
    let free = id("old-token");
    let freed = won(&*store, Wish { rotation: Some(free.hash()), ..wish(&free) }).await;
    settle(&*store, &free, freed, Settlement::Release).await;
    let elsewhere = Id { scope: scope("new-token"), key: free.key.clone() };
    won(&*store, Wish { rotation: Some(free.hash()), ..wish(&elsewhere) }).await;
}

/// What makes a requeue safe.
pub async fn a_sealed_key_cannot_be_claimed(fixture: &impl Fixture) {
    let store = fixture.store();
    let id = id("alice");
    let about = About { principal: "alice".to_owned(), ..About::default() };
    assert!(matches!(store.seal(&id, &about, &lifetime()).await, Ok(Sealed::Done)));
    assert_eq!(known(&*store, wish(&id)).await.record.state, State::Sealed);
    assert!(
        matches!(store.seal(&id, &about, &lifetime()).await, Ok(Sealed::Known(_))),
        "sealing again finds the seal"
    );
    fixture.advance(past(lifetime().record())).await;
    assert_eq!(standing(&*store, &id).await, Standing::Expired);
}

/// A seal never cancels what may have happened.
pub async fn sealing_a_used_key_returns_its_record(fixture: &impl Fixture) {
    let store = fixture.store();
    let about = About::default();
    let id = id("alice");
    let fence = won(&*store, wish(&id)).await;
    let state = async || match store.seal(&id, &about, &lifetime()).await {
        Ok(Sealed::Known(entry)) => entry.record.state,
        other => panic!("expected the record, found {other:?}"),
    };
    assert_eq!(state().await, State::Claimed);
    settle(&*store, &id, fence, Settlement::Unknown).await;
    assert_eq!(state().await, State::Unknown);
    settle(&*store, &id, fence, settled("x")).await;
    assert_eq!(state().await, State::Settled);
}

/// Live claims and unknown outcomes stay, whatever their age.
pub async fn a_sweep_removes_only_what_is_finished_and_expired(fixture: &impl Fixture) {
    let store = fixture.store();
    let (done, unknown, fresh) = (id("alice"), id("alice"), id("alice"));
    let fence = won(&*store, wish(&done)).await;
    settle(&*store, &done, fence, settled("old")).await;
    let fence = won(&*store, wish(&unknown)).await;
    settle(&*store, &unknown, fence, Settlement::Unknown).await;
    fixture.advance(past(lifetime().record())).await;
    let fence = won(&*store, wish(&fresh)).await;
    let sweep = async |grace| store.sweep(100_000, grace).await.expect("the store answers");
    sweep(Duration::from_secs(60)).await;
    assert_eq!(standing(&*store, &done).await, Standing::Expired, "it stays during the grace");
    assert!(sweep(Duration::ZERO).await.removed >= 1);
    assert_eq!(standing(&*store, &done).await, Standing::Absent);
    assert_eq!(standing(&*store, &unknown).await, Standing::Unknown);
    assert_eq!(standing(&*store, &fresh).await, Standing::Claimed);
    assert_eq!(settle(&*store, &fresh, fence, settled("new")).await, Written::Done);
}

/// Never one huge delete.
pub async fn a_sweep_is_bounded(fixture: &impl Fixture) {
    let store = fixture.store();
    for _ in 0..7 {
        let id = id("alice");
        let fence = won(&*store, wish(&id)).await;
        settle(&*store, &id, fence, settled("old")).await;
    }
    fixture.advance(past(lifetime().record())).await;
    assert_eq!(store.sweep(5, Duration::ZERO).await.expect("the store answers").removed, 5);
}

/// So that lists and metrics tell the truth, and nothing stands in the way for ever.
pub async fn a_sweep_marks_lapsed_claims_and_frees_abandoned_ones(fixture: &impl Fixture) {
    let store = fixture.store();
    let (fenced, atomic) = (id("alice"), id("alice"));
    let fence = won(&*store, wish(&fenced)).await;
    let abandoned = won(&*store, Wish { guarantee: Guarantee::Atomic, ..wish(&atomic) }).await;
    fixture.advance(past(LEASE)).await;
    let swept = store.sweep(1000, Duration::ZERO).await.expect("the store answers");
    assert!(swept.unknown >= 1 && swept.released >= 1, "{swept:?}");
    let found = entry(&*store, &fenced).await;
    assert_eq!((found.record.state, found.record.fence), (State::Unknown, fence));
    assert_eq!(standing(&*store, &atomic).await, Standing::Absent);
    assert_eq!(settle(&*store, &atomic, abandoned, settled("late")).await, Written::Superseded);
}

/// Erasure reaches what is finished; the rest once it is.
pub async fn forgetting_a_principal_leaves_claims_and_others(fixture: &impl Fixture) {
    let store = fixture.store();
    let (hers, open, his) = (id("alice"), id("alice"), id("bob"));
    let by = |id: &Id, principal: &str| Wish {
        about: About { principal: principal.to_owned(), ..About::default() },
        ..wish(id)
    };
    let alice = format!("alice-{}", nonce());
    let fence = won(&*store, by(&hers, &alice)).await;
    settle(&*store, &hers, fence, settled("x")).await;
    won(&*store, by(&open, &alice)).await;
    let fence = won(&*store, by(&his, "bob")).await;
    settle(&*store, &his, fence, settled("x")).await;
    assert_eq!(store.forget(&alice, "carol").await.expect("the store answers"), 1);
    assert_eq!(standing(&*store, &hers).await, Standing::Absent);
    assert_eq!(standing(&*store, &open).await, Standing::Claimed);
    assert_eq!(standing(&*store, &his).await, Standing::Settled);
}

/// By state, principal and endpoint; page by page.
pub async fn lists_are_filtered_and_paged(fixture: &impl Fixture) {
    let store = fixture.store();
    let principal = format!("lister-{}", nonce());
    let mut fences = Vec::new();
    for at in 0..5 {
        let id = id("alice");
        let about = About {
            endpoint: format!("endpoint-{}", at % 2),
            principal: principal.clone(),
            ..About::default()
        };
        let fence = won(&*store, Wish { about, ..wish(&id) }).await;
        if at % 2 == 0 {
            settle(&*store, &id, fence, settled("x")).await;
        }
        fences.push(fence);
    }
    let filter = Filter { principal: Some(principal), limit: 10, ..Filter::default() };
    let list = async |filter: Filter| {
        let found = store.list(&filter).await.expect("the store answers");
        found.into_iter().map(|entry| entry.record.fence).collect::<Vec<_>>()
    };
    assert_eq!(list(filter.clone()).await, fences);
    assert_eq!(
        list(Filter { state: Some(State::Settled), ..filter.clone() }).await,
        [fences[0], fences[2], fences[4]]
    );
    assert_eq!(list(Filter { state: Some(State::Claimed), ..filter.clone() }).await, [fences[1], fences[3]]);
    assert_eq!(
        list(Filter { endpoint: Some("endpoint-1".to_owned()), ..filter.clone() }).await,
        [fences[1], fences[3]]
    );
    assert_eq!(list(Filter { limit: 2, ..filter.clone() }).await, fences[..2]);
    assert_eq!(list(Filter { after: Some(fences[1].number), ..filter }).await, fences[2..]);
}

/// A claim stays held and a settled record stays settled.
pub async fn a_clock_set_back_never_revives_or_repeats(fixture: &impl Fixture) {
    let store = fixture.store();
    let (held, done) = (id("alice"), id("alice"));
    let fence = won(&*store, wish(&done)).await;
    settle(&*store, &done, fence, settled("x")).await;
    won(&*store, wish(&held)).await;
    if !fixture.set_wall_off(-86_400_000 * 30).await {
        return;
    }
    let (_, before) = store.look_up(&held).await.expect("the store answers");
    assert_eq!(standing(&*store, &held).await, Standing::Claimed);
    fixture.advance(past(LEASE)).await;
    let (_, after) = store.look_up(&held).await.expect("the store answers");
    assert!(after.millis_since(before) >= 30_000, "time goes on as it ticks");
    assert_eq!(standing(&*store, &held).await, Standing::Unknown);
    assert_eq!(standing(&*store, &done).await, Standing::Settled);
}

/// A wrong clock must not make a request run again.
pub async fn a_clock_set_forward_never_expires_anything(fixture: &impl Fixture) {
    let store = fixture.store();
    let (held, done, expired) = (id("alice"), id("alice"), id("alice"));
    let fence = won(&*store, wish(&expired)).await;
    settle(&*store, &expired, fence, settled("x")).await;
    fixture.advance(past(lifetime().record())).await;
    let fence = won(&*store, wish(&done)).await;
    settle(&*store, &done, fence, settled("x")).await;
    won(&*store, wish(&held)).await;
    if !fixture.set_wall_off(86_400_000 * 30).await {
        return;
    }
    assert_eq!(standing(&*store, &done).await, Standing::Settled);
    assert_eq!(standing(&*store, &held).await, Standing::Claimed);
    assert_eq!(standing(&*store, &expired).await, Standing::Expired);
    let swept = store.sweep(1000, Duration::ZERO).await.expect("the store answers");
    assert_eq!(
        swept.removed, 0,
        "nothing is swept while nobody has confirmed the clock, not even what is expired"
    );
}

/// A hint, but one that is given.
pub async fn waiters_are_woken_by_a_settlement(fixture: &impl Fixture) {
    let store = fixture.store();
    let id = id("alice");
    let fence = won(&*store, wish(&id)).await;
    let listener = store.hints().listen(id.hash());
    let next = listener.next();
    assert_eq!(settle(&*store, &id, fence, settled("x")).await, Written::Done);
    tokio::time::timeout(Duration::from_secs(5), next).await.expect("the waiter is woken");
}

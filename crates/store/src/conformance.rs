//! The suite that every backend passes. A backend's test file makes a [`Fixture`] and names it in
//! [`conformance_tests!`](crate::conformance_tests); each claim below then becomes a test of that backend.

mod admin;
mod cells;
mod claiming;
mod forms;
mod leases;
mod settling;
mod upkeep;

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
    About, Answer, ClaimOutcome, ClaimRequest, ClaimStore, Entry, FencedWrite, Filter, Id, Order, Resolution,
    Resolved, Sealed, Settlement,
};
use crate::clock::{Clock, Reading};

pub use admin::*;
pub use cells::*;
pub use claiming::*;
pub use forms::*;
pub use leases::*;
pub use settling::*;
pub use upkeep::*;

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

    fn boot(&self) -> u64 {
        1
    }
}

/// Makes a test of every claim of the suite. The fixture is an expression that is awaited for each.
#[macro_export]
macro_rules! conformance_tests {
    ($fixture:expr) => {
        $crate::conformance_tests!($fixture;
            every_cell_of_the_table_holds,
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
            a_kept_answer_of_unknown_outcome_can_be_lifted,
            an_abandoned_atomic_claim_is_superseded,
            a_renewed_lease_does_not_lapse,
            an_unknown_outcome_is_not_revived_by_renewal,
            a_released_key_is_free_again,
            a_released_row_that_is_kept_is_reclaimed_by_its_fence,
            an_expired_record_is_taken_over_by_one,
            an_expired_record_is_not_claimed_as_new,
            lifetimes_count_from_their_anchor,
            an_outcome_that_was_unknown_lives_from_when_it_is_known,
            an_unkept_answer_keeps_its_status_only,
            an_unkept_answer_expires_as_a_kept_one_does,
            an_unknown_mark_keeps_its_fence,
            one_key_in_two_scopes_never_meets,
            a_rotated_credential_is_recognised,
            a_mark_of_rotation_is_found_by_others,
            forms_are_known_until_their_records_have_expired,
            what_is_known_among_several_is_what_is_known_of_each,
            a_form_is_known_while_an_outcome_in_it_is_not,
            a_sealed_key_cannot_be_claimed,
            sealing_a_used_key_returns_its_record,
            a_sweep_removes_only_what_is_finished_and_expired,
            a_sweep_is_bounded,
            a_sweep_marks_lapsed_claims_and_frees_abandoned_ones,
            forgetting_a_principal_leaves_claims_and_others,
            forgetting_says_nothing_of_an_outcome_that_is_not_so,
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

fn claim_request(id: &Id) -> ClaimRequest {
    ClaimRequest {
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
        }
        .into(),
    }
}

fn replacing(id: &Id, how: Claim, fence: Fence) -> ClaimRequest {
    ClaimRequest { how, replaces: Some(fence), ..claim_request(id) }
}

fn answer(body: &str) -> Answer {
    let header = |name: &str, value: &str| (name.to_owned(), value.as_bytes().to_vec());
    Answer {
        status: 201,
        headers: vec![header("content-type", "text/plain"), header("x-tag", "a"), header("x-tag", "\u{e9}")]
            .into(),
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

async fn won(store: &dyn ClaimStore, request: ClaimRequest) -> Fence {
    match store.claim(request).await.expect("the store answers") {
        ClaimOutcome::Won { fence, .. } => fence,
        other => panic!("expected to win, found {other:?}"),
    }
}

async fn known(store: &dyn ClaimStore, request: ClaimRequest) -> Entry {
    match store.claim(request).await.expect("the store answers") {
        ClaimOutcome::Known { entry, .. } => *entry,
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

async fn settle(store: &dyn ClaimStore, id: &Id, fence: Fence, settlement: Settlement) -> FencedWrite {
    store.settle(id, fence, settlement, &lifetime()).await.expect("the store answers")
}

async fn renew(store: &dyn ClaimStore, id: &Id, fence: Fence) -> FencedWrite {
    store.renew(&[(id.clone(), fence)], LEASE).await.expect("the store answers")[0]
}

fn past(duration: Duration) -> Duration {
    duration + Duration::from_secs(1)
}

//! The limiter in memory passes the suite, keeps its limits under any sequence of calls, and stands in for another.

use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, pending, ready};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use proptest::prelude::*;
use semel_contract::profile::{Charge, Rate};
use semel_contract::time::Timestamp;
use semel_store::limits::{Admission, Fallback, Limiter, MemoryLimiter, PRIMARY_REST_MILLIS, Verdict};
use semel_store::{Reply, StoreError};

semel_store::limiter_tests!(ready(Arc::new(MemoryLimiter::default()) as _));

const WINDOW_MILLIS: i64 = 1_000;
const TRIES_MAX: u32 = 3;

/// Memory answers at once: no runtime is needed.
fn now_or_never<T>(reply: Reply<'_, T>) -> T {
    match pin!(reply).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer.expect("memory answers"),
        Poll::Pending => panic!("memory never waits"),
    }
}

#[derive(Clone, Debug)]
struct Call {
    step_millis: i64,
    principal: u8,
    id: u8,
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let call = (0i64..300, 0u8..3, 0u8..12);
    let call = call.prop_map(|(step_millis, principal, id)| Call { step_millis, principal, id });
    prop::collection::vec(call, 1..250)
}

/// What a limiter let in: principal, id and time of each.
fn admitted(calls: &[Call], count: u32, charge: Charge) -> Vec<(u8, u8, i64)> {
    let limiter = MemoryLimiter::default();
    let rate = Rate { count, window: Duration::from_millis(WINDOW_MILLIS as u64) };
    let mut now = 1_000_000;
    let mut admitted = Vec::new();
    for call in calls {
        now += call.step_millis;
        let admission = Admission {
            principal: &[call.principal],
            id: [call.id; 16],
            rate,
            charge,
            attempts_per_id: TRIES_MAX,
        };
        if let Verdict::Allowed { .. } = now_or_never(limiter.admit(admission, Timestamp::from_millis(now))) {
            admitted.push((call.principal, call.id, now));
        }
    }
    admitted
}

proptest! {
    #[test]
    fn no_aligned_window_admits_more_ids_or_tries_than_it_may(calls in calls(), count in 0u32..6) {
        let mut windows = BTreeMap::<(u8, i64), BTreeMap<u8, u32>>::new();
        for (principal, id, at) in admitted(&calls, count, Charge::IdWindow) {
            *windows.entry((principal, at / WINDOW_MILLIS)).or_default().entry(id).or_default() += 1;
        }
        for ids in windows.values() {
            prop_assert!(ids.len() <= count as usize, "{windows:?}");
            prop_assert!(ids.values().all(|tries| *tries <= TRIES_MAX), "{windows:?}");
        }
    }

    #[test]
    fn no_stretch_of_a_windows_length_charges_more_new_keys_than_it_may(calls in calls(), count in 0u32..6) {
        // An id is charged when it is let in and was not charged within the last window.
        let mut charges = BTreeMap::<(u8, u8), Vec<(i64, u32)>>::new();
        for (principal, id, at) in admitted(&calls, count, Charge::NewKey) {
            let charges = charges.entry((principal, id)).or_default();
            match charges.last_mut().filter(|(first, _)| at - *first < WINDOW_MILLIS) {
                Some((_, tries)) => *tries += 1,
                None => charges.push((at, 1)),
            }
        }
        prop_assert!(charges.values().flatten().all(|(_, tries)| *tries <= TRIES_MAX));
        for principal in 0..3 {
            let times: BTreeSet<(i64, u8)> = charges.iter().filter(|((who, _), _)| *who == principal)
                .flat_map(|((_, id), charges)| charges.iter().map(|(at, _)| (*at, *id))).collect();
            for (at, _) in &times {
                let within = times.iter().filter(|(other, _)| (at - WINDOW_MILLIS + 1..=*at).contains(other)).count();
                prop_assert!(within <= count as usize, "{times:?}");
            }
        }
    }

    #[test]
    fn a_refusal_changes_nothing(calls in calls(), count in 0u32..6) {
        // The same calls without those that were refused are all let in, with the same budgets left.
        for charge in [Charge::IdWindow, Charge::NewKey] {
            let kept = admitted(&calls, count, charge);
            let mut last = 1_000_000;
            let again: Vec<Call> = kept.iter().map(|(principal, id, at)| {
                let step_millis = at - last;
                last = *at;
                Call { step_millis, principal: *principal, id: *id }
            }).collect();
            prop_assert_eq!(admitted(&again, count, charge), kept);
        }
    }
}

/// How a primary misbehaves.
#[derive(Clone, Copy)]
enum PgFailure {
    Errs,
    Hangs,
}

struct Troubled(PgFailure, AtomicU64);

impl Troubled {
    fn answer(&self) -> Reply<'_, Verdict> {
        self.1.fetch_add(1, Ordering::SeqCst);
        match self.0 {
            PgFailure::Errs => Box::pin(ready(Err(StoreError::Unavailable("gone".to_owned())))),
            PgFailure::Hangs => Box::pin(pending()),
        }
    }
}

impl Limiter for Troubled {
    fn request<'a>(&'a self, _: &'a [u8], _: Rate, _: Timestamp) -> Reply<'a, Verdict> {
        self.answer()
    }

    fn admit<'a>(&'a self, _: Admission<'a>, _: Timestamp) -> Reply<'a, Verdict> {
        self.answer()
    }
}

#[tokio::test]
async fn a_primary_that_errs_or_hangs_is_replaced_and_counted() {
    let rate = Rate { count: 2, window: Duration::from_secs(60) };
    let admission =
        Admission { principal: b"alice", id: [1; 16], rate, charge: Charge::NewKey, attempts_per_id: 9 };
    for trouble in [PgFailure::Errs, PgFailure::Hangs] {
        let primary = Arc::new(Troubled(trouble, AtomicU64::new(0)));
        let both = Fallback::new(Arc::clone(&primary) as _, Arc::new(MemoryLimiter::default()));
        let now = |millis| Timestamp::from_millis(1_800_000_000_000 + millis);
        let allowed = |verdict| matches!(verdict, Ok(Verdict::Allowed { .. }));
        assert!(allowed(both.request(b"alice", rate, now(0)).await));
        assert!(allowed(both.admit(admission, now(1)).await));
        assert!(allowed(both.request(b"alice", rate, now(2)).await));
        assert!(!allowed(both.request(b"alice", rate, now(3)).await), "the secondary has limits too");
        assert_eq!(both.fallbacks(), 4);
        assert_eq!(primary.1.load(Ordering::SeqCst), 1, "it is left alone for a while");
        both.admit(admission, now(PRIMARY_REST_MILLIS)).await.expect("the secondary answers");
        assert_eq!((both.fallbacks(), primary.1.load(Ordering::SeqCst)), (5, 2), "and then asked again");
    }
}

#[tokio::test]
async fn a_primary_that_answers_is_not_replaced() {
    let both = Fallback::new(
        Arc::new(MemoryLimiter::default()),
        Arc::new(Troubled(PgFailure::Errs, AtomicU64::new(0))),
    );
    let rate = Rate { count: 1, window: Duration::from_secs(60) };
    for _ in 0..3 {
        both.request(b"alice", rate, Timestamp::from_millis(0)).await.expect("the primary answers");
    }
    assert_eq!(both.fallbacks(), 0);
}

//! The suite that every limiter passes. A backend's test file names itself in
//! [`limiter_tests!`](crate::limiter_tests); each claim below then becomes a test of that backend. Time is an argument
//! of every call, so that no claim waits for a clock.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use semel_contract::profile::{Charge, Rate};
use semel_contract::time::Timestamp;

use super::window::CLEARED_PER_CALL_MAX;
use super::{Admission, Limiter, Verdict, Why};
use crate::clock::boot_time;

/// Calls that are made at once.
const AT_ONCE: u32 = 64;
/// A moment at which an aligned window of any length used here begins.
const START: Timestamp = Timestamp::from_millis(1_800_000_000_000);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// Makes a test of every claim of the suite. The limiter is an expression that is awaited for each.
#[macro_export]
macro_rules! limiter_tests {
    ($limiter:expr) => {
        $crate::limiter_tests!($limiter;
            every_request_counts_until_the_limit,
            a_refused_request_is_let_in_when_it_is_told,
            a_clock_that_is_behind_counts_in_the_latest_window,
            requests_of_one_subject_do_not_count_for_another,
            ten_tries_of_one_id_cost_one_unit,
            the_fourth_id_of_three_is_refused_and_refunded,
            one_new_key_too_many_is_refused_and_another_principal_is_not,
            new_keys_are_counted_over_the_last_window,
            ids_that_left_do_not_count_however_many_there_are,
            ids_are_counted_by_aligned_windows,
            a_late_retry_is_new_traffic,
            an_id_is_not_tried_without_end,
            a_lowered_limit_holds_at_once,
            many_at_once_never_exceed_the_limit,
            many_tries_of_one_id_at_once_cost_one_unit,
            a_limit_of_none_refuses_everything,
        );
    };
    ($limiter:expr; $($claim:ident),* $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $claim() {
                let limiter: std::sync::Arc<dyn $crate::limits::Limiter> = $limiter.await;
                $crate::limits::conformance::$claim(limiter).await;
            }
        )*
    };
}

/// A principal that no other test has, also where tests share a server.
pub fn principal() -> Vec<u8> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let unique = NEXT.fetch_add(1, Ordering::SeqCst);
    format!("{}-{}-{unique}", std::process::id(), boot_time().as_nanos()).into_bytes()
}

fn rate(count: u32, window: Duration) -> Rate {
    Rate { count, window }
}

fn id(number: u32) -> [u8; 16] {
    u128::from(number).to_be_bytes()
}

fn after(millis: u64) -> Timestamp {
    START.plus(Duration::from_millis(millis))
}

fn admission(principal: &[u8], number: u32, rate: Rate, charge: Charge) -> Admission<'_> {
    Admission { principal, id: id(number), rate, charge, attempts_per_id: 100 }
}

async fn admit(limiter: &dyn Limiter, admission: Admission<'_>, now: Timestamp) -> Verdict {
    limiter.admit(admission, now).await.expect("the limiter answers")
}

async fn request(limiter: &dyn Limiter, subject: &[u8], rate: Rate, now: Timestamp) -> Verdict {
    limiter.request(subject, rate, now).await.expect("the limiter answers")
}

fn remaining(verdict: Verdict) -> u32 {
    match verdict {
        Verdict::Allowed { remaining, .. } => remaining,
        Verdict::Denied { .. } => panic!("expected room, found {verdict:?}"),
    }
}

fn refused(verdict: Verdict, expected: Why) -> Duration {
    match verdict {
        Verdict::Denied { retry_after, why, .. } if why == expected => retry_after,
        Verdict::Denied { .. } | Verdict::Allowed { .. } => {
            panic!("expected {expected:?}, found {verdict:?}")
        }
    }
}

/// Replays too: the limiter does not know what a replay is.
pub async fn every_request_counts_until_the_limit(limiter: Arc<dyn Limiter>) {
    let (who, rate) = (principal(), rate(5, MINUTE));
    for left in (0..5).rev() {
        let verdict = request(&*limiter, &who, rate, after(1000)).await;
        assert_eq!(verdict, Verdict::Allowed { remaining: left, reset: Duration::from_secs(59) });
    }
    for _ in 0..3 {
        refused(request(&*limiter, &who, rate, after(1000)).await, Why::OverLimit);
    }
}

/// Not a millisecond earlier, and refusals in between do not put it off.
pub async fn a_refused_request_is_let_in_when_it_is_told(limiter: Arc<dyn Limiter>) {
    let (who, rate) = (principal(), rate(3, MINUTE));
    for _ in 0..3 {
        remaining(request(&*limiter, &who, rate, after(50_000)).await);
    }
    let wait = refused(request(&*limiter, &who, rate, after(50_000)).await, Why::OverLimit);
    assert!(wait > Duration::from_secs(10), "the window before still counts by its share: {wait:?}");
    let free = after(50_000).plus(wait);
    let early = free.minus(Duration::from_millis(1));
    assert_eq!(
        refused(request(&*limiter, &who, rate, early).await, Why::OverLimit),
        Duration::from_millis(1)
    );
    assert_eq!(remaining(request(&*limiter, &who, rate, free).await), 0);
    let long_after = free.plus(MINUTE * 2);
    assert_eq!(
        remaining(request(&*limiter, &who, rate, long_after).await),
        2,
        "two windows later all is forgotten"
    );
}

/// It neither returns to the old window nor sees less of it than there was.
pub async fn a_clock_that_is_behind_counts_in_the_latest_window(limiter: Arc<dyn Limiter>) {
    let (who, rate) = (principal(), rate(4, MINUTE));
    for (millis, left) in [(0, 3), (0, 2), (60_000, 1), (59_999, 0)] {
        assert_eq!(remaining(request(&*limiter, &who, rate, after(millis)).await), left, "at {millis}");
    }
    refused(request(&*limiter, &who, rate, after(59_999)).await, Why::OverLimit);
}

/// Nor do requests count as ids.
pub async fn requests_of_one_subject_do_not_count_for_another(limiter: Arc<dyn Limiter>) {
    let (one, two, rate) = (principal(), principal(), rate(1, MINUTE));
    remaining(request(&*limiter, &one, rate, START).await);
    refused(request(&*limiter, &one, rate, START).await, Why::OverLimit);
    remaining(request(&*limiter, &two, rate, START).await);
    remaining(admit(&*limiter, admission(&one, 1, rate, Charge::NewKey), START).await);
    remaining(admit(&*limiter, admission(&one, 1, rate, Charge::IdWindow), START).await);
}

/// However often it is retried.
pub async fn ten_tries_of_one_id_cost_one_unit(limiter: Arc<dyn Limiter>) {
    for charge in [Charge::IdWindow, Charge::NewKey] {
        let (who, rate) = (principal(), rate(10, MINUTE));
        for second in 0..10 {
            let wish = admission(&who, 1, rate, charge);
            assert_eq!(remaining(admit(&*limiter, wish, after(second * 1000)).await), 9, "{charge:?}");
        }
        assert_eq!(remaining(admit(&*limiter, admission(&who, 2, rate, charge), after(10_000)).await), 8);
    }
}

/// The counter stays at three, and the refused id has no marker that would let it in later without a unit.
pub async fn the_fourth_id_of_three_is_refused_and_refunded(limiter: Arc<dyn Limiter>) {
    for charge in [Charge::IdWindow, Charge::NewKey] {
        let (who, three) = (principal(), rate(3, MINUTE));
        for number in 0..3 {
            assert_eq!(
                remaining(admit(&*limiter, admission(&who, number, three, charge), START).await),
                2 - number
            );
        }
        for _ in 0..5 {
            let wait = refused(
                admit(&*limiter, admission(&who, 3, three, charge), after(1000)).await,
                Why::OverLimit,
            );
            assert_eq!(wait, Duration::from_secs(59));
        }
        remaining(admit(&*limiter, admission(&who, 2, three, charge), after(1000)).await);
        let four = rate(4, MINUTE);
        assert_eq!(
            remaining(admit(&*limiter, admission(&who, 3, four, charge), after(1000)).await),
            0,
            "with room for four, the fourth is the last: {charge:?}"
        );
    }
}

/// A thousand an hour, for each by itself; a known key goes on.
pub async fn one_new_key_too_many_is_refused_and_another_principal_is_not(limiter: Arc<dyn Limiter>) {
    let (alice, bob, rate) = (principal(), principal(), rate(1000, HOUR));
    let new_key = |who, number| admission(who, number, rate, Charge::NewKey);
    for number in 0..1000 {
        remaining(admit(&*limiter, new_key(&alice, number), after(u64::from(number))).await);
    }
    let wait = refused(admit(&*limiter, new_key(&alice, 1000), after(1000)).await, Why::OverLimit);
    assert_eq!(wait, HOUR - Duration::from_secs(1));
    assert_eq!(remaining(admit(&*limiter, new_key(&bob, 1000), after(1000)).await), 999);
    assert_eq!(remaining(admit(&*limiter, new_key(&alice, 7), after(1000)).await), 0);
}

/// Units come back one by one, each an hour after it was spent; not all at the full hour.
pub async fn new_keys_are_counted_over_the_last_window(limiter: Arc<dyn Limiter>) {
    let (who, rate) = (principal(), rate(2, MINUTE));
    let try_at = async |number, millis| {
        admit(&*limiter, admission(&who, number, rate, Charge::NewKey), after(millis)).await
    };
    remaining(try_at(1, 50_000).await);
    remaining(try_at(2, 55_000).await);
    let wait = refused(try_at(3, 61_000).await, Why::OverLimit);
    assert_eq!(wait, Duration::from_secs(49), "another aligned window does not matter");
    refused(try_at(3, 109_999).await, Why::OverLimit);
    remaining(try_at(3, 110_000).await);
    assert_eq!(refused(try_at(4, 110_000).await, Why::OverLimit), Duration::from_secs(5));
}

/// Also those that no call has cleared away yet.
pub async fn ids_that_left_do_not_count_however_many_there_are(limiter: Arc<dyn Limiter>) {
    let (who, rate) = (principal(), rate(2000, MINUTE));
    let count = u32::try_from(CLEARED_PER_CALL_MAX).expect("a small number") + 100;
    let wish = |number| Admission { attempts_per_id: 1, ..admission(&who, number, rate, Charge::NewKey) };
    for number in 0..count {
        remaining(admit(&*limiter, wish(number), START).await);
    }
    for (number, left) in [(count - 1, 1999), (0, 1998)] {
        assert_eq!(remaining(admit(&*limiter, wish(number), after(60_000)).await), left);
        refused(admit(&*limiter, wish(number), after(60_000)).await, Why::TooManyAttempts);
    }
}

/// And whoever comes late to the old window finds its marker there.
pub async fn ids_are_counted_by_aligned_windows(limiter: Arc<dyn Limiter>) {
    let (who, rate) = (principal(), rate(1, MINUTE));
    let try_at = async |number, millis| {
        admit(&*limiter, admission(&who, number, rate, Charge::IdWindow), after(millis)).await
    };
    remaining(try_at(1, 59_000).await);
    assert_eq!(refused(try_at(2, 59_000).await, Why::OverLimit), Duration::from_secs(1));
    remaining(try_at(2, 60_000).await);
    remaining(try_at(1, 59_999).await);
    refused(try_at(3, 59_999).await, Why::OverLimit);
}

/// Its unit paid for one window only.
pub async fn a_late_retry_is_new_traffic(limiter: Arc<dyn Limiter>) {
    for charge in [Charge::IdWindow, Charge::NewKey] {
        let (who, rate) = (principal(), rate(1, MINUTE));
        remaining(admit(&*limiter, admission(&who, 1, rate, charge), START).await);
        remaining(admit(&*limiter, admission(&who, 2, rate, charge), after(60_000)).await);
        let late = admit(&*limiter, admission(&who, 1, rate, charge), after(60_000)).await;
        refused(late, Why::OverLimit);
    }
}

/// One unit does not pay for work without bound.
pub async fn an_id_is_not_tried_without_end(limiter: Arc<dyn Limiter>) {
    for charge in [Charge::IdWindow, Charge::NewKey] {
        let (who, rate) = (principal(), rate(10, MINUTE));
        let wish = |number| Admission { attempts_per_id: 3, ..admission(&who, number, rate, charge) };
        for _ in 0..3 {
            remaining(admit(&*limiter, wish(1), after(20_000)).await);
        }
        for _ in 0..3 {
            let wait = refused(admit(&*limiter, wish(1), after(30_000)).await, Why::TooManyAttempts);
            let free_at = match charge {
                Charge::IdWindow => 60_000,
                Charge::NewKey => 80_000,
            };
            assert_eq!(wait, Duration::from_millis(free_at - 30_000));
        }
        assert_eq!(remaining(admit(&*limiter, wish(2), after(30_000)).await), 8, "it still cost one unit");
        remaining(admit(&*limiter, wish(1), after(80_000)).await);
    }
}

/// More than one has to leave before the next comes in.
pub async fn a_lowered_limit_holds_at_once(limiter: Arc<dyn Limiter>) {
    let who = principal();
    let wish = |number, count| admission(&who, number, rate(count, MINUTE), Charge::NewKey);
    for number in 0..5 {
        remaining(admit(&*limiter, wish(number, 5), after(u64::from(number) * 1000)).await);
    }
    let wait = refused(admit(&*limiter, wish(5, 2), after(10_000)).await, Why::OverLimit);
    assert_eq!(wait, Duration::from_secs(53), "until the fourth of five has left");
    remaining(admit(&*limiter, wish(0, 2), after(10_000)).await);
}

/// Checking and consuming are one step.
pub async fn many_at_once_never_exceed_the_limit(limiter: Arc<dyn Limiter>) {
    for charge in [Charge::IdWindow, Charge::NewKey] {
        let (who, rate) = (principal(), rate(10, MINUTE));
        let tasks: Vec<_> = (0..AT_ONCE)
            .map(|number| {
                let (limiter, who) = (Arc::clone(&limiter), who.clone());
                tokio::spawn(async move {
                    let wish = admission(&who, number, rate, charge);
                    let ids = admit(&*limiter, wish, START).await;
                    (ids, request(&*limiter, &[who.as_slice(), b"requests"].concat(), rate, START).await)
                })
            })
            .collect();
        let (mut ids, mut requests) = (BTreeSet::new(), BTreeSet::new());
        for task in tasks {
            let (id, request) = task.await.expect("no call panics");
            for (verdict, seen) in [(id, &mut ids), (request, &mut requests)] {
                if let Verdict::Allowed { remaining, .. } = verdict {
                    assert!(seen.insert(remaining), "two were given the same unit");
                }
            }
        }
        assert_eq!((ids.len(), requests.len()), (10, 10), "{charge:?}");
    }
}

/// And so are finding a marker and making one.
pub async fn many_tries_of_one_id_at_once_cost_one_unit(limiter: Arc<dyn Limiter>) {
    for charge in [Charge::IdWindow, Charge::NewKey] {
        let (who, rate) = (principal(), rate(10, MINUTE));
        let tasks: Vec<_> = (0..AT_ONCE)
            .map(|_| {
                let (limiter, who) = (Arc::clone(&limiter), who.clone());
                tokio::spawn(async move {
                    let wish = Admission { attempts_per_id: 40, ..admission(&who, 1, rate, charge) };
                    admit(&*limiter, wish, START).await
                })
            })
            .collect();
        let mut allowed = 0;
        for task in tasks {
            match task.await.expect("no call panics") {
                Verdict::Allowed { remaining: 9, .. } => allowed += 1,
                Verdict::Denied { why: Why::TooManyAttempts, .. } => {}
                other @ (Verdict::Allowed { .. } | Verdict::Denied { .. }) => panic!("found {other:?}"),
            }
        }
        assert_eq!(allowed, 40, "{charge:?}");
    }
}

/// And says to come back in a window's time, since there is no better answer.
pub async fn a_limit_of_none_refuses_everything(limiter: Arc<dyn Limiter>) {
    let (who, none) = (principal(), rate(0, MINUTE));
    assert_eq!(refused(request(&*limiter, &who, none, START).await, Why::OverLimit), MINUTE);
    for charge in [Charge::IdWindow, Charge::NewKey] {
        let wish = admission(&who, 1, none, charge);
        assert_eq!(refused(admit(&*limiter, wish, START).await, Why::OverLimit), MINUTE);
    }
}

//! Two limiters give the same verdicts, call by call, whatever is asked of them: for each shared limiter against the one
//! in memory.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use semel_contract::profile::{Charge, Rate};
use semel_contract::time::Timestamp;
use semel_store::limits::conformance::principal;
use semel_store::limits::{Admission, Limiter, MemoryLimiter, Verdict};

/// Less than the shortest window used here.
const CLOCKS_APART_MILLIS_MAX: i64 = 500;
const START_MILLIS: i64 = 1_800_000_000_000;

pub(crate) fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(START_MILLIS + millis)
}

#[derive(Clone, Debug)]
enum Wanted {
    Request,
    Admission { id: u8, charge: Charge, attempts_per_id: u32 },
}

#[derive(Clone, Debug)]
struct Call {
    /// Also backwards: clocks of different processes disagree a little.
    step_millis: i64,
    rate: Rate,
    wanted: Wanted,
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let charge = prop_oneof![Just(Charge::NewKey), Just(Charge::IdWindow)];
    let admission = (0u8..8, charge, 1u32..4).prop_map(|(id, charge, attempts_per_id)| Wanted::Admission {
        id,
        charge,
        attempts_per_id,
    });
    let wanted = prop_oneof![1 => Just(Wanted::Request), 3 => admission];
    let rate = (0u32..5, prop_oneof![Just(1_000u64), Just(777)]);
    let rate = rate.prop_map(|(count, window)| Rate { count, window: Duration::from_millis(window) });
    let call = (-100i64..300, rate, wanted);
    prop::collection::vec(
        call.prop_map(|(step_millis, rate, wanted)| Call { step_millis, rate, wanted }),
        1..80,
    )
}

async fn ask(limiter: &dyn Limiter, who: &[u8], call: &Call, now: Timestamp) -> Verdict {
    let answer = match call.wanted {
        Wanted::Request => limiter.request(who, call.rate, now).await,
        Wanted::Admission { id, charge, attempts_per_id } => {
            let admission =
                Admission { principal: who, id: [id; 16], rate: call.rate, charge, attempts_per_id };
            limiter.admit(admission, now).await
        }
    };
    answer.expect("the limiter answers")
}

/// Plays the same calls to both.
pub(crate) fn agrees_with_memory(runtime: &tokio::runtime::Runtime, shared: &dyn Limiter, cases: u32) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let run = TestRunner::new(config).run(&calls(), |calls| {
        let (memory, who) = (MemoryLimiter::default(), principal());
        let (mut now, mut latest) = (0, 0);
        for (number, call) in calls.iter().enumerate() {
            now = (now + call.step_millis).max(latest - CLOCKS_APART_MILLIS_MAX);
            latest = latest.max(now);
            let verdicts = runtime.block_on(async {
                (ask(shared, &who, call, at(now)).await, ask(&memory, &who, call, at(now)).await)
            });
            prop_assert_eq!(verdicts.0, verdicts.1, "call {} at {}", number, now);
        }
        Ok(())
    });
    run.unwrap_or_else(|difference| panic!("{difference}"));
}

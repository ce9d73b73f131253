//! The limiter in the store's own database passes the suite and agrees with the one in memory call by call.

use std::sync::Arc;
use std::time::Duration;

use semel_contract::profile::{Charge, Rate};
use semel_contract::time::Timestamp;
use semel_store::limits::{Admission, Limiter, Verdict};
use semel_store::postgres::PostgresLimiter;
use semel_store::{ClaimStore, Reply};

use crate::agreement::{agrees_with_memory, at};
use crate::fixture::{Postgres, postgres};

/// A limiter with the database that it lives in.
struct Here {
    limiter: PostgresLimiter,
    _database: Postgres,
}

impl Limiter for Here {
    fn request<'a>(&'a self, subject: &'a [u8], rate: Rate, now: Timestamp) -> Reply<'a, Verdict> {
        self.limiter.request(subject, rate, now)
    }

    fn admit<'a>(&'a self, admission: Admission<'a>, now: Timestamp) -> Reply<'a, Verdict> {
        self.limiter.admit(admission, now)
    }
}

async fn shared() -> Arc<dyn Limiter> {
    let here = postgres().await;
    Arc::new(Here { limiter: here.store.limiter(), _database: here })
}

semel_store::limiter_tests!(shared());

#[test]
fn postgres_and_memory_give_the_same_verdicts() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let here = runtime.block_on(postgres());
    agrees_with_memory(&runtime, &here.store.limiter(), 40);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn budgets_are_shared_and_what_no_longer_counts_is_swept() {
    let here = postgres().await;
    let other = here.database.store(2).await;
    let rate = Rate { count: 3, window: Duration::from_secs(60) };
    let (one, two) = (here.store.limiter(), other.limiter());
    let mut allowed = 0;
    for id in 0..8 {
        let limiter = if id % 2 == 0 { &one } else { &two };
        for charge in [Charge::NewKey, Charge::IdWindow] {
            let admission = Admission { principal: b"alice", id: [id; 16], rate, charge, attempts_per_id: 9 };
            let verdict = limiter.admit(admission, at(0)).await.expect("PostgreSQL answers");
            allowed += i64::from(matches!(verdict, Verdict::Allowed { .. }));
        }
    }
    assert_eq!(allowed, 6, "three by each way of counting, whoever asks");
    let rows = "SELECT (SELECT count(*) FROM semel.budget) + (SELECT count(*) FROM semel.budget_id)";
    assert_eq!(here.number(rows).await, 8);
    here.pass(Duration::from_secs(365 * 86_400 * 20)).await;
    here.store.ready().await.expect("the time is seen");
    here.store.sweep(100, Duration::ZERO).await.expect("the sweep is made");
    assert_eq!(here.number(rows).await, 0);
}

//! The store in memory passes the suite.

use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use semel_store::conformance::{AdminFixture, Fixture, TestClock};
use semel_store::memory::MemoryStore;
use semel_store::{AdminStore, ClaimStore};

struct Memory {
    clock: Arc<TestClock>,
    store: Arc<MemoryStore>,
}

async fn memory() -> Memory {
    let clock = Arc::new(TestClock::default());
    let store = Arc::new(MemoryStore::with_clock(Arc::clone(&clock) as _));
    Memory { clock, store }
}

impl Fixture for Memory {
    fn store(&self) -> Arc<dyn ClaimStore> {
        Arc::clone(&self.store) as _
    }

    fn advance<'a>(&'a self, by: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        self.clock.advance(by);
        Box::pin(ready(()))
    }

    fn set_wall_off<'a>(&'a self, millis: i64) -> Pin<Box<dyn Future<Output = bool> + Send + 'a>> {
        self.clock.set_wall_off(millis);
        Box::pin(ready(true))
    }
}

impl AdminFixture for Memory {
    fn admin(&self) -> Arc<dyn AdminStore> {
        Arc::clone(&self.store) as _
    }
}

semel_store::conformance_tests!(memory());
semel_store::admin_conformance_tests!(memory());

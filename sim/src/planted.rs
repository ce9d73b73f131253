//! Mistakes that are built in on purpose, to see that the checkers find them. Without one, the store is the production
//! store in memory as it stands.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use semel_contract::profile::{Lifetime, presets};
use semel_contract::record::{Fence, State};
use semel_contract::time::Timestamp;
use semel_store::clock::{Clock, Reading};
use semel_store::hints::Hints;
use semel_store::memory::MemoryStore;
use semel_store::{
    About, Answer, ClaimOutcome, ClaimRequest, ClaimStore, Entry, FencedWrite, Filter, Form, Forms, Id,
    Reply, Resolution, Resolved, Sealed, Settlement, Swept,
};

use crate::clock::SimClock;
use crate::uptime::Uptime;

macro_rules! bugs {
    ($($bug:ident $name:literal)*) => {
        /// One mistake.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Bug { $(#[doc = $name] $bug,)* }

        impl Bug {
            /// Every mistake.
            pub const ALL: &'static [Bug] = &[$(Bug::$bug,)*];

            /// Its name.
            pub fn name(self) -> &'static str {
                match self { $(Bug::$bug => $name,)* }
            }
        }
    };
}

bugs! {
    FencelessSettle "a-settlement-ignores-its-fence"
    WonTwice        "a-claim-is-won-twice"
    LostOnCrash     "a-settled-record-is-lost-in-a-crash"
    LateDispatch    "a-dispatch-after-the-lease"
    ChangedByte     "a-replay-with-a-changed-byte"
    SweptLiveClaim  "a-sweep-frees-a-live-claim"
    WallExpiry      "expiry-by-a-clock-that-jumped"
}

impl Bug {
    /// The mistake of this name.
    pub fn named(name: &str) -> Option<Bug> {
        Bug::ALL.iter().copied().find(|bug| bug.name() == name)
    }
}

/// The store, with a mistake if one is asked for.
pub fn store(
    planted: Option<Bug>,
    machine: &Arc<SimClock>,
    uptime: Option<&Arc<Uptime>>,
) -> Arc<dyn ClaimStore> {
    let clock: Arc<dyn Clock> = match uptime {
        Some(uptime) => Arc::clone(uptime) as _,
        None => Arc::clone(machine) as _,
    };
    match planted {
        None | Some(Bug::LateDispatch) => Arc::new(MemoryStore::with_clock(clock)),
        Some(Bug::WallExpiry) => Arc::new(MemoryStore::with_clock(Arc::new(Gullible(Arc::clone(machine))))),
        Some(
            bug @ (Bug::FencelessSettle
            | Bug::WonTwice
            | Bug::LostOnCrash
            | Bug::ChangedByte
            | Bug::SweptLiveClaim),
        ) => Arc::new(NoAnswer { base: MemoryStore::with_clock(clock), bug }),
    }
}

/// A clock whose ticks follow the wall clock, so that no jump is ever noticed.
#[derive(Debug)]
struct Gullible(Arc<SimClock>);

impl Clock for Gullible {
    fn read(&self) -> Reading {
        let wall = self.0.read().wall;
        Reading { wall, ticks: Duration::from_millis(u64::try_from(wall.millis()).unwrap_or(0)) }
    }
}

/// A store with a mistake.
#[derive(Debug)]
struct NoAnswer {
    base: MemoryStore,
    bug: Bug,
}

impl NoAnswer {
    fn entry(&self, id: &Id) -> Option<Entry> {
        let found = self.base.look_up(id).now_or_never().and_then(Result::ok);
        found.and_then(|(entry, _)| entry)
    }

    fn entries(&self) -> Vec<Entry> {
        let all = Filter { limit: u32::MAX, ..Filter::default() };
        self.base.list(&all).now_or_never().and_then(Result::ok).unwrap_or_default()
    }

    fn free_live_claims(&self) {
        let lifetime = presets::ietf().lifetime;
        for entry in self.entries().iter().filter(|entry| entry.record.state == State::Claimed) {
            let freed = self.base.settle(&entry.id, entry.record.fence, Settlement::Release, &lifetime);
            assert!(
                matches!(freed.now_or_never(), Some(Ok(FencedWrite::Done))),
                "a held claim can be released"
            );
        }
    }
}

/// An answer whose first byte is another one.
fn changed(entry: Entry) -> Entry {
    let answer = entry.answer.map(|answer| {
        let mut body = answer.body.to_vec();
        if let Some(first) = body.first_mut() {
            *first ^= 1;
        }
        Answer { body: Bytes::from(body), ..answer }
    });
    Entry { answer, ..entry }
}

impl ClaimStore for NoAnswer {
    fn claim(&self, request: ClaimRequest) -> Reply<'_, ClaimOutcome> {
        Box::pin(async move {
            let claimed = self.base.claim(request).await?;
            Ok(match (claimed, self.bug) {
                (ClaimOutcome::Known { entry, now }, Bug::WonTwice)
                    if entry.record.state == State::Claimed =>
                {
                    ClaimOutcome::Won { fence: entry.record.fence, now }
                }
                (ClaimOutcome::Known { entry, now }, Bug::ChangedByte) => {
                    ClaimOutcome::Known { entry: Box::new(changed(*entry)), now }
                }
                (other, _) => other,
            })
        })
    }

    fn look_up<'a>(&'a self, id: &'a Id) -> Reply<'a, (Option<Entry>, Timestamp)> {
        Box::pin(async move {
            let (entry, now) = self.base.look_up(id).await?;
            let changes = self.bug == Bug::ChangedByte;
            Ok((entry.map(|entry| if changes { changed(entry) } else { entry }), now))
        })
    }

    fn settle<'a>(
        &'a self,
        id: &'a Id,
        fence: Fence,
        settlement: Settlement,
        lifetime: &'a Lifetime,
    ) -> Reply<'a, FencedWrite> {
        let current = self.entry(id).map_or(fence, |entry| entry.record.fence);
        let fence = if self.bug == Bug::FencelessSettle { current } else { fence };
        self.base.settle(id, fence, settlement, lifetime)
    }

    fn renew<'a>(&'a self, held: &'a [(Id, Fence)], lease: Duration) -> Reply<'a, Vec<FencedWrite>> {
        self.base.renew(held, lease)
    }

    fn resolve<'a>(
        &'a self,
        id: &'a Id,
        fence: Fence,
        resolution: Resolution,
        lifetime: &'a Lifetime,
        by: &'a str,
        reason: &'a str,
    ) -> Reply<'a, Resolved> {
        self.base.resolve(id, fence, resolution, lifetime, by, reason)
    }

    fn seal<'a>(&'a self, id: &'a Id, about: &'a About, lifetime: &'a Lifetime) -> Reply<'a, Sealed> {
        self.base.seal(id, about, lifetime)
    }

    fn sweep(&self, batch: u32, grace: Duration) -> Reply<'_, Swept> {
        if self.bug == Bug::SweptLiveClaim {
            self.free_live_claims();
        }
        self.base.sweep(batch, grace)
    }

    fn forget<'a>(&'a self, tenant: Option<&'a str>, principal: &'a str, by: &'a str) -> Reply<'a, u64> {
        self.base.forget(tenant, principal, by)
    }

    fn list<'a>(&'a self, filter: &'a Filter) -> Reply<'a, Vec<Entry>> {
        self.base.list(filter)
    }

    fn register_forms<'a>(&'a self, gate: &'a str, forms: &'a [Form]) -> Reply<'a, Forms> {
        self.base.register_forms(gate, forms)
    }

    fn is_marked<'a>(&'a self, rotation: [u8; 16], other_than: &'a Id) -> Reply<'a, bool> {
        self.base.is_marked(rotation, other_than)
    }

    fn ready(&self) -> Reply<'_, ()> {
        self.base.ready()
    }

    fn hints(&self) -> &Hints {
        self.base.hints()
    }
}

//! The store as one node sees it: slow, away, unsure, or hanging past the lease. What is written is written by `watch`.

use std::sync::Arc;
use std::time::Duration;

use semel_contract::profile::Lifetime;
use semel_contract::record::Fence;
use semel_contract::time::Timestamp;
use semel_store::hints::Hints;
use semel_store::{
    About, Answer, ClaimOutcome, ClaimRequest, ClaimStore, Entry, FencedWrite, Filter, Form, Forms, Id,
    Reply, Resolution, Resolved, Sealed, Settlement, StoreError, Swept,
};
use tokio::time::sleep;

use crate::book::Use;
use crate::coverage::Met;
use crate::faults::Fault;
use crate::life::Life;
use crate::world::World;

/// A node's way to the store.
pub struct FaultyStore {
    world: Arc<World>,
    life: Arc<Life>,
    /// Who asks: a process may have several gates one after another.
    name: String,
    /// The hints of a node that hears none.
    deaf: Option<Hints>,
}

impl std::fmt::Debug for FaultyStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FaultyStore").field("life", &self.life).finish_non_exhaustive()
    }
}

/// Whether a call changes anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
}

/// What will become of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Answered { before: Duration, after: Duration },
    Unavailable,
    Full,
    UnknownApplied,
    UnknownLost,
}

impl FaultyStore {
    /// A way to the store for one gate in one life of a node.
    pub fn new(world: Arc<World>, life: Arc<Life>, name: String) -> Self {
        let deaf = world.strikes(Fault::HintsLost).then(Hints::default);
        Self { world, life, name, deaf }
    }

    fn fate(&self, kind: Kind) -> Fate {
        let world = &self.world;
        let prompt = world.rng(|rng| rng.millis(0, 3));
        let long = |world: &World| world.rng(|rng| rng.millis(2500, 25_000));
        if world.is_store_away() || world.is_dark() || world.strikes(Fault::StoreUnavailable) {
            return Fate::Unavailable;
        }
        if kind == Kind::Write {
            for (fault, fate) in [
                (Fault::StoreFull, Fate::Full),
                (Fault::StoreUnknownApplied, Fate::UnknownApplied),
                (Fault::StoreUnknownLost, Fate::UnknownLost),
            ] {
                if world.strikes(fault) {
                    return fate;
                }
            }
        }
        if world.strikes(Fault::StoreHangsBefore) {
            return Fate::Answered { before: long(world), after: prompt };
        }
        if world.strikes(Fault::StoreHangsAfter) {
            return Fate::Answered { before: prompt, after: long(world) };
        }
        if world.strikes(Fault::StoreSlow) {
            let slow = || world.rng(|rng| rng.millis(50, 2000));
            return Fate::Answered { before: slow(), after: slow() };
        }
        Fate::Answered { before: prompt, after: Duration::ZERO }
    }

    fn may_crash(&self, kind: Kind) {
        if kind == Kind::Write && self.life.is_mortal() && self.world.strikes(Fault::CrashAtWrite) {
            self.world.crash(&self.life);
        }
    }

    /// Makes one call, or does not.
    async fn call<T>(
        &self,
        kind: Kind,
        (what, id): (&'static str, Option<&Id>),
        act: impl FnOnce(&World, &str) -> T + Send,
    ) -> Result<T, StoreError> {
        self.life.awake().await;
        let fate = self.fate(kind);
        let slot = id.and_then(|id| self.world.number_of(id));
        let name = self.name.as_str();
        let answer = match fate {
            Fate::Answered { before, after } => {
                sleep(before).await;
                self.may_crash(kind);
                // What a node had sent before it died may still arrive, or may not. An embedded store dies with its node.
                let arrives = !self.world.plan.is_embedded && self.world.rng(|rng| rng.chance(500));
                let is_dark = self.world.is_dark();
                if self.life.is_dead() && (!arrives || is_dark) {
                    self.world.note(slot, format!("{name} {what} is lost with its node"));
                    return std::future::pending().await;
                }
                if is_dark {
                    return Err(StoreError::Unavailable("simulated".to_owned()));
                }
                let answer = act(&self.world, name);
                self.may_crash(kind);
                sleep(after).await;
                Ok(answer)
            }
            Fate::Unavailable => Err(StoreError::Unavailable("simulated".to_owned())),
            Fate::Full => Err(StoreError::Full("simulated".to_owned())),
            Fate::UnknownApplied => {
                act(&self.world, name);
                Err(StoreError::Unknown("simulated".to_owned()))
            }
            Fate::UnknownLost => Err(StoreError::Unknown("simulated".to_owned())),
        };
        if answer.is_err() {
            self.world.note(slot, format!("{name} {what} → {fate:?}"));
        }
        self.life.awake().await;
        answer
    }

    /// Commits an effect and its record in one transaction, as an atomic handler does.
    pub(crate) async fn commit(
        &self,
        id: &Id,
        fence: Fence,
        answer: Answer,
        lifetime: &Lifetime,
        (used, name): (Use, &str),
    ) -> Result<FencedWrite, StoreError> {
        let act = |world: &World, by: &str| {
            let is_first =
                world.peek(id).0.is_some_and(|entry| entry.record.fence == fence && entry.answer.is_none());
            let written = world.store_settle(by, id, fence, Settlement::Settle(answer), lifetime);
            if written == FencedWrite::Done && is_first {
                world.take_effect(used, name, fence);
            }
            written
        };
        self.call(Kind::Write, ("commit", Some(id)), act).await
    }
}

impl ClaimStore for FaultyStore {
    fn claim(&self, request: ClaimRequest) -> Reply<'_, ClaimOutcome> {
        Box::pin(async move {
            let id = request.id.clone();
            self.call(Kind::Write, ("claim", Some(&id)), move |world, by| world.store_claim(by, request))
                .await
        })
    }

    fn look_up<'a>(&'a self, id: &'a Id) -> Reply<'a, (Option<Entry>, Timestamp)> {
        Box::pin(self.call(Kind::Read, ("look-up", Some(id)), move |world, by| world.store_look_up(by, id)))
    }

    fn settle<'a>(
        &'a self,
        id: &'a Id,
        fence: Fence,
        settlement: Settlement,
        lifetime: &'a Lifetime,
    ) -> Reply<'a, FencedWrite> {
        let act = move |world: &World, by: &str| world.store_settle(by, id, fence, settlement, lifetime);
        Box::pin(self.call(Kind::Write, ("settle", Some(id)), act))
    }

    fn renew<'a>(&'a self, held: &'a [(Id, Fence)], lease: Duration) -> Reply<'a, Vec<FencedWrite>> {
        Box::pin(self.call(Kind::Write, ("renew", None), move |world, by| world.store_renew(by, held, lease)))
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
        let act =
            move |world: &World, _: &str| world.store_resolve(by, id, fence, resolution, lifetime, reason);
        Box::pin(self.call(Kind::Write, ("resolve", Some(id)), act))
    }

    fn seal<'a>(&'a self, id: &'a Id, about: &'a About, lifetime: &'a Lifetime) -> Reply<'a, Sealed> {
        Box::pin(self.call(Kind::Write, ("seal", Some(id)), move |world, by| {
            world.store_seal(by, id, about, lifetime)
        }))
    }

    fn sweep(&self, batch: u32, grace: Duration) -> Reply<'_, Swept> {
        Box::pin(
            self.call(Kind::Write, ("sweep", None), move |world, by| world.store_sweep(by, batch, grace)),
        )
    }

    fn forget<'a>(&'a self, tenant: Option<&'a str>, principal: &'a str, by: &'a str) -> Reply<'a, u64> {
        self.world.base.forget(tenant, principal, by)
    }

    fn list<'a>(&'a self, filter: &'a Filter) -> Reply<'a, Vec<Entry>> {
        let filter = filter.clone();
        Box::pin(async move {
            let entries = self.call(Kind::Read, ("list", None), |world, _| world.peek_all()).await?;
            let after = entries
                .into_iter()
                .filter(|entry| filter.after.is_none_or(|after| entry.record.fence.number > after));
            Ok(after.take(filter.limit as usize).collect())
        })
    }

    fn register_forms<'a>(&'a self, gate: &'a str, forms: &'a [Form]) -> Reply<'a, Forms> {
        let (gate, forms) = (gate.to_owned(), forms.to_vec());
        Box::pin(self.call(Kind::Write, ("register forms", None), move |world, _| {
            world.store_register_forms(&gate, &forms)
        }))
    }

    fn is_marked<'a>(&'a self, rotation: [u8; 16], other_than: &'a Id) -> Reply<'a, bool> {
        Box::pin(self.call(Kind::Read, ("look for a mark", Some(other_than)), move |world, _| {
            world.store_is_marked(rotation, other_than)
        }))
    }

    fn lookup_is_local(&self) -> bool {
        self.world.plan.is_embedded
    }

    fn ready(&self) -> Reply<'_, ()> {
        self.world.base.ready()
    }

    fn hints(&self) -> &Hints {
        // Only one who waits asks for hints.
        self.world.count(Met::Decision, "wait");
        self.deaf.as_ref().unwrap_or_else(|| self.world.base.hints())
    }
}

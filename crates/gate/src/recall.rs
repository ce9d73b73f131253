//! Whether a key without a record may have had one, in a store that was restored from a backup. The decision is the
//! contract's ([`semel_contract::restore`]); here the store is asked and what is decided is carried out.

use std::borrow::Cow;
use std::time::Duration;

use http::HeaderMap;
use semel_contract::age::FIRST_SENT;
use semel_contract::decide::{Claim, Standing};
use semel_contract::key::Key;
use semel_contract::problem::Problem;
use semel_contract::profile::{FirstSent, Lifetime};
use semel_contract::request::Headers;
use semel_contract::restore::{Candidate, Recall, recall};
use semel_contract::time::Timestamp;
use semel_store::{About, ClaimOutcome, ClaimRequest, Id, Settlement, StoreError};

use crate::arrival::Arrival;
use crate::context::Context;
use crate::identity::Lines;
use crate::problems::store_away;
use crate::route::Route;
use crate::shared::Shared;

/// How far this process's clock may be ahead of the store's, at most.
const CLOCKS_APART: Duration = Duration::from_secs(86_400);

/// When a request was first sent at the earliest, from whatever it tells: the header, the time in its key, or when its
/// user acted. A route without an age policy refuses nothing by it, but after a restore it tells old from new.
pub(crate) fn earliest<H: Headers + ?Sized>(
    headers: &H,
    key: &Key,
    generated: Option<Timestamp>,
) -> Option<Timestamp> {
    // A malformed header is refused where the route asks for it; elsewhere it is as good as none.
    let told = FirstSent { from_uuid7: true }.read(headers, key).ok().flatten();
    let has_header = headers.values(FIRST_SENT).next().is_some();
    told.or(generated.filter(|_| !has_header))
}

/// Whether a key may have had a record that is lost. The store is asked for its time only where a restore may matter.
async fn asked(
    shared: &Shared,
    route: &Route,
    id: &Id,
    candidate: impl FnOnce() -> Candidate,
) -> Result<Recall, StoreError> {
    let lifetime = &route.profile.lifetime;
    let mut restores = shared.store.restores().await?;
    // By this process's own clock, and generously: the store's decides.
    restores.retain(|restore| restore.matters(lifetime, shared.now().minus(CLOCKS_APART)));
    if restores.is_empty() {
        return Ok(Recall::Sure);
    }
    let (_, now) = shared.store.look_up(id).await?;
    Ok(recall(&restores, candidate(), lifetime, now))
}

/// Sealing says that nothing happened under a key. Where that is not known, the key becomes unknown first, and is found so.
pub(crate) async fn before_seal(
    shared: &Shared,
    route: &Route,
    id: &Id,
    about: &About,
    first_sent: Option<Timestamp>,
) -> Result<(), StoreError> {
    if shared.store.restores().await?.is_empty() {
        return Ok(());
    }
    let (entry, now) = shared.store.look_up(id).await?;
    let record = entry.as_ref().map(|entry| &entry.record);
    let how = match Standing::of(record, now) {
        Standing::Absent => Claim::New,
        Standing::Expired => Claim::TakeOver,
        Standing::Released => Claim::Reclaim,
        Standing::Claimed
        | Standing::Abandoned
        | Standing::Unknown
        | Standing::Settled
        | Standing::Unkept
        | Standing::Sealed => return Ok(()),
    };
    let known_since = record.map(|record| record.created_at);
    let candidate = || Candidate { how, guarantee: route.profile.guarantee, first_sent, known_since };
    match asked(shared, route, id, candidate).await? {
        Recall::Sure => return Ok(()),
        Recall::Lost => {}
    }
    let request = ClaimRequest {
        id: id.clone(),
        how,
        replaces: record.map(|record| record.fence),
        nonce: (shared.entropy)(),
        lease: route.lease,
        late: route.runs_at_most() + route.late,
        guarantee: route.profile.guarantee,
        fingerprint: None,
        payload_hash: None,
        rotation: None,
        about: about.clone().into(),
        terms: None,
    };
    if let ClaimOutcome::Won { fence, .. } = shared.store.claim(request).await? {
        // Whatever becomes of this write: a claim that nobody renews is an unknown outcome all the same.
        shared.store.settle(id, fence, Settlement::Unknown, &route.profile.lifetime).await?;
    }
    Ok(())
}

impl Context {
    /// Whether the key that is about to be claimed may have had a record that is lost.
    pub(crate) async fn recalls(
        &self,
        how: Claim,
        known_since: Option<Timestamp>,
        headers: &HeaderMap,
    ) -> Result<Recall, Problem> {
        if self.arrival.is_minted {
            return Ok(Recall::Sure);
        }
        let Arrival { id, about, .. } = &self.arrival;
        let candidate = || Candidate {
            how,
            guarantee: self.route.profile.guarantee,
            first_sent: earliest(&Lines(headers), &id.key, about.client_generated_at),
            known_since,
        };
        let verdict = asked(&self.shared, &self.route, id, candidate).await;
        verdict.map_err(|error| store_away(&error))
    }

    /// The lifetime under which a probe's word is written down. After a restore, a key that is free again leaves a trace:
    /// without one it would count as lost once more.
    pub(crate) async fn resolving_lifetime(&self) -> Result<Cow<'_, Lifetime>, Problem> {
        let lifetime = &self.route.profile.lifetime;
        let restores = self.shared.store.restores().await.map_err(|error| store_away(&error))?;
        if lifetime.released.is_some() || restores.is_empty() {
            return Ok(Cow::Borrowed(lifetime));
        }
        Ok(Cow::Owned(Lifetime { released: Some(lifetime.record()), ..lifetime.clone() }))
    }
}

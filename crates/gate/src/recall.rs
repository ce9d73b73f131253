//! Whether a key without a record may have had one, in a store that was restored from a backup. The decision is the
//! contract's ([`semel_contract::restore`]); here the store is asked and what is decided is carried out.

use std::borrow::Cow;

use semel_contract::age::FIRST_SENT;
use semel_contract::decide::Claim;
use semel_contract::key::Key;
use semel_contract::problem::Problem;
use semel_contract::profile::{FirstSent, Lifetime};
use semel_contract::request::Headers;
use semel_contract::restore::{Candidate, Recall, Restore, recall};
use semel_contract::time::Timestamp;

use crate::attempt::Context;
use crate::walk::store_away;

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

impl Context {
    async fn restores(&self) -> Result<Vec<Restore>, Problem> {
        self.shared.store.restores().await.map_err(|error| store_away(&error))
    }

    /// Whether the key that is about to be claimed may have had a record that is lost.
    pub(crate) async fn recalls(
        &self,
        how: Claim,
        known_since: Option<Timestamp>,
    ) -> Result<Recall, Problem> {
        let restores = self.restores().await?;
        if restores.is_empty() || self.arrival.is_minted {
            return Ok(Recall::Sure);
        }
        let profile = &self.route.profile;
        let first_sent = self.arrival.earliest;
        let candidate = Candidate { how, guarantee: profile.guarantee, first_sent, known_since };
        let (_, now) = self.look_up().await?;
        Ok(recall(&restores, candidate, &profile.lifetime, now))
    }

    /// The lifetime under which a probe's word is written down. After a restore, a key that is free again leaves a trace:
    /// without one it would count as lost once more.
    pub(crate) async fn resolving_lifetime(&self) -> Result<Cow<'_, Lifetime>, Problem> {
        let lifetime = &self.route.profile.lifetime;
        if lifetime.released.is_some() || self.restores().await?.is_empty() {
            return Ok(Cow::Borrowed(lifetime));
        }
        Ok(Cow::Owned(Lifetime { released: Some(lifetime.record()), ..lifetime.clone() }))
    }
}

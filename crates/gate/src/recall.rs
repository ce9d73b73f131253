//! Whether a key without a record may have had one, in a store that was restored from a backup. The decision is the
//! contract's ([`semel_contract::restore`]); here the store is asked and what is decided is carried out.

use semel_contract::age::FIRST_SENT;
use semel_contract::decide::Claim;
use semel_contract::key::Key;
use semel_contract::problem::Problem;
use semel_contract::profile::{FirstSent, Profile};
use semel_contract::request::Headers;
use semel_contract::restore::{Candidate, Recall, recall};
use semel_contract::time::Timestamp;

use crate::attempt::Context;
use crate::walk::store_away;

/// When a request was first sent at the earliest, from whatever it tells: the header, the time in its key, or when its
/// user acted. A route without an age policy does not refuse by it, but after a restore it tells old from new.
pub(crate) fn earliest<H: Headers + ?Sized>(
    headers: &H,
    key: &Key,
    profile: &Profile,
    generated: Option<Timestamp>,
) -> Option<Timestamp> {
    // A malformed header is refused where the route asks for it; elsewhere it is as good as none.
    let told = FirstSent { from_uuid7: true }.read(headers, key).ok().flatten();
    let is_told = headers.values(FIRST_SENT).next().is_some();
    let dated = if is_told { told } else { told.or(generated.filter(|_| profile.guard.is_some())) };
    debug_assert!(!is_told || dated == told, "the header comes before everything else");
    dated
}

impl Context {
    /// Whether the key that is about to be claimed may have had a record that is lost.
    pub(crate) async fn recalls(&self, how: Claim) -> Result<Recall, Problem> {
        let restores = self.shared.store.restores().await.map_err(|error| store_away(&error))?;
        if restores.is_empty() {
            return Ok(Recall::Sure);
        }
        let profile = &self.route.profile;
        let candidate =
            Candidate { how, guarantee: profile.guarantee, first_sent: self.arrival.earliest };
        let (_, now) = self.look_up().await?;
        Ok(recall(&restores, candidate, &profile.lifetime, now))
    }
}

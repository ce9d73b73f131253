//! Credentials that callers give to a relay: sealed under the at-rest key, in the store that all replicas share, so that
//! each of them has them, also after a restart. Refuses to keep one without a key. What files and commands say counts where
//! nothing was given.

use std::sync::Arc;

use semel_store::at_rest::KeyRing;

use super::store::given::Given;
use super::store::{RelayStore, StoreError};
use crate::credentials::{Asked, Credential, Credentials, Wallet};
use crate::operator::Operator;

/// Credentials from calls, and where there is none, from files and commands.
#[derive(Debug)]
pub struct SharedWallet {
    store: RelayStore,
    keys: Option<KeyRing>,
    rules: Arc<Wallet>,
}

/// Why a credential was not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotKept {
    /// There is no key to seal it under.
    NoKey,
    /// It could not be sealed.
    NotSealed(String),
    /// The store failed.
    Store(StoreError),
}

impl From<StoreError> for NotKept {
    fn from(error: StoreError) -> Self {
        NotKept::Store(error)
    }
}

impl SharedWallet {
    /// Credentials that calls put into this store, sealed under the first of these keys; and these places.
    pub fn new(store: RelayStore, keys: Option<KeyRing>, rules: Arc<Wallet>) -> Self {
        Self { store, keys, rules }
    }

    /// Keeps a credential of a principal for this target, which is at this origin; without header lines, takes it back.
    ///
    /// After: every replica has it, and so has the next start.
    ///
    /// # Errors
    /// There is no key, or the store failed: the one before counts.
    pub async fn give(
        &self,
        principal: &str,
        target: &str,
        origin: &str,
        credential: &Credential,
        who: impl Into<Operator> + Send,
    ) -> Result<(), NotKept> {
        if credential.headers.is_empty() {
            return Ok(self.store.give(target, principal, None, who).await?);
        }
        let keys = self.keys.as_ref().ok_or(NotKept::NoKey)?;
        let text =
            serde_json::to_vec(&credential.headers).map_err(|why| NotKept::NotSealed(why.to_string()))?;
        let sealed = keys.seal(&bound_to(principal, target, origin), &text);
        let sealed = sealed.map_err(|why| NotKept::NotSealed(why.into()))?;
        let given = Given { origin: origin.to_owned(), sealed };
        Ok(self.store.give(target, principal, Some(&given), who).await?)
    }

    async fn found(&self, principal: &str, target: &str, origin: &str) -> Result<Option<Credential>, String> {
        let given = self.store.given(target, principal).await.map_err(|error| error.to_string())?;
        // One that was given for another origin is not for this one, whatever the target is called.
        let Some(given) = given.filter(|given| given.origin == origin) else {
            return self.rules.credential_for(principal, target, origin).await;
        };
        let unread = |why: &str| format!("the credential that was given for {principal} {why}");
        let keys = self.keys.as_ref().ok_or_else(|| unread("is sealed, and there is no at-rest key"))?;
        let text = keys.unseal(&bound_to(principal, target, origin), &given.sealed);
        let text = text.map_err(|why| unread(&why.to_string()))?;
        let headers = serde_json::from_slice(&text).map_err(|_| unread("cannot be read"))?;
        Ok(Some(Credential { headers }))
    }
}

/// What a sealed credential belongs to: it does not open in another place.
fn bound_to<'a>(principal: &'a str, target: &'a str, origin: &'a str) -> [&'a str; 4] {
    ["semel.relay.credential", principal, target, origin]
}

impl Credentials for SharedWallet {
    fn credential<'a>(&'a self, principal: &'a str, origin: &'a str) -> Asked<'a> {
        self.rules.credential(principal, origin)
    }

    fn credential_for<'a>(&'a self, principal: &'a str, target: &'a str, origin: &'a str) -> Asked<'a> {
        Box::pin(self.found(principal, target, origin))
    }
}

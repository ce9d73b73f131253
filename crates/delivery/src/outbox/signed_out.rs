//! Principals that have signed out: nothing is sent on their behalf, in this run or a later one, until they sign in again or a
//! person releases them. Owns the list in memory, which is never shorter than the store's.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use super::{Inner, Outbox, OutboxError};
use crate::credentials::Credential;

/// Who has signed out.
#[derive(Default)]
pub(crate) struct SignedOut {
    known: Mutex<BTreeSet<String>>,
    /// Signing in and out take turns, so that the store and the list end alike.
    turn: tokio::sync::Mutex<()>,
}

impl SignedOut {
    /// Those that a start has found.
    pub(crate) fn of(found: Vec<String>) -> Self {
        Self { known: Mutex::new(found.into_iter().collect()), ..Self::default() }
    }

    pub(crate) fn contains(&self, principal: &str) -> bool {
        self.with(|known| !known.is_empty() && known.contains(principal))
    }

    fn with<T>(&self, act: impl FnOnce(&mut BTreeSet<String>) -> T) -> T {
        act(&mut self.known.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Inner {
    /// The credential of this principal for this origin, now. Nobody is asked for one of a principal that has signed out.
    pub(crate) async fn credential(
        &self,
        principal: &str,
        origin: &str,
    ) -> Result<Option<Credential>, String> {
        if self.signed_out.contains(principal) {
            return Err(format!("{principal} signed out"));
        }
        self.settings.credentials.credential(principal, origin).await
    }
}

impl Outbox {
    /// Says that a principal has left: its messages are parked until [`Outbox::refreshed`] or [`Outbox::release`]. An attempt
    /// that runs goes on. Once this returns `Ok`, a restart parks them too.
    ///
    /// # Errors
    /// The store refuses. In this run they are parked all the same.
    pub async fn sign_out(&self, principal: &str) -> Result<(), OutboxError> {
        let signed_out = &self.inner.signed_out;
        let _turn = signed_out.turn.lock().await;
        signed_out.with(|known| known.insert(principal.to_owned()));
        Ok(self.inner.store.set_signed_out(principal, true, self.now()).await?)
    }

    /// Whether this principal has signed out.
    pub fn is_signed_out(&self, principal: &str) -> bool {
        self.inner.signed_out.contains(principal)
    }

    /// Forgets that a principal has signed out, on disk before in memory.
    pub(super) async fn forget_sign_out(&self, principal: &str) -> Result<(), OutboxError> {
        let signed_out = &self.inner.signed_out;
        let _turn = signed_out.turn.lock().await;
        if signed_out.contains(principal) {
            self.inner.store.set_signed_out(principal, false, self.now()).await?;
            signed_out.with(|known| known.remove(principal));
        }
        Ok(())
    }
}

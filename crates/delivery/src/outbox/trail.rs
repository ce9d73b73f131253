//! What is done by hand: in whose name, and what is written down of it.

use std::sync::Arc;

use super::{Outbox, OutboxError};
use crate::operator::{Audited, Operator};
use crate::store::OutboxStore;

impl Outbox {
    /// The same outbox, in the name of somebody: what they do by hand stands in the trail, with who and why.
    #[must_use]
    pub fn by(&self, operator: Operator) -> Self {
        Self { inner: Arc::clone(&self.inner), acting: Some(self.inner.store.by(operator)) }
    }

    /// Where what is done by hand is done.
    pub(crate) fn acting(&self) -> &Arc<dyn OutboxStore> {
        self.acting.as_ref().unwrap_or(&self.inner.store)
    }

    /// What was done by hand, the latest first; or what came before this number.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn trail(&self, before: Option<i64>, limit: u32) -> Result<Vec<Audited>, OutboxError> {
        Ok(self.inner.store.trail(before, limit).await?)
    }

    /// Says among the events, and in the trail, that somebody gave a principal a credential for an origin, or took theirs
    /// back.
    ///
    /// # Errors
    /// The store refuses.
    pub async fn note_credential(
        &self,
        principal: &str,
        origin: &str,
        is_taken_back: bool,
    ) -> Result<(), OutboxError> {
        let kind = if is_taken_back { "credential-taken-back" } else { "credential-given" };
        Ok(self.acting().note(kind, format!("{principal} at {origin}"), self.now()).await?)
    }
}

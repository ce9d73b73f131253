//! Kept answers, compressed and encrypted before they reach the store. Owns the decorator [`AtRest`] and the key file
//! ([`KeyRing`]). Refuses to give out what it cannot prove: a record that was altered, or moved to another key, is an
//! error that names what is wrong, never its content and never a guess.
//!
//! 1. What is sealed: body and headers together. Status, state and times stay readable, since lists and sweeps need
//!    them; the status is authenticated with the rest.
//! 2. What it is bound to: the scope, the key, the nonce of the attempt that was answered, the key's id and the form.
//!    An answer copied to another record does not open there.
//! 3. What was written before encryption was switched on is still read. Whoever can write to the database can therefore
//!    put an unencrypted answer there: encryption keeps answers from being read, and sealed ones from being altered.
//! 4. Where compression and encryption are both on, a sealed answer's length tells how well it could be compressed. Who
//!    serves secrets beside text of the caller's choosing, and fears readers of the database, encrypts only.
//!
//! Answers that a handler settles with its own SQL do not pass here and are not protected.

mod admin;
mod content;
mod envelope;
#[cfg(test)]
mod fuzz;
mod keys;
mod small;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use semel_contract::profile::Lifetime;
use semel_contract::record::Fence;
use semel_contract::restore::Restore;
use semel_contract::time::Timestamp;

use crate::claims::{
    About, Answer, ClaimOutcome, ClaimRequest, ClaimStore, Entry, FencedWrite, Filter, Id, KnownAmong, Reply,
    Resolution, Resolved, Sealed, Settlement, StoreError, Swept,
};
use crate::forms::{Form, Forms};
use crate::hints::Hints;
use envelope::{Carrier, Place};

pub use content::{COMPRESSED_BODY_BYTES_MIN, UNPACKED_BYTES_MAX};
pub use envelope::{BLOB_HEADER, MARKER_HEADER};
pub use keys::{KEY_FILE_BYTES_MAX, KEY_ID_BYTES_MAX, KeyFileError, KeyRing};

/// What is done to an answer before it is kept.
#[derive(Clone, Debug)]
pub enum Protection {
    /// It is compressed.
    Compress {
        /// Keys that open what was encrypted earlier. Nothing is encrypted any more.
        reads: Option<KeyRing>,
    },
    /// It is encrypted under the first key.
    Encrypt(KeyRing),
    /// It is compressed, then encrypted under the first key.
    CompressAndEncrypt(KeyRing),
}

/// A store whose answers are protected at rest. Claims, fences and times are those of the store beneath.
pub struct AtRest<S: ClaimStore + ?Sized> {
    inner: Arc<S>,
    protection: Protection,
}

impl<S: ClaimStore + ?Sized> fmt::Debug for AtRest<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AtRest").field("protection", &self.protection).finish_non_exhaustive()
    }
}

impl<S: ClaimStore + ?Sized> AtRest<S> {
    /// Protects what `inner` keeps from now on.
    pub fn new(inner: Arc<S>, protection: Protection) -> Self {
        Self { inner, protection }
    }

    fn close(&self, id: &Id, fence: Fence, answer: &Answer, carrier: Carrier) -> Result<Answer, StoreError> {
        envelope::close(&self.protection, Place { id, nonce: fence.nonce }, answer, carrier)
    }

    fn open(&self, mut entry: Entry) -> Result<Entry, StoreError> {
        if let Some(answer) = entry.answer.take() {
            let fence = entry.record.fence;
            let place = Place { id: &entry.id, nonce: fence.nonce };
            let opened = envelope::open(&self.protection, place, answer);
            // The fence lets an operator find the record, and page past it in a list.
            let named = |why| StoreError::Unavailable(format!("the answer under fence {fence} {why}"));
            entry.answer = Some(opened.map_err(named)?);
        }
        Ok(entry)
    }

    fn close_settlement(
        &self,
        id: &Id,
        fence: Fence,
        settlement: &Settlement,
    ) -> Result<Settlement, StoreError> {
        Ok(match settlement {
            Settlement::Settle(answer) => Settlement::Settle(self.close(id, fence, answer, Carrier::Body)?),
            Settlement::Unkept(_) => {
                let tombstone = kept_of(settlement).expect("an unkept answer has a tombstone");
                Settlement::Unkept(self.close(id, fence, &tombstone, Carrier::Header)?)
            }
            Settlement::Release => Settlement::Release,
            Settlement::Unknown => Settlement::Unknown,
        })
    }

    /// Whether the record already says what the holder wants to write. The store beneath cannot tell: the same answer
    /// encrypted twice is two different texts.
    async fn said_before(
        &self,
        id: &Id,
        fence: Fence,
        settlement: &Settlement,
    ) -> Result<FencedWrite, StoreError> {
        let Some(answer) = kept_of(settlement) else { return Ok(FencedWrite::Superseded) };
        let (entry, _) = self.inner.look_up(id).await?;
        let written = |entry: &Entry| entry.record.fence == fence && entry.record.state == settlement.state();
        match entry.filter(written).map(|entry| self.open(entry)).transpose()? {
            Some(entry) if entry.answer.as_ref() == Some(&answer) => Ok(FencedWrite::Done),
            Some(_) | None => Ok(FencedWrite::Superseded),
        }
    }
}

/// What is kept of the answer of a settlement.
fn kept_of(settlement: &Settlement) -> Option<Answer> {
    match settlement {
        Settlement::Settle(answer) => Some(answer.clone()),
        Settlement::Unkept(answer) => Some(Answer { body: Bytes::new(), ..answer.clone() }),
        Settlement::Release | Settlement::Unknown => None,
    }
}

impl<S: ClaimStore + ?Sized> ClaimStore for AtRest<S> {
    fn claim(&self, request: ClaimRequest) -> Reply<'_, ClaimOutcome> {
        Box::pin(async move {
            Ok(match self.inner.claim(request).await? {
                ClaimOutcome::Known { entry, now } => {
                    ClaimOutcome::Known { entry: Box::new(self.open(*entry)?), now }
                }
                other @ (ClaimOutcome::Won { .. }
                | ClaimOutcome::Changed
                | ClaimOutcome::CredentialChanged
                | ClaimOutcome::Entered) => other,
            })
        })
    }

    fn look_up<'a>(&'a self, id: &'a Id) -> Reply<'a, (Option<Entry>, Timestamp)> {
        Box::pin(async move {
            let (entry, now) = self.inner.look_up(id).await?;
            Ok((entry.map(|entry| self.open(entry)).transpose()?, now))
        })
    }

    fn settle<'a>(
        &'a self,
        id: &'a Id,
        fence: Fence,
        settlement: Settlement,
        lifetime: &'a Lifetime,
    ) -> Reply<'a, FencedWrite> {
        Box::pin(async move {
            let closed = self.close_settlement(id, fence, &settlement)?;
            match self.inner.settle(id, fence, closed, lifetime).await? {
                FencedWrite::Done => Ok(FencedWrite::Done),
                FencedWrite::Superseded => self.said_before(id, fence, &settlement).await,
            }
        })
    }

    fn renew<'a>(&'a self, held: &'a [(Id, Fence)], lease: Duration) -> Reply<'a, Vec<FencedWrite>> {
        self.inner.renew(held, lease)
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
        Box::pin(async move {
            // The record gets a new number when it is resolved; its nonce stays, and the answer is bound to that.
            let closed = match resolution {
                Resolution::Applied(Some(answer)) => {
                    Resolution::Applied(Some(self.close(id, fence, &answer, Carrier::Body)?))
                }
                Resolution::Applied(None) => Resolution::Applied(None),
                Resolution::NotApplied => Resolution::NotApplied,
            };
            self.inner.resolve(id, fence, closed, lifetime, by, reason).await
        })
    }

    fn seal<'a>(&'a self, id: &'a Id, about: &'a About, lifetime: &'a Lifetime) -> Reply<'a, Sealed> {
        Box::pin(async move {
            Ok(match self.inner.seal(id, about, lifetime).await? {
                Sealed::Known(entry) => Sealed::Known(Box::new(self.open(*entry)?)),
                Sealed::Done => Sealed::Done,
            })
        })
    }

    fn sweep(&self, batch: u32, grace: Duration) -> Reply<'_, Swept> {
        self.inner.sweep(batch, grace)
    }

    fn forget<'a>(&'a self, tenant: Option<&'a str>, principal: &'a str, by: &'a str) -> Reply<'a, u64> {
        self.inner.forget(tenant, principal, by)
    }

    fn list<'a>(&'a self, filter: &'a Filter) -> Reply<'a, Vec<Entry>> {
        Box::pin(async move {
            let entries = self.inner.list(filter).await?;
            entries.into_iter().map(|entry| self.open(entry)).collect()
        })
    }

    fn lookup_is_local(&self) -> bool {
        self.inner.lookup_is_local()
    }

    fn ready(&self) -> Reply<'_, ()> {
        self.inner.ready()
    }

    fn connections(&self) -> Option<(usize, usize)> {
        self.inner.connections()
    }

    fn restores(&self) -> Reply<'_, Vec<Restore>> {
        self.inner.restores()
    }

    fn log_sweep(&self, swept: Swept, took: Duration) -> Reply<'_, ()> {
        self.inner.log_sweep(swept, took)
    }

    fn count_stale<'a>(&'a self, tenant: Option<&'a str>, principal: &'a str) -> Reply<'a, ()> {
        self.inner.count_stale(tenant, principal)
    }

    fn register_forms<'a>(&'a self, gate: &'a str, forms: &'a [Form]) -> Reply<'a, Forms> {
        self.inner.register_forms(gate, forms)
    }

    fn known_among<'a>(&'a self, ids: &'a [Id], marks: &'a [([u8; 16], Id)]) -> Reply<'a, KnownAmong> {
        self.inner.known_among(ids, marks)
    }

    fn is_marked<'a>(&'a self, rotation: [u8; 16], other_than: &'a Id) -> Reply<'a, bool> {
        self.inner.is_marked(rotation, other_than)
    }

    fn encodes_answers(&self) -> bool {
        true
    }

    fn hints(&self) -> &Hints {
        self.inner.hints()
    }
}

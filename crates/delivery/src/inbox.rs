//! The receiver's side: what others send is kept once for each sender and id, listed until it is acknowledged, and known
//! again for ever after. It lives in the outbox's own file.

use std::sync::Arc;

use crate::message::Received;
use crate::outbox::{Outbox, OutboxError};
use crate::store::OutboxStore;

/// Received messages.
#[derive(Clone)]
pub struct Inbox {
    store: Arc<dyn OutboxStore>,
    outbox: Outbox,
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Inbox")
    }
}

impl Outbox {
    /// What others sent to this application.
    pub fn inbox(&self) -> Inbox {
        Inbox { store: Arc::clone(&self.inner.store), outbox: self.clone() }
    }
}

impl Inbox {
    /// Keeps a message. `true`: it is new. `false`: this sender's id was received before, whatever became of it, or a
    /// message that supersedes it was.
    ///
    /// Once this returns, a restart finds it: the sender may be told so.
    pub async fn receive(
        &self,
        sender: &str,
        message_id: &str,
        supersedes: Option<&str>,
        payload: &[u8],
    ) -> Result<bool, OutboxError> {
        let now = self.outbox.now();
        let message = Received {
            number: 0,
            sender: sender.to_owned(),
            message_id: message_id.to_owned(),
            supersedes: supersedes.map(str::to_owned),
            received_at: now,
            payload: payload.to_vec(),
        };
        Ok(self.store.receive(message, now).await?)
    }

    /// Messages that nobody acknowledged, from the one after this number on.
    pub async fn list(&self, after: i64, limit: u32) -> Result<Vec<Received>, OutboxError> {
        Ok(self.store.received(after, limit).await?)
    }

    /// Acknowledges a message: it is listed no more, and still known. `false`: there is none to acknowledge.
    pub async fn acknowledge(&self, sender: &str, message_id: &str) -> Result<bool, OutboxError> {
        Ok(self.store.acknowledge(sender, message_id, self.outbox.now()).await?)
    }
}

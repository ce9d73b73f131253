//! The receiver's side: what others send is kept once for each mesh, sender and id, listed until it is acknowledged, and
//! known again for ever after. It lives in the outbox's own file.

use std::sync::Arc;

use semel_contract::planted::{self, Bug};
use tokio::sync::watch;

use crate::message::{Came, Gap, Received};
use crate::outbox::{Outbox, OutboxError};
use crate::store::{InboxDepth, OutboxStore};

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

/// What became of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acknowledged {
    /// It is acknowledged now.
    Now,
    /// It was before.
    Before,
    /// There is no such message.
    Unknown,
    /// Senders of this name in several meshes used the id: say which is meant.
    Ambiguous,
}

impl Outbox {
    /// What others sent to this application.
    pub fn inbox(&self) -> Inbox {
        Inbox { store: Arc::clone(self.acting()), outbox: self.clone() }
    }
}

impl Inbox {
    /// Keeps a message. `true`: it is new. `false`: this sender's id was received before, whatever became of it, or another
    /// one of its chain was: the one whose place it takes, or one that takes the same place.
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
            sender: sender.to_owned(),
            message_id: message_id.to_owned(),
            supersedes: supersedes.map(str::to_owned),
            received_at: now,
            payload: payload.to_vec(),
            ..Received::default()
        };
        let is_new = self.store.receive(message, now).await?;
        self.tell();
        Ok(is_new)
    }

    /// Keeps what came on a line of a mesh, and how far the line has come. Returns how many messages are new.
    ///
    /// Once this returns, a restart finds both: the broker may be told so.
    pub async fn receive_line(&self, came: Came) -> Result<u64, OutboxError> {
        if planted::is(Bug::OutboxCursorFirst) {
            let alone = Came { messages: Vec::new(), gaps: Vec::new(), ..came.clone() };
            self.store.receive_line(alone, self.outbox.now()).await?;
        }
        let new = self.store.receive_line(came, self.outbox.now()).await?;
        self.tell();
        Ok(new)
    }

    /// How far a line of a mesh has come. `None`: nothing came on it yet.
    pub async fn line_cursor(&self, mesh: &str, line: &str) -> Result<Option<String>, OutboxError> {
        Ok(self.store.line_cursor(mesh, line).await?)
    }

    /// Messages that nobody acknowledged, from the one after this number on.
    pub async fn list(&self, after: i64, limit: u32) -> Result<Vec<Received>, OutboxError> {
        Ok(self.store.received(after, limit).await?)
    }

    /// Messages of a sender under this id, acknowledged or not: one for each mesh.
    pub async fn find(&self, sender: &str, message_id: &str) -> Result<Vec<Received>, OutboxError> {
        Ok(self.store.received_as(sender, message_id).await?)
    }

    /// Acknowledges a message: it is listed no more, and still known. Without a mesh, the only one that has it is meant.
    pub async fn acknowledge(
        &self,
        mesh: Option<&str>,
        sender: &str,
        message_id: &str,
    ) -> Result<Acknowledged, OutboxError> {
        let found = self.find(sender, message_id).await?;
        let meant: Vec<&Received> =
            found.iter().filter(|found| mesh.is_none_or(|mesh| mesh == found.mesh)).collect();
        let [one] = meant.as_slice() else {
            return Ok(if meant.is_empty() { Acknowledged::Unknown } else { Acknowledged::Ambiguous });
        };
        let is_first = self.store.acknowledge(&one.mesh, sender, message_id, self.outbox.now()).await?;
        self.tell();
        Ok(if is_first { Acknowledged::Now } else { Acknowledged::Before })
    }

    /// What lines said cannot be had, above this number, the oldest first.
    pub async fn gaps(&self, after: i64, limit: u32) -> Result<Vec<Gap>, OutboxError> {
        Ok(self.store.gaps(after, limit).await?)
    }

    /// How full it is.
    pub async fn depth(&self) -> Result<InboxDepth, OutboxError> {
        Ok(self.store.inbox_depth().await?)
    }

    /// The name under which this file reads lines: the same after every restart, and no other file's.
    pub async fn consumer(&self) -> Result<String, OutboxError> {
        let random = (self.outbox.settings().entropy.bits() as i64) & i64::MAX;
        Ok(format!("outbox-{:016x}", self.store.own_number(random).await?))
    }

    /// Changes whenever something may have come or gone.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.outbox.inner.inbox_told.subscribe()
    }

    fn tell(&self) {
        self.outbox.inner.inbox_told.send_modify(|count| *count += 1);
    }
}

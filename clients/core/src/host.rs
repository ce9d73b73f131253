//! The application's side: asked for credentials and rebuilds, and told what a person should know. It is asked on threads of its
//! own, where it may block; no answer in time is no answer.

use std::sync::Arc;

use semel_delivery::Row;
use semel_delivery::credentials::{Asked, Credential as Stamped, Credentials};
use semel_delivery::hooks::{Hooks, Rebuilding, Rebuilt};

use crate::errors::HostError;
use crate::notices;
use crate::types::{Credential, Notice, Rebuild, Receipt};

/// What an application answers and is told. Called on threads of the outbox; blocking is allowed.
#[uniffi::export(with_foreign)]
pub trait Host: Send + Sync {
    /// The credential with which this principal's messages are sent to this origin now. `None`: nobody is signed in, and the
    /// messages wait.
    fn credential(&self, principal: String, origin: String) -> Result<Option<Credential>, HostError>;

    /// The server wants the lane rebuilt; `behind` are the messages that wait behind the refused one.
    fn rebuild(&self, held: Receipt, behind: Vec<Receipt>) -> Result<Rebuild, HostError>;

    /// What a person should be told.
    fn notice(&self, notice: Notice);
}

/// How work that blocks is run, and counted while it runs.
pub(crate) trait Blocking: Send + Sync {
    fn begin(&self) {}
    fn end(&self) {}
}

/// Work that nobody counts.
pub(crate) struct Uncounted;

impl Blocking for Uncounted {}

/// The host as the outbox sees it.
pub(crate) struct Bridge {
    host: Arc<dyn Host>,
    needs_credentials: bool,
    blocking: Arc<dyn Blocking>,
}

impl Bridge {
    pub(crate) fn new(host: Arc<dyn Host>, needs_credentials: bool, blocking: Arc<dyn Blocking>) -> Self {
        Self { host, needs_credentials, blocking }
    }

    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&dyn Host) -> Result<T, HostError> + Send + 'static,
    ) -> Result<T, String> {
        let (host, blocking) = (Arc::clone(&self.host), Arc::clone(&self.blocking));
        self.blocking.begin();
        let asked = tokio::task::spawn_blocking(move || question(&*host));
        let asked = asked.await;
        blocking.end();
        match asked {
            Ok(answer) => answer.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Tells the host, which may take its time.
    fn tell(&self, notice: Notice) {
        let (host, blocking) = (Arc::clone(&self.host), Arc::clone(&self.blocking));
        self.blocking.begin();
        drop(tokio::task::spawn_blocking(move || {
            host.notice(notice);
            blocking.end();
        }));
    }

    async fn stamp(&self, principal: &str, origin: &str) -> Result<Option<Stamped>, String> {
        if !self.needs_credentials {
            return Ok(None);
        }
        let (whose, whence) = (principal.to_owned(), origin.to_owned());
        let Credential { principal: speaks_for, headers } =
            self.ask(move |host| host.credential(whose, whence)).await?.ok_or("nobody is signed in")?;
        if speaks_for != principal {
            return Err(format!("{speaks_for} is signed in, not {principal}"));
        }
        Ok(Some(Stamped { headers: headers.into_iter().map(|header| (header.name, header.value)).collect() }))
    }
}

impl Credentials for Bridge {
    fn credential<'a>(&'a self, principal: &'a str, origin: &'a str) -> Asked<'a> {
        Box::pin(self.stamp(principal, origin))
    }
}

impl Hooks for Bridge {
    fn rebuild<'a>(&'a self, message: &'a Row, behind: &'a [Row]) -> Rebuilding<'a> {
        let held = Receipt::of(message.clone(), None);
        let behind: Vec<Receipt> = behind.iter().cloned().map(|row| Receipt::of(row, None)).collect();
        Box::pin(async move {
            match self.ask(move |host| host.rebuild(held, behind)).await {
                Ok(Rebuild::Wait) => Rebuilt::Wait,
                Ok(Rebuild::Later) => Rebuilt::Later,
                Ok(Rebuild::Replace { drop, instead }) => {
                    self.tell(notices::rebuilt(message));
                    Rebuilt::Replace {
                        drop,
                        with: instead.into_iter().map(crate::types::Message::enqueue).collect(),
                    }
                }
                Err(why) => {
                    tracing::warn!(why, "the application could not rebuild a lane; it is asked again");
                    Rebuilt::Later
                }
            }
        })
    }

    fn expired(&self, messages: &[Row]) {
        notices::expired(messages).into_iter().for_each(|notice| self.tell(notice));
    }

    fn dropped(&self, message: &Row, reason: &str) {
        self.tell(notices::dropped(message, reason));
    }

    fn refused(&self, principal: &str, _origin: &str) {
        self.tell(notices::sign_in(principal));
    }
}

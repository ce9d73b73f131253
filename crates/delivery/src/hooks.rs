//! What the application does about what happens: its side of a rebuild, of an expiry, of a drop. Called after the change
//! is on disk, and never while a lane is being sent from.

use std::future::Future;
use std::pin::Pin;

use crate::message::{Enqueue, Row};

/// What the application makes of a lane that the server says is out of order.
#[derive(Debug, Default)]
pub enum Rebuilt {
    /// It decides later: the lane waits until somebody resumes it, aborts or requeues the message.
    #[default]
    Wait,
    /// It cannot tell now, for want of a network perhaps: it is asked again within a minute or two.
    Later,
    /// The message and those rows behind it are dropped, and these take their place under keys of their own.
    Replace {
        /// Numbers of rows of the same lane that are dropped as well.
        drop: Vec<i64>,
        /// What is enqueued instead.
        with: Vec<Enqueue>,
    },
}

/// What the application promises when it is asked.
pub type Rebuilding<'a> = Pin<Box<dyn Future<Output = Rebuilt> + Send + 'a>>;

/// The application's side.
pub trait Hooks: Send + Sync + 'static {
    /// The server wants the lane rebuilt; `behind` are the messages that wait behind the refused one. It may take its time,
    /// and ask the server: meanwhile the lane waits, and others do not. One that was not answered before the process ended is
    /// asked again after the next start.
    fn rebuild<'a>(&'a self, message: &'a Row, behind: &'a [Row]) -> Rebuilding<'a> {
        let _ = (message, behind);
        Box::pin(std::future::ready(Rebuilt::Wait))
    }

    /// These messages were too old to send or to go on with, as the outbox or as their server found. Called once for
    /// all that went in one go, whatever their lanes, so that one notice can speak of them all.
    fn expired(&self, messages: &[Row]) {
        let _ = messages;
    }

    /// A message was dropped for this reason.
    fn dropped(&self, message: &Row, reason: &str) {
        let _ = (message, reason);
    }

    /// The credential of this principal was refused; its lanes wait for a fresh one.
    fn refused(&self, principal: &str, origin: &str) {
        let _ = (principal, origin);
    }
}

/// Does nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHooks;

impl Hooks for NoHooks {}

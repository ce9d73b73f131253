//! Hints between replicas: that something may be due, and who is at work on a lane. Safety never rests on them: a hint that
//! is lost, late or untrue costs time and nothing else. Without any, replicas find out by asking the store.

use std::future::Future;
use std::pin::Pin;

/// What somebody else's hint means for a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Nobody else seems to be at work: claim it.
    Ours,
    /// Somebody else seems to be: leave it to them for now.
    Elsewhere,
}

/// A hint to come.
pub type Hinted<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Hints between replicas.
pub trait Hints: std::fmt::Debug + Send + Sync + 'static {
    /// Tells the others that something may be due. Never waits, never fails.
    fn wake(&self) {}

    /// Says that this process is about to work on a lane, and whether another one seems to be. Where that cannot be
    /// found out soon, nobody is.
    fn take(&self, _lane: i64) -> Hinted<'_, Taken> {
        Box::pin(std::future::ready(Taken::Ours))
    }

    /// Says that it has ended.
    fn give(&self, _lane: i64) -> Hinted<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// No hints: replicas ask the store.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHints;

impl Hints for NoHints {}

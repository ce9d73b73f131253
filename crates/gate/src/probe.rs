//! Asks what became of an unknown outcome.

use std::future::Future;
use std::pin::Pin;

use semel_store::{Answer, Entry};

/// What a probe found out.
#[derive(Clone, Debug)]
pub enum Finding {
    /// It took effect, with this answer if it is known.
    Applied(Option<Answer>),
    /// It did not. Believed only once the request can no longer take effect.
    NotApplied,
    /// It cannot tell either.
    Unknown,
}

/// Something that can be asked about a request whose outcome is unknown.
pub trait Probe: Send + Sync + 'static {
    /// What became of it. Must change nothing.
    fn ask<'a>(&'a self, entry: &'a Entry) -> Pin<Box<dyn Future<Output = Finding> + Send + 'a>>;

    /// The same, with the path parameters of the request that is sent again, which are those of the first.
    fn ask_at<'a>(
        &'a self,
        entry: &'a Entry,
        params: &'a [(String, String)],
    ) -> Pin<Box<dyn Future<Output = Finding> + Send + 'a>> {
        let _ = params;
        self.ask(entry)
    }
}

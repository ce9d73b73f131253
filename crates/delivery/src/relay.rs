//! The server-side outbox: accepts at once, merges what can be merged, writes it once, and audits every original.
//!
//! 1. An entry is on disk before its sender is told so, with its number in its lane.
//! 2. All waiting entries of a lane become one write, by the target's reducer. The batch is frozen and on disk, with the
//!    bytes that are sent, before the socket is touched; what comes later forms the next one.
//! 3. A write whose outcome is not known is decided by what the upstream offers ([`recovery`]), never by a guess; what stays
//!    open is in doubt, and a person decides.
//! 4. Every write to the store presents the fence of its lane; a stale one changes nothing.
//! 5. No transaction is held across a call.

pub mod debounce;
pub mod engine;
mod finder;
pub mod given;
pub mod hints;
pub mod intake;
pub mod meters;
pub mod policy;
pub mod recovery;
pub mod reduce;
mod share;
pub mod store;
pub mod target;
pub mod template;
pub mod upstream;
pub mod worker;

pub use engine::{Engine, LaneOutcome};
pub use store::RelayStore;
pub use target::Target;
pub use worker::Worker;

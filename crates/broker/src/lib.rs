//! What is published and received: one append per id, every subscriber gets every message, in order.
//!
//! 1. A message is appended once, for everybody or for nobody, however often and however concurrently it is published under
//!    its id. Every repetition is told the same `broker_message_id`.
//! 2. An id is committed exactly when its message, history, webhook and mention rows are: one transaction writes them.
//! 3. Numbers of a line are given under its lock, so that their order is the order of commits; who gets a message is decided
//!    by the numbers between which a member was subscribed.
//! 4. Live push follows commits and never leads. A reader that comes back goes on after its cursor; what is no longer kept is
//!    an explicit gap, never silence.
//! 5. Delivery to readers and webhooks is at least once; receivers remove what comes twice by its id.
//!
//! ```no_run
//! use std::sync::Arc;
//! use semel_broker::{Broker, Parts, Settings, database};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let db = database::open_file("broker.db".as_ref(), Arc::new(semel_store::clock::SystemClock))?;
//! let broker = Broker::open(Parts::new(Arc::new(db)), Settings::default()).await?;
//! let running = broker.start();
//! let router = semel_broker::listen_router(broker, semel_broker::Identity::Tokens, None);
//! # drop((running, router)); Ok(())
//! # }
//! ```

#![warn(missing_docs)]

mod broker;
mod consumers;
mod cursor;
pub mod database;
mod directory;
mod door;
mod event;
mod event_id;
mod http;
mod identity;
pub mod limits;
mod live;
mod message;
mod meters;
mod news;
mod published;
mod running;
mod settings;
mod store;
mod wakes;
mod webhook;

pub use broker::{
    Broker, LineName, OpenFailed, Page, Parts, ReadError, ReceiptView, SealAnswer, WebhookBody,
};
pub use event::Gap;
pub use event_id::{EventId, NotAnEventId};
pub use http::{admin_router, listen_router, openapi};
pub use identity::{Caller, Identified, Identify, Identity, Role};
pub use message::{Beside, Destination, Draft, Payload, ROUTE};
pub use published::{Published, Receipt, Refusal};
pub use running::Running;
pub use settings::{BadSetting, Settings};
pub use store::manage::{
    ManageError, MemberInfo, MemberWish, MeshInfo, MeshLimits, MeshWish, Put, SubscriptionInfo, TopicInfo,
    WebhookInfo, Which,
};
pub use store::orphans::Orphans;
pub use store::sweep::Swept;
pub use store::trail::Audited;

//! A handler's proof that it may execute, found in the request's extensions. On atomic routes it settles with it, inside
//! its own transaction; on all routes it derives child keys from it.

use std::fmt;
use std::sync::{Arc, Mutex};

use semel_contract::hex::hex;
use semel_contract::profile::Lifetime;
use semel_contract::record::Fence;
use semel_store::{Answer, ClaimStore, Id, StoreError};
use sha2::{Digest, Sha256};

use crate::attempt::Broken;

/// The right to execute one request, once.
#[derive(Clone)]
pub struct Grant(Arc<Inner>);

struct Inner {
    id: Id,
    fence: Fence,
    lifetime: Lifetime,
    store: Arc<dyn ClaimStore>,
    settled: Mutex<Option<Answer>>,
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grant").field("fence", &self.0.fence).finish_non_exhaustive()
    }
}

impl Grant {
    pub(crate) fn new(id: Id, fence: Fence, lifetime: Lifetime, store: Arc<dyn ClaimStore>) -> Self {
        Self(Arc::new(Inner { id, fence, lifetime, store, settled: Mutex::new(None) }))
    }

    /// Where the record is kept.
    pub fn records(&self) -> &dyn ClaimStore {
        &*self.0.store
    }

    /// The gate's store, when it is of this kind.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn store<S: ClaimStore>(&self) -> Result<&S, NotDone> {
        let store: &dyn std::any::Any = self.records();
        store.downcast_ref().ok_or(NotDone::WrongStore)
    }

    /// Which key is executed.
    pub fn id(&self) -> &Id {
        &self.0.id
    }

    /// The fence that every write presents.
    pub fn fence(&self) -> Fence {
        self.0.fence
    }

    /// How long the record will live.
    pub fn lifetime(&self) -> &Lifetime {
        &self.0.lifetime
    }

    /// A stable child key for a call onward: the same for every attempt at this request, another for every name.
    pub fn derive(&self, name: &str) -> String {
        let mut hash = Sha256::new();
        for part in [
            b"semel.derive.1".as_slice(),
            self.0.id.scope.as_bytes(),
            self.0.id.key.as_str().as_bytes(),
            name.as_bytes(),
        ] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        hex(&hash.finalize()[..16])
    }

    /// Notes that the record was committed together with the effect. The layer then answers from it.
    pub fn settled_with(&self, answer: Answer) {
        *self.0.settled.lock().expect("nothing that holds this lock panics") = Some(answer);
    }

    pub(crate) fn settled(&self) -> Option<Answer> {
        self.0.settled.lock().expect("nothing that holds this lock panics").clone()
    }
}

/// Why a handler's transaction was not committed together with its record. Nothing of it took effect, but for
/// [`NotDone::Unknown`].
#[derive(Debug)]
pub enum NotDone {
    /// Another attempt holds the key by now. Rolled back.
    Superseded,
    /// The handler's own work failed, in its words. Rolled back.
    Failed(String),
    /// The store could not be reached. Nothing was written.
    Store(StoreError),
    /// It could not be found out whether the transaction was committed. The next attempt will find out.
    Unknown(String),
    /// The gate's store is of another kind than this transaction.
    WrongStore,
}

impl fmt::Display for NotDone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotDone::Superseded => {
                f.write_str("another attempt holds this key by now; the transaction was rolled back")
            }
            NotDone::Failed(why) => write!(f, "the transaction was rolled back: {why}"),
            NotDone::Store(error) => write!(f, "nothing was written: {error}"),
            NotDone::Unknown(why) => {
                write!(f, "it is not known whether the transaction was committed: {why}")
            }
            NotDone::WrongStore => f.write_str("the gate keeps its records elsewhere than in this database"),
        }
    }
}

impl std::error::Error for NotDone {}

impl axum_core::response::IntoResponse for NotDone {
    fn into_response(self) -> axum_core::response::Response {
        // On an atomic route each of these leaves the key free, or unknown where that is the truth.
        let status = match &self {
            NotDone::Superseded => http::StatusCode::CONFLICT,
            NotDone::Store(_) => http::StatusCode::SERVICE_UNAVAILABLE,
            NotDone::Failed(_) | NotDone::Unknown(_) | NotDone::WrongStore => {
                http::StatusCode::INTERNAL_SERVER_ERROR
            }
        };
        tracing::warn!(error = %self, "a handler's transaction was not committed");
        // The words are for the log: a client has no business with the database's.
        let mut response = (status, "the request was not carried out").into_response();
        if status == http::StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(http::header::RETRY_AFTER, http::HeaderValue::from_static("1"));
        }
        match self {
            NotDone::Superseded => drop(response.extensions_mut().insert(Broken::Superseded)),
            NotDone::Unknown(why) => drop(response.extensions_mut().insert(Broken::Reset(why))),
            NotDone::Failed(_) | NotDone::Store(_) | NotDone::WrongStore => {}
        }
        response
    }
}

/// There is no grant: the route is not protected, or the request had no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotGranted;

impl axum_core::response::IntoResponse for NotGranted {
    fn into_response(self) -> axum_core::response::Response {
        let text = "this route needs a semel gate in front of it and an idempotency key on the request";
        (http::StatusCode::INTERNAL_SERVER_ERROR, text).into_response()
    }
}

impl<S: Send + Sync> axum_core::extract::FromRequestParts<S> for Grant {
    type Rejection = NotGranted;

    async fn from_request_parts(parts: &mut http::request::Parts, _: &S) -> Result<Self, NotGranted> {
        parts.extensions.get::<Grant>().cloned().ok_or(NotGranted)
    }
}

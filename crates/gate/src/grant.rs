//! A handler's proof that it may execute, found in the request's extensions. On atomic routes it settles with it, inside
//! its own transaction; on all routes it derives child keys from it.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use axum_core::BoxError;
use axum_core::extract::FromRequestParts;
use axum_core::response::{IntoResponse, Response};
use http::header::RETRY_AFTER;
use http::request::Parts;
use http::{HeaderValue, StatusCode};
use semel_contract::hex::hex;
use semel_contract::profile::{Lifetime, Profile};
use semel_contract::record::Fence;
use semel_store::{Answer, ClaimStore, Id, StoreError};
use sha2::{Digest, Sha256};

use crate::arrival;
use crate::context::Context;
use crate::no_answer::NoAnswer;

/// The right to execute one request, once.
#[derive(Clone)]
pub struct Grant(Arc<Inner>);

struct Inner {
    context: Arc<Context>,
    fence: Fence,
    settled: Mutex<Option<Answer>>,
    /// A transaction of the handler may have been told to commit, and it is not known whether it did.
    is_committing: AtomicBool,
    /// The handler ended its transaction by itself, and may have written outside of it.
    is_outside: AtomicBool,
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grant").field("fence", &self.0.fence).finish_non_exhaustive()
    }
}

impl Grant {
    pub(crate) fn new(context: Arc<Context>, fence: Fence) -> Self {
        let (is_committing, is_outside) = (AtomicBool::new(false), AtomicBool::new(false));
        Self(Arc::new(Inner { context, fence, settled: Mutex::new(None), is_committing, is_outside }))
    }

    /// What is executed.
    #[cfg(feature = "postgres")]
    pub(crate) fn context(&self) -> &Context {
        &self.0.context
    }

    /// The gate's store, when it is of this kind.
    pub(crate) fn store<S: ClaimStore>(&self) -> Result<&S, NotGranted> {
        let store: &dyn std::any::Any = &*self.0.context.shared.store;
        store.downcast_ref().ok_or(NotGranted::OtherStore)
    }

    /// Which key is executed.
    pub fn id(&self) -> &Id {
        &self.0.context.arrival.id
    }

    /// The fence that every write presents.
    pub fn fence(&self) -> Fence {
        self.0.fence
    }

    /// The host of its request as it counts in the key's scope; `None` where no host counts there.
    pub fn counted_host(&self, parts: &Parts) -> Option<String> {
        let (context, host) = (&self.0.context, arrival::host(parts));
        let endpoint = &context.arrival.about.endpoint;
        let scope = self.profile().scope.scope_at(&context.caller, endpoint, Some(&host));
        (scope == self.id().scope).then_some(host)
    }

    /// What its route says.
    pub(crate) fn profile(&self) -> &Profile {
        &self.0.context.route.profile
    }

    /// How long the record will live.
    pub fn lifetime(&self) -> &Lifetime {
        &self.profile().lifetime
    }

    /// A stable child key for a call onward: the same for every attempt at this request, another for every name.
    pub fn derive(&self, name: &str) -> String {
        let mut hash = Sha256::new();
        for part in [
            b"semel.derive.1".as_slice(),
            self.id().scope.as_bytes(),
            self.id().key.as_str().as_bytes(),
            name.as_bytes(),
        ] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        hex(&hash.finalize()[..16])
    }

    /// Notes that the record was committed together with the effect. The layer then answers from it.
    pub(crate) fn note_settled(&self, answer: Answer) {
        *self.0.settled.lock().expect("nothing that holds this lock panics") = Some(answer);
    }

    /// Notes whether a transaction of the handler may be committing at this moment, or may have been committed unheard.
    #[cfg(feature = "postgres")]
    pub(crate) fn note_committing(&self, is_committing: bool) {
        self.0.is_committing.store(is_committing, Ordering::SeqCst);
    }

    pub(crate) fn is_committing(&self) -> bool {
        self.0.is_committing.load(Ordering::SeqCst)
    }

    /// Notes that the handler may have written outside of the transaction that has its key.
    pub(crate) fn note_outside(&self) {
        self.0.is_outside.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_outside(&self) -> bool {
        self.0.is_outside.load(Ordering::SeqCst)
    }

    pub(crate) fn settled(&self) -> Option<Answer> {
        self.0.settled.lock().expect("nothing that holds this lock panics").clone()
    }
}

/// Why a handler's transaction was not committed together with its record. Nothing of it took effect, but for
/// [`SettleError::Unknown`] and [`SettleError::Outside`].
#[derive(Debug)]
#[non_exhaustive]
pub enum SettleError {
    /// Another attempt holds the key by now. Rolled back.
    Superseded,
    /// The handler's own work failed. Rolled back.
    Failed(BoxError),
    /// The database did not take the answer's record, as after a statement whose error the handler swallowed. Rolled back.
    Refused(BoxError),
    /// The handler ended the transaction by itself, with ROLLBACK, or with COMMIT, which is refused. What it wrote since may stand
    /// without a record, so that the outcome of its key is unknown.
    Outside(BoxError),
    /// The store could not be reached. Nothing was written.
    Store(StoreError),
    /// It could not be found out whether the transaction was committed. The next attempt will find out.
    Unknown(BoxError),
}

impl SettleError {
    /// The handler's own work failed: its transaction is rolled back, and the key is free again.
    ///
    /// ```
    /// use semel_gate::SettleError;
    /// let failed = "12x".parse::<u32>().map_err(SettleError::failed).unwrap_err();
    /// assert_eq!(failed.to_string(), "the transaction was rolled back: invalid digit found in string");
    /// ```
    pub fn failed(error: impl Into<BoxError>) -> Self {
        SettleError::Failed(error.into())
    }
}

impl fmt::Display for SettleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettleError::Superseded => {
                f.write_str("another attempt holds this key by now; the transaction was rolled back")
            }
            SettleError::Failed(error) => write!(f, "the transaction was rolled back: {error}"),
            SettleError::Refused(error) => {
                write!(f, "the answer was not recorded, and its transaction was rolled back: {error}")
            }
            SettleError::Outside(error) => {
                write!(
                    f,
                    "the handler ended its transaction by itself; what it wrote since may stand: {error}"
                )
            }
            SettleError::Store(error) => write!(f, "nothing was written: {error}"),
            SettleError::Unknown(error) => {
                write!(f, "it is not known whether the transaction was committed: {error}")
            }
        }
    }
}

impl std::error::Error for SettleError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            SettleError::Superseded => None,
            SettleError::Failed(error)
            | SettleError::Refused(error)
            | SettleError::Outside(error)
            | SettleError::Unknown(error) => Some(&**error),
            SettleError::Store(error) => Some(error),
        }
    }
}

impl IntoResponse for SettleError {
    fn into_response(self) -> Response {
        // On an atomic route each of these leaves the key free, or unknown where that is the truth.
        let status = match &self {
            SettleError::Superseded => StatusCode::CONFLICT,
            SettleError::Store(_) => StatusCode::SERVICE_UNAVAILABLE,
            SettleError::Failed(_)
            | SettleError::Refused(_)
            | SettleError::Outside(_)
            | SettleError::Unknown(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        tracing::warn!(error = %self, "a handler's transaction was not committed");
        // The words are for the log: a client has no business with the database's.
        let mut response = (status, "the request was not carried out").into_response();
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        match self {
            SettleError::Superseded => drop(response.extensions_mut().insert(NoAnswer::Superseded)),
            SettleError::Unknown(why) => {
                drop(response.extensions_mut().insert(NoAnswer::Reset(why.to_string())));
            }
            // What the database said is for the log.
            SettleError::Refused(_) => {
                let why = "the answer was not recorded, and its transaction was rolled back";
                drop(response.extensions_mut().insert(NoAnswer::NotSettled(why.to_owned())));
            }
            // The gate knows of what is outside from the grant itself.
            SettleError::Failed(_) | SettleError::Outside(_) | SettleError::Store(_) => {}
        }
        response
    }
}

/// There is no grant to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotGranted {
    /// The route is not protected, or the request had no key.
    Missing,
    /// The gate keeps its records elsewhere than this kind of grant settles.
    OtherStore,
}

impl fmt::Display for NotGranted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NotGranted::Missing => {
                "this route needs a semel gate in front of it and an idempotency key on the request"
            }
            NotGranted::OtherStore => "the gate keeps its records in another kind of store than this grant",
        })
    }
}

impl std::error::Error for NotGranted {}

impl IntoResponse for NotGranted {
    fn into_response(self) -> Response {
        (StatusCode::INTERNAL_SERVER_ERROR, self.to_string()).into_response()
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Grant {
    type Rejection = NotGranted;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, NotGranted> {
        parts.extensions.get::<Grant>().cloned().ok_or(NotGranted::Missing)
    }
}

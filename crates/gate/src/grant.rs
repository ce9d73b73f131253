//! A handler's proof that it may execute, found in the request's extensions. On atomic routes it settles with it, inside
//! its own transaction; on all routes it derives child keys from it.

use std::sync::{Arc, Mutex};

use semel_contract::hex::hex;
use semel_contract::profile::Lifetime;
use semel_contract::record::Fence;
use semel_store::{Answer, Id};
use sha2::{Digest, Sha256};

/// The right to execute one request, once.
#[derive(Clone, Debug)]
pub struct Grant(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    id: Id,
    fence: Fence,
    lifetime: Lifetime,
    settled: Mutex<Option<Answer>>,
}

impl Grant {
    pub(crate) fn new(id: Id, fence: Fence, lifetime: Lifetime) -> Self {
        Self(Arc::new(Inner { id, fence, lifetime, settled: Mutex::new(None) }))
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

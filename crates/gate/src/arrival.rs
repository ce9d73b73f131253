//! Reads a request: who sent it, under which key, for what. Pure but for the identity, which the gate was given.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use http::request::Parts;
use semel_contract::decide::Standing;
use semel_contract::fingerprint::{self, Fingerprint, Form, Secret};
use semel_contract::identity::Caller;
use semel_contract::key::{Found, Key};
use semel_contract::problem::{Kind, Problem};
use semel_contract::profile::Profile;
use semel_contract::record::Record;
use semel_contract::request::{Body, Headers};
use semel_contract::time::Timestamp;
use semel_store::{About, ClaimStore, Id, StoreError};
use sha2::{Digest, Sha256};

use crate::route::Route;

/// The header lines of a request, as the contract reads them.
pub(crate) struct Lines<'a>(pub(crate) &'a HeaderMap);

impl Headers for Lines<'_> {
    fn values<'a>(&'a self, name: &'a str) -> Box<dyn Iterator<Item = &'a [u8]> + 'a> {
        Box::new(self.0.get_all(name).iter().map(http::HeaderValue::as_bytes))
    }
}

/// Everything that is known of a request before the store is asked.
pub(crate) struct Arrival {
    pub(crate) id: Id,
    /// In every form that this gate can make, the current one first; none where the profile does not look.
    pub(crate) fingerprints: Vec<Fingerprint>,
    pub(crate) payload_hash: Option<[u8; 32]>,
    pub(crate) rotation: Option<[u8; 16]>,
    pub(crate) first_sent: Option<Timestamp>,
    /// Whether its key was made here, and so cannot have been used before.
    pub(crate) is_minted: bool,
    pub(crate) about: Arc<About>,
    pub(crate) params: Vec<(String, String)>,
    /// What it would have been under the endpoint's former names.
    pub(crate) formers: Vec<Former>,
    /// Whether it goes by one of them.
    pub(crate) is_by_former_name: bool,
}

/// A request under a former name of its endpoint.
pub(crate) struct Former {
    pub(crate) id: Id,
    pub(crate) fingerprints: Vec<Fingerprint>,
}

/// What reading the key came to.
pub(crate) enum KeyRead {
    /// There is one.
    Found(Found),
    /// There is none, and none is needed.
    Unkeyed,
}

/// Reads the key. Comes after the identity, as every step that could tell something about keys does.
pub(crate) fn read_key(profile: &Profile, headers: &HeaderMap, body: &Body<'_>) -> Result<KeyRead, Problem> {
    match profile.key.read(&Lines(headers), body)? {
        Some(found) => Ok(KeyRead::Found(found)),
        None => Ok(KeyRead::Unkeyed),
    }
}

/// What is known of the caller's identity beyond its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Credential {
    /// Verified by somebody: a new credential is still the same principal.
    Verified,
    /// Only hashed: a rotated credential looks like somebody else.
    Hashed,
    /// The same for everybody.
    Shared,
}

impl Credential {
    /// The name in the keys API: whether what is said of a key holds for its owner, or for one credential alone.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Credential::Verified => "verified",
            Credential::Hashed => "hashed",
            Credential::Shared => "shared",
        }
    }
}

impl Arrival {
    /// Reads a keyed request.
    pub(crate) fn read(
        route: &Route,
        parts: &Parts,
        body: &Body<'_>,
        (caller, credential): (&Caller, Credential),
        key: Key,
        request_id: &str,
        secrets: &[Secret],
    ) -> Result<Self, Problem> {
        let profile = &route.profile;
        if credential == Credential::Shared && !key.is_random_uuid() {
            return Err(Problem::new(Kind::KeyTooWeak, "a shared identity demands a version 4 UUID as key"));
        }
        let lines = Lines(&parts.headers);
        let kept = profile.key.read_required(&lines)?;
        let names = profile.key.require_headers.iter().map(|required| required.name.to_ascii_lowercase());
        let endpoint = route.endpoint(parts.method.as_str(), parts.uri.path());
        let scope = profile.scope.scope(caller, &endpoint);
        let params = route.pattern.matches(parts.method.as_str(), parts.uri.path()).unwrap_or_default();
        let form = profile.fingerprint.as_ref().map(|recipe| recipe.form(body)).transpose()?;
        let fingerprints = |endpoint: &str| {
            let request = fingerprint::Parts {
                method: parts.method.as_str(),
                route: endpoint,
                params: &params,
                query: parts.uri.query().unwrap_or(""),
                principal: &caller.principal,
            };
            let made =
                profile.fingerprint.as_ref().zip(form.as_ref()).into_iter().flat_map(|(recipe, form)| {
                    // A secret that was set or changed does not make a known request another one.
                    let secrets = secrets.iter().map(Some).chain([None]);
                    secrets.map(|secret| recipe.fingerprint(&request, form, secret)).collect::<Vec<_>>()
                });
            made.collect::<Vec<_>>()
        };
        let current = fingerprints(&endpoint);
        let payload_hash = form.as_ref().filter(|_| profile.shows_payload()).map(Form::payload_hash);
        let rotation = (credential == Credential::Hashed && key.is_uuid())
            // By the oldest secret, so that a new one does not hide what was claimed before it came.
            .then(|| {
                current.get(secrets.len().saturating_sub(1)).map(|print| rotation(&endpoint, &key, print))
            })
            .flatten();
        let formers = route.was.iter().map(|name| Former {
            id: Id { scope: profile.scope.scope(caller, name), key: key.clone() },
            fingerprints: fingerprints(name),
        });
        let formers = formers.collect();
        let about = Arc::new(About {
            endpoint: endpoint.into_owned(),
            tenant: caller.tenant.clone(),
            principal: caller.principal.clone(),
            client_generated_at: generated_at(profile, body),
            headers: names.zip(kept).collect(),
            request_id: request_id.to_owned(),
        });
        let first_sent = profile.age.map_or(Ok(None), |policy| policy.read(&lines, &key))?;
        let params = params.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Ok(Self {
            id: Id { scope, key },
            fingerprints: current,
            payload_hash,
            rotation,
            first_sent,
            is_minted: false,
            about,
            params,
            formers,
            is_by_former_name: false,
        })
    }
}

impl Arrival {
    /// Whether a record's fingerprint is of a kind that this gate cannot make.
    pub(crate) fn cannot_compare(&self, record: &Record) -> bool {
        let is_of_kind =
            |known: &Fingerprint| self.fingerprints.iter().any(|own| own.version == known.version);
        record.fingerprint.as_ref().is_some_and(|known| !self.fingerprints.is_empty() && !is_of_kind(known))
    }

    /// A key that is known under a former name of its endpoint is still that key.
    pub(crate) async fn recognise(&mut self, store: &dyn ClaimStore) -> Result<(), StoreError> {
        if self.formers.is_empty() || store.look_up(&self.id).await?.0.is_some() {
            return Ok(());
        }
        if let Some(place) = self.known_former(store).await? {
            let former = self.formers.swap_remove(place);
            (self.id, self.fingerprints) = (former.id, former.fingerprints);
            self.is_by_former_name = true;
            self.formers.clear();
        }
        Ok(())
    }

    /// Whether the key is known under a former name after all.
    pub(crate) async fn is_known_by_a_former_name(&self, store: &dyn ClaimStore) -> Result<bool, StoreError> {
        Ok(!self.is_by_former_name && self.known_former(store).await?.is_some())
    }

    async fn known_former(&self, store: &dyn ClaimStore) -> Result<Option<usize>, StoreError> {
        for (place, former) in self.formers.iter().enumerate() {
            let (entry, now) = store.look_up(&former.id).await?;
            if entry.is_some_and(|entry| Standing::of(Some(&entry.record), now) != Standing::Expired) {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }
}

/// What recognises the same request under another credential.
fn rotation(endpoint: &str, key: &Key, fingerprint: &Fingerprint) -> [u8; 16] {
    let mut hash = Sha256::new();
    // One UUID, however it is spelled.
    let key = key.as_str().to_ascii_lowercase();
    for part in [endpoint.as_bytes(), key.as_bytes(), &fingerprint.bytes] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let digest: [u8; 32] = hash.finalize().into();
    *digest.first_chunk().expect("a digest has 32 bytes")
}

/// When the user acted, for the record. Whether that is acceptable is the guard's business.
fn generated_at(profile: &Profile, body: &Body<'_>) -> Option<Timestamp> {
    crate::guard::timestamp(body, &profile.guard.as_ref()?.generated_at).ok().flatten()
}

/// The value of `Content-Type`, if there is exactly one.
pub(crate) fn content_type(headers: &HeaderMap) -> Option<&[u8]> {
    let mut values = headers.get_all(http::header::CONTENT_TYPE).iter();
    let first = values.next().map(http::HeaderValue::as_bytes);
    first.filter(|_| values.next().is_none())
}

/// A request whose body has been read in full.
pub(crate) struct Whole {
    pub(crate) parts: Parts,
    pub(crate) body: Bytes,
}

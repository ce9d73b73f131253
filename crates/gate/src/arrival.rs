//! Reads a request: who sent it, under which key, for what. Pure but for the identity, which the gate was given.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http::request::Parts;
use semel_contract::decide::Claim;
use semel_contract::fingerprint::{self, Fingerprint, Form, Secret};
use semel_contract::identity::Caller;
use semel_contract::key::{Found, Key};
use semel_contract::planted::{self, Bug};
use semel_contract::problem::{Kind, Problem};
use semel_contract::profile::Profile;
use semel_contract::record::Record;
use semel_contract::request::Body;
use semel_contract::scope;
use semel_contract::time::Timestamp;
use semel_store::{About, Id, KnownAmong, StoreError};

use crate::form::{Asked, Shape, all_fingerprints, kept_params, mark};
use crate::forms::FormerCaller;
use crate::identity::{Credential, Lines};
use crate::measure::Call;
use crate::problems::{credential_changed, store_away};
use crate::route::Route;
use crate::standing::{Store, all_unknown, telling};

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
    /// What it may be known as: under the endpoint's former names, and in former forms of its route.
    pub(crate) formers: Vec<Shape>,
    /// Whether it goes by one of them.
    pub(crate) is_by_former_name: bool,
    /// When the former forms were asked for, by the clock that only ticks.
    pub(crate) as_of: Duration,
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

/// What is known of a request before its key is looked up.
pub(crate) struct Reading<'a, 'b> {
    pub(crate) route: &'a Route,
    pub(crate) parts: &'a Parts,
    pub(crate) body: &'a Body<'b>,
    pub(crate) caller: &'a Caller,
    pub(crate) credential: Credential,
    pub(crate) request_id: &'a str,
    pub(crate) secrets: &'a [Secret],
    /// Whether it came by HTTP, so that the headers which its profile requires can be asked for.
    pub(crate) has_headers: bool,
    /// Whether the host counts.
    pub(crate) by_host: bool,
    /// The forms in which its key may be known beside the present one.
    pub(crate) formers: &'a [FormerCaller<'a>],
    /// When those were asked for.
    pub(crate) as_of: Duration,
}

impl Arrival {
    /// Reads a keyed request.
    pub(crate) fn read(reading: &Reading<'_, '_>, key: Key) -> Result<Self, Problem> {
        let Reading { route, parts, body, caller, credential, request_id, secrets, .. } = *reading;
        let profile = &route.profile;
        if credential == Credential::Shared && !key.is_random_uuid() {
            return Err(Problem::new(Kind::KeyTooWeak, "a shared identity demands a version 4 UUID as key"));
        }
        let lines = Lines(&parts.headers);
        let kept = match reading.has_headers {
            true => profile.key.read_required(&lines)?,
            false => Vec::new(),
        };
        let names = profile.key.require_headers.iter().map(|required| required.name.to_ascii_lowercase());
        let (method, path) = (parts.method.as_str(), parts.uri.path());
        let endpoint = route.endpoint(method, path);
        let host = reading.by_host.then(|| host(parts));
        let params = route.pattern.matches(method, path).unwrap_or_default();
        let form = profile.fingerprint.as_ref().map(|recipe| recipe.form(body)).transpose()?;
        let shape = |endpoint: Cow<'_, str>| {
            let request = fingerprint::Parts {
                method,
                route: &endpoint,
                params: &params,
                query: parts.uri.query().unwrap_or(""),
                principal: &caller.principal,
            };
            let fingerprints = match profile.fingerprint.as_ref().zip(form.as_ref()) {
                Some((recipe, form)) => all_fingerprints(recipe, &request, form, secrets),
                None => Vec::new(),
            };
            let is_hashed = credential == Credential::Hashed;
            let rotation =
                is_hashed.then(|| mark((&endpoint, host.as_deref()), &key, &fingerprints, secrets)).flatten();
            let scope = profile.scope.scope_at(caller, &endpoint, host.as_deref());
            let id = Some(Id { scope, key: key.clone() });
            Shape { endpoint: endpoint.into_owned(), id, fingerprints, rotation }
        };
        let current = shape(endpoint);
        let payload_hash = form.as_ref().filter(|_| profile.shows_payload()).map(Form::payload_hash);
        let mut formers: Vec<Shape> =
            route.former_names.iter().map(|name| shape(Cow::Borrowed(name))).collect();
        let (query, host) = (parts.uri.query().unwrap_or(""), self::host(parts));
        let asked = Asked { method, path, query, host: &host, body, key: &key, secrets };
        let current = match (reading.formers, formers.as_slice()) {
            ([], []) => current,
            (known, _) => lead(current, &mut formers, &asked, known),
        };
        let about = Arc::new(About {
            endpoint: current.endpoint,
            tenant: caller.tenant.clone(),
            principal: caller.principal.clone(),
            client_generated_at: generated_at(profile, body),
            headers: names.zip(kept).collect(),
            request_id: request_id.to_owned(),
        });
        let first_sent = profile.age.map_or(Ok(None), |policy| policy.read(&lines, &key))?;
        Ok(Self {
            id: current.id.expect("the caller of the present form is known"),
            fingerprints: current.fingerprints,
            payload_hash,
            rotation: current.rotation,
            first_sent,
            is_minted: false,
            about,
            params: kept_params(&params),
            formers,
            is_by_former_name: false,
            as_of: reading.as_of,
        })
    }
}

/// The form to claim in, beside those to look in: what others still claim in comes before what is claimed in from now on.
fn lead(
    mut current: Shape,
    formers: &mut Vec<Shape>,
    asked: &Asked<'_, '_>,
    known: &[FormerCaller<'_>],
) -> Shape {
    let mut leading = None;
    for (former, caller) in known {
        let caller = caller.as_ref().map(|verified| (&verified.caller, verified.credential));
        let Some(shape) = former.form.shape(asked, caller) else { continue };
        if former.leads && shape.id.is_some() && leading.is_none() {
            leading = Some(shape);
        } else {
            formers.push(shape);
        }
    }
    if let Some(shape) = leading {
        formers.push(std::mem::replace(&mut current, shape));
    }
    // Several forms may give it one id: there only what it was used for, and its mark, are told in other ways. A name that
    // is said to have been before may be the one that is claimed under, too.
    let mut distinct: Vec<Shape> = Vec::new();
    for mut former in formers.drain(..) {
        let same = std::iter::once(&mut current).chain(&mut distinct).find(|one| one.id == former.id);
        if let Some(same) = same.filter(|one| one.id.is_some()) {
            same.fingerprints.append(&mut former.fingerprints);
            former.id = None;
        }
        distinct.push(former);
    }
    distinct.retain(|former| former.id.is_some() || former.rotation.is_some());
    *formers = distinct;
    current
}

/// The host that a request is for, as it counts.
pub(crate) fn host(parts: &Parts) -> String {
    let named = parts.uri.authority().map(http::uri::Authority::as_str);
    let line = || parts.headers.get(http::header::HOST).and_then(|value| value.to_str().ok());
    scope::host(named.or_else(line).unwrap_or_default())
}

impl Arrival {
    /// Whether a record's fingerprint is of a kind that this gate cannot make.
    pub(crate) fn cannot_compare(&self, record: &Record) -> bool {
        let is_of_kind =
            |known: &Fingerprint| self.fingerprints.iter().any(|own| own.version == known.version);
        record.fingerprint.as_ref().is_some_and(|known| !self.fingerprints.is_empty() && !is_of_kind(known))
    }

    /// A key that is known in a former form is still that key: it is decided upon by what is known of it there. Where several
    /// records stand, by the one that tells what became of it.
    pub(crate) async fn recognise(&mut self, asked: Store<'_>) -> Result<(), Problem> {
        if self.formers.is_empty() || planted::is(Bug::FormerFormUnasked) {
            return Ok(());
        }
        // All at once: each form by itself would be a question to the store.
        let (mut ids, marks) = self.sought();
        ids.push(self.id.clone());
        let mut found = known_among(asked, &ids, &marks).await.map_err(|error| store_away(&error))?;
        let is_known = found.ids.pop() == Some(true);
        match self.former_among(&found) {
            None => {}
            Some(Former::Marked) if is_known => {}
            Some(Former::Marked) => return Err(credential_changed()),
            Some(Former::Known(places)) => {
                let present = is_known.then_some((self.formers.len(), &self.id, &*self.fingerprints));
                let formers = places.iter().filter_map(|place| {
                    let former = &self.formers[*place];
                    Some((*place, former.id.as_ref()?, &*former.fingerprints))
                });
                let among: Vec<_> = formers.chain(present).collect();
                let told = telling(asked, &among).await.map_err(|error| store_away(&error))?;
                if let Some(place) = told.filter(|place| *place < self.formers.len()) {
                    self.go_by(place);
                }
            }
        }
        Ok(())
    }

    /// From now on it goes by what it is called in this former form.
    fn go_by(&mut self, place: usize) {
        let former = self.formers.swap_remove(place);
        if let Some(id) = former.id {
            // With its own mark: another form's would point at this record, and be taken for another credential's.
            (self.id, self.fingerprints, self.rotation) = (id, former.fingerprints, former.rotation);
        }
        self.is_by_former_name = true;
        self.formers.clear();
    }

    /// Whether the key is known in a former form after all. Where it is run again because its outcome is unknown, another
    /// unknown outcome is no more than the first.
    pub(crate) async fn is_known_by_a_former_name(
        &self,
        asked: Store<'_>,
        how: Claim,
    ) -> Result<bool, StoreError> {
        if self.is_by_former_name || self.formers.is_empty() || planted::is(Bug::FormerFormUnasked) {
            return Ok(false);
        }
        let (ids, marks) = self.sought();
        match self.former_among(&known_among(asked, &ids, &marks).await?) {
            None => Ok(false),
            Some(Former::Known(places)) if matches!(how, Claim::Forward | Claim::Rerun) => {
                let ids = places.iter().filter_map(|place| self.formers[*place].id.clone());
                Ok(!all_unknown(asked, &ids.collect::<Vec<_>>()).await?)
            }
            Some(Former::Known(_) | Former::Marked) => Ok(true),
        }
    }

    /// What is asked about the former forms: their ids, and for each mark of rotation whether a record has it that is none of
    /// the key's own: in each form the same request may have the same mark.
    fn sought(&self) -> (Vec<Id>, Vec<([u8; 16], Id)>) {
        let ids: Vec<Id> = self.formers.iter().filter_map(|former| former.id.clone()).collect();
        let own = || ids.iter().chain([&self.id]).cloned();
        let marks = self.marks().into_iter().flat_map(|mark| own().map(move |id| (mark, id))).collect();
        (ids, marks)
    }

    /// The marks of the former forms, each once. A claim with that of the present form is refused by the store itself.
    fn marks(&self) -> Vec<[u8; 16]> {
        let marks = self.formers.iter().filter_map(|former| former.rotation);
        let mut marks: Vec<_> = marks.filter(|mark| Some(*mark) != self.rotation).collect();
        marks.sort_unstable();
        marks.dedup();
        marks
    }

    /// How the key is known in former forms, by what was found for [`Arrival::sought`].
    fn former_among(&self, found: &KnownAmong) -> Option<Former> {
        let with_ids = self.formers.iter().enumerate().filter(|(_, former)| former.id.is_some());
        let known = with_ids.zip(&found.ids).filter(|(_, is_known)| **is_known).map(|((place, _), _)| place);
        let known: Vec<usize> = known.collect();
        if !known.is_empty() {
            return Some(Former::Known(known));
        }
        // One record at most has a mark.
        let own = self.formers.iter().filter(|former| former.id.is_some()).count() + 1;
        let is_others = |answers: &[bool]| answers.iter().all(|is_marked| *is_marked);
        found.marks.chunks(own).any(is_others).then_some(Former::Marked)
    }
}

/// How a key is known in former forms.
enum Former {
    /// By records, in these forms.
    Known(Vec<usize>),
    /// The same request was recorded under another credential.
    Marked,
}

/// Which of these keys and marks are known.
pub(crate) async fn known_among(
    (store, meters): Store<'_>,
    ids: &[Id],
    marks: &[([u8; 16], Id)],
) -> Result<KnownAmong, StoreError> {
    meters.time(Call::LookUp, store.known_among(ids, marks)).await
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

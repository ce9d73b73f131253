//! The keys API: what became of a key, for its own principal, and the means to cancel one. Somebody else's key is as
//! unknown as one that was never used.
//!
//! `GET /.well-known/semel/keys/{key}?endpoint=NAME` tells the state; `POST …/{key}/seal?endpoint=NAME` returns the
//! record or durably cancels the key, so that a late arrival is refused.

use std::sync::Arc;
use std::time::Duration;

use axum_core::body::Body;
use base64::Engine as _;
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode, header};
use semel_contract::decide::Standing;
use semel_contract::identity::Caller;
use semel_contract::key::Key;
use semel_contract::problem::{Kind, Problem};
use semel_contract::profile::StateNames;
use semel_contract::time::Timestamp;
use semel_store::{About, Answer, Entry, Id, Sealed, StoreError};
use serde_json::{Value, json};

use crate::answer;
use crate::arrival::{self, known_among};
use crate::form::PathNeeded;
use crate::forms::View;
use crate::identity::{Credential, Lines, Verified};
use crate::limit;
use crate::problems::{closed, held_up, store_away};
use crate::recall;
use crate::route::Route;
use crate::shared::Shared;
use crate::standing::telling;

const PREFIX: &str = "/.well-known/semel/keys/";
const SEAL: &str = "/seal";

/// Whether a request is for this API rather than for the service behind the gate.
pub(crate) fn is_asked(path: &str) -> bool {
    path.starts_with(PREFIX)
}

/// Answers a request of this API.
pub(crate) async fn answer(shared: &Shared, parts: &Parts, request_id: &str) -> Response<Body> {
    match asked(shared, parts, request_id).await {
        Ok(body) => {
            let mut response = Response::new(Body::from(body.to_string()));
            let headers = response.headers_mut();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
            response
        }
        Err(Refused::Method(allowed)) => {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allowed));
            response
        }
        Err(Refused::Problem(route, problem)) => {
            let mut response = answer::refused(&route, &problem, request_id);
            response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
            response
        }
    }
}

enum Refused {
    Method(&'static str),
    Problem(Arc<Route>, Problem),
}

async fn asked(shared: &Shared, parts: &Parts, request_id: &str) -> Result<Value, Refused> {
    let any = || Arc::new(Route::any());
    let rest = parts.uri.path().strip_prefix(PREFIX).unwrap_or_default();
    let (key, seals) = rest.strip_suffix(SEAL).map_or((rest, false), |key| (key, true));
    let allowed = if seals { "POST" } else { "GET" };
    if parts.method.as_str() != allowed {
        return Err(Refused::Method(allowed));
    }
    // Who asks comes before anything about the key; the names of endpoints are no secret.
    let named = endpoint_of(shared, parts.uri.query().unwrap_or(""));
    let route = named.as_ref().map_or_else(|_| any(), |named| Arc::clone(&named.route));
    let verified = shared.identity(&route).identify(parts).await;
    let verified = verified.and_then(|verified| verified.caller.check().map(|()| verified));
    let verified = verified.map_err(|problem| Refused::Problem(any(), problem))?;
    let named = named.map_err(|problem| Refused::Problem(any(), problem))?;
    let (route, endpoint) = (Arc::clone(&named.route), named.endpoint.clone());
    let refuse = |problem: Problem| Refused::Problem(Arc::clone(&route), problem);
    if let Some(problem) = limit::request(shared, &route, &verified.caller).await {
        return Err(refuse(problem));
    }
    let profile = &route.profile;
    let text = decoded(key, false).ok_or_else(|| refuse(Kind::KeyInvalid.into()))?;
    let key = Key::parse(&profile.key.format, &text).map_err(refuse)?;
    let caller = &verified.caller;
    let host = arrival::host(parts);
    let by_host = shared.forms.is_by_host().then_some(host.as_str());
    let scope = |endpoint: &str| profile.scope.scope_at(caller, endpoint, by_host);
    let mut id = Id { scope: scope(&endpoint), key };
    // What is known in a former form is known. The present one comes first: what ran, ran in that.
    let was = route.former_names.iter().map(|name| Id { scope: scope(name), key: id.key.clone() });
    let mut formers: Vec<Id> = was.collect();
    let view = shared.forms.view(&shared.meters).await.map_err(refuse)?;
    let former = former_ids(&view, &named, parts, &verified, &id.key, &host).await.map_err(refuse)?;
    formers.extend(former.ids.into_iter().filter(|former| *former != id));
    if let Some(leading) = former.leading.filter(|leading| *leading != id) {
        // Others claim in that form: a seal in another would hold nobody up.
        formers.retain(|former| *former != leading);
        formers.push(std::mem::replace(&mut id, leading));
    }
    let credential = if former.is_hashed { Credential::Hashed } else { verified.credential };
    let away = |error: StoreError| refuse(store_away(&error));
    let mut all = vec![id.clone()];
    all.extend(formers.iter().cloned());
    let found = known_among(shared.asked(), &all, &[]).await.map_err(away)?;
    let known = all.iter().enumerate().zip(found.ids).filter(|(_, is_known)| *is_known);
    let known: Vec<_> = known.map(|((place, id), _)| (place, id, &[][..])).collect();
    let used = telling(shared.asked(), &known).await.map_err(away)?;
    let is_used = used.is_some();
    id = used.map_or(id, |place| all.swap_remove(place));
    // Where a scope is shared, a key is still its own principal's; who that is, former identities tell too.
    let is_own = |entry: &Entry| {
        let is = |caller: &Caller| {
            entry.about.principal == caller.principal && entry.about.tenant == caller.tenant
        };
        is(caller) || former.callers.iter().any(is)
    };
    let unknown = || refuse(Problem::new(Kind::KeyUnknown, format!("no record of this key at {endpoint}")));
    if seals {
        let about = About {
            endpoint: endpoint.clone(),
            tenant: verified.caller.tenant.clone(),
            principal: verified.caller.principal.clone(),
            request_id: request_id.to_owned(),
            ..About::default()
        };
        if !is_used && shared.observes {
            let detail = "this gate only observes: it would not hold up a request whose key is sealed";
            return Err(refuse(Problem::new(Kind::KeyUnknown, detail)));
        }
        if !is_used {
            limit::seal(shared, &route, caller, &id).await.map_err(refuse)?;
        }
        let first_sent = recall::earliest(&Lines(&parts.headers), &id.key, None);
        recall::before_seal(shared, &route, &id, &about, first_sent).await.map_err(away)?;
        let sealed = shared.store.seal(&id, &about, &profile.lifetime).await;
        let sealed = sealed.map_err(away)?;
        // A gate that has taken over may have run it under another name, and somebody who knows it by a former one may have
        // come in between: then it cannot be said that nothing happened.
        if shared.is_draining() {
            return Err(refuse(closed()));
        }
        if shared.forms.is_outdated(view.asked_at) {
            return Err(refuse(held_up()));
        }
        if !is_used && !formers.is_empty() {
            let found = known_among(shared.asked(), &formers, &[]).await.map_err(away)?;
            if found.ids.contains(&true) {
                return Err(refuse(Problem::from(Kind::InFlight).retry_after(Duration::from_secs(1))));
            }
        }
        return match sealed {
            Sealed::Done => Ok(json!({
                "key": text,
                "endpoint": endpoint,
                "sealed": true,
                "identity": credential.name(),
                "state": Standing::Sealed.name(),
            })),
            Sealed::Known(entry) if !is_own(&entry) => Err(unknown()),
            Sealed::Known(entry) => {
                let (_, now) = shared.store.look_up(&id).await.map_err(away)?;
                let mut known = told(&entry, &profile.state_names, now, true);
                known["identity"] = json!(credential.name());
                Ok(known)
            }
        };
    }
    let (entry, now) = shared.store.look_up(&id).await.map_err(away)?;
    let is_told =
        |entry: &Entry| Standing::of(Some(&entry.record), now) != Standing::Expired && is_own(entry);
    let entry = entry.filter(is_told).ok_or_else(unknown)?;
    Ok(told(&entry, &profile.state_names, now, false))
}

/// What a key may be in former forms.
#[derive(Default)]
struct FormerIds {
    ids: Vec<Id>,
    /// Who the caller is in them.
    callers: Vec<Caller>,
    /// The one in the form that is claimed in for now.
    leading: Option<Id>,
    /// Whether a former caller is known by a hash alone: then a seal does not hold for what was sent with another credential.
    is_hashed: bool,
}

/// The ids that a key may have in former forms.
async fn former_ids(
    view: &View,
    named: &Named,
    parts: &Parts,
    verified: &Verified,
    key: &Key,
    host: &str,
) -> Result<FormerIds, Problem> {
    let mut found = FormerIds::default();
    for former in view.formers(&named.route) {
        let request = named.request.as_ref().map(|(method, path)| (method.as_str(), path.as_str()));
        let endpoint = former.form.endpoint_at(request).map_err(|PathNeeded| {
            let detail =
                "the configuration was changed: for now, say which request was made, ?endpoint=POST%20/path";
            Problem::new(Kind::RequestMalformed, detail)
        })?;
        let Some(endpoint) = endpoint else { continue };
        found.is_hashed |= former.form.is_hashed();
        let Some(caller) = former.caller(parts, verified).await else { continue };
        let id = former.form.id(&caller.caller, &endpoint, host, key);
        if former.leads && found.leading.is_none() {
            found.leading = Some(id.clone());
        }
        found.ids.push(id);
        found.callers.push(caller.caller);
    }
    Ok(found)
}

/// What the query names.
struct Named {
    route: Arc<Route>,
    endpoint: String,
    /// The method and path, where those were said.
    request: Option<(String, String)>,
}

/// The route and endpoint that the query names. A gate with one route needs no name.
fn endpoint_of(shared: &Shared, query: &str) -> Result<Named, Problem> {
    let named = query.split('&').find_map(|pair| pair.strip_prefix("endpoint="));
    let Some(named) = named.and_then(|text| decoded(text, true)) else {
        return match shared.routes.as_slice() {
            [only] if only.has_endpoint(&only.name) => {
                Ok(Named { route: Arc::clone(only), endpoint: only.name.clone(), request: None })
            }
            _ => Err(Problem::new(
                Kind::RequestMalformed,
                "say which endpoint the key is for: ?endpoint=NAME, or ?endpoint=POST%20/path",
            )),
        };
    };
    let route = shared
        .routes
        .iter()
        .find(|route| route.has_endpoint(&named))
        .ok_or_else(|| Problem::new(Kind::KeyUnknown, format!("there is no endpoint {named:?} here")))?;
    let route = Arc::clone(route);
    Ok(match named.split_once(' ') {
        Some((method, path)) => {
            let endpoint = route.endpoint(method, path).into_owned();
            Named { route, endpoint, request: Some((method.to_owned(), path.to_owned())) }
        }
        None => Named { route, endpoint: named, request: None },
    })
}

/// What the owner of a key may know of it; of a record that stands in the way of sealing, the kept answer too.
fn told(entry: &Entry, names: &StateNames, now: Timestamp, with_answer: bool) -> Value {
    let record = &entry.record;
    let mut told = json!({
        "key": entry.id.key.as_str(),
        "endpoint": entry.about.endpoint,
        "state": Standing::of(Some(record), now).name(),
        "guarantee": record.guarantee.name(),
        "created_at": record.created_at.to_string(),
        "request_id": entry.about.request_id,
    });
    if let Some(name) = Standing::of(Some(record), now).name_by(names) {
        told["state_name"] = json!(name);
    }
    let times = [("settled_at", entry.settled_at), ("expires_at", record.expires_at)];
    for (name, time) in times.into_iter().filter_map(|(name, time)| Some((name, time?))) {
        told[name] = json!(time.to_string());
    }
    if let Some(answer) = &entry.answer {
        told["status"] = json!(answer.status);
        if with_answer {
            told["response"] = response(answer);
        }
    }
    if with_answer {
        told["sealed"] = json!(Standing::of(Some(record), now) == Standing::Sealed);
    }
    told
}

fn response(answer: &Answer) -> Value {
    let headers = answer.headers.iter();
    let headers: Vec<_> =
        headers.map(|(name, value)| json!([name, String::from_utf8_lossy(value)])).collect();
    match std::str::from_utf8(&answer.body) {
        Ok(text) => json!({"status": answer.status, "headers": headers, "body": text}),
        Err(_) => {
            let body = base64::engine::general_purpose::STANDARD.encode(&answer.body);
            json!({"status": answer.status, "headers": headers, "body_base64": body})
        }
    }
}

/// Percent-decoded text; `None` where it is malformed.
fn decoded(text: &str, plus_is_space: bool) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            b'+' if plus_is_space => b' ',
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_decoded_or_refused() {
        assert_eq!(decoded("POST%20/a+b", true).as_deref(), Some("POST /a b"));
        assert_eq!(decoded("a+b", false).as_deref(), Some("a+b"));
        for bad in ["%", "%2", "%zz", "%ff"] {
            assert_eq!(decoded(bad, true), None, "{bad}");
        }
    }
}

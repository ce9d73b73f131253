//! The form of a route's keys: how ids and fingerprints are made of its requests. Pure: a text from a route, a form from
//! that text, and what a request is in it. Which forms there were is asked of the store in `forms`.

use semel_contract::fingerprint::{self, Fingerprint, Input, Recipe, Secret};
use semel_contract::hex::hex;
use semel_contract::identity::{Caller, Identity};
use semel_contract::json::Pointer;
use semel_contract::key::Key;
use semel_contract::request::Body;
use semel_contract::route::{Params, Pattern};
use semel_contract::scope::{Scope, ScopePolicy};
use semel_store::Id;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::identity::Credential;
use crate::route::{Route, endpoint_of_path};

/// The first word of every text. Another way of making ids or fingerprints would be another word.
const VERSION: &str = "semel.form.1";

/// The first word of what stands for a secret.
const SECRET: &str = "semel.secret.1";
/// The last word of a text that is a guess.
const GUESS: &str = "guess";
/// Of so many bytes the exceptions of a form may be, together: an index of the store has to hold its text.
const EXCEPT_BYTES_MAX: usize = 1000;

/// How the keys of a route are made.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Form {
    pattern: Pattern,
    /// Patterns of routes that come before this one: what they match has another form.
    except: Vec<Pattern>,
    /// The endpoint's name; without one it is the request's method and path.
    endpoint: Option<String>,
    /// Who identifies its callers, by its own description.
    pub(crate) identity: String,
    scope: ScopePolicy,
    by_host: bool,
    recipe: Option<Recipe>,
    /// Whether nobody has said that keys were claimed in it. It is looked into, and never claimed in.
    pub(crate) is_guess: bool,
}

/// A request, before it is known what it is called.
pub(crate) struct Asked<'a, 'b> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) query: &'a str,
    pub(crate) host: &'a str,
    pub(crate) body: &'a Body<'b>,
    pub(crate) key: &'a Key,
    pub(crate) secrets: &'a [Secret],
}

/// The endpoint is made of method and path, which were not given.
#[derive(Debug)]
pub(crate) struct PathNeeded;

/// A request in one form.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) endpoint: String,
    /// None where its caller cannot be told.
    pub(crate) id: Option<Id>,
    pub(crate) fingerprints: Vec<Fingerprint>,
    pub(crate) rotation: Option<[u8; 16]>,
}

impl Form {
    /// The form of a route.
    pub(crate) fn of(route: &Route, identity: &str, by_host: bool) -> Self {
        let mut recipe = route.profile.fingerprint.clone();
        if let Some(recipe) = &mut recipe {
            recipe.inputs = Input::ALL.into_iter().filter(|input| recipe.inputs.contains(input)).collect();
            for pointers in [&mut recipe.exclude, &mut recipe.include] {
                pointers.sort_by_key(ToString::to_string);
            }
        }
        Self {
            pattern: route.pattern.clone(),
            except: Vec::new(),
            endpoint: (!route.by_path).then(|| route.name.clone()),
            identity: identity.to_owned(),
            scope: route.profile.scope,
            by_host,
            recipe,
            is_guess: false,
        }
    }

    /// The same form as one that was perhaps claimed in.
    pub(crate) fn guessed(self) -> Self {
        Self { is_guess: true, ..self }
    }

    /// The same form beside routes that come before its own. So many exceptions that no store could keep them are left out:
    /// then it seems to cover more than it does.
    pub(crate) fn beside<'a>(self, earlier: impl Iterator<Item = &'a Route>) -> Self {
        let overlapping = earlier.filter(|route| route.pattern.overlaps(&self.pattern));
        let mut except: Vec<Pattern> = overlapping.map(|route| route.pattern.clone()).collect();
        except.sort_by_key(ToString::to_string);
        if except.iter().map(|pattern| pattern.to_string().len() + 3).sum::<usize>() > EXCEPT_BYTES_MAX {
            except.clear();
        }
        Self { except, ..self }
    }

    /// The same form as a release made it that knew no hosts.
    pub(crate) fn without_host(self) -> Self {
        Self { by_host: false, ..self }
    }

    /// What is kept of it. Lists, so that equal forms have equal texts.
    pub(crate) fn text(&self) -> String {
        let ScopePolicy { tenant, principal, endpoint } = self.scope;
        let parts =
            [("tenant", tenant), ("principal", principal), ("endpoint", endpoint), ("host", self.by_host)];
        let parts: Vec<_> = parts.iter().filter(|(_, counts)| *counts).map(|(name, _)| *name).collect();
        let texts = |pointers: &[Pointer]| pointers.iter().map(ToString::to_string).collect::<Vec<_>>();
        let recipe = self.recipe.as_ref().map(|recipe| {
            let inputs: Vec<_> = recipe.inputs.iter().map(|input| input.name()).collect();
            json!([inputs, texts(&recipe.exclude), texts(&recipe.include)])
        });
        let mut text =
            vec![json!(VERSION), json!(self.pattern.to_string()), json!(self.endpoint), json!(self.identity)];
        text.extend([json!(parts), json!(recipe)]);
        if !self.except.is_empty() || self.is_guess {
            text.push(json!(self.except.iter().map(ToString::to_string).collect::<Vec<_>>()));
        }
        text.extend(self.is_guess.then(|| json!(GUESS)));
        Value::Array(text).to_string()
    }

    /// Reads a text; `None` where a later release wrote it.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(text).ok()?;
        let nothing = json!([]);
        let [version, pattern, endpoint, identity, parts, recipe, rest @ ..] = value.as_array()?.as_slice()
        else {
            return None;
        };
        let (except, is_guess) = match rest {
            [] => (&nothing, false),
            [except] => (except, false),
            [except, guess] if guess.as_str() == Some(GUESS) => (except, true),
            _ => return None,
        };
        if version.as_str() != Some(VERSION) {
            return None;
        }
        let texts = |value: &Value| {
            value.as_array()?.iter().map(|text| text.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>()
        };
        let pointers = |value: &Value| {
            texts(value)?.iter().map(|text| Pointer::parse(text).ok()).collect::<Option<Vec<_>>>()
        };
        let parts = texts(parts)?;
        let has = |name: &str| parts.iter().any(|part| part == name);
        let recipe = match recipe.as_array().map(Vec::as_slice) {
            None => None,
            Some([inputs, exclude, include]) => {
                let input = |name: &String| Input::ALL.into_iter().find(|input| input.name() == name);
                let inputs = texts(inputs)?.iter().map(input).collect::<Option<Vec<_>>>()?;
                Some(Recipe { inputs, exclude: pointers(exclude)?, include: pointers(include)? })
            }
            Some(_) => return None,
        };
        let except = texts(except)?.iter().map(|text| text.parse().ok()).collect::<Option<_>>()?;
        Some(Self {
            pattern: pattern.as_str()?.parse().ok()?,
            except,
            endpoint: endpoint.as_str().map(str::to_owned),
            identity: identity.as_str()?.to_owned(),
            scope: ScopePolicy {
                tenant: has("tenant"),
                principal: has("principal"),
                endpoint: has("endpoint"),
            },
            by_host: has("host"),
            recipe,
            is_guess,
        })
    }

    /// What a request is in this form; `None` where the form does not cover it. Its caller may be unknown: then only a
    /// mark of rotation is left of it.
    pub(crate) fn shape(
        &self,
        asked: &Asked<'_, '_>,
        caller: Option<(&Caller, Credential)>,
    ) -> Option<Shape> {
        let is_shared = caller.is_some_and(|(_, credential)| credential == Credential::Shared);
        if is_shared && !asked.key.is_random_uuid() {
            // It would have been refused in this form, and could be anybody's.
            return None;
        }
        let params = self.params(asked.method, asked.path)?;
        let endpoint = self.endpoint.clone().unwrap_or_else(|| endpoint_of_path(asked.method, asked.path));
        let principal = caller.map(|(caller, _)| caller.principal.as_str());
        // Without its principal such a fingerprint cannot be made.
        let recipe = self
            .recipe
            .as_ref()
            .filter(|recipe| principal.is_some() || !recipe.inputs.contains(&Input::Principal));
        // What would have been refused in this form was not recorded in it.
        let form = recipe.map(|recipe| recipe.form(asked.body)).transpose().ok()?;
        let fingerprints = match recipe.zip(form.as_ref()) {
            Some((recipe, form)) => {
                let parts = fingerprint::Parts {
                    method: asked.method,
                    route: &endpoint,
                    params: &params,
                    query: asked.query,
                    principal: principal.unwrap_or_default(),
                };
                all_fingerprints(recipe, &parts, form, asked.secrets)
            }
            None => Vec::new(),
        };
        let is_hashed = caller.is_none_or(|(_, credential)| credential == Credential::Hashed);
        let place = (endpoint.as_str(), self.by_host.then_some(asked.host));
        let rotation = is_hashed.then(|| mark(place, asked.key, &fingerprints, asked.secrets)).flatten();
        let id = caller.map(|(caller, _)| self.id(caller, &endpoint, asked.host, asked.key));
        Some(Shape { endpoint, id, fingerprints, rotation })
    }

    /// The endpoint of a request of which only this is known; `None` where the form does not cover it, or where its method
    /// and path would have to be known.
    pub(crate) fn endpoint_at(&self, asked: Option<(&str, &str)>) -> Result<Option<String>, PathNeeded> {
        match (asked, &self.endpoint) {
            (Some((method, path)), _) if self.params(method, path).is_none() => Ok(None),
            (_, Some(name)) => Ok(Some(name.clone())),
            (Some((method, path)), None) => Ok(Some(endpoint_of_path(method, path))),
            (None, None) => Err(PathNeeded),
        }
    }

    /// The id of a key at an endpoint.
    pub(crate) fn id(&self, caller: &Caller, endpoint: &str, host: &str, key: &Key) -> Id {
        let scope: Scope = self.scope.scope_at(caller, endpoint, self.by_host.then_some(host));
        Id { scope, key: key.clone() }
    }

    /// Whether its callers are known by a hash of what they show.
    pub(crate) fn is_hashed(&self) -> bool {
        matches!(self.identity.parse(), Ok(Identity::Authorization | Identity::Cookie(_)))
    }

    /// The path parameters of a request that it covers.
    pub(crate) fn params<'r>(&self, method: &str, path: &'r str) -> Option<Params<'_, 'r>> {
        let is_others = self.except.iter().any(|pattern| pattern.matches(method, path).is_some());
        self.pattern.matches(method, path).filter(|_| !is_others)
    }

    /// The pattern of the requests that it covers.
    pub(crate) fn pattern(&self) -> &Pattern {
        &self.pattern
    }
}

/// The fingerprints of a request by every secret, and by none: a secret that was set or changed does not make a known
/// request another one.
pub(crate) fn all_fingerprints(
    recipe: &Recipe,
    parts: &fingerprint::Parts<'_>,
    form: &fingerprint::Form<'_>,
    secrets: &[Secret],
) -> Vec<Fingerprint> {
    let secrets = secrets.iter().map(Some).chain([None]);
    secrets.map(|secret| recipe.fingerprint(parts, form, secret)).collect()
}

/// What stands for a secret where it is kept which secrets there were: by it nothing can be keyed, nor the secret be guessed
/// sooner than by a fingerprint.
pub(crate) fn name_of_secret(secret: &Secret) -> String {
    let recipe = Recipe { inputs: Vec::new(), exclude: Vec::new(), include: Vec::new() };
    let nothing = fingerprint::Parts { method: "", route: "", params: &Vec::new(), query: "", principal: "" };
    let form = fingerprint::Form::Raw(SECRET.as_bytes().into());
    let keyed = recipe.fingerprint(&nothing, &form, Some(secret));
    json!([SECRET, hex(&keyed.bytes[..8])]).to_string()
}

/// What recognises the same request under another credential: of a key that nobody else makes, by the oldest secret, so
/// that a new one does not hide what was claimed before it came.
pub(crate) fn mark(
    (endpoint, host): (&str, Option<&str>),
    key: &Key,
    fingerprints: &[Fingerprint],
    secrets: &[Secret],
) -> Option<[u8; 16]> {
    let fingerprint = fingerprints.get(secrets.len().saturating_sub(1)).filter(|_| key.is_uuid())?;
    let mut hash = Sha256::new();
    // One UUID, however it is spelled.
    let key = key.as_str().to_ascii_lowercase();
    let parts = [endpoint.as_bytes(), key.as_bytes(), &fingerprint.bytes];
    for part in parts.into_iter().chain(host.map(str::as_bytes)) {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let digest: [u8; 32] = hash.finalize().into();
    digest.first_chunk().copied()
}

/// The path parameters of a request, for those who keep them.
pub(crate) fn kept_params(params: &Params<'_, '_>) -> Vec<(String, String)> {
    params.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use semel_contract::profile::presets;

    use super::*;

    #[test]
    fn a_form_is_read_as_it_was_written() {
        let mut profile = presets::ietf();
        let recipe = profile.fingerprint.as_mut().unwrap();
        recipe.exclude = vec![Pointer::parse("/at").unwrap(), Pointer::parse("/a/b").unwrap()];
        let route = Route::new("create", "POST|PUT /orders/{id}").unwrap().profile(profile);
        for form in [
            Form::of(&Route::any(), "authorization", true),
            Form::of(&Route::any(), "authorization", false),
            Form::of(&route, "trusted:X-User", true),
            Form::of(&Route::any(), "authorization", true).beside([&route].into_iter()),
            Form::of(&Route::any(), "authorization", false).guessed(),
        ] {
            assert_eq!(Form::parse(&form.text()), Some(form));
        }
        assert_eq!(Form::parse(r#"["semel.form.2"]"#), None);
        assert_eq!(Form::parse("["), None);
    }

    #[test]
    fn a_form_covers_what_no_earlier_route_does() {
        let routes = ["POST /orders", "POST /carts"].map(|pattern| Route::new(pattern, pattern).unwrap());
        let any = || Form::of(&Route::any(), "authorization", true);
        let rest = any().beside(routes.iter());
        for (path, covers) in [("/orders", false), ("/carts", false), ("/orders/1", true)] {
            assert_eq!(rest.params("POST", path).is_some(), covers, "{path}");
            assert!(any().params("POST", path).is_some());
        }
        assert_eq!(rest.text(), any().beside(routes.iter().rev()).text());
        let apart = Form::of(&routes[0], "authorization", true);
        assert_eq!(apart.clone().beside(routes[1..].iter()), apart, "what does not overlap is no exception");
        let many: Vec<_> = (0..200).map(|n| Route::new("r", &format!("POST /r{n}")).unwrap()).collect();
        assert_eq!(any().beside(many.iter()), any(), "more than an index holds");
    }

    #[test]
    fn the_order_of_settings_makes_no_other_form() {
        let with = |inputs: Vec<Input>, exclude: [&str; 2]| {
            let mut profile = presets::ietf();
            let exclude = exclude.map(|text| Pointer::parse(text).unwrap()).to_vec();
            profile.fingerprint = Some(Recipe { inputs, exclude, include: Vec::new() });
            Form::of(&Route::new("r", "POST /a").unwrap().profile(profile), "authorization", true).text()
        };
        assert_eq!(
            with(vec![Input::Body, Input::Method], ["/a", "/b"]),
            with(vec![Input::Method, Input::Body], ["/b", "/a"])
        );
    }
}

//! What semel makes of one request: the walk up to the look-up, with everything it found on the way.

use semel_contract::fingerprint::{Form, Parts};
use semel_contract::hex::hex;
use semel_contract::identity::{self, Caller};
use semel_contract::key::{Found, Presence};
use semel_contract::problem::{Kind, Problem};
use semel_contract::profile::{Generator, Profile};
use semel_contract::request::{Body, Headers};
use semel_contract::scope;
use semel_contract::time::format_duration;
use semel_gateway::HostSent;
use serde_json::{Value, json};

use super::request::Request;
use crate::config::{Config, Endpoint};

/// Everything that was found out. What comes after a problem stays empty, but for what does not depend on it.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    route: Option<String>,
    profile: Option<Profile>,
    identity: Option<String>,
    principal: Option<String>,
    found: Option<Found>,
    host: Option<String>,
    scope: Option<String>,
    form: Option<&'static str>,
    canonical: Option<String>,
    payload_hash: Option<String>,
    fingerprint: Option<String>,
    fingerprint_version: Option<u8>,
    note: Option<&'static str>,
    problem: Option<Problem>,
}

impl Reading {
    /// A request that cannot even be read.
    pub(crate) fn refused(problem: Problem) -> Self {
        Self { problem: Some(problem), ..Self::default() }
    }

    /// Reads a request as the gate would.
    pub(crate) fn of(config: &Config, caller: Option<&Caller>, request: &Request) -> Self {
        if let Err(problem) = request.check() {
            return Self::refused(problem);
        }
        let mut reading = Self { identity: Some(config.identity.to_string()), ..Self::default() };
        match config.endpoint(&request.method, request.path_only()) {
            Some(endpoint) => reading.walk(config, caller, request, &endpoint),
            None => {
                reading.note =
                    Some("no route matches: it passes through unrecorded, and a key on it protects nothing")
            }
        }
        reading
    }

    /// Identity, body, key, fingerprint, in the gate's order: the first refusal is the one that would be answered. The
    /// readings after it are made all the same where they can be, since they are what one came to see.
    fn walk(&mut self, config: &Config, caller: Option<&Caller>, request: &Request, endpoint: &Endpoint<'_>) {
        let profile = endpoint.profile;
        self.route = Some(endpoint.name.clone());
        self.profile = Some(profile.clone());
        self.identity = Some(endpoint.identity.to_string());
        let headers = request.headers.as_slice();
        let is_passed_at_once =
            profile.key.presence == Presence::Optional && !profile.key.may_have_key(headers);
        let caller = self.identify(endpoint, caller, headers);
        if !is_passed_at_once && request.body.len() as u64 > profile.stored.max_body_bytes {
            self.refuse(Problem::new(
                Kind::BodyTooLarge,
                format!("at most {} bytes are read here", profile.stored.max_body_bytes),
            ));
            return;
        }
        let body = Body::new(only_content_type(headers), &request.body);
        let key = profile.key.read(headers, &body);
        let is_unkeyed = matches!((&key, profile.key.presence), (Ok(None), Presence::Optional));
        if is_passed_at_once {
            // Nothing is asked of a request that nothing protects; the rest is shown for what a key would mean.
            self.problem = None;
        }
        if is_unkeyed {
            let note = "it has no key and needs none: it passes through unprotected";
            self.note = self.problem.is_none().then_some(note);
        } else {
            self.read_key(endpoint, key);
            profile.key.read_required(headers).map_or_else(|problem| self.refuse(problem), drop);
        }
        if let Some(caller) = &caller {
            // A request that is typed without a Host is explained without one; a gate is sent none such.
            let sends_host = config.gate.upstream.as_ref().is_none_or(|up| up.host == HostSent::Clients);
            let line = headers.values("host").next().and_then(|line| std::str::from_utf8(line).ok());
            self.host = line.filter(|_| sends_host).map(scope::host);
            let scope = profile.scope.scope_at(caller, &endpoint.name, self.host.as_deref());
            self.scope = Some(scope.to_string());
        }
        self.read_content(request, endpoint, &body, caller.as_ref(), is_unkeyed);
    }

    /// The body, what is made of it, and the time of the first attempt.
    fn read_content(
        &mut self,
        request: &Request,
        endpoint: &Endpoint<'_>,
        body: &Body<'_>,
        caller: Option<&Caller>,
        is_unkeyed: bool,
    ) {
        let profile = endpoint.profile;
        let refused = self.problem.clone();
        if let Some(form) = self.read_body(profile, body) {
            let parts = Parts {
                method: &request.method,
                route: &endpoint.name,
                params: &endpoint.params,
                query: request.query(),
                principal: caller.map_or("", |caller| &caller.principal),
            };
            if let Some(recipe) = &profile.fingerprint {
                let fingerprint = recipe.fingerprint(&parts, &form, None);
                self.fingerprint = Some(fingerprint.to_string());
                self.fingerprint_version = Some(fingerprint.version as u8);
            }
        }
        if let (Some(policy), Some(found)) = (profile.age, &self.found)
            && let Err(problem) = policy.read(request.headers.as_slice(), &found.key)
        {
            self.refuse(problem);
        }
        if is_unkeyed {
            // The gate does not look at the body of a request that it only passes on.
            self.problem = refused;
        }
    }

    fn refuse(&mut self, problem: Problem) {
        self.problem.get_or_insert(problem);
    }

    fn identify(
        &mut self,
        endpoint: &Endpoint<'_>,
        caller: Option<&Caller>,
        headers: &[(String, Vec<u8>)],
    ) -> Option<Caller> {
        let caller = match caller {
            Some(caller) => caller.clone(),
            None => match endpoint.identity.read(headers) {
                Ok(identity::Reading::Known(caller)) => caller,
                Ok(identity::Reading::NeedsVerification) => {
                    self.note = Some(
                        "only a verification can tell the principal: give it with --principal to see the scope",
                    );
                    return None;
                }
                Err(problem) => {
                    self.refuse(problem);
                    self.note = Some("another identity is set by --identity, or `identity = …` in the file");
                    return None;
                }
            },
        };
        self.principal = Some(caller.principal.clone());
        Some(caller)
    }

    fn read_key(&mut self, endpoint: &Endpoint<'_>, key: Result<Option<Found>, Problem>) {
        match key {
            Ok(Some(found)) if endpoint.identity.is_shared() && !found.key.is_random_uuid() => {
                self.refuse(Problem::new(
                    Kind::KeyTooWeak,
                    "a shared identity demands a version 4 UUID as key",
                ));
                self.found = Some(found);
            }
            // A key is made for it by the profile's generator, and a shared identity takes no other than a random UUID.
            Ok(None) if endpoint.identity.is_shared() && endpoint.profile.generator != Generator::Uuid4 => {
                self.refuse(Problem::new(
                    Kind::KeyTooWeak,
                    "a shared identity demands a version 4 UUID as key",
                ));
            }
            Ok(found) => {
                if found.is_none() {
                    self.note = Some("it has no key: one would be made for it");
                }
                self.found = found;
            }
            Err(problem) => self.refuse(problem),
        }
    }

    fn read_body<'a>(&mut self, profile: &Profile, body: &Body<'a>) -> Option<Form<'a>> {
        let form = match profile.fingerprint.as_ref()?.form(body) {
            Ok(form) => form,
            Err(problem) => {
                self.refuse(problem);
                return None;
            }
        };
        self.payload_hash = Some(hex(&form.payload_hash()));
        self.form = Some(match &form {
            Form::Empty => "none",
            Form::Json(_) => "json",
            Form::Raw(_) => "raw",
        });
        if let Form::Json(text) = &form {
            self.canonical = Some(text.clone());
        }
        Some(form)
    }

    fn guarantee(&self) -> Option<&'static str> {
        let keyed = self.found.is_some() && self.problem.is_none();
        self.profile.as_ref().map(|profile| if keyed { profile.guarantee.name() } else { "none" })
    }

    /// The reading as one JSON object.
    pub(crate) fn json(&self) -> Value {
        json!({
            "route": self.route,
            "profile": self.profile.as_ref().map(|profile| &profile.name),
            "identity": self.identity,
            "principal": self.principal,
            "key": self.found.as_ref().map(|found| found.key.as_str()),
            "key_source": self.found.as_ref().map(|found| found.source.to_string()),
            "key_syntax": self.found.as_ref().map(|found| found.written.name()),
            "host": self.host,
            "scope": self.scope,
            "body_form": self.form,
            "canonical": self.canonical,
            "payload_hash": self.payload_hash,
            "fingerprint": self.fingerprint,
            "fingerprint_version": self.fingerprint_version,
            "guarantee": self.guarantee(),
            "note": self.note,
            "problem": self.problem.as_ref().map(|problem| json!({
                "status": problem.kind.status(),
                "type": problem.kind.type_uri(),
                "title": problem.kind.title(),
                "detail": problem.detail,
                "retry": problem.retry().name(),
            })),
        })
    }

    /// The reading for a person.
    pub(crate) fn text(&self) -> String {
        let mut lines: Vec<(&str, String)> = Vec::new();
        let mut line = |name, value: Option<String>| lines.extend(value.map(|value| (name, value)));
        line("route", self.route.clone());
        line("profile", self.profile.as_ref().map(|profile| profile.name.to_string()));
        line("identity", self.identity.clone());
        line("principal", self.principal.clone());
        line(
            "key",
            self.found.as_ref().map(|found| {
                format!(
                    "{}   ({}, written as {})",
                    found.key.as_str().escape_debug(),
                    found.source,
                    found.written.name()
                )
            }),
        );
        line("host", self.host.clone());
        line("scope", self.scope.clone());
        line(
            "body",
            self.form.map(|form| match (form, &self.canonical) {
                ("json", Some(text)) => format!("JSON, canonical: {text}"),
                ("none", _) => "none".to_owned(),
                _ => "raw bytes".to_owned(),
            }),
        );
        line("payload hash", self.payload_hash.clone());
        line("fingerprint", self.fingerprint.clone());
        line("guarantee", self.guarantee().map(str::to_owned));
        line(
            "retention",
            self.profile.as_ref().map(|profile| {
                format!(
                    "retries are recognised for {}, the record is kept {}",
                    format_duration(profile.lifetime.retry_window),
                    format_duration(profile.lifetime.record())
                )
            }),
        );
        line("note", self.note.map(str::to_owned));
        line(
            "problem",
            self.problem.as_ref().map(|problem| {
                format!(
                    "{} {}\n{:14}{problem}\n{:14}retry: {}",
                    problem.kind.status(),
                    problem.kind.type_uri(),
                    "",
                    "",
                    problem.retry().name()
                )
            }),
        );
        lines.into_iter().map(|(name, value)| format!("{name:<14}{value}\n")).collect()
    }
}

/// The value of `Content-Type`, if there is exactly one.
fn only_content_type(headers: &[(String, Vec<u8>)]) -> Option<&[u8]> {
    let mut values = headers.values("content-type");
    let first = values.next();
    first.filter(|_| values.next().is_none())
}

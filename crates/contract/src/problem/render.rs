//! Writes a problem on the wire, in the form that a profile chose. Owns the words; decides nothing.

use std::borrow::Cow;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::{Kind, Problem, Retry};

/// The shape of an error body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// RFC 9457 `application/problem+json`.
    Problem,
    /// `{error, message, details, requestId}`.
    Envelope,
    /// `{error}`, with `retry_after` in milliseconds.
    Error,
    /// `{message}`.
    Message,
    /// Plain text.
    Text,
    /// `{error, conflict, reason, request_fingerprint, …}`.
    Mesh,
}

impl Form {
    /// Every form, by its name in settings.
    pub const ALL: [(&'static str, Form); 6] = [
        ("problem", Form::Problem),
        ("envelope", Form::Envelope),
        ("error", Form::Error),
        ("message", Form::Message),
        ("text", Form::Text),
        ("mesh", Form::Mesh),
    ];

    /// The form's name in settings.
    pub fn name(self) -> &'static str {
        match self {
            Form::Problem => "problem",
            Form::Envelope => "envelope",
            Form::Error => "error",
            Form::Message => "message",
            Form::Text => "text",
            Form::Mesh => "mesh",
        }
    }
}

/// What a profile says differently about one kind of problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wording {
    /// The kind it is about.
    pub kind: Kind,
    /// Another code, for forms that have one.
    pub code: Option<Cow<'static, str>>,
    /// Another text.
    pub text: Option<Cow<'static, str>>,
}

/// How a profile writes problems.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wire {
    /// The shape of the body.
    pub form: Form,
    /// Other codes and texts.
    pub wording: Vec<Wording>,
    /// Whether Stripe's header names are sent too.
    pub stripe_headers: bool,
}

/// A problem as bytes on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// The status.
    pub status: u16,
    /// Headers, `Content-Type` first.
    pub headers: Vec<(&'static str, String)>,
    /// The body.
    pub body: String,
}

impl Wire {
    /// Writes a problem. `status` is the profile's own, where it differs from the kind's.
    pub fn render(&self, problem: &Problem, status: Option<u16>, request_id: &str) -> Rendered {
        let status = problem.status.or(status).unwrap_or_else(|| problem.kind.status());
        let (content_type, body) = match self.form {
            Form::Problem => {
                ("application/problem+json", problem_json(problem, status, request_id).to_string())
            }
            Form::Envelope => ("application/json", self.envelope(problem, request_id).to_string()),
            Form::Error => ("application/json", self.error(problem).to_string()),
            Form::Message => ("application/json", self.message(problem).to_string()),
            Form::Text => ("text/plain; charset=utf-8", self.text(problem)),
            Form::Mesh => ("application/json", self.mesh(problem).to_string()),
        };
        Rendered { status, headers: self.headers(problem, content_type), body }
    }

    fn headers(&self, problem: &Problem, content_type: &str) -> Vec<(&'static str, String)> {
        let should_retry = match problem.retry() {
            Retry::SameKey => "true",
            Retry::NewKey | Retry::Never => "false",
        };
        let page = format!("</.well-known/semel/problems/{}>; rel=\"describedby\"", problem.kind.slug());
        let mut headers = vec![
            ("content-type", content_type.to_owned()),
            ("link", page),
            ("x-should-retry", should_retry.to_owned()),
        ];
        if let Some(after) = problem.retry_after {
            headers.push(("retry-after", whole_seconds(after).to_string()));
        }
        if self.stripe_headers {
            headers.push(("stripe-should-retry", should_retry.to_owned()));
        }
        headers
    }

    fn envelope(&self, problem: &Problem, request_id: &str) -> Value {
        let code = problem.kind.slug().to_ascii_uppercase().replace('-', "_");
        json!({
            "error": self.code(problem.kind).map_or(code, str::to_owned),
            "message": self.text(problem),
            "details": fields(problem),
            "requestId": request_id,
        })
    }

    fn error(&self, problem: &Problem) -> Value {
        let mut body = Map::from_iter([("error".to_owned(), json!(self.text(problem)))]);
        if let Some(after) = problem.retry_after {
            body.insert(
                "retry_after".to_owned(),
                json!(u64::try_from(after.as_millis()).unwrap_or(u64::MAX)),
            );
        }
        Value::Object(body)
    }

    /// Where a profile has its own words, what is particular to the request stands beside them.
    fn message(&self, problem: &Problem) -> Value {
        let text = self.text(problem);
        match problem.detail.is_empty() || text.contains(&problem.detail) {
            true => json!({"message": text}),
            false => json!({"message": text, "detail": problem.detail}),
        }
    }

    fn mesh(&self, problem: &Problem) -> Value {
        let mut body = fields(problem);
        let code = problem.kind.slug().replace('-', "_");
        body.insert("error".to_owned(), json!(self.code(problem.kind).map_or(code, str::to_owned)));
        body.entry("reason").or_insert_with(|| json!(self.text(problem)));
        Value::Object(body)
    }

    fn code(&self, kind: Kind) -> Option<&str> {
        self.wording.iter().find(|wording| wording.kind == kind)?.code.as_deref()
    }

    fn text(&self, problem: &Problem) -> String {
        let own = self
            .wording
            .iter()
            .find(|wording| wording.kind == problem.kind)
            .and_then(|wording| wording.text.as_deref());
        own.map_or_else(|| problem.to_string(), str::to_owned)
    }
}

fn problem_json(problem: &Problem, status: u16, request_id: &str) -> Value {
    let mut body = Map::new();
    let details = fields(problem);
    if !details.is_empty() {
        body.insert("details".to_owned(), Value::Object(details));
    }
    body.insert("type".to_owned(), json!(problem.kind.type_uri()));
    body.insert("title".to_owned(), json!(problem.kind.title()));
    body.insert("status".to_owned(), json!(status));
    body.insert("retry".to_owned(), json!(problem.retry().name()));
    body.insert("request_id".to_owned(), json!(request_id));
    if !problem.detail.is_empty() {
        body.insert("detail".to_owned(), json!(problem.detail));
    }
    if let Some(after) = problem.retry_after {
        body.insert("retry_after".to_owned(), json!(whole_seconds(after)));
    }
    Value::Object(body)
}

fn fields(problem: &Problem) -> Map<String, Value> {
    problem.fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
}

/// `Retry-After` counts in whole seconds; coming back early would only be refused again.
fn whole_seconds(after: Duration) -> u64 {
    after.as_secs() + u64::from(after.subsec_nanos() > 0)
}

//! `semel conform`: a black-box examination of any server by the Idempotency-Key draft. Reads the command line and
//! prints; what is asked is in `clause`, how in `examine`, what counts as right in `judge`.

mod clause;
mod examine;
mod judge;
mod report;
mod subject;

use std::io::Write;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use semel_contract::time::parse_duration;
use serde_json::Value;

use crate::client::effects::Counter;
use crate::client::{self, Target, header_line};
use crate::exit::{Exit, Stop};
use crate::output_failed;
use clause::{Clause, Outcome};
use examine::Rigour;
use subject::Subject;

const CREDENTIAL: &str = "Bearer semel-conform";
const OTHER_CREDENTIAL: &str = "Bearer semel-conform-other";
/// Headers that are no credential, in any case.
const NOT_CREDENTIALS: [&str; 6] =
    ["accept", "accept-encoding", "accept-language", "content-type", "host", "user-agent"];

const DETAILS: &str = "\
About thirty requests are sent, each with a key of its own unless a clause says otherwise. Unless a header line says \
otherwise, they carry `Content-Type: application/json` and `Authorization: Bearer semel-conform`.

With --effects-url effects are counted before and after: a JSON number, a list, or an object with a count in it. Without \
it, answers must tell requests apart (an id, a time); where they do not, a clause is skipped rather than passed. Nothing \
else should have effects meanwhile.

The other credential of the clause `scope` is --other-header; without that, every --header line but those of content \
negotiation is sent with another value. A server where keys are optional is examined with --skip presence, unless it says \
so itself by `Semel-Guarantee: none`.

Exit code 1: a clause fails, whatever its level. Skipped clauses do not count.

Examples:
  semel conform http://127.0.0.1:7400 --path /orders --body '{\"item\":\"tea\",\"amount\":5}'
  semel conform http://127.0.0.1:7400/orders --effects-url http://127.0.0.1:7400/effects --json

They examine what `semel up` has started.";

/// Examine any server by the Idempotency-Key draft, from outside.
#[derive(Debug, clap::Args)]
#[command(after_help = DETAILS)]
pub(crate) struct Args {
    /// The server; its path is where requests are sent.
    url: String,
    /// Where requests are sent; without this the URL's own path, else /orders.
    #[arg(long)]
    path: Option<String>,
    /// The method of every request.
    #[arg(long, default_value = "POST")]
    method: Method,
    /// A header line, `Name: value`, such as a credential; may be repeated.
    #[arg(long = "header", short = 'H', value_name = "LINE")]
    headers: Vec<String>,
    /// A header line of the other caller, instead of one of that name; may be repeated.
    #[arg(long = "other-header", value_name = "LINE")]
    other_headers: Vec<String>,
    /// The header that carries the key.
    #[arg(long, value_name = "NAME", default_value = "Idempotency-Key")]
    key_header: HeaderName,
    /// A body that the server takes.
    #[arg(long, default_value = r#"{"item":"tea","amount":5}"#)]
    body: String,
    /// Another body that it takes; without this, the first number or text in the body is changed.
    #[arg(long)]
    other_body: Option<String>,
    /// Where the server says how many effects it has had.
    #[arg(long, value_name = "URL")]
    effects_url: Option<String>,
    /// The member that holds the count, where that URL gives several numbers.
    #[arg(long, value_name = "NAME", requires = "effects_url")]
    effects_field: Option<String>,
    /// A clause that is not examined; may be repeated.
    #[arg(long, value_name = "CLAUSE")]
    skip: Vec<Clause>,
    /// Also fail a server whose parser of keys is lax: a list of keys, a wrong escape, two header lines.
    #[arg(long)]
    strict: bool,
    /// How long to wait for an answer.
    #[arg(long, default_value = "30s", value_parser = duration)]
    timeout: Duration,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|error| error.to_string())
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Exit, Stop> {
    let subject = subject(args).map_err(|message| Stop::new(Exit::Usage, message))?;
    let url = subject.target.to_string();
    let rigour = if args.strict { Rigour::Strict } else { Rigour::Usual };
    let outcomes = client::block_on(examine::examine(subject, &args.skip, rigour))?;
    let text = if args.json {
        format!("{}\n", report::json(&url, &outcomes))
    } else {
        report::text(&url, &outcomes)
    };
    std::io::stdout().write_all(text.as_bytes()).map_err(|error| output_failed(&error))?;
    let has_failed = outcomes.iter().any(|(_, outcome)| matches!(outcome, Outcome::Fail(_)));
    Ok(if has_failed { Exit::Found } else { Exit::Success })
}

fn subject(args: &Args) -> Result<Subject, String> {
    let target = Target::parse(&args.url)?;
    let target = match &args.path {
        Some(path) => target.at(path)?,
        None => target.or_at("/orders")?,
    };
    let one = headers(&args.headers)?;
    let other = other_caller(&one, &args.other_headers)?;
    let counter = match &args.effects_url {
        Some(url) => Some(Counter {
            target: Target::parse(url)?,
            field: args.effects_field.clone(),
            headers: one.clone(),
        }),
        None => None,
    };
    let changed_body = args.other_body.clone().unwrap_or_else(|| changed(&args.body));
    Ok(Subject {
        target,
        method: args.method.clone(),
        key_header: args.key_header.clone(),
        one,
        other,
        body: Bytes::from(args.body.clone()),
        changed_body: Bytes::from(changed_body),
        counter,
        timeout: args.timeout,
    })
}

fn headers(lines: &[String]) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for line in lines {
        let (name, value) = header_line(line)?;
        headers.append(name, value);
    }
    headers.entry(header::CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
    headers.entry(header::AUTHORIZATION).or_insert(HeaderValue::from_static(CREDENTIAL));
    Ok(headers)
}

/// What another caller sends: the given lines instead of those of the same name, or every possible credential changed.
fn other_caller(one: &HeaderMap, lines: &[String]) -> Result<HeaderMap, String> {
    let mut other = one.clone();
    for line in lines {
        let (name, value) = header_line(line)?;
        other.insert(name, value);
    }
    if !lines.is_empty() {
        return Ok(other);
    }
    for (name, value) in &mut other {
        if *name == header::AUTHORIZATION {
            *value = HeaderValue::from_static(OTHER_CREDENTIAL);
        } else if !NOT_CREDENTIALS.contains(&name.as_str()) {
            let changed = [value.as_bytes(), b"-other"].concat();
            *value = HeaderValue::from_bytes(&changed).map_err(|error| error.to_string())?;
        }
    }
    Ok(other)
}

/// Another payload of the same shape: the first number is one more, else the first text is longer.
fn changed(body: &str) -> String {
    let Ok(Value::Object(mut members)) = serde_json::from_str(body) else { return format!("{body} ") + "x" };
    let number = members.values_mut().find(|value| value.is_i64());
    if let Some(value) = number {
        *value = Value::from(value.as_i64().unwrap_or(0).saturating_add(1));
    } else if let Some(Value::String(text)) = members.values_mut().find(|value| value.is_string()) {
        text.push_str(" x");
    } else {
        members.insert("other".to_owned(), Value::from(1));
    }
    Value::Object(members).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_payload_is_of_the_same_shape() {
        let same = |text: &str, expected: Value| {
            assert_eq!(serde_json::from_str::<Value>(&changed(text)).unwrap(), expected);
        };
        same(r#"{"item":"tea","amount":5}"#, serde_json::json!({"item": "tea", "amount": 6}));
        same(r#"{"item":"tea"}"#, serde_json::json!({"item": "tea x"}));
        same("{}", serde_json::json!({"other": 1}));
        assert_ne!(changed("plain"), "plain");
    }

    #[test]
    fn the_other_caller_has_other_credentials_and_the_same_content_type() {
        let one = headers(&["X-User: alice".to_owned(), "Accept: text/html".to_owned()]).unwrap();
        let other = other_caller(&one, &[]).unwrap();
        assert_eq!(other["x-user"], "alice-other");
        assert_ne!(other["authorization"], one["authorization"]);
        assert_eq!((&other["accept"], &other["content-type"]), (&one["accept"], &one["content-type"]));
        let told = other_caller(&one, &["X-User: bob".to_owned()]).unwrap();
        assert_eq!(
            (&told["x-user"], &told["authorization"]),
            (&"bob".parse().unwrap(), &one["authorization"])
        );
    }
}

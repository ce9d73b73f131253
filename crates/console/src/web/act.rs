//! Doing something: first a page that says what it will do, to what, and asks why; then the same address does it, once.

use axum::extract::{Path, Request, State};
use axum::response::Response;
use base64::Engine;
use http::StatusCode;
use http::request::Parts;
use maud::{Markup, html};
use serde_json::{Map, Value, json};

use super::ask::{Captures, ask, filled, look, query};
use super::text::{self, of_others, visible};
use super::view::{GONE, form_of, page_of};
use super::{FORM_BYTES_MAX, Page, Visit, Web, caller, failed, framed, see_other};
use crate::access::{Caller, Door};
use crate::actions::{Action, Field, Kind, Reason};
use crate::once::{NoOutcome, Outcome};
use crate::part::Part;

/// Members of a form that are no fields of an action.
const OURS: &[&str] = &["number", "done", "confirmed", "reason"];

/// The name that the form's number has for the seal.
fn named(action: &Action) -> String {
    format!("{}/{}", action.part, action.name)
}

/// The same with the values of the fields, where what was tried is what is done.
fn named_with(action: &Action, form: &Captures) -> String {
    if !action.dry_run {
        return named(action);
    }
    format!("{}?{}", named(action), content(action, form))
}

/// The values that the fields of an action have in a form. Browsers send line ends of their own.
fn content(action: &Action, form: &Captures) -> String {
    let value = |name: &str| form.get(name).map(|value| value.replace("\r\n", "\n")).unwrap_or_default();
    let mut names: Vec<&str> = action.fields.iter().map(|field| field.name).collect();
    names.extend(form.keys().map(String::as_str).filter(|name| path_has(action, name)));
    names.sort_unstable();
    names.dedup();
    let values: Vec<(&str, String)> = names.into_iter().map(|name| (name, value(name))).collect();
    query(values.iter().map(|(name, value)| (*name, value.as_str())))
}

/// The page of an action: what it does, to what, and the form.
pub(super) async fn preview(
    State(web): State<Web>,
    Path((part, name)): Path<(String, String)>,
    asked: Parts,
) -> Response {
    let caller = caller(&asked);
    let visit = Visit::of(&asked, &caller);
    let Some((part, action)) = found(&web, &part, &name) else {
        return failed(&web, &visit, GONE, "there is no such action here");
    };
    if caller.right < action.role {
        return failed(&web, &visit, StatusCode::FORBIDDEN, "the read-only role changes nothing");
    }
    let captures: Captures = visit.query.clone();
    let subject = match action.subject.and_then(|path| filled(path, |name| captures.get(name).cloned())) {
        Some(path) => Some(look(part.as_ref(), &caller, &path).await),
        None => None,
    };
    if let Some(Err((status, why))) = &subject {
        return failed(&web, &visit, *status, why);
    }
    let tried = if action.dry_run { dry_run(part.as_ref(), action, &captures, &caller).await } else { None };
    let is_tried = tried.as_ref().is_some_and(Result::is_ok);
    let body = html! {
        h1 { (action.label) }
        p { (action.previews) }
        @if let Some(Ok(subject)) = &subject { h2 { "What it is done to" } (summary(subject, "What it is done to")) }
        @if let Some(tried) = &tried { h2 { "What it would do" } (shown(tried)) }
        (form(&web, action, &visit, is_tried))
        p { a href=(page_of(action.page, &captures)) { "Back without doing anything" } }
    };
    framed(&web, &visit, &Page::of(action.label, body))
}

fn found<'a>(
    web: &'a Web,
    part: &str,
    name: &str,
) -> Option<(&'a std::sync::Arc<dyn Part>, &'static Action)> {
    Some((web.part(part)?, Action::find(part, name)?))
}

/// Asks what the action would do, where everything that it needs is there.
async fn dry_run(
    part: &dyn Part,
    action: &Action,
    captures: &Captures,
    caller: &Caller,
) -> Option<Result<Value, (StatusCode, String)>> {
    let is_ready = action.fields.iter().all(|field| !field.is_needed || captures.contains_key(field.name));
    if !is_ready {
        return None;
    }
    let path = filled(action.path, |name| captures.get(name).cloned())?;
    let mut body = body_of(action, captures).ok()?;
    body["dry_run"] = json!(true);
    Some(ask(part, caller, action.method, &path, Some(&body)).await.done())
}

fn shown(tried: &Result<Value, (StatusCode, String)>) -> Markup {
    match tried {
        Ok(value) => summary(value, "What it would do"),
        Err((_, why)) => html! { div class="ill" { (visible(why)) } },
    }
}

/// The members of an answer that are not lists or bodies.
fn summary(value: &Value, label: &str) -> Markup {
    let members: Vec<(&String, String)> = value
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(name, value)| match value {
            Value::String(text) if !text.is_empty() && name != "body" => Some((name, text.clone())),
            Value::Number(number) => Some((name, number.to_string())),
            Value::Bool(is_so) => Some((name, if *is_so { "yes" } else { "no" }.to_owned())),
            Value::Null | Value::String(_) | Value::Array(_) | Value::Object(_) => None,
        })
        .collect();
    html! {
        div class="scroll" tabindex="0" role="region" aria-label=(label) { table class="facts" { tbody {
            @for (name, text) in &members {
                tr { th scope="row" { (name.replace('_', " ")) } td { (of_others(text)) } }
            }
        } } }
    }
}

fn form(web: &Web, action: &Action, visit: &Visit<'_>, is_tried: bool) -> Markup {
    let in_path = |field: &Field| action.path.contains(&format!("{{{}}}", field.name));
    let given = |field: &Field| visit.asked(field.name).unwrap_or_default();
    let is_own = |name: &str| action.fields.iter().any(|field| field.name == name) || OURS.contains(&name);
    let hidden = visit.query.iter().filter(|(name, _)| !is_own(name));
    // What can be tried is tried before it is done.
    let is_first = action.dry_run && !is_tried;
    html! {
        form class="act" method=(if is_first { "get" } else { "post" })
            action={ "/do/" (action.part) "/" (action.name) } {
            @if !is_first {
                input type="hidden" name="number" value=(web.0.forms.new_number(visit.caller, &named_with(action, &visit.query)));
            }
            @for (name, value) in hidden { input type="hidden" name=(name) value=(value); }
            @for field in action.fields {
                // What was tried is what is done.
                @if is_tried && given(field).is_empty() {
                } @else if (in_path(field) || is_tried) && !given(field).is_empty() {
                    input type="hidden" name=(field.name) value=(given(field));
                    div { strong { (field.label) } ": " (of_others(given(field))) }
                } @else { (input(field, given(field))) }
            }
            @if !is_first {
                label {
                    "Why; it stands in the audit trail"
                    input name="reason" maxlength="2000" required[action.reason == Reason::Needed];
                }
            }
            @if visit.caller.door == Door::Open && !is_first {
                label { input type="checkbox" name="confirmed" value="yes" required; "Yes, do it. No token is set, and anybody on this machine can do this." }
            }
            div { button { @if is_first { "Show what it would do" } @else { (action.label) } } }
        }
    }
}

fn input(field: &Field, given: &str) -> Markup {
    let (name, needed) = (field.name, field.is_needed);
    html! {
        @match field.kind {
            Kind::Text => label { (field.label) input name=(name) value=(given) required[needed]; },
            Kind::Secret => label { (field.label) input type="password" autocomplete="off" name=(name) required[needed]; },
            Kind::Number => label { (field.label) input inputmode="numeric" pattern="[0-9]*" name=(name) value=(given) required[needed]; },
            Kind::Flag => label { input type="checkbox" name=(name) value="true" checked[given == "true"]; (field.label) },
            Kind::Choice(choices) => label { (field.label) select name=(name) required[needed] {
                option value="" { @if needed { "choose" } @else { "as it is" } }
                @for (value, words) in choices { option value=(value) selected[given == *value] { (words) } }
            } },
            Kind::Lines | Kind::List | Kind::Pairs | Kind::Object | Kind::Base64 => {
                label { (field.label) textarea name=(name) required[needed] { (given) } }
            }
        }
    }
}

/// The body of the call: the fields of the form, as the API reads them.
fn body_of(action: &Action, form: &Captures) -> Result<Value, String> {
    let mut body = Value::Object(Map::new());
    for field in action.fields {
        let text = form.get(field.name).map(String::as_str).unwrap_or_default();
        if action.path.contains(&format!("{{{}}}", field.name)) {
            continue;
        }
        if text.trim().is_empty() {
            match (field.is_needed, field.kind) {
                (true, _) => return Err(format!("{}: fill it in", field.label)),
                (false, Kind::List) => body[field.name] = json!([]),
                (false, _) => {}
            }
            continue;
        }
        let value = value_of(field, text)?;
        match field.name.split_once('.') {
            Some((outer, inner)) => body[outer] = json!({ inner: value }),
            None => body[field.name] = value,
        }
    }
    let reason = form.get("reason").map(|reason| reason.trim()).filter(|reason| !reason.is_empty());
    match (action.reason, reason) {
        (Reason::Needed, None) => return Err("say why; it stands in the audit trail".to_owned()),
        (Reason::Welcome, None) => {}
        (Reason::Needed | Reason::Welcome, Some(reason)) => body["reason"] = json!(reason),
    }
    Ok(body)
}

fn value_of(field: &Field, text: &str) -> Result<Value, String> {
    let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty());
    let pair = |line: &str| {
        let (name, value) =
            line.split_once(':').ok_or_else(|| format!("{}: expected Name: value", field.label))?;
        Ok::<_, String>((name.trim().to_owned(), value.trim().to_owned()))
    };
    Ok(match field.kind {
        Kind::Number => {
            json!(text.trim().parse::<u64>().map_err(|_| format!("{}: expected a number", field.label))?)
        }
        Kind::Flag => json!(text == "true"),
        Kind::Choice(choices) => match choices.iter().find(|(value, _)| *value == text) {
            Some(("true", _)) => json!(true),
            Some(("false", _)) => json!(false),
            Some((value, _)) => json!(value),
            None => return Err(format!("{}: choose one", field.label)),
        },
        Kind::List => json!(lines().collect::<Vec<_>>()),
        Kind::Pairs => json!(lines().map(pair).collect::<Result<Vec<_>, _>>()?),
        Kind::Object => json!(lines().map(pair).collect::<Result<std::collections::BTreeMap<_, _>, _>>()?),
        Kind::Base64 => {
            json!(base64::engine::general_purpose::STANDARD.encode(text.replace("\r\n", "\n")))
        }
        Kind::Text | Kind::Secret => json!(text.trim()),
        // Browsers end lines with CR LF, whatever was typed.
        Kind::Lines => json!(text.replace("\r\n", "\n")),
    })
}

/// Does it, once.
pub(super) async fn act(
    State(web): State<Web>,
    Path((part, name)): Path<(String, String)>,
    request: Request,
) -> Response {
    let (asked, body) = request.into_parts();
    let caller = caller(&asked);
    let visit = Visit::of(&asked, &caller);
    let refuse = |status: StatusCode, why: &str| failed(&web, &visit, status, why);
    let Some((part, action)) = found(&web, &part, &name) else {
        return refuse(GONE, "there is no such action here");
    };
    if caller.right < action.role {
        return refuse(StatusCode::FORBIDDEN, "the read-only role changes nothing");
    }
    let Ok(bytes) = axum::body::to_bytes(body, FORM_BYTES_MAX).await else {
        return refuse(StatusCode::PAYLOAD_TOO_LARGE, "the form is too large");
    };
    let form: Captures = text::pairs(&String::from_utf8_lossy(&bytes)).into_iter().collect();
    let number = form.get("number").cloned().unwrap_or_default();
    if !web.0.forms.is_ours(&number, &caller, &named_with(action, &form)) {
        let why = "this form was not shown to you by this process, or long ago: open the page anew, and look first whether it \
                   has been done. What a preview showed cannot be changed after it";
        return refuse(StatusCode::FORBIDDEN, why);
    }
    if caller.door == Door::Open && form.get("confirmed").map(String::as_str) != Some("yes") {
        return refuse(StatusCode::BAD_REQUEST, "say yes: no token is set, and the form asks to confirm");
    }
    let Some(path) = filled(action.path, |name| form.get(name).cloned()) else {
        return refuse(StatusCode::BAD_REQUEST, "the form does not say what it is about");
    };
    let body = match body_of(action, &form) {
        Ok(body) => body,
        Err(why) => return refuse(StatusCode::BAD_REQUEST, &why),
    };
    let page = page_of(action.page, &form);
    let back = form_of(
        action,
        &form
            .iter()
            .filter(|(name, _)| path_has(action, name))
            .map(|(n, v)| (n.clone(), v.clone()))
            .collect(),
    );
    let (part, actor) = (std::sync::Arc::clone(part), caller.clone());
    let acted = async move { carry_out(part.as_ref(), action, &actor, &path, &body, page, back).await };
    let mut sent = content(action, &form);
    sent.push('\n');
    sent.push_str(form.get("reason").map(String::as_str).unwrap_or_default());
    match web.0.forms.once(&number, &sent, acted).await {
        Ok(outcome) => see_other(&format!("{}{}done={number}", outcome.page, joint(&outcome.page))),
        Err(NoOutcome::OtherContent) => refuse(
            StatusCode::CONFLICT,
            "this form was sent before, with other values, and was done; these were not: open the form anew to do this too",
        ),
        Err(NoOutcome::Unknown) => refuse(
            StatusCode::INTERNAL_SERVER_ERROR,
            "nobody knows what became of it: look at the record and the trail",
        ),
    }
}

fn path_has(action: &Action, name: &str) -> bool {
    action.path.contains(&format!("{{{name}}}"))
}

fn joint(page: &str) -> char {
    if page.contains('?') { '&' } else { '?' }
}

async fn carry_out(
    part: &dyn Part,
    action: &Action,
    caller: &Caller,
    path: &str,
    body: &Value,
    page: String,
    back: String,
) -> Outcome {
    tracing::info!(part = action.part, action = action.name, actor = %caller.actor, path, "an operator acts by the console");
    // What is removed has no body; why stands in the address then.
    let reason = body["reason"].as_str().filter(|_| action.method == "DELETE");
    let path = match reason {
        Some(reason) => format!("{path}?{}", query([("reason", reason)])),
        None => path.to_owned(),
    };
    let body = (action.method != "DELETE").then_some(body);
    match ask(part, caller, action.method, &path, body).await.done() {
        Ok(value) => {
            let numbers = value.as_object().into_iter().flatten();
            let said: Vec<String> = numbers
                .filter(|(_, value)| value.is_number())
                .map(|(name, value)| format!("{} {value}", name.replace('_', " ")))
                .collect();
            let more = if said.is_empty() { String::new() } else { format!(": {}", said.join(", ")) };
            // A record has a new number after its resolution; the old one still leads to it.
            Outcome { is_done: true, is_refused: false, text: format!("Done: {}{more}", action.label), page }
        }
        Err((status, why)) => {
            // Of a failure nobody knows whether it did something.
            let is_refused = status.is_client_error();
            let text = format!("Not done ({}): {why}", status.as_u16());
            Outcome { is_done: false, is_refused, text, page: back }
        }
    }
}

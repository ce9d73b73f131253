//! The pages of the parts, as their sheets describe them, and the audit trails.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use http::request::Parts;
use maud::{Markup, html};
use serde_json::Value;

use super::ask::{Captures, filled, query};
use super::panel::{Looked, fetch, render};
use super::text::{encoded, visible};
use super::{Page, Visit, Web, caller, failed, framed};
use crate::actions::{Action, Offered};
use crate::part::{Part, Shape, View};

/// A page of a part.
pub(super) async fn show(
    web: &Web,
    part: &Arc<dyn Part>,
    view: &'static View,
    captures: Captures,
    asked: &Parts,
) -> Response {
    let caller = caller(asked);
    let visit = Visit::of(asked, &caller);
    let mut looked: Vec<Looked> = Vec::with_capacity(view.panels.len());
    for panel in view.panels {
        // Panels of one call share its answer.
        let known =
            looked.iter().find(|before| before.panel.api == panel.api && before.panel.always == panel.always);
        let again = known.filter(|_| panel.shape != Shape::Table || panel.next.is_empty());
        let found = match again {
            Some(before) => Looked { panel, whole: before.whole.clone() },
            None => fetch(part.as_ref(), panel, &visit, &captures).await,
        };
        looked.push(found);
    }
    if let Some(Looked { whole: Err((status, why)), .. }) = looked.first()
        && !captures.is_empty()
    {
        return failed(web, &visit, *status, why);
    }
    let about = looked.first().and_then(Looked::value);
    let title = titled(view.title, &captures);
    let body = html! {
        h1 { (visible(&title)) }
        @if !view.beside.is_empty() {
            div class="pages" {
                @for (path, name) in view.beside { a class="button plain" href=(path) { (name) } }
            }
        }
        @for found in &looked { (render(found, &visit, &captures)) }
        (offers(part.as_ref(), view, about, &captures, &visit))
    };
    let is_live = captures.is_empty();
    framed(web, &visit, &Page { is_live, ..Page::of(title, body) })
}

fn titled(title: &str, captures: &Captures) -> String {
    let named = captures
        .iter()
        .fold(title.to_owned(), |title, (name, value)| title.replace(&format!("{{{name}}}"), value));
    named.chars().take(200).collect()
}

/// Whether an action fits what this thing is now.
pub(super) fn is_offered(action: &Action, about: Option<&Value>) -> bool {
    match action.offered {
        Offered::Always => true,
        Offered::Where(conditions) => conditions.iter().any(|(at, words)| {
            let found = about.and_then(|about| about.pointer(at));
            let word = match found {
                Some(Value::String(text)) => text.clone(),
                Some(other) => other.to_string(),
                None => String::new(),
            };
            words.contains(&word.as_str())
        }),
    }
}

/// The form of an action.
pub(super) fn form_of(action: &Action, captures: &Captures) -> String {
    let query = query(captures.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    let path = format!("/do/{}/{}", encoded(action.part), encoded(action.name));
    if query.is_empty() { path } else { format!("{path}?{query}") }
}

/// What can be done here. Whoever may only look is offered nothing.
fn offers(
    part: &dyn Part,
    view: &View,
    about: Option<&Value>,
    captures: &Captures,
    visit: &Visit<'_>,
) -> Markup {
    let of_part = part.sheet().name;
    let actions: Vec<&Action> =
        Action::on(of_part, view.on).filter(|action| is_offered(action, about)).collect();
    html! {
        @if visit.may_change() && !actions.is_empty() {
            h2 { "What can be done" }
            div class="acts" {
                @for action in actions { a class="button plain" href=(form_of(action, captures)) { (action.label) } }
            }
        }
    }
}

/// The audit trails: one part's at a time.
pub(super) async fn audit(State(web): State<Web>, asked: Parts) -> Response {
    let caller = caller(&asked);
    let visit = Visit::of(&asked, &caller);
    let audited: Vec<&Arc<dyn Part>> =
        web.0.parts.iter().filter(|part| part.sheet().audit.is_some()).collect();
    let wanted = visit.asked("part");
    let part = audited.iter().find(|part| wanted.is_none_or(|name| part.sheet().name == name));
    let Some((part, panel)) = part.and_then(|part| Some((part, part.sheet().audit.as_ref()?))) else {
        let body = html! { h1 { "Audit" } p class="soft" { "What is done to this part stands in its log; it keeps no trail." } };
        return framed(&web, &visit, &Page::of("Audit", body));
    };
    let looked = fetch(part.as_ref(), panel, &visit, &Captures::default()).await;
    let body = html! {
        h1 { "Audit" }
        p { "Who did what by hand, and why. Rows are only ever added." }
        @if audited.len() > 1 {
            div class="pages" {
                @for other in &audited {
                    @let is_shown = other.sheet().name == part.sheet().name;
                    a class="button plain" aria-current=[is_shown.then_some("true")] href={ "/audit?part=" (other.sheet().name) } {
                        (other.sheet().title) @if is_shown { " (shown)" }
                    }
                }
            }
        }
        (render(&looked, &visit, &Captures::default()))
    };
    framed(&web, &visit, &Page::of("Audit", body))
}

/// The page of a view, or the part's first where a name is missing.
pub(super) fn page_of(template: &str, captures: &Captures) -> String {
    filled(template, |name| captures.get(name).cloned()).unwrap_or_else(|| "/".to_owned())
}

/// A status for a page that could not be made.
pub(super) const GONE: StatusCode = StatusCode::NOT_FOUND;

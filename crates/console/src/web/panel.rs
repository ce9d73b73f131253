//! A table, a record or a line of events out of an answer of an admin API. Shows what its description names, and every text as
//! text.

use http::StatusCode;
use maud::{Markup, html};
use serde_json::Value;

use super::Visit;
use super::ask::{Captures, filled, look, query};
use super::text::{in_full, of_others, visible};
use crate::part::{Column, Filter, Panel, Part, Shape, Show};

/// Words of states, by how much they should worry.
const GOOD: &[&str] = &["settled", "done", "open", "applied", "delivered", "ready", "unkept"];
const WARN: &[&str] =
    &["claimed", "pending", "inflight", "held", "parked", "paused", "released", "sealed", "abandoned"];
const BAD: &[&str] = &["unknown", "dead", "in-doubt", "blocked", "failed"];
/// Rows of a page.
const ROWS: &str = "50";
/// Characters of a key or an id in a list; its own page has all of them.
const CODE_CHARS_MAX: usize = 80;
/// Rows of a page of a list that the part gives as a whole.
const WHOLE_ROWS_MAX: usize = 200;

/// An answer of a part, with the panel that shows it.
pub(crate) struct Looked {
    pub(crate) panel: &'static Panel,
    pub(crate) whole: Result<Value, (StatusCode, String)>,
}

impl Looked {
    pub(crate) fn value(&self) -> Option<&Value> {
        self.whole.as_ref().ok().and_then(|whole| whole.pointer(self.panel.at))
    }
}

/// Asks for what a panel shows: narrowed by what stands in the page's address.
pub(crate) async fn fetch(
    part: &dyn Part,
    panel: &'static Panel,
    visit: &Visit<'_>,
    captures: &Captures,
) -> Looked {
    let Some(path) = filled(panel.api, |name| captures.get(name).cloned()) else {
        let why = "the page's address names nothing".to_owned();
        return Looked { panel, whole: Err((StatusCode::NOT_FOUND, why)) };
    };
    let filters = panel.filters.iter().map(|filter| (filter.name, filter.name));
    let known = filters.chain(panel.next.iter().map(|(_, name)| (*name, cursor_name(panel, name))));
    let mut pairs: Vec<(&str, &str)> =
        known.filter_map(|(name, in_address)| Some((name, visit.asked(in_address)?))).collect();
    if panel.shape == Shape::Table && !panel.next.is_empty() {
        pairs.push(("limit", ROWS));
    }
    let bodies = if visit.sees_bodies() { panel.for_bodies } else { "" };
    let asked = [panel.always.to_owned(), bodies.to_owned(), query(pairs)]
        .into_iter()
        .filter(|part| !part.is_empty());
    let asked: Vec<String> = asked.collect();
    let path = if asked.is_empty() { path } else { format!("{path}?{}", asked.join("&")) };
    Looked { panel, whole: look(part, visit.caller, &path).await }
}

/// What was found.
pub(crate) fn render(looked: &Looked, visit: &Visit<'_>, captures: &Captures) -> Markup {
    let panel = looked.panel;
    html! {
        @if !panel.title.is_empty() { h2 { (panel.title) } }
        @if !panel.filters.is_empty() { (filters(panel.filters, visit)) }
        @match &looked.whole {
            Err((_, why)) => div class="ill" { (visible(why)) },
            Ok(whole) => {
                @match panel.shape {
                    Shape::Table => {
                        (rows(panel, whole.pointer(panel.at), visit, captures))
                        (bound(whole, visit.asked("key").is_some()))
                        (pages(panel, whole, visit))
                    }
                    Shape::Record => (record(panel, whole.pointer(panel.at), visit, captures)),
                    Shape::Timeline => (timeline(whole.pointer(panel.at))),
                }
            }
        }
    }
}

/// Says how far was looked, where not everything was.
fn bound(whole: &Value, is_by_key: bool) -> Markup {
    let looked = whole["looked"].as_u64().filter(|_| whole["complete"] == Value::Bool(false));
    let is_reading = whole["reading"] == Value::Bool(true);
    html! {
        @match looked {
            Some(looked) if is_reading => p class="soft" {
                "The keys of older records are still being read, since this was started a moment ago: so far the newest " (looked)
                " were searched, and what came since. Look again in a minute."
            },
            Some(looked) if is_by_key => p class="soft" {
                "At least " (looked) " records have this key; there may be more than were searched."
            },
            Some(looked) => p class="soft" {
                "What is not indexed is searched among the newest " (looked) " records only; there may be older ones. Search by \
                 key or by the record's number looks at everything."
            },
            None => {}
        }
    }
}

fn filters(filters: &[Filter], visit: &Visit<'_>) -> Markup {
    html! {
        form class="filter" method="get" action=(visit.path) {
            @for filter in filters {
                label {
                    (filter.label)
                    @if filter.choices.is_empty() {
                        input name=(filter.name) value=(visit.asked(filter.name).unwrap_or_default()) maxlength="400";
                    } @else {
                        select name=(filter.name) {
                            option value="" { "any" }
                            @for choice in filter.choices {
                                option value=(choice) selected[visit.asked(filter.name) == Some(choice)] { (choice) }
                            }
                        }
                    }
                }
            }
            div { button { "Search" } }
            @if filters.iter().any(|filter| visit.asked(filter.name).is_some()) {
                div { a class="button plain" href=(visit.path) { "Show all" } }
            }
        }
    }
}

fn pages(panel: &Panel, whole: &Value, visit: &Visit<'_>) -> Markup {
    let kept = |extra: Option<(&str, &str)>| {
        let pairs = panel.filters.iter().filter_map(|filter| Some((filter.name, visit.asked(filter.name)?)));
        let pairs: Vec<(&str, &str)> =
            pairs.chain(visit.asked("part").map(|part| ("part", part))).chain(extra).collect();
        format!("{}?{}", visit.path, query(pairs))
    };
    let cursor = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let begins = begins(panel);
    let rows = whole.pointer(panel.at).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let (_, later) = piece(panel, rows, visit);
    let next = panel
        .next
        .iter()
        .find_map(|(member, name)| cursor(whole.get(member)?).map(|at| (cursor_name(panel, name), at)));
    let next = next.or(later.map(|at| (begins.as_str(), at.to_string())));
    let is_later = panel
        .next
        .iter()
        .map(|(_, name)| cursor_name(panel, name))
        .chain([begins.as_str()])
        .any(|name| visit.asked(name).is_some());
    html! {
        @if is_later || next.is_some() {
            div class="pages" {
                @if is_later { a class="button plain" href=(kept(None)) { "First page" } }
                @if let Some((name, at)) = &next { a class="button plain" rel="next" href=(kept(Some((name, at)))) { "Next page" } }
            }
        }
    }
}

/// What the parameter that says where a page of a list begins is called in the page's address.
fn cursor_name<'a>(panel: &'a Panel, name: &'a str) -> &'a str {
    if panel.cursor.is_empty() { name } else { panel.cursor }
}

/// The parameter that says where the page of a list begins that the part gives as a whole. Every list of a page has its own.
fn begins(panel: &Panel) -> String {
    format!("{}_from", panel.at.trim_start_matches('/').replace('/', "_"))
}

/// The rows that are shown of a list that the part gives as a whole, and where the next page begins.
fn piece<'a>(panel: &Panel, rows: &'a [Value], visit: &Visit<'_>) -> (&'a [Value], Option<usize>) {
    if !panel.next.is_empty() {
        return (rows, None);
    }
    let from = visit.asked(&begins(panel)).and_then(|from| from.parse().ok()).unwrap_or(0).min(rows.len());
    let until = (from + WHOLE_ROWS_MAX).min(rows.len());
    (&rows[from..until], Some(until).filter(|until| *until < rows.len()))
}

fn rows(panel: &Panel, found: Option<&Value>, visit: &Visit<'_>, captures: &Captures) -> Markup {
    let rows = found.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let (rows, _) = piece(panel, rows, visit);
    html! {
        @if rows.is_empty() { p class="soft" { (panel.empty) } } @else {
            div class="scroll" tabindex="0" role="region" aria-label=(if panel.title.is_empty() { "List" } else { panel.title }) {
                table class="rows" {
                    thead { tr { @for column in panel.columns { th scope="col" { (column.label) } } } }
                    tbody { @for row in rows { tr {
                        @for column in panel.columns {
                            td data-label=(column.label) { div { (in_row(column, row, visit, captures)) } }
                        }
                    } } }
                }
            }
        }
    }
}

fn record(panel: &Panel, found: Option<&Value>, visit: &Visit<'_>, captures: &Captures) -> Markup {
    let Some(found) = found.filter(|found| !found.is_null()) else {
        return html! { p class="soft" { "There is none." } };
    };
    let label = if panel.title.is_empty() { "What is known" } else { panel.title };
    let is_told = |column: &&Column| found.pointer(column.at).is_some_and(|value| !value.is_null());
    html! {
        div class="scroll" tabindex="0" role="region" aria-label=(label) {
            table class="facts" { tbody {
                @for column in panel.columns.iter().filter(is_told) {
                    tr { th scope="row" { (column.label) } td { (cell(column, found, visit, captures)) } }
                }
            } }
        }
    }
}

fn timeline(found: Option<&Value>) -> Markup {
    let events = found.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    html! {
        ol class="line" {
            @for event in events {
                li class=[(event["past"] == Value::Bool(false)).then_some("later")] {
                    (moment(event["at"].as_str().unwrap_or_default())) " "
                    (of_others(event["what"].as_str().unwrap_or_default()))
                    @if event["past"] == Value::Bool(false) { " (to come)" }
                }
            }
        }
    }
}

/// A moment, as short as it can be told.
fn moment(text: &str) -> Markup {
    let short = match text.split_once('T') {
        Some((day, rest)) => format!("{day} {}", rest.split(['.', 'Z']).next().unwrap_or_default()),
        None => text.to_owned(),
    };
    html! { time datetime=(visible(text)) { (visible(&short)) } }
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => "–".to_owned(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A value in a row of a list, where a key of 255 characters would push the others off the screen.
fn in_row(column: &Column, row: &Value, visit: &Visit<'_>, captures: &Captures) -> Markup {
    match (column.show, row.pointer(column.at)) {
        (Show::Code, Some(Value::String(text))) if text.chars().count() > CODE_CHARS_MAX => {
            let cut: String = text.chars().take(CODE_CHARS_MAX).collect();
            html! { span class="code" { (of_others(&cut)) "…" } }
        }
        _ => cell(column, row, visit, captures),
    }
}

/// A value.
fn cell(column: &Column, row: &Value, visit: &Visit<'_>, captures: &Captures) -> Markup {
    let value = row.pointer(column.at).unwrap_or(&Value::Null);
    if value.is_null() || value.as_str().is_some_and(str::is_empty) {
        return html! { span class="soft" { "–" } };
    }
    match column.show {
        Show::Text => of_others(&plain(value)),
        Show::Code => html! { span class="code" { (of_others(&plain(value))) } },
        Show::State => state(&plain(value)),
        Show::Time => moment(&plain(value)),
        Show::Bytes => html! { span class="num" { (of_others(&plain(value))) " bytes" } },
        Show::Body => match visit.sees_bodies() {
            true => body(column.at, value),
            false => {
                html! { span class="soft" { "Hidden: bodies are shown to those who signed in as operator." } }
            }
        },
        Show::Link(page) => {
            let member = |name: &str| match row.get(name) {
                Some(Value::String(text)) => Some(text.clone()),
                Some(Value::Number(number)) => Some(number.to_string()),
                _ => captures.get(name).cloned(),
            };
            match filled(page, member) {
                Some(path) => html! { a href=(path) { (of_others(&plain(value))) } },
                None => of_others(&plain(value)),
            }
        }
    }
}

fn state(word: &str) -> Markup {
    let class = match word {
        word if GOOD.contains(&word) => "tag good",
        word if WARN.contains(&word) => "tag warn",
        word if BAD.contains(&word) => "tag bad",
        _ => "tag soft",
    };
    html! { span class=(class) { (visible(word)) } }
}

fn body(at: &str, value: &Value) -> Markup {
    use base64::Engine;
    let text = match value {
        Value::String(text) if at.ends_with("base64") => {
            let bytes = base64::engine::general_purpose::STANDARD.decode(text).unwrap_or_default();
            match String::from_utf8(bytes) {
                Ok(text) => text,
                Err(_) => format!("(not text; in base64)\n{text}"),
            }
        }
        Value::String(text) => text.clone(),
        other => format!("{other:#}"),
    };
    in_full(&text)
}

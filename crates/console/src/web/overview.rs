//! The first page: what needs a person, whether the parts are well, what is counted, what came last.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header;
use http::request::Parts;
use maud::{Markup, html};
use serde_json::Value;

use super::ask::{Captures, look, numbers};
use super::panel::{fetch, render};
use super::text::{in_full, visible};
use super::{Page, Visit, Web, caller, chart, framed, settings};
use crate::part::{Bound, Fares, Notice, Part, Pillar};
use crate::ring;

/// More are shown as this many and a sign for more.
const COUNTED_MAX: usize = 100;

pub(super) async fn show(State(web): State<Web>, asked: Parts) -> Response {
    web.start_sampling();
    let accept = asked.headers.get(header::ACCEPT).and_then(|line| line.to_str().ok()).unwrap_or_default();
    let wants_text = ["text/plain", "application/json"].iter().any(|kind| accept.contains(kind));
    if wants_text && !accept.contains("text/html") {
        return ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], web.0.index.clone()).into_response();
    }
    let caller = caller(&asked);
    let visit = Visit::of(&asked, &caller);
    let mut wanted = Vec::new();
    let mut health = Vec::new();
    for part in &web.0.parts {
        let well = look(part.as_ref(), &caller, part.sheet().health).await;
        if well.is_ok() {
            for notice in part.sheet().notices {
                wanted.extend(count(part.as_ref(), notice, &visit).await.map(|words| (words, notice.page)));
            }
        }
        wanted.extend(part.warnings().into_iter().map(|said| ((None, said), "/configuration")));
        wanted.extend(unsafe_settings(part.as_ref()).map(|words| (words, "/configuration")));
        let pillars = part.pillars().await;
        health.push((part.sheet().title, well.map(drop).map_err(|(_, why)| why), pillars));
    }
    let body = html! {
        h1 { "Overview" }
        section aria-labelledby="wanted" {
            h2 id="wanted" { "Needs a person" }
            @if wanted.is_empty() { p class="well" { "Nothing needs a person." } } @else {
                ul class="cards" {
                    @for ((number, words), page) in &wanted {
                        li class="card bad" { a href=(page) {
                            @if let Some(number) = number { b class="n" { (number) } } (visible(words))
                        } }
                    }
                }
            }
        }
        section aria-labelledby="health" {
            h2 id="health" { "Health" }
            ul class="cards" {
                @for (title, well, pillars) in &health {
                    li class=(if well.is_ok() { "card" } else { "card bad" }) {
                        strong { (title) } " "
                        @match well {
                            Ok(()) => span class="tag good" { "ready" },
                            Err(why) => { span class="tag bad" { "not ready" } p { (visible(why)) } }
                        }
                        (leaning(pillars, well.is_ok()))
                    }
                }
            }
        }
        @for section in &web.0.facts { (settings::section(section)) }
        (tiles(&web).await)
        (charts(&web, &visit))
        (recent(&web, &visit).await)
        (commands(&web))
    };
    framed(&web, &visit, &Page { is_live: true, ..Page::of("Overview", body) })
}

/// What a part leans on, and how that fares.
fn leaning(pillars: &[Pillar], is_ready: bool) -> Markup {
    html! {
        @if !pillars.is_empty() {
            ul class="leans" {
                @for Pillar { what, name, fares } in pillars {
                    li {
                        span class="soft" { (what) } " " (visible(name)) " "
                        @match fares {
                            Fares::AsThePart if is_ready => {}
                            Fares::AsThePart => span class="tag warn" { "as the part" },
                            Fares::Well(words) => span class="soft" { (visible(words)) },
                            Fares::Ill(why) => { span class="tag bad" { "not reached" } " " (visible(why)) }
                        }
                    }
                }
            }
        }
    }
}

/// How many of a part's settings do not hold what follows from them.
fn unsafe_settings(part: &dyn Part) -> Option<(Option<String>, String)> {
    let sections = part.settings();
    let count = sections
        .iter()
        .flat_map(|section| &section.bounds)
        .filter(|(bound, _)| *bound == Bound::Unsafe)
        .count();
    let title = part.sheet().title;
    let words = match count {
        0 => return None,
        1 => format!("bound of the settings does not hold: see the configuration of {title}"),
        _ => format!("bounds of the settings do not hold: see the configuration of {title}"),
    };
    Some((Some(count.to_string()), words))
}

/// How many there are of what needs a person, in words; nothing where there are none.
async fn count(part: &dyn Part, notice: &Notice, visit: &Visit<'_>) -> Option<(Option<String>, String)> {
    let whole = look(part, visit.caller, notice.api).await.ok()?;
    let counted =
        || whole.as_str().map(|text| serde_json::json!(ring::total(text, notice.at, "").round() as u64));
    let found = if notice.at.starts_with('/') { whole.pointer(notice.at)?.clone() } else { counted()? };
    let number = match &found {
        Value::Array(rows) => rows.len() as u64,
        Value::Number(number) => number.as_u64().unwrap_or_else(|| u64::from(number.as_f64() != Some(0.0))),
        Value::Bool(is_so) => u64::from(*is_so),
        Value::Null => 0,
        Value::String(text) => u64::from(!text.is_empty()),
        Value::Object(members) => u64::from(!members.is_empty()),
    };
    match (number, notice.many) {
        (0, _) => None,
        (_, "") => Some((None, notice.one.to_owned())),
        (1, _) => Some((Some("1".to_owned()), notice.one.to_owned())),
        (number, many) if number >= COUNTED_MAX as u64 => {
            Some((Some(format!("{COUNTED_MAX}+")), many.to_owned()))
        }
        (number, many) => Some((Some(number.to_string()), many.to_owned())),
    }
}

/// What was counted since the start, each number with the list behind it.
async fn tiles(web: &Web) -> Markup {
    let mut counted = Vec::new();
    for part in web.0.parts.iter().filter(|part| !part.sheet().tiles.is_empty()) {
        counted.extend(numbers(part.as_ref()).await.map(|text| (part.sheet().tiles, text)));
    }
    html! {
        @if !counted.is_empty() {
            section aria-labelledby="counted" {
                h2 id="counted" { "Since the start" }
                ul class="cards" {
                    @for (tiles, text) in &counted {
                        @for tile in *tiles {
                            li class="card" { a href=(tile.page) {
                                b class="n" { (ring::total(text, tile.metric, tile.labelled)) } (tile.label)
                            } }
                        }
                    }
                }
            }
        }
    }
}

fn charts(web: &Web, visit: &Visit<'_>) -> Markup {
    let of_day = visit.asked("span") == Some("day");
    let mut first = 0;
    let mut drawn = Vec::new();
    for chart in web.0.parts.iter().flat_map(|part: &Arc<dyn Part>| part.sheet().charts) {
        drawn.push(chart::draw(chart, &web.0.history.0, first, of_day));
        first += chart.lines.len();
    }
    html! {
        @if !drawn.is_empty() {
            section aria-labelledby="charts" {
                h2 id="charts" { (if of_day { "The last day" } else { "The last hour" }) }
                p { a href=(if of_day { "/" } else { "/?span=day" }) { (if of_day { "Show the last hour" } else { "Show the last day" }) } }
                div class="cards" { @for chart in &drawn { (chart) } }
            }
        }
    }
}

/// What came last, of the first part that lists it.
async fn recent(web: &Web, visit: &Visit<'_>) -> Markup {
    let found = web.0.parts.iter().find_map(|part| part.sheet().recent.as_ref().map(|panel| (part, panel)));
    match found {
        Some((part, panel)) => {
            let looked = fetch(part.as_ref(), panel, visit, &Captures::default()).await;
            render(&looked, visit, &Captures::default())
        }
        None => html! {},
    }
}

fn commands(web: &Web) -> Markup {
    html! {
        @if !web.0.commands.is_empty() {
            h2 { "Try it" }
            @for (words, line) in &web.0.commands { p { (words) } (in_full(line)) }
        }
    }
}

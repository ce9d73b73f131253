//! The settings in force, part by part, with the arithmetic that follows from them.

use axum::extract::State;
use axum::response::Response;
use http::request::Parts;
use maud::{Markup, html};

use super::text::{of_others, visible};
use super::{Page, Visit, Web, caller, framed};
use crate::part::{Bound, Section};

pub(super) async fn show(State(web): State<Web>, asked: Parts) -> Response {
    let caller = caller(&asked);
    let visit = Visit::of(&asked, &caller);
    let sections: Vec<Section> = web.0.parts.iter().flat_map(|part| part.settings()).collect();
    let body = html! {
        h1 { "Configuration" }
        p { "What is in force in this process. " code { "semel check" } " shows the same of a file before it is put in force." }
        @if sections.is_empty() { p class="soft" { "This program shows no settings here." } }
        @for section in &sections { (self::section(section)) }
    };
    framed(&web, &visit, &Page::of("Configuration", body))
}

pub(super) fn section(section: &Section) -> Markup {
    html! {
        h2 { (of_others(&section.title)) }
        div class="scroll" tabindex="0" role="region" aria-label=(visible(&section.title)) {
            table class="facts" { tbody {
                @for (name, value) in &section.rows {
                    tr { th scope="row" { (of_others(name)) } td class="code" { (of_others(value)) } }
                }
            } }
        }
        @if !section.bounds.is_empty() {
            ol class="line" {
                @for (bound, rule) in &section.bounds {
                    li {
                        @match bound {
                            Bound::Holds => span class="tag good" { "ok" },
                            Bound::Unsafe => span class="tag bad" { "unsafe" },
                            Bound::Warns => span class="tag warn" { "warning" },
                        }
                        " "
                        (of_others(rule))
                    }
                }
            }
        }
    }
}

//! What `semel up` says of what runs: at its start, and on the first page of the console. And the way from where its page
//! was to the console.

use axum::Router;
use axum::response::Redirect;
use axum::routing::get;
use semel_console::part::Section;

/// What does not change while it runs.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) gate: String,
    pub(crate) upstream: String,
    pub(crate) admin: String,
    /// Where changes are handed in that can be merged.
    pub(crate) relay: Option<String>,
    /// Where its operators look.
    pub(crate) relay_admin: Option<String>,
    /// Where members of the demo mesh connect.
    pub(crate) broker: Option<String>,
    pub(crate) data: String,
    /// How to look at the records.
    pub(crate) records: String,
    /// Whether the service behind the gate is the demo.
    pub(crate) demo: bool,
    pub(crate) commands: Vec<Command>,
}

impl Facts {
    /// The same for the console's first page.
    pub(crate) fn section(&self) -> Section {
        let service = if self.demo { "demo shop, bare" } else { "service, bare" };
        let mut rows = vec![
            ("gate, for clients".to_owned(), self.gate.clone()),
            (service.to_owned(), self.upstream.clone()),
            ("data".to_owned(), self.data.clone()),
            ("records".to_owned(), self.records.clone()),
        ];
        rows.extend(self.relay.iter().map(|relay| ("relay, for senders".to_owned(), relay.clone())));
        Section { title: "What runs here".to_owned(), rows, bounds: Vec::new() }
    }
}

/// A command to try.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    pub(crate) words: &'static str,
    pub(crate) line: String,
}

/// Leads whoever opens `/` to the console.
pub(crate) fn to_console(admin: &str) -> Router {
    let admin = admin.to_owned();
    Router::new().route("/", get(move || std::future::ready(Redirect::to(&admin))))
}

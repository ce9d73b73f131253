//! What a part of semel is to the console: an admin API that can be asked within the process, and a description of the pages
//! that show it. The console knows no other crate than the store's: a gate inside another program does not bring a broker.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use http::Request;
use tower::ServiceExt;

/// An answer that comes.
pub type Answered<'a> = Pin<Box<dyn Future<Output = Response> + Send + 'a>>;

/// A part that the console shows.
pub trait Part: Send + Sync {
    /// Its pages.
    fn sheet(&self) -> &'static Sheet;

    /// Asks its admin API. Whoever asks was let in; who it is stands in `Semel-Actor`.
    fn ask(&self, request: Request<Body>) -> Answered<'_>;

    /// The settings in force.
    fn settings(&self) -> Vec<Section> {
        Vec::new()
    }

    /// What it leans on, and how that fares. Asked by every first page that is shown.
    fn pillars(&self) -> Found<'_> {
        Box::pin(std::future::ready(Vec::new()))
    }

    /// What a person should hear of beside the notices, such as a disk that is nearly full. Cheap.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// What is counted, in Prometheus' text form, for the charts. Cheap: it is asked every few seconds. A part without it is
    /// asked at its sheet's `numbers`.
    fn numbers(&self) -> Option<String> {
        None
    }
}

/// Something that a part leans on, such as its store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pillar {
    /// What it is, such as `store`.
    pub what: String,
    /// What it is called.
    pub name: String,
    /// How it fares.
    pub fares: Fares,
}

/// How something fares that a part leans on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fares {
    /// As the part: it is not ready without it.
    AsThePart,
    /// Well, in a few words.
    Well(String),
    /// Not well, with the reason.
    Ill(String),
}

/// What a part leans on, as it comes.
pub type Found<'a> = Pin<Box<dyn Future<Output = Vec<Pillar>> + Send + 'a>>;

/// Says what a part leans on.
pub type Leans = dyn Fn() -> Found<'static> + Send + Sync;

/// A part whose admin API is a router.
pub struct Routed {
    sheet: &'static Sheet,
    router: Router,
    settings: Vec<Section>,
    numbers: Option<Box<dyn Fn() -> String + Send + Sync>>,
    warnings: Option<Arc<Warnings>>,
    leans: Option<Arc<Leans>>,
}

/// Says what a person should hear of.
pub type Warnings = dyn Fn() -> Vec<String> + Send + Sync;

impl std::fmt::Debug for Routed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Routed").field("part", &self.sheet.name).finish_non_exhaustive()
    }
}

impl Routed {
    /// A part with these pages and this API, which lets everybody in.
    pub fn new(sheet: &'static Sheet, router: Router) -> Self {
        Self { sheet, router, settings: Vec::new(), numbers: None, warnings: None, leans: None }
    }

    /// Also shows these settings.
    #[must_use]
    pub fn settings(mut self, settings: Vec<Section>) -> Self {
        self.settings = settings;
        self
    }

    /// Also says what a person should hear of.
    #[must_use]
    pub fn warned_by(mut self, warnings: Arc<Warnings>) -> Self {
        self.warnings = Some(warnings);
        self
    }

    /// Also says what it leans on.
    #[must_use]
    pub fn leaning_on(mut self, leans: Arc<Leans>) -> Self {
        self.leans = Some(leans);
        self
    }

    /// Also draws charts of what is counted.
    #[must_use]
    pub fn numbers(mut self, numbers: impl Fn() -> String + Send + Sync + 'static) -> Self {
        self.numbers = Some(Box::new(numbers));
        self
    }
}

impl Part for Routed {
    fn sheet(&self) -> &'static Sheet {
        self.sheet
    }

    fn ask(&self, request: Request<Body>) -> Answered<'_> {
        let answered = self.router.clone().oneshot(request);
        Box::pin(async move { answered.await.unwrap_or_else(|never| match never {}) })
    }

    fn settings(&self) -> Vec<Section> {
        self.settings.clone()
    }

    fn pillars(&self) -> Found<'_> {
        match &self.leans {
            Some(leans) => leans(),
            None => Box::pin(std::future::ready(Vec::new())),
        }
    }

    fn warnings(&self) -> Vec<String> {
        self.warnings.as_ref().map(|warnings| warnings()).unwrap_or_default()
    }

    fn numbers(&self) -> Option<String> {
        self.numbers.as_ref().map(|numbers| numbers())
    }
}

/// Settings under one heading.
#[derive(Clone, Debug, Default)]
pub struct Section {
    /// The heading.
    pub title: String,
    /// Names and values.
    pub rows: Vec<(String, String)>,
    /// What follows from them.
    pub bounds: Vec<(Bound, String)>,
}

/// What is said of what follows from settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// It holds.
    Holds,
    /// It does not: somebody has said that they know, and a person should look.
    Unsafe,
    /// Something to know, as long as the settings are what they are.
    Warns,
}

/// The pages of a part.
#[derive(Debug)]
pub struct Sheet {
    /// Its name, as in `semel serve NAME`.
    pub name: &'static str,
    /// What people call it.
    pub title: &'static str,
    /// Its pages; the first is in the menu.
    pub views: &'static [View],
    /// What needs a person.
    pub notices: &'static [Notice],
    /// What was counted since the start.
    pub tiles: &'static [Tile],
    /// What is drawn.
    pub charts: &'static [Chart],
    /// What came last, for the first page.
    pub recent: Option<Panel>,
    /// Its audit trail.
    pub audit: Option<Panel>,
    /// What answers 2xx while the part is well.
    pub health: &'static str,
    /// The call that tells what is counted, where the part cannot tell without asking its store.
    pub numbers: Option<&'static str>,
}

/// Pages without anything.
pub const SHEET: Sheet = Sheet {
    name: "",
    title: "",
    views: &[],
    notices: &[],
    tiles: &[],
    charts: &[],
    recent: None,
    audit: None,
    health: "/readyz",
    numbers: None,
};

/// A page.
#[derive(Debug)]
pub struct View {
    /// Its path; names in braces are taken from it.
    pub path: &'static str,
    /// Its heading.
    pub title: &'static str,
    /// What kind of thing it shows, for the actions that are offered.
    pub on: &'static str,
    /// What stands on it.
    pub panels: &'static [Panel],
    /// Pages beside it.
    pub beside: &'static [(&'static str, &'static str)],
}

/// A table, a record or a list of events on a page.
#[derive(Clone, Copy, Debug)]
pub struct Panel {
    /// Its heading; empty where the page's is enough.
    pub title: &'static str,
    /// The path of the call whose answer it shows.
    pub api: &'static str,
    /// Where in the answer it stands, as a JSON pointer.
    pub at: &'static str,
    /// How it is shown.
    pub shape: Shape,
    /// What is shown.
    pub columns: &'static [Column],
    /// What a list can be narrowed by; each is a parameter of the call.
    pub filters: &'static [Filter],
    /// Members of the answer that hold the next page's cursor, and the parameter it goes into.
    pub next: &'static [(&'static str, &'static str)],
    /// What that parameter is called in the page's address, where another list of the page has one of the same name.
    pub cursor: &'static str,
    /// Parameters of the call that are always the same.
    pub always: &'static str,
    /// A parameter for those who may see bodies: it asks for them.
    pub for_bodies: &'static str,
    /// What is said where nothing is there.
    pub empty: &'static str,
}

/// How a panel is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Rows with columns.
    Table,
    /// Names and values.
    Record,
    /// What happened, in order.
    Timeline,
}

/// A panel without anything.
pub const PANEL: Panel = Panel {
    title: "",
    api: "",
    at: "",
    shape: Shape::Table,
    columns: &[],
    filters: &[],
    next: &[],
    cursor: "",
    always: "",
    for_bodies: "",
    empty: "Nothing is here.",
};

/// A column of a table or a line of a record.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Its heading.
    pub label: &'static str,
    /// Where the value stands in the row, as a JSON pointer.
    pub at: &'static str,
    /// How it is shown.
    pub show: Show,
}

/// How a value is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// As text.
    Text,
    /// As text in letters of one width.
    Code,
    /// As a word with a colour.
    State,
    /// As a moment.
    Time,
    /// As a number of bytes.
    Bytes,
    /// As what only those may see who may see bodies.
    Body,
    /// As a link to a page; names in braces are members of the row, or of the page's path.
    Link(&'static str),
}

/// A column.
pub const fn column(label: &'static str, at: &'static str, show: Show) -> Column {
    Column { label, at, show }
}

/// What a list can be narrowed by.
#[derive(Clone, Copy, Debug)]
pub struct Filter {
    /// The parameter of the call.
    pub name: &'static str,
    /// What people call it.
    pub label: &'static str,
    /// The values there are; any text where there are none.
    pub choices: &'static [&'static str],
}

/// Something that needs a person, if there is any.
#[derive(Debug)]
pub struct Notice {
    /// The call that tells.
    pub api: &'static str,
    /// Where in its answer, as a JSON pointer; or the name of a metric in it.
    pub at: &'static str,
    /// What is said of one, after the number.
    pub one: &'static str,
    /// What is said of several, after the number; where it is empty, `one` is said without a number.
    pub many: &'static str,
    /// The page that shows them.
    pub page: &'static str,
}

/// A number of the overview, with the list behind it.
#[derive(Debug)]
pub struct Tile {
    /// What is counted.
    pub label: &'static str,
    /// The metric.
    pub metric: &'static str,
    /// What its labels contain; any where it is empty.
    pub labelled: &'static str,
    /// The page that lists them.
    pub page: &'static str,
}

/// A chart of the overview.
#[derive(Debug)]
pub struct Chart {
    /// Its heading.
    pub title: &'static str,
    /// What the numbers are, such as `a second`.
    pub unit: &'static str,
    /// Its lines.
    pub lines: &'static [Line],
}

/// A line of a chart.
#[derive(Debug)]
pub struct Line {
    /// What it is called.
    pub label: &'static str,
    /// The metric.
    pub metric: &'static str,
    /// What its labels contain; any where it is empty.
    pub labelled: &'static str,
    /// What is drawn of it.
    pub draw: Draw,
}

/// A line of how much a counter grows in a second.
pub const fn rate(label: &'static str, metric: &'static str, labelled: &'static str) -> Line {
    Line { label, metric, labelled, draw: Draw::Rate }
}

/// A line of what a gauge says.
pub const fn level(label: &'static str, metric: &'static str, labelled: &'static str) -> Line {
    Line { label, metric, labelled, draw: Draw::Value }
}

/// A number of the overview.
pub const fn tile(
    label: &'static str,
    metric: &'static str,
    labelled: &'static str,
    page: &'static str,
) -> Tile {
    Tile { label, metric, labelled, page }
}

/// What is drawn of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Draw {
    /// How much a counter grows in a second.
    Rate,
    /// The value of a gauge.
    Value,
    /// A share of a histogram in milliseconds, such as 0.99.
    Quantile(f64),
}

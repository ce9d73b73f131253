//! The console: pages over the admin APIs of the parts that this process serves, rendered here, complete without a script.
//! Owns what is served where and the frame of every page; asks the parts for everything else.

mod act;
mod ask;
mod chart;
mod overview;
mod pace;
mod panel;
mod settings;
mod sign;
mod text;
mod view;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, RawPathParams, Request, State};
use axum::middleware::{Next, from_fn_with_state, map_response};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::request::Parts;
use http::{HeaderValue, StatusCode, Uri, header};
use maud::{DOCTYPE, Markup, html};

use crate::access::{self, Access, Caller, Door, Right};
use crate::once::Forms;
use crate::part::{Part, Section, View};
use crate::refusal::Refusal;
use crate::ring::{self, Ring};

/// What a page may load: its own style, script and picture, and what it asks this address for.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
/// Pages that are kept up to date at once; others are reloaded by hand.
const LIVE_MAX: usize = 32;
/// How often a page is looked after.
const LIVE_EVERY: Duration = Duration::from_secs(2);
/// The largest form.
const FORM_BYTES_MAX: usize = 4 << 20;

/// What a process has counted in the last hour and day. Clones share it, so that it outlives a reading of the settings.
#[derive(Clone, Debug, Default)]
pub struct History(Arc<Ring>);

/// Everything on the admin address of a process: the APIs of its parts, and the console.
pub struct Surface {
    access: Access,
    parts: Vec<Arc<dyn Part>>,
    history: History,
    commands: Vec<(String, String)>,
    facts: Vec<Section>,
    index: String,
}

impl std::fmt::Debug for Surface {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Surface").field("access", &self.access).finish_non_exhaustive()
    }
}

impl Surface {
    /// For those whom `access` lets in.
    pub fn new(access: Access) -> Self {
        Self {
            access,
            parts: Vec::new(),
            history: History::default(),
            commands: Vec::new(),
            facts: Vec::new(),
            index: String::new(),
        }
    }

    /// Also shows this part.
    #[must_use]
    pub fn part(mut self, part: impl Part + 'static) -> Self {
        self.parts.push(Arc::new(part));
        self
    }

    /// Goes on with what was counted before.
    #[must_use]
    pub fn history(mut self, history: History) -> Self {
        self.history = history;
        self
    }

    /// Shows these commands to try, with what each is for.
    #[must_use]
    pub fn commands(mut self, commands: Vec<(String, String)>) -> Self {
        self.commands = commands;
        self
    }

    /// Shows these facts on the first page.
    #[must_use]
    pub fn facts(mut self, facts: Vec<Section>) -> Self {
        self.facts = facts;
        self
    }

    /// What a program reads that asks for `/` as text.
    #[must_use]
    pub fn index(mut self, index: impl Into<String>) -> Self {
        self.index = index.into();
        self
    }

    /// The console over `api`, which has the APIs of the parts.
    pub fn router(self, api: Router) -> Router {
        let Self { access, parts, history, commands, facts, index } = self;
        let pace = from_fn_with_state(Arc::new(pace::Pace::of(&parts)), pace::give_way);
        let web = Web(Arc::new(Shown {
            access: access.clone(),
            parts,
            forms: Forms::default(),
            history,
            commands,
            facts,
            index,
            live: AtomicUsize::new(0),
            sampling: OnceLock::new(),
        }));
        web.start_sampling();
        let guard = from_fn_with_state(Arc::new(access), guard);
        api.merge(pages(&web)).layer(pace).layer(guard).layer(map_response(sealed))
    }
}

/// What the pages are made of.
#[derive(Clone)]
pub(crate) struct Web(Arc<Shown>);

pub(crate) struct Shown {
    access: Access,
    parts: Vec<Arc<dyn Part>>,
    forms: Forms,
    history: History,
    commands: Vec<(String, String)>,
    facts: Vec<Section>,
    index: String,
    live: AtomicUsize,
    sampling: OnceLock<()>,
}

impl Web {
    pub(crate) fn part(&self, name: &str) -> Option<&Arc<dyn Part>> {
        self.0.parts.iter().find(|part| part.sheet().name == name)
    }

    /// Takes samples as long as somebody has these pages. Without a runtime it is begun by the first page.
    fn start_sampling(&self) {
        if tokio::runtime::Handle::try_current().is_err()
            || self.0.parts.iter().all(|part| part.sheet().charts.is_empty())
        {
            return;
        }
        self.0.sampling.get_or_init(|| {
            let shown = Arc::downgrade(&self.0);
            tokio::spawn(async move {
                let mut clock = tokio::time::interval(ring::EVERY);
                loop {
                    clock.tick().await;
                    let Some(shown) = shown.upgrade() else { return };
                    let mut texts = Vec::with_capacity(shown.parts.len());
                    for part in &shown.parts {
                        texts.push(ask::numbers(part.as_ref()).await);
                    }
                    shown.history.0.sample(&shown.parts, &texts, ring::EVERY.as_secs_f64());
                }
            });
        });
    }
}

/// The routes of the pages.
fn pages(web: &Web) -> Router {
    let mut router = Router::new()
        .route("/", get(overview::show))
        .route("/configuration", get(settings::show))
        .route("/audit", get(view::audit))
        .route("/do/{part}/{action}", get(act::preview).post(act::act))
        .route("/sign-in", get(sign::show).post(sign::sign_in))
        .route("/sign-out", post(sign::sign_out))
        .route("/live", get(live))
        .route("/console.css", get(async || asset("text/css", include_str!("web/console.css"))))
        .route("/console.js", get(async || asset("text/javascript", include_str!("web/console.js"))))
        .route("/console.svg", get(async || asset("image/svg+xml", include_str!("web/console.svg"))));
    for part in &web.0.parts {
        for shown in part.sheet().views {
            let part = Arc::clone(part);
            let page = move |State(web): State<Web>, params: RawPathParams, asked: Parts| {
                let part = Arc::clone(&part);
                async move {
                    let captures =
                        params.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
                    view::show(&web, &part, shown, captures, &asked).await
                }
            };
            router = router.route(shown.path, get(page));
        }
    }
    router.layer(DefaultBodyLimit::max(FORM_BYTES_MAX)).with_state(web.clone())
}

fn asset(kind: &'static str, text: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=300")),
    ];
    (headers, text).into_response()
}

/// What every answer of the address has: nobody on the way keeps it, and no page of others frames it.
async fn sealed(mut response: Response) -> Response {
    // What a framework says about a path that is not there.
    let is_bare = !response.headers().contains_key(header::CONTENT_TYPE);
    if response.status() == StatusCode::NOT_FOUND && is_bare {
        response = Refusal::new(StatusCode::NOT_FOUND, "no-such-path", "see /openapi.json").into_response();
    }
    let headers = response.headers_mut();
    if !headers.contains_key(header::CACHE_CONTROL) {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    for (name, value) in [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_FRAME_OPTIONS, "DENY"),
        // `no-referrer` would make browsers say `Origin: null` for our own forms.
        (header::REFERRER_POLICY, "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.insert("cross-origin-opener-policy", HeaderValue::from_static("same-origin"));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    headers.insert(crate::MARK, HeaderValue::from_static("1"));
    response
}

/// Tells an open page when something has changed; it then fetches itself anew.
async fn live(State(web): State<Web>) -> Response {
    let seat = Seat(web.clone());
    if web.0.live.fetch_add(1, Ordering::Relaxed) >= LIVE_MAX {
        return (StatusCode::SERVICE_UNAVAILABLE, "too many pages are kept up to date; reload by hand")
            .into_response();
    }
    let stream = futures_util::stream::unfold((seat, None), |(seat, mut known)| async move {
        loop {
            tokio::time::sleep(LIVE_EVERY).await;
            let now: Vec<Option<String>> = seat.0.0.parts.iter().map(|part| part.numbers()).collect();
            let is_blind = now.iter().all(Option::is_none);
            if known.as_ref() != Some(&now) || is_blind {
                let is_first = known.replace(now).is_none();
                if !is_first {
                    return Some((Ok::<_, Infallible>(Event::default().data("changed")), (seat, known)));
                }
            }
        }
    });
    Sse::new(stream).keep_alive(KeepAlive::new().interval(Duration::from_secs(15))).into_response()
}

/// A page that is kept up to date.
struct Seat(Web);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.0.live.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a page is asked with.
pub(crate) struct Visit<'a> {
    pub(crate) caller: &'a Caller,
    pub(crate) path: &'a str,
    pub(crate) query: BTreeMap<String, String>,
}

impl<'a> Visit<'a> {
    pub(crate) fn of(asked: &'a Parts, caller: &'a Caller) -> Self {
        Self { caller, path: asked.uri.path(), query: query_of(&asked.uri) }
    }

    pub(crate) fn asked(&self, name: &str) -> Option<&str> {
        self.query.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    pub(crate) fn may_change(&self) -> bool {
        self.caller.right == Right::Change
    }

    /// Bodies are for those who are known and may change something: without a token nobody sees one.
    pub(crate) fn sees_bodies(&self) -> bool {
        self.may_change() && self.caller.door != Door::Open
    }
}

pub(crate) fn query_of(uri: &Uri) -> BTreeMap<String, String> {
    text::pairs(uri.query().unwrap_or_default()).into_iter().collect()
}

/// Who asked, as the guard has found.
pub(crate) fn caller(asked: &Parts) -> Caller {
    let known = asked.extensions.get::<Caller>().cloned();
    // The guard stands before every page; without it nobody would be anybody.
    known.unwrap_or(Caller { right: Right::Read, actor: "nobody".to_owned(), door: Door::Open })
}

/// A page.
pub(crate) struct Page {
    pub(crate) title: String,
    pub(crate) body: Markup,
    pub(crate) is_live: bool,
    pub(crate) status: StatusCode,
}

impl Page {
    pub(crate) fn of(title: impl Into<String>, body: Markup) -> Self {
        Self { title: title.into(), body, is_live: false, status: StatusCode::OK }
    }
}

/// A page in its frame.
pub(crate) fn framed(web: &Web, visit: &Visit<'_>, page: &Page) -> Response {
    let is_here = |path: &str| match path {
        "/" => visit.path == "/",
        path => visit.path == path || visit.path.strip_prefix(path).is_some_and(|rest| rest.starts_with('/')),
    };
    let firsts = web.0.parts.iter().filter_map(|part| part.sheet().views.first());
    let menu: Vec<(&str, &str)> = std::iter::once(("/", "Overview"))
        .chain(firsts.map(|view: &View| (view.path, view.title)))
        .chain([("/configuration", "Configuration"), ("/audit", "Audit")])
        .collect();
    let outcome = visit.asked("done").and_then(|number| web.0.forms.outcome(number));
    let nav = html! {
        nav aria-label="Console" { ul {
            @for (path, title) in &menu {
                li { a href=(path) aria-current=[is_here(path).then_some("page")] { (title) } }
            }
        } }
    };
    let said = html! {
        @if let Some(outcome) = &outcome {
            div class=(if outcome.is_done { "well" } else { "ill" }) role="status" {
                (text::visible(&outcome.text))
            }
        }
    };
    let who = match (visit.caller.door, visit.caller.right) {
        (Door::Open, _) => "no token is set; this machine only",
        (_, Right::Change) => "signed in as operator",
        (_, Right::Read) => "signed in, read-only",
    };
    let foot = html! {
        footer class="foot" {
            span { "semel " (env!("CARGO_PKG_VERSION")) }
            span { (who) }
            span { "times are UTC" }
            @if let Door::Session(_) = visit.caller.door {
                form method="post" action="/sign-out" {
                    input type="hidden" name="number" value=(web.0.forms.new_number(visit.caller, "sign-out"));
                    button class="plain" { "Sign out" }
                }
            }
        }
    };
    document(&page.title, Some(nav), &html! { (said) (page.body) }, foot, page.is_live, page.status)
}

/// A whole page. Whoever is not let in has no menu, and gets no script and no picture.
fn document(
    title: &str,
    nav: Option<Markup>,
    body: &Markup,
    foot: Markup,
    is_live: bool,
    status: StatusCode,
) -> Response {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (text::visible(title)) " · semel" }
                link rel="stylesheet" href="/console.css";
                @if nav.is_some() {
                    link rel="icon" href="/console.svg" type="image/svg+xml";
                    script src="/console.js" defer {}
                }
            }
            body {
                a class="skip" href="#main" { "Skip to the content" }
                header class="top" { div { a class="brand" href="/" { "semel" } @if let Some(nav) = &nav { (nav) } } }
                main id="main" data-live=[is_live.then_some("")] { (body) }
                (foot)
            }
        }
    };
    (status, [(header::CONTENT_TYPE, "text/html; charset=utf-8")], page.into_string()).into_response()
}

/// Whether a person's browser asks for a page.
fn is_page(request: &Request) -> bool {
    let accept =
        request.headers().get(header::ACCEPT).and_then(|line| line.to_str().ok()).unwrap_or_default();
    accept.contains("text/html") && !access::is_api(request.uri().path())
}

/// Lets a request in or answers it.
async fn guard(State(access): State<Arc<Access>>, mut request: Request, next: Next) -> Response {
    match access.admit(request.method(), request.uri(), request.version(), request.headers()) {
        Ok(caller) => {
            // A part reads who acts as it was found here, and never as somebody says it.
            match HeaderValue::try_from(caller.actor()) {
                Ok(actor) => drop(request.headers_mut().insert(access::ACTOR, actor)),
                Err(_) => drop(request.headers_mut().remove(access::ACTOR)),
            }
            let is_probe = caller.door == Door::Stranger && access::is_probe(request.uri().path());
            request.extensions_mut().insert(caller);
            let answered = next.run(request).await;
            if is_probe { told_to_a_stranger(answered.status()) } else { answered }
        }
        Err(refusal) => {
            let mut response = match is_page(&request) {
                true => refused(&refusal, request.uri()),
                false => refusal.into_response(),
            };
            if response.status() == StatusCode::UNAUTHORIZED {
                let scheme = http::HeaderValue::from_static("Bearer");
                response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
            }
            response
        }
    }
}

/// Whether it lives, or may be sent requests: nothing of why.
fn told_to_a_stranger(status: StatusCode) -> Response {
    let word = if status.is_success() { "ok" } else { "not ok" };
    (status, axum::Json(serde_json::json!({"status": word}))).into_response()
}

/// A refusal as a page; where a token is needed, the way to give one.
fn refused(refusal: &Refusal, uri: &Uri) -> Response {
    let status = refusal.status();
    if status == StatusCode::UNAUTHORIZED {
        let back = uri.path_and_query().map_or("/", |path| path.as_str());
        return sign::page(back, None, status);
    }
    let body = html! {
        h1 { "Refused" }
        p { (text::visible(refusal.detail())) }
        p { a href="/" { "To the overview" } }
    };
    document("Refused", None, &body, html! {}, false, status)
}

/// A page that says why there is nothing else.
pub(crate) fn failed(web: &Web, visit: &Visit<'_>, status: StatusCode, why: &str) -> Response {
    let title = match status {
        StatusCode::NOT_FOUND => "Not here",
        StatusCode::FORBIDDEN => "Refused",
        _ => "That did not work",
    };
    let body = html! {
        h1 { (title) }
        div class="ill" { (text::visible(why)) }
        p { a href="/" { "To the overview" } }
    };
    framed(web, visit, &Page { status, ..Page::of(title, body) })
}

/// A redirection that a browser follows with GET.
pub(crate) fn see_other(page: &str) -> Response {
    (StatusCode::SEE_OTHER, [(header::LOCATION, page.to_owned())], Body::empty()).into_response()
}

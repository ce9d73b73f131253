//! `scores`: the external service's stand-in and the score API in one process, or each by itself, as the flags say.

use std::path::{Path, PathBuf};

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use semel_example_scores::service::Service;
use semel_example_scores::{DEBOUNCE, start};
use semel_store::at_rest::KeyRing;
use tokio::net::TcpListener;

const USAGE: &str = "\
Usage: semel-example-scores [external | api] [--NAME VALUE]...

external   only the stand-in for the external service
api        only the score API and its page; without either word, both

--listen    127.0.0.1:3000     where the score API listens
--external  127.0.0.1:3001     where the external service listens, or is
--store     scores.db          a file, or postgres://…, which several may share
--books     external.json      where the external service keeps its scores
--keys      scores.keys        what sessions and tokens are sealed under: `ID BASE64`, readable by its owner only
--web       examples/scores/web/dist   the page";

/// The files of the page, and what they are.
const PAGES: [(&str, &str, &str); 4] = [
    ("/", "index.html", "text/html; charset=utf-8"),
    ("/style.css", "style.css", "text/css"),
    ("/app.js", "app.js", "text/javascript"),
    ("/worker.js", "worker.js", "text/javascript"),
];

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|arg| arg == "--help") {
        println!("{USAGE}");
        return Ok(());
    }
    let flag = |name: &str, default: &str| {
        let at = args.iter().position(|arg| arg == name);
        at.and_then(|at| args.get(at + 1)).map_or(default, String::as_str).to_owned()
    };
    let only = args.first().filter(|word| !word.starts_with("--")).map(String::as_str);
    let external = flag("--external", "127.0.0.1:3001");
    let mut tasks = tokio::task::JoinSet::new();
    if only != Some("api") {
        let listener = TcpListener::bind(&external).await?;
        let service = Service::of_file(PathBuf::from(flag("--books", "external.json")))?;
        println!("external service on http://{}", listener.local_addr()?);
        tasks.spawn(async move { axum::serve(listener, service.router()).await });
    }
    if only != Some("external") {
        let listener = TcpListener::bind(flag("--listen", "127.0.0.1:3000")).await?;
        let keys =
            KeyRing::load(Path::new(&flag("--keys", "scores.keys"))).map_err(|error| error.to_string())?;
        let api = start(&flag("--store", "scores.db"), &format!("http://{external}"), keys, DEBOUNCE).await?;
        let web = PathBuf::from(flag("--web", "examples/scores/web/dist"));
        println!("scores on http://{}", listener.local_addr()?);
        let router: Router = api.router().fallback(move |uri: axum::http::Uri| page(web.clone(), uri));
        tasks.spawn(async move { axum::serve(listener, router).await });
    }
    match tasks.join_next().await {
        Some(ended) => Ok(ended??),
        None => Ok(()),
    }
}

async fn page(web: PathBuf, uri: axum::http::Uri) -> Response {
    let found = PAGES.iter().find(|(path, _, _)| *path == uri.path());
    let read = found.and_then(|(_, file, kind)| Some((std::fs::read(web.join(file)).ok()?, *kind)));
    match read {
        Some((content, kind)) => ([(header::CONTENT_TYPE, kind)], content).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

//! `scores`: the external service's stand-in and the score API in one process, or each by itself, as the flags say.

use std::path::PathBuf;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use clap::{Parser, ValueEnum};
use semel_example_scores::{DEBOUNCE, start};
use semel_example_scores_stand_in::Service;
use semel_store::at_rest::KeyRing;
use tokio::net::TcpListener;

/// A score API whose changes reach an external service once, and a stand-in for that service.
#[derive(Debug, Parser)]
#[command(name = "semel-example-scores")]
struct Flags {
    /// Only the stand-in for the external service, or only the score API and its page; without either word, both.
    only: Option<Only>,
    /// Where the score API listens.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:3000")]
    listen: String,
    /// Where the external service listens, or is.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:3001")]
    external: String,
    /// A file, or postgres://…, which several may share.
    #[arg(long, value_name = "STORE", default_value = "scores.db")]
    store: String,
    /// Where the external service keeps its scores.
    #[arg(long, value_name = "FILE", default_value = "external.json")]
    books: PathBuf,
    /// What sessions and tokens are sealed under: `ID BASE64`, readable by its owner only.
    #[arg(long, value_name = "FILE", default_value = "scores.keys")]
    keys: PathBuf,
    /// The page.
    #[arg(long, value_name = "FOLDER", default_value = "examples/scores/web/dist")]
    web: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Only {
    External,
    Api,
}

/// The files of the page, and what they are.
const PAGES: [(&str, &str, &str); 4] = [
    ("/", "index.html", "text/html; charset=utf-8"),
    ("/style.css", "style.css", "text/css"),
    ("/app.js", "app.js", "text/javascript"),
    ("/worker.js", "worker.js", "text/javascript"),
];

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Flags { only, listen, external, store, books, keys, web } = Flags::parse();
    let mut tasks = tokio::task::JoinSet::new();
    if only != Some(Only::Api) {
        let listener = TcpListener::bind(&external).await?;
        let service = Service::of_file(books)?;
        println!("external service on http://{}", listener.local_addr()?);
        tasks.spawn(async move { axum::serve(listener, service.router()).await });
    }
    if only != Some(Only::External) {
        let listener = TcpListener::bind(listen).await?;
        let keys = KeyRing::load(&keys).map_err(|error| error.to_string())?;
        let api = start(&store, &format!("http://{external}"), keys, DEBOUNCE).await?;
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

//! Takes notes, with or without a network. `add` puts a note into the outbox and is done; `sync` sends what waits, in
//! order, until nothing waits or the time is up.

use std::process::ExitCode;
use std::time::Duration;

use semel_delivery::store::Filter;
use semel_delivery::url::Target;
use semel_delivery::{Enqueue, Outbox, Request, Settings};

const USAGE: &str = "Usage: offline-notes FILE SERVER add TEXT | sync SECONDS | list";

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&arguments).await {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("offline-notes: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &[&str]) -> Result<String, Box<dyn std::error::Error>> {
    let [file, server, command, rest @ ..] = arguments else { return Err(USAGE.into()) };
    let settings = Settings { upstream: Some(Target::absolute(server)?), ..Settings::default() };
    let outbox = Outbox::open(file, settings).await?;
    match (*command, rest) {
        ("add", [text]) => {
            let mut request =
                Request { body: text.as_bytes().to_vec(), ..Request::json("POST", "/notes", "") };
            request.headers = vec![("content-type".to_owned(), "text/plain".to_owned())];
            let accepted = outbox.enqueue(Enqueue::new(request)).await?;
            Ok(format!("kept as {}", accepted.receipt.client_message_id))
        }
        ("sync", [seconds]) => sync(&outbox, Duration::from_secs(seconds.parse()?)).await,
        ("list", []) => {
            let rows = outbox.list(Filter { limit: 1000, ..Filter::default() }).await?;
            let line = |row: &semel_delivery::Row| format!("{} {}", row.client_message_id, row.status.name());
            Ok(rows.iter().map(line).collect::<Vec<_>>().join("\n"))
        }
        _ => Err(USAGE.into()),
    }
}

/// Sends what waits, and watches the events until nothing waits any more.
async fn sync(outbox: &Outbox, at_most: Duration) -> Result<String, Box<dyn std::error::Error>> {
    let mut events = outbox.watch();
    let sending = outbox.start();
    let drained = async {
        while !outbox.lanes().await?.is_empty() {
            events.changed().await?;
        }
        Ok::<(), Box<dyn std::error::Error>>(())
    };
    let ended = tokio::time::timeout(at_most, drained).await;
    sending.stop(Duration::from_secs(5)).await;
    let left: u64 = outbox.lanes().await?.iter().map(|lane| lane.depth).sum();
    if let Ok(failed) = ended {
        failed?;
    }
    Ok(format!("{left} notes wait"))
}

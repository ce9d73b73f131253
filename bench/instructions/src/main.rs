//! Sends N requests, one after the other, and checks every answer. Under callgrind, twice N less N is what N requests cost,
//! start and end excluded. Client, gateway and upstream share one thread; the embedded store and the outbox have the
//! threads of their own that they always have. Owns what one request of each path is; counts nothing itself.

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use semel_contract::identity::Identity;
use semel_contract::key::Presence;
use semel_contract::profile::presets;
use semel_delivery::accept::Acceptance;
use semel_delivery::{Enqueue, Outbox, Request, Settings};
use semel_gate::{GateLayer, Route};
use semel_gateway::{AccessLog, Callers, Gateway, Limits, LineForm, Peers, Plan, Upstream};
use semel_store::claims::ClaimStore;
use semel_store::memory::MemoryStore;
use semel_store::sqlite::SqliteStore;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

type Failure = Box<dyn Error>;

const USAGE: &str =
    "Usage: semel-bench-instructions pass|pass-logged|fresh|replay|fresh-sqlite|accept REQUESTS";
/// The size of a request's and of an answer's body.
const REQUEST_BODY: usize = 200;
const ANSWER_BODY: usize = 300;

/// Which way requests take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    /// Without a key, straight through.
    Pass,
    /// The same, written down in an access log.
    PassLogged,
    /// A key of its own on each.
    Fresh,
    /// The key of the first one on all.
    Replay,
    /// A key of its own on each, kept in the embedded store.
    FreshSqlite,
    /// A message of its own, accepted by the outbox and not sent.
    Accept,
}

impl Path {
    const ALL: [(&'static str, Path); 6] = [
        ("pass", Path::Pass),
        ("pass-logged", Path::PassLogged),
        ("fresh", Path::Fresh),
        ("replay", Path::Replay),
        ("fresh-sqlite", Path::FreshSqlite),
        ("accept", Path::Accept),
    ];

    fn named(name: &str) -> Option<Path> {
        Path::ALL.iter().find(|(known, _)| *known == name).map(|(_, path)| *path)
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let path = args.first().and_then(|name| Path::named(name));
    let requests = args.get(1).and_then(|number| number.parse::<u64>().ok());
    let (Some(path), Some(requests)) = (path, requests) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match run(path, requests) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("semel-bench-instructions: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(path: Path, requests: u64) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let folder = tempfile::tempdir()?;
    runtime.block_on(async {
        match path {
            Path::Pass | Path::PassLogged | Path::Fresh | Path::Replay => {
                let store = MemoryStore::new();
                send_all(path, requests, Arc::new(store)).await
            }
            Path::FreshSqlite => {
                let store = SqliteStore::open(folder.path().join("claims.db"))?;
                send_all(path, requests, Arc::new(store)).await
            }
            Path::Accept => accept_all(&folder.path().join("outbox.db"), requests).await,
        }
    })
}

/// Sends requests through a gateway on this store.
async fn send_all(path: Path, requests: u64, store: Arc<dyn ClaimStore>) -> Result<(), Failure> {
    let service = TcpListener::bind("127.0.0.1:0").await?;
    let upstream = service.local_addr()?;
    tokio::spawn(serve(service));
    let front = TcpListener::bind("127.0.0.1:0").await?;
    let mut client = TcpStream::connect(front.local_addr()?).await?;
    let log = match path {
        Path::PassLogged => AccessLog::to(std::io::sink(), LineForm::Json),
        Path::Pass | Path::Fresh | Path::Replay | Path::FreshSqlite | Path::Accept => AccessLog::off(),
    };
    let gateway = gateway(&format!("http://{upstream}"), store, log)?;
    tokio::spawn(async move { gateway.serve(front).await });
    for number in 0..requests {
        client.write_all(request(path, number).as_bytes()).await?;
        let answer = answer(&mut client).await?;
        let is_replay = find(&answer, b"idempotency-replayed: true").is_some();
        let must_be = path == Path::Replay && number > 0;
        if !answer.starts_with(b"HTTP/1.1 200") || is_replay != must_be {
            let answer = String::from_utf8_lossy(&answer);
            return Err(format!("request {number} was answered:\n{answer}").into());
        }
    }
    Ok(())
}

/// Hands messages to an outbox that does not send.
async fn accept_all(file: &std::path::Path, messages: u64) -> Result<(), Failure> {
    let outbox = Outbox::open(file, Settings::default()).await?;
    for number in 0..messages {
        let request = Request::json("POST", "http://127.0.0.1:1/orders", body());
        let message = Enqueue { client_message_id: Some(key(number)), ..Enqueue::new(request) };
        let accepted = outbox.enqueue(message).await?;
        if accepted.acceptance != Acceptance::Insert {
            return Err(format!("message {number} met {:?}", accepted.acceptance).into());
        }
    }
    Ok(())
}

fn gateway(upstream: &str, store: Arc<dyn ClaimStore>, log: AccessLog) -> Result<Gateway, Failure> {
    let callers = Callers::new(&Identity::Authorization, Peers::default())?;
    let mut profile = presets::ietf();
    profile.key.presence = Presence::Optional;
    let gate = GateLayer::builder(store).identity(callers).route(Route::any().profile(profile));
    Ok(Gateway::new(Plan {
        gate: gate.build()?,
        upstream: Upstream::at(upstream.parse()?),
        tls: None,
        limits: Limits::default(),
        trusted: vec![],
        cors: None,
        log,
        traces: None,
    })?)
}

fn key(number: u64) -> String {
    format!("3f2b8c1e-6d4a-4b7f-9c2e-{number:012x}")
}

fn body() -> String {
    let start =
        r#"{"customer":4711,"currency":"EUR","amount":1999,"lines":[{"article":"tea","count":2}],"note":""#;
    format!("{start}{}\"}}", "n".repeat(REQUEST_BODY - start.len() - 2))
}

fn request(path: Path, number: u64) -> String {
    let key = match path {
        Path::Pass | Path::PassLogged | Path::Accept => String::new(),
        Path::Fresh | Path::FreshSqlite => keyed(number),
        Path::Replay => keyed(0),
    };
    let body = body();
    format!(
        "POST /orders HTTP/1.1\r\nhost: 127.0.0.1\r\n{key}content-type: application/json\r\ncontent-length: {REQUEST_BODY}\r\n\r\n{body}"
    )
}

fn keyed(number: u64) -> String {
    format!("idempotency-key: {}\r\nauthorization: Bearer bench\r\n", key(number))
}

/// Reads one message with a length, and returns its head. As cheap as it can be: it is counted too.
async fn answer(stream: &mut TcpStream) -> Result<Vec<u8>, Failure> {
    const END: &[u8] = b"\r\n\r\n";
    const LENGTH: &[u8] = b"content-length: ";
    let mut received = Vec::with_capacity(2048);
    loop {
        if stream.read_buf(&mut received).await? == 0 {
            return Err("the connection was closed".into());
        }
        let Some(end) = find(&received, END) else { continue };
        let place = find(&received[..end], LENGTH).ok_or("a message without a length")? + LENGTH.len();
        let digits = received[place..end].iter().take_while(|byte| byte.is_ascii_digit());
        let length = digits.fold(0, |length, digit| length * 10 + usize::from(digit - b'0'));
        if received.len() >= end + END.len() + length {
            received.truncate(end);
            return Ok(received);
        }
    }
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}

/// The service behind the gateway, for one connection after the other.
async fn serve(listener: TcpListener) {
    let body = format!("{{\"order\":\"{}\"}}", "x".repeat(ANSWER_BODY - 12));
    let text = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    while let Ok((mut stream, _)) = listener.accept().await {
        let text = text.clone();
        tokio::spawn(async move {
            while answer(&mut stream).await.is_ok() && stream.write_all(text.as_bytes()).await.is_ok() {}
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_is_answered_as_it_should_be() {
        for (name, path) in Path::ALL {
            run(path, 20).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
}

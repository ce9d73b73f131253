//! Sends N requests through a gateway, one after the other, with client, gateway, store and upstream on one thread. Under
//! callgrind, twice N less N is what N requests cost, start and end excluded. The store is the one in memory: this
//! counts the gateway and the gate, not a database.

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use semel_contract::identity::Identity;
use semel_contract::key::Presence;
use semel_contract::profile::presets;
use semel_gate::{Gate, Route};
use semel_gateway::{AccessLog, Callers, Gateway, Limits, Peers, Plan, Upstream};
use semel_store::memory::MemoryStore;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

type Failure = Box<dyn Error>;

const USAGE: &str = "Usage: semel-bench-instructions pass|fresh|replay REQUESTS";
/// The size of a request's and of an answer's body.
const REQUEST_BODY: usize = 200;
const ANSWER_BODY: usize = 300;

/// Which way requests take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    /// Without a key, straight through.
    Pass,
    /// A key of its own on each.
    Fresh,
    /// The key of the first one on all.
    Replay,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let path = match args.first().map(String::as_str) {
        Some("pass") => Some(Path::Pass),
        Some("fresh") => Some(Path::Fresh),
        Some("replay") => Some(Path::Replay),
        Some(_) | None => None,
    };
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
    runtime.block_on(async {
        let service = TcpListener::bind("127.0.0.1:0").await?;
        let upstream = service.local_addr()?;
        tokio::spawn(serve(service));
        let front = TcpListener::bind("127.0.0.1:0").await?;
        let mut client = TcpStream::connect(front.local_addr()?).await?;
        let gateway = gateway(&format!("http://{upstream}"))?;
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
    })
}

fn gateway(upstream: &str) -> Result<Gateway, Failure> {
    let callers = Callers::new(&Identity::Authorization, Peers::default())?;
    let mut profile = presets::ietf();
    profile.key.presence = Presence::Optional;
    let store = Arc::new(MemoryStore::new());
    let gate = Gate::on(store).identity(callers).route(Route::any().profile(profile));
    Ok(Gateway::new(Plan {
        gate: gate.build()?,
        upstream: Upstream::at(upstream.parse()?),
        tls: None,
        limits: Limits::default(),
        trusted: vec![],
        log: AccessLog::off(),
    })?)
}

fn request(path: Path, number: u64) -> String {
    let number = if path == Path::Replay { 0 } else { number };
    let key = match path {
        Path::Pass => String::new(),
        Path::Fresh | Path::Replay => {
            format!(
                "idempotency-key: 3f2b8c1e-6d4a-4b7f-9c2e-{number:012x}\r\nauthorization: Bearer bench\r\n"
            )
        }
    };
    let start =
        r#"{"customer":4711,"currency":"EUR","amount":1999,"lines":[{"article":"tea","count":2}],"note":""#;
    let body = format!("{start}{}\"}}", "n".repeat(REQUEST_BODY - start.len() - 2));
    format!(
        "POST /orders HTTP/1.1\r\nhost: 127.0.0.1\r\n{key}content-type: application/json\r\ncontent-length: {REQUEST_BODY}\r\n\r\n{body}"
    )
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
        for path in [Path::Pass, Path::Fresh, Path::Replay] {
            run(path, 20).unwrap();
        }
    }
}

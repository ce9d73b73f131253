//! Bytes on a connection: the service sees the requests that a strict reader sees in them, in order, and no others.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_fuzz::{Target, Verdict};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::strict::{self, Found, Request};
use crate::world::{Wish, World};

/// How long a silent connection is looked at, where it is not known whether something will come.
const SILENCE: Duration = Duration::from_millis(15);
/// How long what must come is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// A machine under load is slow: what is wrong is wrong so many times.
const TRIES: usize = 3;

#[test]
fn fuzz_framing() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (service, world) = runtime.block_on(async {
        let service = Service::start().await;
        let world = Wish::behind(&format!("http://{}", service.address)).start().await;
        (service, world)
    });
    Target::new("framing")
        .bytes_max(1200)
        .words(&[
            "\r\n", "\r\n\r\n", "\n", "\r", " ", "\t", ":", "Content-Length: 5\r\n", "Content-Length: 0\r\n", "Content-Length: +5\r\n",
            "Transfer-Encoding: chunked\r\n", "Transfer-Encoding: identity\r\n", "Transfer-Encoding : chunked\r\n", "0\r\n\r\n", "5\r\nhello\r\n", "5;x=y\r\n",
            "Host: a\r\n", "HTTP/1.1", "HTTP/1.0", "HTTP/1.1\r\n", "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n", "POST ", "X: y\r\n", " folded\r\n",
            "Connection: close\r\n", "Connection: keep-alive, Transfer-Encoding\r\n", "Expect: 100-continue\r\n", "Idempotency-Key: k\r\n", "\0", "\u{b}", "0x5", "FFFFFFFFFFFFFFFF", "Content-Length: 5, 5\r\n",
        ])
        .seed("GET /a HTTP/1.1\r\nHost: a\r\n\r\n")
        .seed("POST /a?b=c HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhelloGET /b HTTP/1.1\r\nHost: a\r\n\r\n")
        .seed("POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n3\r\nabc\r\n0\r\n\r\nPUT /c HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
        .seed("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n")
        .seed("POST /a HTTP/1.1\r\nHost: a\r\nAuthorization: x\r\nIdempotency-Key: k1\r\nContent-Length: 2\r\n\r\n{}")
        .run(|input| {
            let mut verdict = Ok("".into());
            for _ in 0..TRIES {
                verdict = runtime.block_on(judge(&service, &world, input));
                if verdict.is_ok() {
                    break;
                }
            }
            verdict
        });
}

/// A service that answers every request and remembers what it read, by the strict reader.
#[derive(Clone)]
struct Service {
    address: std::net::SocketAddr,
    seen: Arc<Mutex<Vec<Result<Request, String>>>>,
}

impl Service {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let service = Self { address: listener.local_addr().unwrap(), seen: Arc::default() };
        let serving = service.clone();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(serving.clone().serve(socket));
            }
        });
        service
    }

    async fn serve(self, mut socket: TcpStream) {
        let mut buffer = Vec::new();
        while matches!(socket.read_buf(&mut buffer).await, Ok(1..)) {
            loop {
                let (seen, length) = match strict::request(&buffer) {
                    Found::Plain(request, length) | Found::Odd(request, length) => (Ok(request), length),
                    Found::Cut => break,
                    Found::Last(_) | Found::Refused => {
                        (Err(String::from_utf8_lossy(&buffer).into_owned()), buffer.len())
                    }
                };
                buffer.drain(..length);
                self.seen.lock().unwrap().push(seen);
                if socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.is_err() {
                    return;
                }
                if buffer.is_empty() {
                    break;
                }
            }
        }
    }
}

/// What an input holds: the requests in order, whether each must be seen, and what it ends with.
fn expected(mut input: &[u8]) -> (Vec<(Request, bool)>, &'static str) {
    let (mut requests, mut must) = (Vec::new(), true);
    while !input.is_empty() {
        match strict::request(input) {
            Found::Plain(request, length) => {
                requests.push((request, must));
                input = &input[length..];
            }
            Found::Odd(request, length) => {
                must = false;
                requests.push((request, false));
                input = &input[length..];
            }
            Found::Last(request) => {
                requests.push((request, false));
                return (requests, "refused");
            }
            Found::Cut => return (requests, "cut"),
            Found::Refused => return (requests, "refused"),
        }
    }
    (requests, "ended")
}

async fn judge(service: &Service, world: &World, input: &[u8]) -> Verdict {
    let (requests, end) = expected(input);
    let must = requests.iter().filter(|(_, must)| *must).count();
    let is_sure = must == requests.len() && end != "refused";
    service.seen.lock().unwrap().clear();
    let answers = exchange(world, input, must, is_sure).await;
    let seen = service.seen.lock().unwrap().clone();
    let mut left = requests.iter();
    for one in &seen {
        let one =
            one.as_ref().map_err(|bytes| format!("the service was sent what is no request: {bytes:?}"))?;
        // Requests that may be refused are passed over; those that must be seen are not.
        let found = left.by_ref().find(|(request, must)| *must || same(request, one));
        if !found.is_some_and(|(request, _)| same(request, one)) {
            return Err(format!("the service saw {one:?}, the strict reader sees {requests:?}"));
        }
    }
    if let Some((missing, _)) = left.find(|(_, must)| *must) {
        return Err(format!("the service did not see {missing:?}, only {seen:?}; {answers} answers"));
    }
    Ok(format!("{} of {} seen, {end}, {answers} answers", seen.len().min(5), requests.len().min(5)).into())
}

/// A request in another form (`http://host/path`) or with unusual characters is compared by what decides its effect.
fn same(expected: &Request, seen: &Request) -> bool {
    let is_plain = |target: &str| {
        target.starts_with('/')
            && target.bytes().all(|b| b.is_ascii_alphanumeric() || b"/?&=._~-".contains(&b))
    };
    expected.method == seen.method
        && expected.body == seen.body
        && (expected.target == seen.target || !is_plain(&expected.target))
}

/// Sends the bytes and reads answers: as many as must come, or until the connection ends or is silent.
async fn exchange(world: &World, input: &[u8], must: usize, is_sure: bool) -> usize {
    let mut socket = TcpStream::connect(world.address).await.unwrap();
    // A gateway that refuses early closes early.
    let _ = socket.write_all(input).await;
    let mut answers = Vec::new();
    let count = |answers: &[u8]| answers.windows(9).filter(|window| window == b"HTTP/1.1 ").count();
    loop {
        let all_there = count(&answers) >= must;
        if all_there && is_sure {
            break;
        }
        let wait = if all_there { SILENCE } else { PATIENCE };
        match tokio::time::timeout(wait, socket.read_buf(&mut answers)).await {
            Ok(Ok(1..)) => {}
            Ok(Ok(0) | Err(_)) | Err(_) => break,
        }
    }
    count(&answers)
}

//! The same load by hyper's own client: one request at a time on each HTTP/1.1 connection, or many on few HTTP/2 connections.
//! It costs more than the epoll loop, so its figures are held only against its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::report::Report;
use super::template::{KEY, ordinary_body};
use super::{Args, Shared, keys};
use crate::upstream::runtime;

/// A way to send on one connection. Several senders share one of HTTP/2.
enum Sender {
    One(http1::SendRequest<Full<Bytes>>),
    Many(http2::SendRequest<Full<Bytes>>),
}

/// What every request has.
struct Plan {
    path: String,
    headers: Vec<(HeaderName, String)>,
    body: Bytes,
    /// The number of the next key.
    next: AtomicU64,
}

/// Sends until the time is over and returns what was measured.
pub(super) fn run(args: &Args, shared: &Arc<Shared>) -> Result<Report, String> {
    let plan = Arc::new(Plan {
        path: args.path.clone(),
        headers: args.header.iter().map(|line| read(line)).collect::<Result<_, _>>()?,
        body: Bytes::from(args.body.clone().unwrap_or_else(ordinary_body)),
        next: AtomicU64::new(0),
    });
    let (args, shared) = (args.clone(), Arc::clone(shared));
    runtime()?.block_on(async move {
        let mut senders = JoinSet::new();
        for place in 0..args.connections {
            let target = args.target[place % args.target.len()];
            let stream = TcpStream::connect(target).await.map_err(|error| format!("{target}: {error}"))?;
            stream.set_nodelay(true).map_err(|error| error.to_string())?;
            let stream = TokioIo::new(stream);
            if args.streams > 1 {
                let handshake = http2::handshake(TokioExecutor::new(), stream).await;
                let (sender, connection) = handshake.map_err(|error| format!("{target}: {error}"))?;
                tokio::spawn(connection);
                for _ in 0..args.streams {
                    let sender = Sender::Many(sender.clone());
                    senders.spawn(send(sender, Arc::clone(&plan), Arc::clone(&shared), args.clone()));
                }
            } else {
                let handshake = http1::handshake(stream).await;
                let (sender, connection) = handshake.map_err(|error| format!("{target}: {error}"))?;
                tokio::spawn(connection);
                let sender = Sender::One(sender);
                senders.spawn(send(sender, Arc::clone(&plan), Arc::clone(&shared), args.clone()));
            }
        }
        let mut whole = Report::default();
        while let Some(part) = senders.join_next().await {
            whole.add(&part.map_err(|error| error.to_string())?);
        }
        Ok(whole)
    })
}

/// One request after the other until the time is over, or one is lost.
async fn send(mut sender: Sender, plan: Arc<Plan>, shared: Arc<Shared>, args: Args) -> Report {
    let mut report = Report::default();
    while shared.now() < shared.ends {
        let since = shared.now();
        let number = plan.next.fetch_add(1, Ordering::Relaxed);
        let request = plan.request(&args, number);
        report.sent += 1;
        report.fresh += 1;
        let answer = match &mut sender {
            Sender::One(sender) => match sender.ready().await {
                Ok(()) => sender.send_request(request).await,
                Err(error) => Err(error),
            },
            Sender::Many(sender) => match sender.ready().await {
                Ok(()) => sender.send_request(request).await,
                Err(error) => Err(error),
            },
        };
        let Ok(status) = read_whole(answer).await else {
            report.lost += 1;
            return report;
        };
        let now = shared.now();
        *report.statuses.entry(status).or_default() += 1;
        if now >= shared.measured_from && now <= shared.ends && (200..300).contains(&status) {
            report.latencies.add(now.saturating_sub(since));
        }
    }
    report
}

async fn read_whole(answer: hyper::Result<Response<Incoming>>) -> hyper::Result<u16> {
    let answer = answer?;
    let status = answer.status().as_u16();
    let mut body = answer.into_body();
    while let Some(frame) = body.frame().await {
        frame?;
    }
    Ok(status)
}

impl Plan {
    fn request(&self, args: &Args, number: u64) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(self.body.clone()));
        *request.method_mut() = http::Method::POST;
        let authority = args.target[0];
        let uri = match args.streams > 1 {
            true => format!("http://{authority}{}", self.path),
            false => self.path.clone(),
        };
        *request.uri_mut() = uri.parse().unwrap_or_default();
        let headers = request.headers_mut();
        headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if args.streams <= 1 {
            headers.insert(http::header::HOST, HeaderValue::from_static("127.0.0.1"));
        }
        for (name, value) in &self.headers {
            let key = keys::key(args.ids, args.seed, number);
            let value = value.replace(KEY, &String::from_utf8_lossy(&key));
            if let Ok(value) = HeaderValue::try_from(value) {
                headers.insert(name.clone(), value);
            }
        }
        request
    }
}

fn read(line: &str) -> Result<(HeaderName, String), String> {
    let parts = line.split_once(": ").and_then(|(name, value)| Some((name.parse().ok()?, value.to_owned())));
    parts.ok_or_else(|| format!("`{line}` is not a header: NAME: VALUE"))
}

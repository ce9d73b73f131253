//! The service behind every proxy: reads a request, counts it, answers 300 bytes of JSON. Does no work of its own, so
//! that what stands before it is what is measured.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::{Method, Request, Response, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

/// The bytes of an answer's body.
const ANSWER_BYTES: usize = 300;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where it listens.
    #[arg(long)]
    listen: SocketAddr,
}

pub(crate) fn run(args: &Args) -> Result<(), String> {
    runtime()?.block_on(serve(args.listen)).map_err(|error| format!("failed to serve: {error}"))
}

/// The runtime that every contestant of ours has: as many threads as there are cores.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, String> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.enable_all().build().map_err(|error| format!("failed to start: {error}"))
}

/// An answer of the size that all loads expect.
pub(crate) fn answer() -> Bytes {
    let mut text = br#"{"order":"accepted","note":""#.to_vec();
    text.resize(ANSWER_BYTES - 2, b'x');
    text.extend_from_slice(b"\"}");
    Bytes::from(text)
}

async fn serve(listen: SocketAddr) -> std::io::Result<()> {
    let listener = TcpListener::bind(listen).await?;
    let (answer, count) = (answer(), Arc::new(AtomicU64::new(0)));
    println!("ready");
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let (answer, count) = (answer.clone(), Arc::clone(&count));
        tokio::spawn(async move {
            let service = service_fn(move |request| respond(request, answer.clone(), Arc::clone(&count)));
            // A connection that breaks is the client's affair.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn respond(
    request: Request<Incoming>,
    answer: Bytes,
    count: Arc<AtomicU64>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    if request.method() == Method::GET && request.uri().path() == "/count" {
        return Ok(Response::new(Full::from(count.load(Ordering::Relaxed).to_string())));
    }
    // A body that breaks off is no request.
    if request.into_body().collect().await.is_ok() {
        count.fetch_add(1, Ordering::Relaxed);
    }
    let mut response = Response::new(Full::new(answer));
    response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    Ok(response)
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_answer_has_the_size_that_is_documented_and_is_json() {
        let answer = super::answer();
        assert_eq!(answer.len(), super::ANSWER_BYTES);
        serde_json::from_slice::<serde_json::Value>(&answer).unwrap();
    }
}

//! A reverse proxy on hyper with hyper-util's pooled client and nothing else: no limits, no deadlines, no headers. It is
//! the ceiling that the gateway is held against.

use std::net::SocketAddr;

use http::uri::{Authority, Parts, Scheme};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;

use crate::upstream::runtime;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where it listens.
    #[arg(long)]
    listen: SocketAddr,
    /// Where requests go.
    #[arg(long)]
    upstream: SocketAddr,
}

type Pool = Client<HttpConnector, Incoming>;
type Answer = Response<BoxBody<Bytes, hyper::Error>>;

pub(crate) fn run(args: &Args) -> Result<(), String> {
    let authority: Authority =
        args.upstream.to_string().parse().map_err(|error| format!("not an address: {error}"))?;
    runtime()?.block_on(serve(args.listen, authority)).map_err(|error| format!("failed to serve: {error}"))
}

async fn serve(listen: SocketAddr, upstream: Authority) -> std::io::Result<()> {
    let listener = TcpListener::bind(listen).await?;
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let pool: Pool = Client::builder(TokioExecutor::new()).build(connector);
    println!("ready");
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let (pool, upstream) = (pool.clone(), upstream.clone());
        tokio::spawn(async move {
            let service = service_fn(move |request| forward(request, pool.clone(), upstream.clone()));
            // A connection that breaks is the client's affair.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn forward(
    mut request: Request<Incoming>,
    pool: Pool,
    upstream: Authority,
) -> Result<Answer, http::Error> {
    let mut parts = Parts::default();
    parts.scheme = Some(Scheme::HTTP);
    parts.authority = Some(upstream);
    parts.path_and_query = request.uri().path_and_query().cloned();
    *request.uri_mut() = Uri::from_parts(parts)?;
    match pool.request(request).await {
        Ok(response) => Ok(response.map(BodyExt::boxed)),
        Err(_) => {
            let body = Empty::new().map_err(|never| match never {}).boxed();
            Response::builder().status(StatusCode::BAD_GATEWAY).body(body)
        }
    }
}

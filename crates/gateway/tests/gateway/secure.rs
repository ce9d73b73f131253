//! TLS and HTTP/2, towards clients and towards the service, and certificates that are changed while it runs.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum_core::body::Body;
use http::Request;
use http_body_util::BodyExt;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use rustls::pki_types::pem::PemObject;
use semel_gateway::{Certificates, Protocol};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::upstream::{Reply, Upstream};
use crate::world::{Wish, World};

/// A certificate that was made as an authority, as simple tools make them.
fn of_a_simple_tool(name: &str) -> Certificates {
    let mut made = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
    made.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let signing_key = rcgen::KeyPair::generate().unwrap();
    let folder = tempfile::tempdir().unwrap().keep();
    let (cert, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    std::fs::write(&cert, made.self_signed(&signing_key).unwrap().pem()).unwrap();
    std::fs::write(&key, signing_key.serialize_pem()).unwrap();
    Certificates { cert, key }
}

/// A certificate of its own authority, as files, and the same as text.
pub(crate) fn certificates(name: &str) -> (Certificates, String) {
    let made = rcgen::generate_simple_self_signed([name.to_owned(), "127.0.0.1".to_owned()]).unwrap();
    let folder = tempfile::tempdir().unwrap().keep();
    let (cert, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    (Certificates { cert, key }, made.cert.pem())
}

fn connector(pem: &str, protocol: &[u8]) -> TlsConnector {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(rustls::pki_types::CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap();
    let mut config =
        rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    TlsConnector::from(Arc::new(config))
}

async fn tls(
    world: &World,
    pem: &str,
    protocol: &[u8],
) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let socket = TcpStream::connect(world.address).await?;
    connector(pem, protocol).connect(ServerName::try_from("gate.example").unwrap(), socket).await
}

/// A keyed POST over HTTP/2.
async fn over_http2<S>(stream: S, scheme: &str, key: &str) -> (u16, http::HeaderMap, String)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) =
        http2::handshake::<_, _, Body>(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::post(format!("{scheme}://gate.example/orders"))
        .header("authorization", "a")
        .header("idempotency-key", key)
        .body(Body::from("{}"))
        .unwrap();
    let (parts, body) = sender.send_request(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (parts.status.as_u16(), parts.headers, String::from_utf8_lossy(&body).into_owned())
}

async fn shop() -> Upstream {
    Upstream::start(|_, before| Reply::status(201, "", &format!("order {before}"))).await
}

#[tokio::test]
async fn http2_clients_are_served_with_and_without_tls() {
    let upstream = shop().await;
    let (files, pem) = certificates("gate.example");
    let plain = Wish::behind(&upstream.url()).start().await;
    let secure = Wish { tls: Some(files), ..Wish::behind(&upstream.url()) }.start().await;
    let socket = TcpStream::connect(plain.address).await.unwrap();
    let (status, headers, body) = over_http2(socket, "http", "k1").await;
    assert_eq!(
        (status, body.as_str(), &headers["semel-guarantee"]),
        (201, "order 0", &"fenced".parse().unwrap())
    );
    let socket = TcpStream::connect(plain.address).await.unwrap();
    let (_, headers, body) = over_http2(socket, "http", "k1").await;
    assert_eq!((body.as_str(), &headers["idempotency-replayed"]), ("order 0", &"true".parse().unwrap()));

    let stream = tls(&secure, &pem, b"h2").await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    assert_eq!(over_http2(stream, "https", "k1").await.2, "order 1");
    let seen = upstream.seen();
    assert_eq!(
        (seen[0].header("host"), seen[0].header("x-forwarded-proto")),
        (Some("gate.example"), Some("http"))
    );
    assert_eq!(seen[1].header("x-forwarded-proto"), Some("https"));
}

#[tokio::test]
async fn http1_clients_are_served_over_tls() {
    let upstream = shop().await;
    let (files, pem) = certificates("gate.example");
    let world = Wish { tls: Some(files), ..Wish::behind(&upstream.url()) }.start().await;
    let mut stream = tls(&world, &pem, b"http/1.1").await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: gate.example\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 201"), "{text}");
}

#[tokio::test]
async fn a_new_certificate_serves_new_connections_and_breaks_no_old_one() {
    let upstream = shop().await;
    let ((old, old_pem), (new, new_pem)) = (certificates("gate.example"), certificates("gate.example"));
    let world = Wish { tls: Some(old), ..Wish::behind(&upstream.url()) }.start().await;
    let mut stream = tls(&world, &old_pem, b"http/1.1").await.unwrap();
    let ask = b"GET / HTTP/1.1\r\nHost: gate.example\r\n\r\n";
    let mut read = [0; 4096];
    stream.write_all(ask).await.unwrap();
    assert_ne!(stream.read(&mut read).await.unwrap(), 0);
    let next = Wish { tls: Some(new), ..Wish::behind(&upstream.url()) }.plan();
    world.gateway.swap(next).unwrap();
    stream.write_all(ask).await.unwrap();
    let count = stream.read(&mut read).await.unwrap();
    assert!(read[..count].starts_with(b"HTTP/1.1 201"), "the old connection goes on");
    assert!(tls(&world, &old_pem, b"http/1.1").await.is_err());
    assert!(tls(&world, &new_pem, b"http/1.1").await.is_ok());
    // Files that cannot be used change nothing.
    let bad = Certificates { cert: PathBuf::from("/nowhere"), key: PathBuf::from("/nowhere") };
    let bad = Wish { tls: Some(bad), ..Wish::behind(&upstream.url()) }.plan();
    assert!(world.gateway.swap(bad).unwrap_err().to_string().contains("/nowhere"));
    assert!(tls(&world, &new_pem, b"http/1.1").await.is_ok());
}

/// A service over TLS that answers what it was asked.
async fn secure_service(files: &Certificates, protocol: Protocol) -> String {
    let mut config = Arc::unwrap_or_clone(files.load().unwrap());
    config.alpn_protocols = match protocol {
        Protocol::Http1 => vec![b"http/1.1".to_vec()],
        Protocol::Http2 => vec![b"h2".to_vec()],
    };
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(socket).await else { return };
                serve_http(stream, protocol).await;
            });
        }
    });
    format!("https://{address}")
}

async fn serve_http<S>(stream: S, protocol: Protocol)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let service = hyper::service::service_fn(|request: Request<hyper::body::Incoming>| async move {
        let fence = request.headers().contains_key("semel-fence");
        let text = format!("{:?} {} {fence}", request.version(), request.uri());
        Ok::<_, std::convert::Infallible>(http::Response::new(Body::from(text)))
    });
    let io = TokioIo::new(stream);
    let _ = match protocol {
        Protocol::Http1 => hyper::server::conn::http1::Builder::new().serve_connection(io, service).await,
        Protocol::Http2 => {
            hyper::server::conn::http2::Builder::new(TokioExecutor::new()).serve_connection(io, service).await
        }
    };
}

#[tokio::test]
async fn a_service_over_tls_is_reached_with_its_own_authority_and_not_without() {
    let (files, _) = certificates("127.0.0.1");
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let url = secure_service(&files, protocol).await;
        let mut wish = Wish::behind(&url);
        wish.behind.ca = Some(files.cert.clone());
        wish.behind.protocol = protocol;
        let world = wish.start().await;
        let answer = world.ask(crate::world::keyed("/orders", "k1", "{}")).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(answer.body.ends_with("/orders true"), "{answer:?}");
        assert!(answer.body.contains(if protocol == Protocol::Http1 { "HTTP/1.1" } else { "HTTP/2" }));

        let stranger = Wish::behind(&url).start().await;
        let answer = stranger.ask(crate::world::keyed("/orders", "k1", "{}")).await;
        assert_eq!((answer.status, answer.header("retry-after")), (502, Some("1")), "never sent");
    }
}

#[tokio::test]
async fn the_very_certificate_of_a_service_is_believed_for_its_own_name_only() {
    for (name, status) in [("127.0.0.1", 200), ("other.example", 502)] {
        let files = of_a_simple_tool(name);
        let mut wish = Wish::behind(&secure_service(&files, Protocol::Http1).await);
        wish.behind.ca = Some(files.cert.clone());
        let world = wish.start().await;
        assert_eq!(world.ask(crate::world::keyed("/orders", "k1", "{}")).await.status, status, "{name}");
    }
    let (files, stranger) = (of_a_simple_tool("127.0.0.1"), of_a_simple_tool("127.0.0.1"));
    let mut wish = Wish::behind(&secure_service(&files, Protocol::Http1).await);
    wish.behind.ca = Some(stranger.cert);
    assert_eq!(wish.start().await.ask(crate::world::keyed("/orders", "k1", "{}")).await.status, 502);
}

#[tokio::test]
async fn a_service_that_speaks_http2_without_tls_is_reached() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            tokio::spawn(serve_http(socket, Protocol::Http2));
        }
    });
    let mut wish = Wish::behind(&format!("http://{address}"));
    wish.behind.protocol = Protocol::Http2;
    let world = wish.start().await;
    for key in ["k1", "k2", "k1"] {
        let answer = world.ask(crate::world::keyed("/orders", key, "{}")).await;
        assert_eq!(answer.body, "HTTP/2.0 http://shop.example/orders true");
    }
}

/// What is answered to a stream.
type Frame = fn(u32) -> Vec<u8>;

/// An HTTP/2 service that answers every request with this frame.
async fn refusing(frame: Frame) -> (String, Arc<std::sync::atomic::AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counting = Arc::clone(&asked);
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let counting = Arc::clone(&counting);
            tokio::spawn(async move {
                let mut preface = [0; 24];
                socket.read_exact(&mut preface).await.unwrap();
                // Our settings, empty.
                socket.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
                loop {
                    let mut head = [0; 9];
                    if socket.read_exact(&mut head).await.is_err() {
                        return;
                    }
                    let length =
                        usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
                    let mut payload = vec![0; length];
                    socket.read_exact(&mut payload).await.unwrap();
                    let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
                    if head[3] == 1 {
                        counting.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        socket.write_all(&frame(stream)).await.unwrap();
                    }
                }
            });
        }
    });
    (format!("http://{address}"), asked)
}

fn reset(stream: u32, reason: u8) -> Vec<u8> {
    let mut frame = vec![0, 0, 4, 3, 0];
    frame.extend(stream.to_be_bytes());
    frame.extend([0, 0, 0, reason]);
    frame
}

fn go_away(last: u32) -> Vec<u8> {
    let mut frame = vec![0, 0, 8, 7, 0, 0, 0, 0, 0];
    frame.extend(last.to_be_bytes());
    frame.extend([0, 0, 0, 0]);
    frame
}

#[tokio::test]
async fn an_http2_service_that_says_it_did_nothing_frees_the_key_and_any_other_reset_does_not() {
    let refused = |stream| reset(stream, 7);
    let cancelled = |stream| reset(stream, 8);
    let gone = |_| go_away(0);
    let frames: [(Frame, bool); 3] = [(refused, true), (gone, true), (cancelled, false)];
    for (frame, is_free) in frames {
        let (url, asked) = refusing(frame).await;
        let mut wish = Wish::behind(&url);
        wish.behind.protocol = Protocol::Http2;
        wish.behind.timeout = Duration::from_secs(2);
        let world = wish.start().await;
        let first = world.ask(crate::world::keyed("/orders", "k1", "{}")).await;
        assert_eq!(first.status, 502, "{first:?}");
        assert_eq!(first.header("semel-outcome").is_none(), is_free, "{first:?}");
        let again = world.ask(crate::world::keyed("/orders", "k1", "{}")).await;
        assert_eq!(again.status, if is_free { 502 } else { 409 }, "{again:?}");
        assert_eq!(asked.load(std::sync::atomic::Ordering::SeqCst), if is_free { 2 } else { 1 });
    }
}

/// An HTTP/2 service that answers with what it was told about trailers, and with trailers, after a pause.
async fn with_trailers(pause: Duration) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            let service =
                hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| async move {
                    tokio::time::sleep(pause).await;
                    let te = request.headers().get("te").map(|te| te.to_str().unwrap().to_owned());
                    let frames = [
                        http_body::Frame::data(bytes::Bytes::from(format!("{te:?}"))),
                        http_body::Frame::trailers(http::HeaderMap::from_iter([(
                            http::HeaderName::from_static("grpc-status"),
                            http::HeaderValue::from_static("0"),
                        )])),
                    ];
                    let frames = futures_util::stream::iter(frames.map(Ok::<_, std::convert::Infallible>));
                    let body = Body::new(http_body_util::StreamBody::new(frames));
                    Ok::<_, std::convert::Infallible>(http::Response::new(body))
                });
            tokio::spawn(
                hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(socket), service),
            );
        }
    });
    format!("http://{address}")
}

async fn http2_client(world: &World) -> http2::SendRequest<Body> {
    let socket = TcpStream::connect(world.address).await.unwrap();
    let (sender, connection) =
        http2::handshake::<_, _, Body>(TokioExecutor::new(), TokioIo::new(socket)).await.unwrap();
    tokio::spawn(connection);
    sender
}

#[tokio::test]
async fn trailers_pass_from_end_to_end() {
    let mut wish = Wish::behind(&with_trailers(Duration::ZERO).await);
    wish.behind.protocol = Protocol::Http2;
    let world = wish.start().await;
    let request = Request::post("http://gate.example/shop.Orders/Place")
        .header("te", "trailers")
        .header("content-type", "application/grpc")
        .body(Body::from("message"))
        .unwrap();
    let response = http2_client(&world).await.send_request(request).await.unwrap();
    let body = response.into_body().collect().await.unwrap();
    assert_eq!(body.trailers().unwrap()["grpc-status"], "0");
    assert_eq!(body.to_bytes(), "Some(\"trailers\")");
}

#[tokio::test]
async fn what_was_asked_over_http2_before_the_end_is_answered() {
    let mut wish = Wish::behind(&with_trailers(Duration::from_millis(300)).await);
    wish.behind.protocol = Protocol::Http2;
    let world = wish.start().await;
    let sender = http2_client(&world).await;
    let asked: Vec<_> = (0..20)
        .map(|number| {
            let mut sender = sender.clone();
            tokio::spawn(async move {
                let request = Request::post("http://gate.example/orders")
                    .header("authorization", "a")
                    .header("idempotency-key", format!("k{number}"))
                    .body(Body::from("{}"))
                    .unwrap();
                sender.send_request(request).await.unwrap().status().as_u16()
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(world.gateway.shut_down(Duration::from_secs(5)).await, 0);
    for status in asked {
        assert_eq!(status.await.unwrap(), 200);
    }
}

//! Messages over TLS: to a server whose authority is trusted, and to nobody else.

use std::sync::Arc;

use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::daemon::Daemon;

#[tokio::test(flavor = "multi_thread")]
async fn messages_go_to_a_server_whose_authority_is_trusted_and_to_nobody_else() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, made.cert.pem()).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let config =
        rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let service = service_fn(|_| async {
                    // A redirect is an answer, not an order.
                    let answer = http::Response::builder().status(200).body("secure".to_owned());
                    Ok::<_, std::convert::Infallible>(answer.unwrap())
                });
                let _ = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    });
    let message = json!({"client_message_id": "m", "request": {"method": "POST", "url": format!("https://localhost:{port}/x")}});
    let trusting = Daemon::start(&["--ca", ca.to_str().unwrap()]);
    assert_eq!(trusting.send(&message).await.0, 202);
    assert_eq!(trusting.until("m", "done").await["response"]["body"], "secure");
    let strict = Daemon::start(&[]);
    assert_eq!(strict.send(&message).await.0, 202);
    let has_failed = |receipt: &Value| !receipt["last_error"].is_null() && receipt["status"] == "pending";
    let receipt = strict.until_it("m", has_failed).await;
    assert_eq!(receipt["possibly_delivered"], false);
    assert!(receipt["last_error"].as_str().unwrap().to_lowercase().contains("cert"), "{receipt}");
}

//! The relay's PostgreSQL as a careful operator runs it: reached over TLS, migrated by one role and served by another.

#[allow(dead_code)]
#[path = "serve_relay/base.rs"]
mod base;
#[allow(dead_code)]
#[path = "serve_relay/world.rs"]
mod world;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base::{Base, on_server};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use world::{Folder, Service};

const ONE: &str = r#"[{"lane":"a","value":5}]"#;

fn add(folder: &Folder, setting: &str) {
    let path = folder.path().join("semel.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(path, text.replace("[relay]\n", &format!("[relay]\n{setting}\n"))).unwrap();
}

/// Where a server listens, from its URL.
fn place(url: &str) -> String {
    let config: tokio_postgres::Config = url.parse().unwrap();
    match &config.get_hosts()[0] {
        tokio_postgres::config::Host::Tcp(host) => format!("{host}:{}", config.get_ports()[0]),
        other => panic!("the tests' server listens on TCP: {other:?}"),
    }
}

/// Speaks TLS before a server that does not, and counts who came over TLS.
fn secure(server: String, certificate: rcgen::CertifiedKey<rcgen::KeyPair>) -> (u16, Arc<AtomicUsize>) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let key = rustls::pki_types::PrivateKeyDer::try_from(certificate.signing_key.serialize_der()).unwrap();
    let chain = vec![certificate.cert.der().clone()];
    let config = rustls::ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key).unwrap();
    let (acceptor, secured) = (TlsAcceptor::from(Arc::new(config)), Arc::new(AtomicUsize::new(0)));
    let (told, listening) = std::sync::mpsc::channel();
    let counted = Arc::clone(&secured);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            told.send(listener.local_addr().unwrap().port()).unwrap();
            while let Ok((mut client, _)) = listener.accept().await {
                let (acceptor, server, counted) = (acceptor.clone(), server.clone(), Arc::clone(&counted));
                tokio::spawn(async move {
                    let mut asked = [0; 8];
                    client.read_exact(&mut asked).await.ok()?;
                    assert_eq!(asked, [0, 0, 0, 8, 4, 210, 22, 47], "TLS is asked for first");
                    client.write_all(b"S").await.ok()?;
                    let mut client = acceptor.accept(client).await.ok()?;
                    counted.fetch_add(1, Ordering::SeqCst);
                    let mut server = TcpStream::connect(server).await.ok()?;
                    copy_bidirectional(&mut client, &mut server).await.ok()
                });
            }
        });
    });
    (listening.recv().unwrap(), secured)
}

#[test]
fn over_tls_the_servers_certificate_is_verified_by_every_command() {
    let (base, service) = (Base::create(), Service::start());
    let certificate = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let pem = certificate.cert.pem();
    let server = place(&base.url);
    let (port, secured) = secure(server.clone(), certificate);
    let url = base.url.replacen(&server, &format!("localhost:{port}"), 1);
    let url = format!("{url}{}sslmode=verify-full", if url.contains('?') { '&' } else { '?' });
    let folder = Folder::for_service(&service, "");
    add(&folder, &format!("store = \"{url}\""));
    let serve = ["serve", "relay", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let (code, _, errors) = folder.run(&serve);
    assert_eq!(code, Some(6), "an authority that nobody named is not believed: {errors}");
    assert_eq!(secured.load(Ordering::SeqCst), 0);
    folder.write("ca.pem", &pem);
    add(&folder, "postgres = { ca = \"ca.pem\" }");
    let (code, text, errors) = folder.run(&["migrate", "--part", "relay", "--dry-run"]);
    assert_eq!(code, Some(0), "{errors}");
    assert!(text.contains("would apply 0001"), "{text}");
    let relay = folder.start();
    assert_eq!(relay.submit("alice", "1", "interactive", ONE).status, 200);
    let (code, text, errors) = folder.run(&["relay", "list"]);
    assert_eq!(code, Some(0), "{errors}");
    assert!(text.contains("scores"), "{text}");
    assert!(secured.load(Ordering::SeqCst) >= 3);
}

#[test]
fn one_role_migrates_and_another_serves_without_power_over_the_audit_trail() {
    let (base, service) = (Base::create(), Service::start());
    let folder = Folder::for_service(&service, "");
    let role = format!("{}_app", base.name);
    on_server(&format!("CREATE ROLE {role} LOGIN PASSWORD 'relay-app'"));
    let user = base.url.split_once("://").unwrap().1.split('@').next().unwrap().to_owned();
    let as_app = base.url.replacen(&format!("{user}@"), &format!("{role}:relay-app@"), 1);
    assert_ne!(as_app, base.url);
    add(&folder, &format!("store = \"{as_app}\"\npostgres = {{ migrate = false }}"));
    let serve = ["serve", "relay", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let (code, _, errors) = folder.run(&serve);
    assert_eq!(code, Some(6), "{errors}");
    assert!(errors.contains("semel migrate"), "{errors}");
    let (code, text, errors) = folder.run(&["migrate", "--part", "relay", "--store", &base.url, "--json"]);
    assert_eq!(code, Some(0), "{errors}");
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((report["part"].as_str(), report["found"].as_i64()), (Some("relay"), Some(0)), "{report}");
    assert!(!report["applied"].as_array().unwrap().is_empty());
    let (_, text, _) = folder.run(&["migrate", "--part", "relay", "--store", &base.url]);
    assert!(text.contains("nothing to do"), "{text}");
    on_server(&format!("GRANT semel_service TO {role}"));
    let relay = folder.start();
    assert_eq!(relay.submit("alice", "1", "interactive", ONE).status, 200);
    service.next(&[world::Habit::Answers(422)]);
    assert_eq!(relay.submit("alice", "2", "interactive", r#"[{"lane":"b","value":5}]"#).status, 202);
    let (code, text, errors) = folder.run(&["relay", "requeue", "2"]);
    assert_eq!((code, text.as_str()), (Some(0), "requeued: 1\n"), "{errors}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(&as_app, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        for sql in [
            "DELETE FROM semel_relay.relay_audit",
            "UPDATE semel_relay.relay_audit SET value = 0",
            "TRUNCATE semel_relay.relay_audit",
            "ALTER TABLE semel_relay.relay_audit DISABLE TRIGGER ALL",
            "INSERT INTO semel_relay.migration (number, checksum, works_for) VALUES (99, 'x', 99)",
        ] {
            let error = client.batch_execute(sql).await.expect_err(sql);
            assert_eq!(error.code().map(|code| code.code()), Some("42501"), "{sql}: {error}");
        }
    });
    drop(relay);
    on_server(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
}

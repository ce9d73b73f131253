//! TLS to servers, as all of semel does it: the authorities that browsers believe, and those of `SSL_CERT_FILE`.

use std::sync::{Arc, OnceLock};

use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Shakes hands with a server of this name.
pub(crate) async fn connect(host: &str, stream: TcpStream) -> Result<TlsStream<TcpStream>, String> {
    let name = ServerName::try_from(host.to_owned()).map_err(|error| format!("TLS: {error}"))?;
    connector()?.connect(name, stream).await.map_err(|error| format!("TLS: {error}"))
}

fn connector() -> Result<TlsConnector, String> {
    static CONNECTOR: OnceLock<Result<TlsConnector, String>> = OnceLock::new();
    CONNECTOR.get_or_init(build).clone()
}

fn build() -> Result<TlsConnector, String> {
    Ok(TlsConnector::from(Arc::new(semel_http::client_tls(None)?)))
}

//! TLS towards PostgreSQL, where its URL says `sslmode=require` (or `verify-full`): the server's certificate is always
//! verified, by the authorities of a file or by those that browsers believe.

use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::{TlsConnector, client};

/// A URL as the driver reads it: every certificate is verified here, so the words that ask for it mean `require`.
pub(super) fn plain(url: &str) -> String {
    url.replace("sslmode=verify-full", "sslmode=require").replace("sslmode=verify-ca", "sslmode=require")
}

/// Whether a URL demands TLS.
pub(super) fn is_required(url: &str) -> bool {
    url.parse::<tokio_postgres::Config>().is_ok_and(|config| config.get_ssl_mode() == SslMode::Require)
}

/// What makes connections to PostgreSQL secure.
#[derive(Clone)]
pub(crate) struct Secure(TlsConnector);

impl Secure {
    /// Believes the authorities of a file, or those that browsers believe.
    pub(super) fn new(ca: Option<&Path>) -> Result<Self, String> {
        Ok(Self(TlsConnector::from(Arc::new(semel_http::client_tls(ca)?))))
    }
}

impl MakeTlsConnect<Socket> for Secure {
    type Stream = Encrypted;
    type TlsConnect = Handshake;
    type Error = rustls::pki_types::InvalidDnsNameError;

    fn make_tls_connect(&mut self, domain: &str) -> Result<Handshake, Self::Error> {
        Ok(Handshake { connector: self.0.clone(), name: ServerName::try_from(domain.to_owned())? })
    }
}

/// One handshake to come.
pub(crate) struct Handshake {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl TlsConnect<Socket> for Handshake {
    type Stream = Encrypted;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Encrypted>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(async move { self.connector.connect(self.name, socket).await.map(Encrypted) })
    }
}

/// A connection to PostgreSQL over TLS.
pub(crate) struct Encrypted(client::TlsStream<Socket>);

impl TlsStream for Encrypted {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Encrypted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Encrypted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_urls_that_demand_it_are_secured() {
        for (url, is_secure) in [
            ("postgres://u@h/d", false),
            ("postgres://u@h/d?sslmode=prefer", false),
            ("postgres://u@h/d?sslmode=require", true),
            ("postgres://u@h/d?sslmode=verify-full", true),
        ] {
            assert_eq!(is_required(&plain(url)), is_secure, "{url}");
        }
    }
}

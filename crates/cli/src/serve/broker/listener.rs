//! Where members connect: plain or with TLS. A slow handshake holds up nobody else.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;

/// How long a handshake may take.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Connections whose handshake is done and that wait to be served.
const READY_MAX: usize = 64;

/// The certificate in force; none means plain HTTP.
pub(super) type Certificate = Arc<RwLock<Option<Arc<ServerConfig>>>>;

/// Connections that can be served.
pub(super) struct Doors {
    ready: mpsc::Receiver<(Stream, SocketAddr)>,
    address: SocketAddr,
}

impl Doors {
    /// Accepts on this listener until the doors are dropped.
    pub(super) fn on(listener: TcpListener, certificate: Certificate) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let (tell, ready) = mpsc::channel(READY_MAX);
        tokio::spawn(async move {
            loop {
                let accepted = tokio::select! {
                    () = tell.closed() => return,
                    accepted = listener.accept() => accepted,
                };
                let (socket, peer) = match accepted {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        tracing::warn!(%error, "failed to accept a connection");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        continue;
                    }
                };
                let _ = socket.set_nodelay(true);
                let tls = certificate.read().unwrap_or_else(PoisonError::into_inner).clone();
                let tell = tell.clone();
                tokio::spawn(async move {
                    if let Some(stream) = greet(socket, tls).await {
                        let _ = tell.send((stream, peer)).await;
                    }
                });
            }
        });
        Ok(Self { ready, address })
    }
}

/// The handshake, where there is one.
async fn greet(socket: TcpStream, tls: Option<Arc<ServerConfig>>) -> Option<Stream> {
    let Some(tls) = tls else { return Some(Stream::Plain(socket)) };
    match tokio::time::timeout(HANDSHAKE_MAX, TlsAcceptor::from(tls).accept(socket)).await {
        Ok(Ok(stream)) => Some(Stream::Tls(Box::new(stream))),
        Ok(Err(error)) => {
            tracing::debug!(%error, "a handshake failed");
            None
        }
        Err(_) => None,
    }
}

impl Listener for Doors {
    type Io = Stream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Stream, SocketAddr) {
        match self.ready.recv().await {
            Some(ready) => ready,
            // The task that accepts ends only when these doors are gone.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}

/// Who connects.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(pub(super) SocketAddr);

impl Connected<IncomingStream<'_, Doors>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Doors>) -> Self {
        Peer(*stream.remote_addr())
    }
}

/// A connection.
pub(super) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_read(cx, into),
            Stream::Tls(stream) => Pin::new(stream).poll_read(cx, into),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Stream::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

//! A service that is as honest or as bad as a test wants it: plain TCP, every request recorded as it came.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A request as it arrived.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    /// On which connection.
    pub(crate) connection: usize,
}

impl Seen {
    pub(crate) fn line(&self) -> &str {
        self.head.lines().next().unwrap_or_default()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        lines.into_iter().find(|(given, _)| given.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }
}

/// What the service does about a request.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// These bytes, after a pause.
    Bytes(Duration, Vec<u8>),
    /// These bytes, then the end of the connection.
    Last(Vec<u8>),
    /// The end of the connection.
    Reset,
    /// Nothing, ever.
    Silence,
}

impl Reply {
    pub(crate) fn status(status: u16, headers: &str, body: &str) -> Self {
        Self::after(Duration::ZERO, status, headers, body)
    }

    pub(crate) fn after(pause: Duration, status: u16, headers: &str, body: &str) -> Self {
        let text = format!("HTTP/1.1 {status} X\r\n{headers}content-length: {}\r\n\r\n{body}", body.len());
        Reply::Bytes(pause, text.into_bytes())
    }
}

type Script = Arc<dyn Fn(&Seen, usize) -> Reply + Send + Sync>;

/// The service.
#[derive(Clone)]
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Upstream {
    /// A service that answers by a script, which sees the request and how many came before.
    pub(crate) async fn start(script: impl Fn(&Seen, usize) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstream = Self { address: listener.local_addr().unwrap(), seen: Arc::default() };
        let (serving, script): (_, Script) = (upstream.clone(), Arc::new(script));
        tokio::spawn(async move {
            for connection in 0.. {
                let (socket, _) = listener.accept().await.unwrap();
                tokio::spawn(serving.clone().serve(socket, connection, Arc::clone(&script)));
            }
        });
        upstream
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    fn serve(
        self,
        mut socket: TcpStream,
        connection: usize,
        script: Script,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            let mut buffer = Vec::new();
            while let Some((head, body)) = message(&mut socket, &mut buffer).await {
                let seen = Seen { head, body, connection };
                let before = {
                    let mut all = self.seen.lock().unwrap();
                    all.push(seen.clone());
                    all.len() - 1
                };
                match script(&seen, before) {
                    Reply::Bytes(pause, bytes) => {
                        tokio::time::sleep(pause).await;
                        if socket.write_all(&bytes).await.is_err() {
                            return;
                        }
                    }
                    Reply::Last(bytes) => {
                        let _ = socket.write_all(&bytes).await;
                        return;
                    }
                    Reply::Reset => return,
                    Reply::Silence => std::future::pending().await,
                }
            }
        })
    }
}

/// The next message of a stream: its head, and its body by length or in chunks (whose framing is kept).
pub(crate) async fn message(socket: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<(String, Vec<u8>)> {
    let end = loop {
        if let Some(at) = find(buffer, b"\r\n\r\n") {
            break at + 4;
        }
        if !more(socket, buffer).await {
            return None;
        }
    };
    let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
    buffer.drain(..end);
    let field = |name: &str| {
        let lines = head.lines().filter_map(|line| line.split_once(':'));
        lines
            .into_iter()
            .find(|(given, _)| given.eq_ignore_ascii_case(name))
            .map(|(_, v)| v.trim().to_owned())
    };
    let length = if field("transfer-encoding").is_some() {
        loop {
            if let Some(at) = find(buffer, b"0\r\n\r\n") {
                break at + 5;
            }
            if !more(socket, buffer).await {
                return None;
            }
        }
    } else {
        field("content-length").and_then(|length| length.parse().ok()).unwrap_or(0)
    };
    while buffer.len() < length {
        if !more(socket, buffer).await {
            return None;
        }
    }
    let body = buffer.drain(..length).collect();
    Some((head, body))
}

async fn more(socket: &mut TcpStream, buffer: &mut Vec<u8>) -> bool {
    matches!(socket.read_buf(buffer).await, Ok(1..))
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

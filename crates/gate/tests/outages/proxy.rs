//! A proxy that stands between somebody and the server and harms a message that carries a mark, such as a `COMMIT`: it is
//! lost, its reply is lost, or either comes late. Everything else passes as it is.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::Instant;

const BUFFER_BYTES: usize = 64 << 10;

/// The simple query that ends a transaction, as it stands in its message.
pub(crate) const COMMIT: &[u8] = b"COMMIT\0";

/// What is done to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Harm {
    /// It never arrives. The client's side is closed at once; the server hears nothing more for so long.
    LoseRequest { orphaned: Duration },
    /// It arrives, and the reply is lost. The client's side is closed at once, the server's after so long.
    LoseReply { orphaned: Duration },
    /// The client's side is closed at once, and the message arrives so much later all the same.
    ArriveLater { after: Duration },
    /// It arrives late.
    DelayRequest { by: Duration },
    /// Its reply arrives late.
    DelayReply { by: Duration },
    /// It never arrives, and neither side hears of the other again, though no connection is closed: a black hole.
    SwallowRequest,
    /// It arrives, and the rest is the same.
    SwallowReply,
}

/// What to harm, and how often.
#[derive(Default)]
struct Plan {
    harm: Option<(Vec<u8>, Harm)>,
    left: usize,
    done: usize,
    closed: bool,
}

pub(crate) struct Proxy {
    port: u16,
    plan: Arc<Mutex<Plan>>,
}

/// What a connection's requests tell its replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
    Passing,
    HeldUntil(Instant),
    Swallowed,
    Cut,
}

impl Proxy {
    /// A proxy to the server of this URL.
    pub(crate) async fn start(url: &str) -> Self {
        let config: tokio_postgres::Config = url.parse().expect("a URL");
        let server = ("127.0.0.1", config.get_ports().first().copied().unwrap_or(5432));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let plan = Arc::new(Mutex::new(Plan::default()));
        tokio::spawn({
            let plan = Arc::clone(&plan);
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    if plan.lock().expect("no panic").closed {
                        continue;
                    }
                    let Ok(server) = TcpStream::connect(server).await else { continue };
                    pass(client, server, &plan);
                }
            }
        });
        Self { port, plan }
    }

    /// The URL of the same database through this proxy.
    pub(crate) fn url(&self, url: &str) -> String {
        let config: tokio_postgres::Config = url.parse().expect("a URL");
        let user = config.get_user().unwrap_or("postgres");
        let name = config.get_dbname().expect("a database");
        format!("postgres://{user}@127.0.0.1:{}/{name}", self.port)
    }

    /// Harms the next so many messages with this mark.
    pub(crate) fn harm(&self, mark: &[u8], harm: Harm, times: usize) {
        let mut plan = self.plan.lock().expect("no panic");
        plan.harm = Some((mark.to_vec(), harm));
        plan.left = times;
    }

    /// Accepts no more connections, until opened again.
    pub(crate) fn close(&self, closed: bool) {
        self.plan.lock().expect("no panic").closed = closed;
    }

    /// How many messages were harmed.
    pub(crate) fn harmed(&self) -> usize {
        self.plan.lock().expect("no panic").done
    }
}

impl Plan {
    fn for_bytes(&mut self, bytes: &[u8]) -> Option<Harm> {
        let (mark, harm) = self.harm.as_ref()?;
        let harm = *harm;
        // An empty mark is in everything.
        let is_marked = mark.is_empty() || bytes.windows(mark.len()).any(|part| part == &mark[..]);
        if self.left == 0 || !is_marked {
            return None;
        }
        self.left -= 1;
        self.done += 1;
        Some(harm)
    }
}

fn pass(client: TcpStream, server: TcpStream, plan: &Arc<Mutex<Plan>>) {
    for socket in [&client, &server] {
        socket.set_nodelay(true).expect("a socket");
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let (mood, watched) = watch::channel(Mood::Passing);
    tokio::spawn(requests(from_client, to_server, Arc::clone(plan), mood));
    tokio::spawn(replies(from_server, to_client, watched));
}

async fn requests(
    mut client: OwnedReadHalf,
    mut server: OwnedWriteHalf,
    plan: Arc<Mutex<Plan>>,
    mood: watch::Sender<Mood>,
) {
    let mut buffer = vec![0; BUFFER_BYTES];
    while let Ok(read) = client.read(&mut buffer).await {
        let bytes = &buffer[..read];
        let harm = plan.lock().expect("no panic").for_bytes(bytes);
        match harm {
            Some(Harm::LoseRequest { orphaned }) => {
                drop((mood.send(Mood::Cut), client));
                tokio::time::sleep(orphaned).await;
                return;
            }
            Some(Harm::LoseReply { orphaned }) => {
                // From here on the client hears nothing: the reply cannot slip through before the cut.
                drop((mood.send(Mood::Cut), client));
                let _ = server.write_all(bytes).await;
                tokio::time::sleep(orphaned).await;
                return;
            }
            Some(Harm::ArriveLater { after }) => {
                drop((mood.send(Mood::Cut), client));
                tokio::time::sleep(after).await;
                let _ = server.write_all(bytes).await;
                tokio::time::sleep(Duration::from_secs(1)).await;
                return;
            }
            Some(Harm::DelayRequest { by }) => tokio::time::sleep(by).await,
            Some(Harm::DelayReply { by }) => drop(mood.send(Mood::HeldUntil(Instant::now() + by))),
            Some(harm @ (Harm::SwallowRequest | Harm::SwallowReply)) => {
                let _ = mood.send(Mood::Swallowed);
                if harm == Harm::SwallowReply {
                    let _ = server.write_all(bytes).await;
                }
                // The server's side stays open as long as the client's.
                while client.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
                return;
            }
            None => {}
        }
        if read == 0 || server.write_all(bytes).await.is_err() {
            return;
        }
    }
}

async fn replies(mut server: OwnedReadHalf, mut client: OwnedWriteHalf, mut mood: watch::Receiver<Mood>) {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let read = tokio::select! {
            biased;
            () = async { drop(mood.wait_for(|mood| *mood == Mood::Cut).await) } => break,
            read = server.read(&mut buffer) => read,
        };
        let now = *mood.borrow();
        match now {
            Mood::HeldUntil(then) => tokio::time::sleep_until(then).await,
            Mood::Swallowed => {
                drop(mood.wait_for(|mood| *mood == Mood::Cut).await);
                break;
            }
            Mood::Passing => {}
            Mood::Cut => break,
        }
        match read {
            Ok(read) if read > 0 && client.write_all(&buffer[..read]).await.is_ok() => {}
            Ok(_) | Err(_) => return,
        }
    }
    drop(client);
    // The server's replies go nowhere, but it can send them.
    while server.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
}

//! A proxy that stands between a store and its server and cuts a connection at a chosen moment: once the server was sent
//! something that contains a mark, either before it arrives or before its reply does.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// How long the server's side stays open after a cut, as after a failure of the network.
const ORPHANED: Duration = Duration::from_millis(800);

/// What is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loses {
    /// The request: the server never sees it.
    Request,
    /// The reply: the server has done it.
    Reply,
}

#[derive(Default)]
struct Plan {
    cut: Option<(Vec<u8>, Loses)>,
    closed: bool,
    cuts: u32,
}

pub(crate) struct Proxy {
    pub(crate) port: u16,
    plan: Arc<Mutex<Plan>>,
}

impl Proxy {
    pub(crate) async fn start(server: (String, u16)) -> Self {
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
                    let Ok(server) = TcpStream::connect((server.0.as_str(), server.1)).await else {
                        continue;
                    };
                    pass(client, server, &plan);
                }
            }
        });
        Self { port, plan }
    }

    /// Cuts the next connection that sends something with this mark.
    pub(crate) fn cut(&self, mark: &[u8], loses: Loses) {
        self.plan.lock().expect("no panic").cut = Some((mark.to_vec(), loses));
    }

    /// Accepts no more connections, until opened again.
    pub(crate) fn close(&self, closed: bool) {
        self.plan.lock().expect("no panic").closed = closed;
    }

    /// How many connections were cut.
    pub(crate) fn cuts(&self) -> u32 {
        self.plan.lock().expect("no panic").cuts
    }
}

fn pass(client: TcpStream, server: TcpStream, plan: &Arc<Mutex<Plan>>) {
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let (cutting, cut) = watch::channel(false);
    tokio::spawn(requests(from_client, to_server, Arc::clone(plan), cutting));
    tokio::spawn(replies(from_server, to_client, cut));
}

async fn requests(
    mut client: OwnedReadHalf,
    mut server: OwnedWriteHalf,
    plan: Arc<Mutex<Plan>>,
    cutting: watch::Sender<bool>,
) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read) = client.read(&mut buffer).await {
        let bytes = &buffer[..read];
        match planned(&plan, bytes) {
            Some(loses) => {
                // From here on the client hears nothing: its side of the connection is closed.
                let _ = cutting.send(true);
                drop(client);
                if loses == Loses::Reply {
                    let _ = server.write_all(bytes).await;
                }
                tokio::time::sleep(ORPHANED).await;
                return;
            }
            None if read == 0 || server.write_all(bytes).await.is_err() => return,
            None => {}
        }
    }
}

fn planned(plan: &Mutex<Plan>, bytes: &[u8]) -> Option<Loses> {
    let mut plan = plan.lock().expect("no panic");
    let (_, loses) = plan.cut.take_if(|(mark, _)| bytes.windows(mark.len()).any(|part| part == &mark[..]))?;
    plan.cuts += 1;
    Some(loses)
}

async fn replies(mut server: OwnedReadHalf, mut client: OwnedWriteHalf, mut cut: watch::Receiver<bool>) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = tokio::select! {
            biased;
            () = async { drop(cut.wait_for(|cut| *cut).await) } => break,
            read = server.read(&mut buffer) => read,
        };
        match read {
            Ok(read) if read > 0 && client.write_all(&buffer[..read]).await.is_ok() => {}
            Ok(_) | Err(_) => return,
        }
    }
    drop(client);
    // The server's replies go nowhere, but it can send them.
    while server.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
}

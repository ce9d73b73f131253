//! The relay and servers that fail it: a standby among its hosts, a connection that goes silent, a server that lets in and
//! then says nothing, one that may forget what it confirmed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use semel_delivery::relay::store::postgres::Postgres;
use semel_delivery::relay::store::sql::Database;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::base::Base;
use crate::server::Server;

/// How long anything here may take; what hangs takes for ever.
const ENDS_WITHIN: Duration = Duration::from_secs(40);

async fn listen() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    (listener, port)
}

/// Lets a client in, says whether this server only reads, and answers nothing else.
async fn let_in(mut client: TcpStream, only_reads: &'static str) {
    let mut length = [0; 4];
    if client.read_exact(&mut length).await.is_err() {
        return;
    }
    let mut startup = vec![0; u32::from_be_bytes(length) as usize - 4];
    let _ = client.read_exact(&mut startup).await;
    let ready = [b"R\0\0\0\x08\0\0\0\0".as_slice(), b"Z\0\0\0\x05I"].concat();
    let _ = client.write_all(&ready).await;
    let mut asked = [0; 4096];
    while let Ok(1..) = client.read(&mut asked).await {
        if !asked.windows(21).any(|part| part == b"transaction_read_only") {
            continue;
        }
        let size = u8::try_from(only_reads.len()).expect("a short word");
        let answer = [
            b"T\0\0\0\x1a\0\x01x\0\0\0\0\0\0\0\0\0\0\x19\xff\xff\xff\xff\xff\xff\0\0".as_slice(),
            &[b'D', 0, 0, 0, 10 + size, 0, 1, 0, 0, 0, size],
            only_reads.as_bytes(),
            b"C\0\0\0\x09SHOW\0Z\0\0\0\x05I",
        ];
        let _ = client.write_all(&answer.concat()).await;
        asked = [0; 4096];
    }
}

/// A port that leads to the server, until what is open goes silent or what is new hangs.
struct Proxy {
    port: u16,
    silenced: watch::Sender<u32>,
    hangs: Arc<AtomicBool>,
}

impl Proxy {
    async fn start(server: (String, u16)) -> Self {
        let (listener, port) = listen().await;
        let (silenced, watching) = watch::channel(0);
        let hangs = Arc::new(AtomicBool::new(false));
        let is_hanging = Arc::clone(&hangs);
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                if is_hanging.load(Ordering::SeqCst) {
                    tokio::spawn(let_in(client, "off"));
                    continue;
                }
                let Ok(mut there) = TcpStream::connect((server.0.as_str(), server.1)).await else { continue };
                let mut watching = watching.clone();
                watching.mark_unchanged();
                tokio::spawn(async move {
                    let silenced = tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut client, &mut there) => false,
                        _ = watching.changed() => true,
                    };
                    if silenced {
                        // Open, and nothing comes through any more.
                        std::future::pending::<()>().await;
                    }
                });
            }
        });
        Self { port, silenced, hangs }
    }

    fn silence(&self) {
        self.silenced.send_modify(|times| *times += 1);
    }

    fn hang(&self, hangs: bool) {
        self.hangs.store(hangs, Ordering::SeqCst);
    }
}

async fn ends<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(ENDS_WITHIN, what).await.expect("it ends")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_among_the_hosts_is_avoided() {
    let base = Base::create().await;
    let (standby, port) = listen().await;
    tokio::spawn(async move {
        while let Ok((client, _)) = standby.accept().await {
            tokio::spawn(let_in(client, "on"));
        }
    });
    let (user, (host, primary), name) = base.parts();
    let url = format!("postgres://{user}@127.0.0.1:{port},{host}:{primary}/{name}");
    let database = ends(Postgres::connect(&url, 2)).await.expect("the primary is the second host");
    ends(database.now()).await.expect("the primary answers");
    base.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_went_silent_is_given_up_and_a_server_that_hangs_holds_nobody_up() {
    let base = Base::create().await;
    let (user, address, name) = base.parts();
    let proxy = Proxy::start(address).await;
    let url = format!("postgres://{user}@127.0.0.1:{}/{name}", proxy.port);
    let database = ends(Postgres::connect(&url, 1)).await.expect("the server answers");
    ends(database.now()).await.expect("the server answers");
    proxy.silence();
    // A connection is tried before it is used when it was idle for more than a second.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    ends(database.now()).await.expect("a new connection takes the place of the silent one");
    proxy.silence();
    proxy.hang(true);
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    ends(database.now()).await.expect_err("a server that lets in and says nothing is away");
    proxy.hang(false);
    ends(database.now()).await.expect("and it is found again");
    proxy.hang(true);
    ends(Postgres::connect(&url, 1)).await.map(drop).expect_err("a start does not hang either");
    base.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_fsync_is_refused() {
    let server = Server::start(&["fsync=off"]).await;
    let error = Postgres::connect(&server.url(), 1).await.map(drop).expect_err("refused").to_string();
    assert!(error.contains("fsync=off") && error.contains("set fsync=on in postgresql.conf"), "{error}");
}

//! A proxy between a service and its database that cuts a connection at a COMMIT: before it is passed on, or before its answer is.
//! Knows nothing of what the transaction did.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// As it stands in the message that asks for it, and in the one that confirms it.
const COMMIT: &[u8] = b"COMMIT\0";
const PATIENCE: Duration = Duration::from_secs(30);

/// Who is not told of the COMMIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// The database: it never happens.
    Before,
    /// The service: it has happened.
    After,
}

type Then = Box<dyn FnOnce() + Send>;

#[derive(Clone)]
pub(crate) struct Proxy {
    port: u16,
    armed: Arc<Mutex<Option<(Cut, Then)>>>,
    fired: Arc<Semaphore>,
}

impl Proxy {
    /// A proxy to the server of this URL.
    pub(crate) async fn start(url: &str) -> Self {
        let config: tokio_postgres::Config = url.parse().expect("a URL");
        let server = ("127.0.0.1", config.get_ports().first().copied().unwrap_or(5432));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let proxy = Self { port, armed: Arc::default(), fired: Arc::new(Semaphore::new(0)) };
        let own = proxy.clone();
        tokio::spawn(async move {
            while let Ok((service, _)) = listener.accept().await {
                let Ok(database) = TcpStream::connect(server).await else { continue };
                tokio::spawn(own.clone().pass(service, database));
            }
        });
        proxy
    }

    /// The URL of the same database through this proxy.
    pub(crate) fn url(&self, url: &str) -> String {
        let config: tokio_postgres::Config = url.parse().expect("a URL");
        let user = config.get_user().unwrap_or("postgres");
        let name = config.get_dbname().expect("a database");
        format!("postgres://{user}@127.0.0.1:{}/{name}", self.port)
    }

    /// Cuts the next connection that commits, and then calls this before either side hears of it.
    pub(crate) fn arm(&self, cut: Cut, then: impl FnOnce() + Send + 'static) {
        *self.armed.lock().expect("no panic") = Some((cut, Box::new(then)));
    }

    /// Waits until a connection was cut.
    pub(crate) async fn fired(&self) {
        let fired = tokio::time::timeout(PATIENCE, self.fired.acquire()).await;
        fired.expect("a COMMIT comes by").expect("it stays open").forget();
    }

    /// Whether what was just said is what somebody waits for; then that was done.
    fn cuts(&self, side: Cut, said: &[u8]) -> bool {
        let then = {
            let mut armed = self.armed.lock().expect("no panic");
            let is_meant = armed.as_ref().is_some_and(|(cut, _)| *cut == side)
                && said.windows(COMMIT.len()).any(|part| part == COMMIT);
            if is_meant { armed.take() } else { None }
        };
        let Some((_, then)) = then else { return false };
        then();
        self.fired.add_permits(1);
        true
    }

    async fn pass(self, mut service: TcpStream, mut database: TcpStream) {
        let (mut asked, mut told) = (vec![0; 64 << 10], vec![0; 64 << 10]);
        service.set_nodelay(true).expect("a socket");
        database.set_nodelay(true).expect("a socket");
        loop {
            let (side, read) = tokio::select! {
                read = service.read(&mut asked) => (Cut::Before, read),
                read = database.read(&mut told) => (Cut::After, read),
            };
            let Ok(read @ 1..) = read else { return };
            let said = if side == Cut::Before { &asked[..read] } else { &told[..read] };
            if self.cuts(side, said) {
                return;
            }
            let sink = if side == Cut::Before { &mut database } else { &mut service };
            if sink.write_all(said).await.is_err() {
                return;
            }
        }
    }
}

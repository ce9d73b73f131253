//! The parts that `up` and `storm` start: listeners, the store, small services, and the gate. Each is stopped by whoever
//! started it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::{Request, Response};
use semel_gate::{Gate, Route};
use semel_store::ClaimStore;
use semel_store::clock::SystemClock;
use semel_store::sqlite::SqliteStore;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::client::{self, Connection, Target};
use crate::exit::{Exit, Stop};

/// A folder that is removed with everything in it.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Result<Self, Stop> {
        let path = std::env::temp_dir().join(format!("semel-{}", client::uuid()?));
        std::fs::create_dir(&path)
            .map_err(|error| Stop::new(Exit::Io, format!("failed to create {}: {error}", path.display())))?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed lies among the other temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A service that answers until it is stopped.
#[derive(Debug)]
pub(crate) struct Served(JoinHandle<()>);

impl Served {
    pub(crate) fn stop(self) {
        self.0.abort();
    }
}

/// Listens at an address, named in the message when that fails.
pub(crate) async fn bind(address: SocketAddr, what: &str) -> Result<TcpListener, Stop> {
    TcpListener::bind(address).await.map_err(|error| {
        Stop::new(
            Exit::Io,
            format!("failed to listen on {address} ({what}): {error}; port 0 is any free one"),
        )
    })
}

/// Serves a router.
pub(crate) fn serve(listener: TcpListener, router: Router) -> Served {
    Served(tokio::spawn(async move { drop(axum::serve(listener, router).await) }))
}

/// Opens the embedded store.
pub(crate) fn open_store(file: &Path) -> Result<Arc<dyn ClaimStore>, Stop> {
    let store = SqliteStore::open(file, Arc::new(SystemClock))
        .map_err(|error| Stop::new(Exit::Io, format!("failed to open {}: {error}", file.display())))?;
    Ok(Arc::new(store))
}

pub(crate) type Upstream = Target;

pub(crate) fn upstream(url: &str) -> Result<Upstream, Stop> {
    Target::parse(url).map_err(|message| Stop::new(Exit::Usage, message))
}

pub(crate) struct RunningGate(Served);

impl RunningGate {
    pub(crate) async fn stop(self, _within: Duration) -> usize {
        self.0.stop();
        0
    }
}

pub(crate) fn gate(
    target: Upstream,
    store: Arc<dyn ClaimStore>,
    listener: TcpListener,
) -> Result<RunningGate, Stop> {
    let mut profile = semel_contract::profile::presets::ietf();
    profile.key.presence = semel_contract::key::Presence::Optional;
    let gate = Gate::on(store).route(Route::any().profile(profile)).build().unwrap();
    let forward = move |request: Request<Body>| {
        let target = target.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
            let target = target.at(parts.uri.path()).unwrap();
            let within = std::time::Duration::from_secs(30);
            let mut connection = Connection::open(&target, within).await.unwrap();
            let answer = connection.send(&target, &parts.method, &parts.headers, body, within).await.unwrap();
            let mut response = Response::new(Body::from(answer.body));
            *response.status_mut() = http::StatusCode::from_u16(answer.status).unwrap();
            *response.headers_mut() = answer.headers;
            response
        }
    };
    Ok(RunningGate(serve(listener, Router::new().fallback(forward).layer(gate))))
}

//! The parts that `up` and `storm` start: the demo shop, and the gate before it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use http::{Request, Response};
use semel_gate::{Gate, GateLayer, Route};
use semel_store::clock::SystemClock;
use semel_store::sqlite::SqliteStore;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::client::{self, Connection, Target};
use crate::demo::Shop;
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
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    task: JoinHandle<()>,
}

impl Served {
    pub(crate) fn stop(self) {
        self.task.abort();
    }
}

/// Serves the shop on a free port of this machine.
pub(crate) async fn serve_shop(shop: &Shop) -> Result<Served, Stop> {
    serve(shop.router()).await
}

async fn serve(router: Router) -> Result<Served, Stop> {
    let failed = |error: std::io::Error| Stop::new(Exit::Io, format!("failed to listen: {error}"));
    let listener = TcpListener::bind("127.0.0.1:0").await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let task = tokio::spawn(async move { drop(axum::serve(listener, router).await) });
    Ok(Served { address, task })
}

pub(crate) struct RunningGate {
    pub(crate) address: SocketAddr,
    served: Served,
}
impl RunningGate {
    pub(crate) async fn stop(self) {
        self.served.stop();
    }
}

pub(crate) async fn gate_before(upstream: SocketAddr, folder: &Path) -> Result<RunningGate, Stop> {
    let store = SqliteStore::open(folder.join("semel.db"), Arc::new(SystemClock)).unwrap();
    let gate: GateLayer =
        Gate::on(Arc::new(store)).route(Route::new("orders", "POST /orders").unwrap()).build().unwrap();
    let target = Target::parse(&format!("http://{upstream}/")).unwrap();
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
    let served = serve(Router::new().fallback(forward).layer(gate)).await?;
    Ok(RunningGate { address: served.address, served })
}

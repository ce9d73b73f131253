//! The broker beside the gate, with a mesh to try: two members, a topic to which both are subscribed, and the outbox as the
//! first of them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, header};
use semel_contract::hex::hex;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tower::ServiceExt as _;

use super::Args;
use super::facts::Command;
use crate::broker::new_token;
use crate::exit::{Exit, Stop};
use crate::serve::broker::Running;
use crate::serve::broker::config::Config;
use crate::serve::outbox::Member;

/// Where it listens, if that is free.
const USUAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7430);
/// Any free address of this machine.
const FREE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);
/// The mesh to try.
const MESH: &str = "demo";
const TOPIC: &str = "news";
const MEMBERS: [(&str, &str); 2] = [("alice", "owner"), ("bob", "member")];

/// A broker in the folder of the other data. The gate serves without it too.
pub(super) async fn beside(args: &Args) -> Option<Running> {
    let mut started = Err(Stop::new(Exit::Io, "there is no free address"));
    for listen in [USUAL, FREE] {
        started = start(args, listen).await;
        if started.is_ok() {
            break;
        }
    }
    started.inspect_err(|Stop { message, .. }| tracing::warn!("there is no broker: {message}")).ok()
}

async fn start(args: &Args, listen: SocketAddr) -> Result<Running, Stop> {
    let running = Running::start(Config::beside(&args.data.join("broker.db"), listen, FREE)?).await?;
    make_mesh(&running, &args.data).await?;
    Ok(running)
}

/// The first member, as whom the outbox publishes and receives.
pub(super) fn member(broker: &Running, data: &Path) -> Member {
    let (broker, mesh, topic) = (url(broker), MESH.to_owned(), TOPIC.to_owned());
    Member { broker, mesh, topic, token: token_file(data, MEMBERS[0].0) }
}

pub(super) fn url(broker: &Running) -> String {
    format!("http://{}", broker.listen)
}

fn token_file(data: &Path, member: &str) -> PathBuf {
    data.join(format!("{member}.token"))
}

/// Makes the mesh. What is there already stays as it is.
async fn make_mesh(running: &Running, data: &Path) -> Result<(), Stop> {
    let router = semel_broker::admin_router(running.broker().clone());
    let mesh = format!("/v1/meshes/{MESH}");
    put(&router, &mesh, json!({})).await?;
    put(&router, &format!("{mesh}/topics/{TOPIC}"), json!({"publish": "subscribers"})).await?;
    for (member, role) in MEMBERS {
        let token = own_token(&token_file(data, member))?;
        let body = json!({"role": role, "token_sha256": [hex(&Sha256::digest(token))]});
        put(&router, &format!("{mesh}/members/{member}"), body).await?;
        put(&router, &format!("{mesh}/topics/{TOPIC}/subscriptions/{member}"), json!({})).await?;
    }
    Ok(())
}

/// A member's token: the one of the start before, or a new one.
fn own_token(path: &Path) -> Result<String, Stop> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    if let Ok(token) = std::fs::read_to_string(path)
        && !token.trim().is_empty()
    {
        return Ok(token.trim().to_owned());
    }
    let token = new_token()?;
    let file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
    file.and_then(|mut file| writeln!(file, "{token}"))
        .map_err(|error| Stop::new(Exit::Io, format!("failed to write {}: {error}", path.display())))?;
    Ok(token)
}

async fn put(router: &Router, path: &str, body: Value) -> Result<(), Stop> {
    let failed = |why: String| Stop::new(Exit::Io, format!("failed to make the demo mesh: {path}: {why}"));
    let request = Request::put(path)
        .header(header::HOST, "localhost")
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(body.to_string()))
        .map_err(|error| failed(error.to_string()))?;
    let Ok(response) = router.clone().oneshot(request).await;
    match response.status().is_success() {
        true => Ok(()),
        false => Err(failed(response.status().to_string())),
    }
}

/// What to try with it.
pub(super) fn commands(data: &Path) -> Vec<Command> {
    let store = format!("--store 'sqlite:{}'", data.join("outbox.db").display());
    vec![
        Command {
            words: "Publish to a topic of the demo mesh; it is appended once, whatever is killed meanwhile.",
            line: format!("semel outbox send --topic {TOPIC} '{{\"hello\":\"mesh\"}}' --wait 30 {store}"),
        },
        Command {
            words: "Every subscriber has it, until it is acknowledged.",
            line: format!("semel inbox list --wait 30 {store}"),
        },
        Command {
            words: "See what the topic has, as an operator.",
            line: format!(
                "semel broker history --mesh {MESH} --topic {TOPIC} --store 'sqlite:{}'",
                data.join("broker.db").display()
            ),
        },
    ]
}

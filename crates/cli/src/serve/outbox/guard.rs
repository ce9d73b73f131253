//! Who may speak to the outbox. On a Unix socket, its own user; on TCP, who has the token and is no browser.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, Response, StatusCode, header};
use axum::serve::Listener;
use subtle::ConstantTimeEq;
use tokio::net::{UnixListener, UnixStream};

use crate::exit::{Exit, Stop};
use crate::outbox::answer::refusal;
use crate::outbox::front::Door;

/// What TCP asks for.
pub(crate) struct Ticket {
    /// The token.
    pub(crate) token: String,
    /// Names by which the outbox may be called.
    pub(crate) hosts: Vec<String>,
}

/// Who stands at the door. Without a ticket the socket has seen to it.
#[derive(Clone)]
pub(crate) struct Guard(pub(crate) Option<Arc<Ticket>>);

impl Door for Guard {
    fn refuse(&self, headers: &HeaderMap, path: &str) -> Option<Response<Body>> {
        if headers.contains_key(header::ORIGIN) {
            let message = "pages of a browser may not speak to the outbox";
            return Some(refusal(StatusCode::FORBIDDEN, "origin-refused", message));
        }
        let ticket = self.0.as_ref()?;
        let mut hosts = headers.get_all(header::HOST).iter();
        let host = hosts.next().and_then(|host| host.to_str().ok()).unwrap_or_default();
        if !ticket.names(host) || hosts.next().is_some() {
            let message = "this outbox is not called by that name; see --allow-host";
            return Some(refusal(StatusCode::FORBIDDEN, "host-refused", message));
        }
        let given =
            headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let given = given.strip_prefix("Bearer ").unwrap_or_default().trim();
        let is_right = bool::from(given.as_bytes().ct_eq(ticket.token.as_bytes()));
        if is_right || path == "/healthz" {
            return None;
        }
        let mut response =
            refusal(StatusCode::UNAUTHORIZED, "token-missing", "send Authorization: Bearer TOKEN");
        response.headers_mut().insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
        Some(response)
    }
}

impl Ticket {
    /// Whether the outbox may be called so.
    fn names(&self, host: &str) -> bool {
        let name = host
            .rsplit_once(':')
            .filter(|(_, port)| port.bytes().all(|b| b.is_ascii_digit()))
            .map_or(host, |(name, _)| name);
        self.hosts
            .iter()
            .any(|allowed| allowed.eq_ignore_ascii_case(host) || allowed.eq_ignore_ascii_case(name))
    }
}

/// The names that an address has by itself.
pub(crate) fn own_hosts(address: SocketAddr) -> Vec<String> {
    let mut hosts = vec![address.ip().to_string(), format!("[{}]", address.ip())];
    if address.ip().is_loopback() {
        hosts.extend(["localhost".to_owned(), "127.0.0.1".to_owned(), "[::1]".to_owned()]);
    }
    hosts
}

/// Reads a token: one line, hard to guess.
pub(crate) fn token(path: &Path) -> Result<String, Stop> {
    let bad = |why: String| Stop::new(Exit::Config, format!("--token-file {}: {why}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| bad(error.to_string()))?;
    let token = text.trim().to_owned();
    if token.len() < 8 || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(bad("a token is one word of at least 8 printable characters".to_owned()));
    }
    Ok(token)
}

/// A socket that answers its own user only.
pub(crate) struct OwnSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl OwnSocket {
    /// Makes the socket, 0600, in a directory that is its user's own.
    pub(crate) fn bind(path: &Path) -> Result<Self, Stop> {
        let failed = |what: &str, error: &dyn std::fmt::Display| {
            Stop::new(Exit::Io, format!("failed to {what} {}: {error}", path.display()))
        };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !folder.exists() {
            let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
            made.map_err(|error| failed("make the folder of", &error))?;
        }
        let about = folder.metadata().map_err(|error| failed("look at the folder of", &error))?;
        if about.mode() & 0o022 != 0 {
            return Err(Stop::new(
                Exit::Config,
                format!(
                    "others may write in {}, and could put a socket of theirs in the place of ours: choose a folder of your \
                     own (chmod 700)",
                    folder.display()
                ),
            ));
        }
        if about.mode() & 0o077 != 0 {
            tracing::warn!("{} is open to others; chmod 700 it", folder.display());
        }
        // The lock on the store says that nobody serves it: a socket that is left is a dead process's.
        if path.symlink_metadata().is_ok_and(|about| about.mode() & libc::S_IFMT == libc::S_IFSOCK) {
            std::fs::remove_file(path).map_err(|error| failed("remove the old socket", &error))?;
        }
        let listener = bind_private(path).map_err(|error| failed("listen on", &error))?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
            .map_err(|error| failed("close to others", &error))?;
        Ok(Self { listener, path: path.to_path_buf() })
    }
}

/// Binds with a mask, so that there is no moment at which others could connect.
fn bind_private(path: &Path) -> io::Result<UnixListener> {
    // SAFETY: umask only sets a number of this process; nothing else of it makes files at start.
    let before = unsafe { libc::umask(0o177) };
    let bound = UnixListener::bind(path);
    // SAFETY: as above.
    unsafe { libc::umask(before) };
    bound
}

impl Drop for OwnSocket {
    fn drop(&mut self) {
        // A socket that is left is removed by the next start.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Listener for OwnSocket {
    type Io = UnixStream;
    type Addr = ();

    async fn accept(&mut self) -> (UnixStream, ()) {
        // SAFETY: geteuid has no preconditions.
        let own = unsafe { libc::geteuid() };
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => match stream.peer_cred() {
                    Ok(peer) if peer.uid() == own || peer.uid() == 0 => return (stream, ()),
                    Ok(peer) => tracing::warn!(uid = peer.uid(), "refused another user's connection"),
                    Err(error) => tracing::warn!(%error, "refused a connection of nobody"),
                },
                Err(error) => {
                    tracing::warn!(%error, "failed to accept a connection");
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<()> {
        Ok(())
    }
}

//! The socket between the owner of a file and other processes of the same user. Owns its name and the form of what goes over it:
//! a length in four bytes, then JSON. Refuses everybody who is not the file's user.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::{JoinHandle, JoinSet};

use crate::calls::{Answer, Call};
use crate::errors::CoreError;

/// The longest call or answer.
const FRAME_BYTES_MAX: u32 = 64 << 20;

/// A folder that is open, and the socket's short name in it: addresses of sockets have at most 107 bytes, and folders of
/// applications are longer.
struct Place {
    folder: std::fs::File,
    name: String,
}

impl Place {
    fn beside(database: &Path) -> io::Result<Self> {
        let path = database.canonicalize()?;
        let folder = path.parent().map_or_else(|| PathBuf::from("/"), Path::to_path_buf);
        let digest = Sha256::digest(path.file_name().unwrap_or_default().as_encoded_bytes());
        let name = digest[..6].iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        Ok(Self { folder: std::fs::File::open(folder)?, name: format!(".semel-{name}.sock") })
    }

    fn path(&self) -> PathBuf {
        use std::os::fd::AsRawFd;
        PathBuf::from(format!("/proc/self/fd/{}/{}", self.folder.as_raw_fd(), self.name))
    }
}

/// Serves other processes until the task is aborted. `None`: there is no socket here, and each process needs a file of its own.
pub(crate) fn listen<F, A>(database: &Path, answer: F) -> Option<JoinHandle<()>>
where
    F: Fn(Call) -> A + Send + Sync + 'static,
    A: Future<Output = Result<Answer, CoreError>> + Send + 'static,
{
    let place = Place::beside(database).ok()?;
    // Only the owner of the file comes here: what is there was left by an owner that is gone.
    let _ = std::fs::remove_file(place.path());
    let listener = UnixListener::bind(place.path())
        .inspect_err(
            |error| tracing::warn!(%error, "no other process can hand over: its socket cannot be made"),
        )
        .ok()?;
    let answer = Arc::new(answer);
    Some(tokio::spawn(async move {
        let mut serving = JoinSet::new();
        loop {
            tokio::select! {
                Ok((stream, _)) = listener.accept() => {
                    let answer = Arc::clone(&answer);
                    serving.spawn(async move {
                        // A peer that is gone has what it asked for, or asks again.
                        let _ = serve(stream, &*answer).await;
                    });
                }
                Some(_) = serving.join_next() => {}
                else => tokio::task::yield_now().await,
            }
        }
    }))
}

async fn serve<F, A>(mut stream: UnixStream, answer: &F) -> io::Result<()>
where
    F: Fn(Call) -> A,
    A: Future<Output = Result<Answer, CoreError>> + Send + 'static,
{
    // SAFETY: it reads a number of this process.
    let own = unsafe { libc::geteuid() };
    if stream.peer_cred()?.uid() != own {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    loop {
        let call: Call = read(&mut stream).await?;
        // In a task of its own: what was begun ends, also where the peer goes away.
        let answer = tokio::spawn(answer(call)).await.map_err(io::Error::other)?;
        write(&mut stream, &answer).await?;
    }
}

/// Asks the owner.
///
/// # Errors
/// There is none to be reached, or it went away before it answered.
pub(crate) async fn ask(database: &Path, call: &Call) -> io::Result<Result<Answer, CoreError>> {
    let mut stream = connect(database).await?;
    write(&mut stream, call).await?;
    read(&mut stream).await
}

/// Returns when the owner is gone.
pub(crate) async fn outlive_owner(database: &Path) {
    if let Ok(mut stream) = connect(database).await {
        // It never speaks unasked: what comes is the end.
        let _ = stream.read_u8().await;
    }
}

async fn connect(database: &Path) -> io::Result<UnixStream> {
    let place = Place::beside(database)?;
    UnixStream::connect(place.path()).await
}

async fn write<T: Serialize>(stream: &mut UnixStream, said: &T) -> io::Result<()> {
    let bytes = serde_json::to_vec(said)?;
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    stream.write_all(&length.to_be_bytes()).await?;
    stream.write_all(&bytes).await
}

async fn read<T: for<'de> Deserialize<'de>>(stream: &mut UnixStream) -> io::Result<T> {
    let length = stream.read_u32().await?;
    if length > FRAME_BYTES_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; length as usize];
    stream.read_exact(&mut bytes).await?;
    Ok(serde_json::from_slice(&bytes)?)
}

//! Whether a connection still lives: when it must have sent its first request, its next one, or taken its answer. Only
//! says so; closing is the connection's.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// How long a client may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Until its request's head is there: the first one since it connected, TLS included.
    pub(crate) head: Duration,
    /// Between an answer and its next request.
    pub(crate) idle: Duration,
    /// To take a piece of its answer.
    pub(crate) write: Duration,
}

/// The liveness of one connection.
#[derive(Clone)]
pub(crate) struct Liveness(Arc<(Patience, Mutex<State>)>);

struct State {
    /// When it connected or was last answered.
    quiet_since: Instant,
    /// When the first byte of a later request came.
    head_since: Option<Instant>,
    /// When a piece of an answer could not be written.
    stuck_since: Option<Instant>,
    /// Requests that are being answered.
    busy: usize,
    /// Whether there was a request yet.
    asked: bool,
}

/// Why a connection is overdue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overdue {
    /// It did not send a request's head in time.
    Head,
    /// It sent nothing more.
    Idle,
    /// It did not take its answer.
    Stuck,
}

impl Liveness {
    pub(crate) fn new(patience: Patience) -> Self {
        let state =
            State { quiet_since: Instant::now(), head_since: None, stuck_since: None, busy: 0, asked: false };
        Self(Arc::new((patience, Mutex::new(state))))
    }

    /// A request is being answered, until the guard is dropped.
    pub(crate) fn busy(&self) -> Busy {
        let mut state = self.state();
        state.busy += 1;
        state.asked = true;
        state.head_since = None;
        Busy(self.clone())
    }

    /// Ends when the client is overdue.
    pub(crate) async fn overdue(&self) -> Overdue {
        let Patience { head, idle, write } = self.0.0;
        loop {
            let now = Instant::now();
            // No deadline that begins meanwhile ends before this.
            let look_again = now + head.min(idle).min(write);
            match self.due() {
                Some((due, why)) if due <= now => return why,
                Some((due, _)) => tokio::time::sleep_until(due.min(look_again)).await,
                None => tokio::time::sleep_until(look_again).await,
            }
        }
    }

    fn due(&self) -> Option<(Instant, Overdue)> {
        let Patience { head, idle, write } = self.0.0;
        let state = self.state();
        let stuck = state.stuck_since.map(|since| (since + write, Overdue::Stuck));
        let silent = match (state.busy, state.asked, state.head_since) {
            (1.., _, _) => None,
            (0, false, _) => Some((state.quiet_since + head, Overdue::Head)),
            (0, true, Some(since)) => Some((since + head, Overdue::Head)),
            (0, true, None) => Some((state.quiet_since + idle, Overdue::Idle)),
        };
        [stuck, silent].into_iter().flatten().min_by_key(|(due, _)| *due)
    }

    fn read(&self) {
        let mut state = self.state();
        if state.busy == 0 && state.head_since.is_none() {
            state.head_since = Some(Instant::now());
        }
    }

    fn written<T>(&self, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let mut state = self.state();
        match written {
            Poll::Pending => drop(state.stuck_since.get_or_insert_with(Instant::now)),
            Poll::Ready(_) => state.stuck_since = None,
        }
        written
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that holds this lock panics, and every state is whole.
        self.0.1.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that is being answered.
pub(crate) struct Busy(Liveness);

impl Drop for Busy {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.busy -= 1;
        if state.busy == 0 {
            state.quiet_since = Instant::now();
            state.head_since = None;
        }
    }
}

/// A stream whose liveness is felt.
pub(crate) struct Monitored<S> {
    inner: S,
    liveness: Liveness,
}

impl<S> Monitored<S> {
    pub(crate) fn new(inner: S, liveness: Liveness) -> Self {
        Self { inner, liveness }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Monitored<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.liveness.read();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Monitored<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.liveness.written(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, slices);
        self.liveness.written(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// Runs a connection until it ends or its client is overdue.
pub(crate) async fn while_alive<T>(
    liveness: &Liveness,
    connection: impl Future<Output = T>,
) -> Result<T, Overdue> {
    tokio::select! {
        ended = connection => Ok(ended),
        why = liveness.overdue() => Err(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience = Patience {
        head: Duration::from_secs(10),
        idle: Duration::from_secs(60),
        write: Duration::from_secs(30),
    };

    async fn seconds_until(liveness: &Liveness, why: Overdue) -> u64 {
        let started = Instant::now();
        assert_eq!(liveness.overdue().await, why);
        started.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_client_is_overdue_however_it_drips() {
        let liveness = Liveness::new(PATIENCE);
        let dripping = liveness.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                dripping.read();
            }
        });
        assert_eq!(seconds_until(&liveness, Overdue::Head).await, 10);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_waits_for_its_answer_is_not_overdue() {
        let liveness = Liveness::new(PATIENCE);
        let busy = liveness.busy();
        let late = tokio::time::timeout(Duration::from_secs(3600), liveness.overdue()).await;
        assert!(late.is_err());
        drop(busy);
        assert_eq!(seconds_until(&liveness, Overdue::Idle).await, 60);
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_head_has_its_own_deadline() {
        let liveness = Liveness::new(PATIENCE);
        drop(liveness.busy());
        let (later, started) = (liveness.clone(), Instant::now());
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(7)).await;
            later.read();
        });
        assert_eq!(liveness.overdue().await, Overdue::Head);
        assert_eq!(started.elapsed().as_secs(), 17);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_overdue() {
        let liveness = Liveness::new(PATIENCE);
        let _busy = liveness.busy();
        let _ = liveness.written::<()>(Poll::Pending);
        assert_eq!(seconds_until(&liveness, Overdue::Stuck).await, 30);
    }
}

//! Which protocol a client speaks, by its first bytes, which are then read again.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// What every HTTP/2 client sends first.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spoken {
    Http1,
    Http2,
    /// It left without a word.
    Nothing,
}

/// A stream whose first bytes are read again.
pub(crate) struct Rewound<S> {
    first: [u8; 24],
    from: usize,
    to: usize,
    inner: S,
    /// What was met while the first bytes were handed out; told with the next reading.
    failed: Option<io::Error>,
}

/// Reads until it is clear what the client speaks.
pub(crate) async fn sniff<S: AsyncRead + Unpin>(mut inner: S) -> io::Result<(Spoken, Rewound<S>)> {
    let (mut first, mut to) = ([0; 24], 0);
    let spoken = loop {
        let read = inner.read(&mut first[to..]).await?;
        to += read;
        if first[..to] != PREFACE[..to] {
            break Spoken::Http1;
        }
        match (read, to) {
            (0, 0) => break Spoken::Nothing,
            (0, _) => break Spoken::Http1,
            (_, 24) => break Spoken::Http2,
            _ => {}
        }
    };
    Ok((spoken, Rewound { first, from: 0, to, inner, failed: None }))
}

impl<S: AsyncRead + Unpin> AsyncRead for Rewound<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(error) = self.failed.take() {
            return Poll::Ready(Err(error));
        }
        if self.from == self.to {
            return Pin::new(&mut self.inner).poll_read(cx, buffer);
        }
        let count = (self.to - self.from).min(buffer.remaining());
        buffer.put_slice(&self.first[self.from..self.from + count]);
        self.from += count;
        // With what follows, if it is there: a reader that got so little would make room for as much again.
        if buffer.remaining() > 0
            && let Poll::Ready(Err(error)) = Pin::new(&mut self.inner).poll_read(cx, buffer)
        {
            self.failed = Some(error);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Rewound<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, slices)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_bytes_tell_and_are_not_lost() {
        let later = [&PREFACE[..], b"more"].concat();
        for (sent, spoken) in [
            (&b"POST / HTTP/1.1\r\n\r\n"[..], Spoken::Http1),
            (b"PRI * HTTP/1", Spoken::Http1),
            (b"PRI", Spoken::Http1),
            (&later, Spoken::Http2),
            (b"", Spoken::Nothing),
        ] {
            let (found, mut stream) = sniff(sent).await.unwrap();
            assert_eq!(found, spoken);
            let mut read = Vec::new();
            stream.read_to_end(&mut read).await.unwrap();
            assert_eq!(read, sent);
        }
    }

    #[tokio::test]
    async fn the_first_bytes_come_with_what_follows() {
        let sent = b"POST /a-path-that-is-long HTTP/1.1\r\nHost: a\r\n\r\n";
        let (_, mut stream) = sniff(&sent[..]).await.unwrap();
        let mut read = [0; 100];
        assert_eq!(stream.read(&mut read).await.unwrap(), sent.len());
    }

    /// A stream that breaks after its first bytes.
    struct Breaks(bool);

    impl AsyncRead for Breaks {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            if std::mem::replace(&mut self.0, true) {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            buffer.put_slice(b"GET");
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn a_failure_behind_the_first_bytes_is_told_after_them() {
        let (_, mut stream) = sniff(Breaks(false)).await.unwrap();
        let mut read = [0; 100];
        assert_eq!(stream.read(&mut read).await.unwrap(), 3);
        let failed = stream.read(&mut read).await.unwrap_err();
        assert_eq!(failed.kind(), io::ErrorKind::ConnectionReset);
    }
}

//! Bodies that come in pieces, late, or not to their end.

use std::time::Duration;

use axum_core::body::Body;
use bytes::Bytes;
use futures_util::stream;
use http_body::Frame;
use http_body_util::StreamBody;
use tokio::time::sleep;

use crate::routes::KEPT_BYTES_MAX;
use crate::script::Piece;
use crate::world::World;

/// What becomes of the second half of a body.
#[derive(Clone, Copy, Debug)]
enum Second {
    After(Duration),
    Breaks,
    Never,
}

/// A body with these words.
pub(crate) fn body(world: &World, piece: Piece, words: Bytes) -> Body {
    match piece {
        Piece::Whole => Body::from(words),
        Piece::Large => {
            // Blanks after a JSON text do not change what it says.
            let padding = " ".repeat(usize::try_from(KEPT_BYTES_MAX).unwrap_or(0));
            let text = [words.as_ref(), padding.as_bytes()].concat();
            Body::from(text)
        }
        Piece::Slow => halves(words, Second::After(world.rng(|rng| rng.millis(100, 6000)))),
        Piece::Breaks => halves(words, Second::Breaks),
        Piece::Hangs => halves(words, Second::Never),
    }
}

/// An upload that comes late, breaks off, or never comes to its end.
pub(crate) fn upload(world: &World, words: Bytes) -> Body {
    match world.rng(|rng| rng.below(4)) {
        0 => halves(words, Second::Never),
        1 => halves(words, Second::Breaks),
        _ => halves(words, Second::After(world.rng(|rng| rng.millis(100, 30_000)))),
    }
}

/// An upload whose second half comes after so long.
pub(crate) fn slow_upload(words: Bytes, after: Duration) -> Body {
    halves(words, Second::After(after))
}

/// An upload that never comes to its end.
pub(crate) fn stalled_upload(words: Bytes) -> Body {
    halves(words, Second::Never)
}

fn halves(words: Bytes, second: Second) -> Body {
    let (first, last) = (words.slice(..words.len() / 2), words.slice(words.len() / 2..));
    let pieces = stream::unfold(0, move |sent| {
        let (first, last) = (first.clone(), last.clone());
        async move {
            match (sent, second) {
                (0, _) => Some((Ok(Frame::data(first)), 1)),
                (1, Second::After(time)) => {
                    sleep(time).await;
                    Some((Ok(Frame::data(last)), 2))
                }
                (1, Second::Breaks) => Some((Err(std::io::Error::other("simulated")), 2)),
                (1, Second::Never) => std::future::pending().await,
                _ => None,
            }
        }
    });
    Body::new(StreamBody::new(pieces))
}

//! Every bound of the outbox in one place, its unit last. Settings may lower them.

use std::time::Duration;

/// Largest body of a message.
pub const PAYLOAD_BYTES_MAX: usize = 1 << 20;
/// Largest part of an answer's body that is kept.
pub const ANSWER_BYTES_MAX: usize = 1 << 20;
/// All header lines of a message together.
pub const HEADERS_BYTES_MAX: usize = 16 << 10;
/// Longest address of a message.
pub const URL_BYTES_MAX: usize = 8 << 10;
/// Longest name of a lane, a principal or a logical key.
pub const NAME_CHARS_MAX: usize = 255;
/// Attempts of one message that the log keeps.
pub const ATTEMPTS_KEPT_MAX: u32 = 100;
/// Events that are kept for those who come back.
pub const EVENTS_KEPT_MAX: i64 = 100_000;
/// Messages of one list.
pub const LIST_ROWS_MAX: u32 = 1000;
/// Longest error text that is kept.
pub const ERROR_CHARS_MAX: usize = 500;
/// Characters that are kept of a code in an answer: codes are words, and a text of others has an end.
pub const CODE_CHARS_MAX: usize = 100;
/// How far an announced retention is undercut: one part in so many of it.
pub const RETENTION_MARGIN_PARTS: u32 = 24;
/// Clocks that differ by less are one clock.
pub const SKEW_MAX: Duration = Duration::from_secs(60);
/// Longest time that `Prefer: wait` waits.
pub const WAIT_MAX: Duration = Duration::from_secs(120);

/// A text of others with an end: at most so many characters, the last of which says that there were more.
pub fn shorten(text: &str, chars_max: usize) -> String {
    match text.chars().nth(chars_max) {
        None => text.to_owned(),
        Some(_) => text.chars().take(chars_max.saturating_sub(1)).chain(['…']).collect(),
    }
}

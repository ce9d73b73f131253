//! The limits of a broker, each with its unit.

use std::time::Duration;

/// The largest payload that a setting may allow.
pub const INLINE_BYTES_MOST: usize = 1 << 20;
/// What a message may have beside its payload, in bytes: names, mentions, white space.
pub const ENVELOPE_BYTES_MAX: usize = 64 << 10;
/// Bytes of one request with several messages.
pub const BATCH_BYTES_MAX: usize = 8 << 20;
/// Messages of one request.
pub const BATCH_MESSAGES_MAX: usize = 1000;
/// Members that one message may mention.
pub const MENTIONS_MAX: usize = 100;
/// Characters of a mesh's, member's, topic's, webhook's or consumer's name.
pub const NAME_CHARS_MAX: usize = 200;
/// Messages on one page.
pub const PAGE_MAX: usize = 500;
/// Messages on a page where nothing is asked.
pub const PAGE_USUAL: usize = 100;
/// Lines of one stream.
pub const LINES_MAX: usize = 64;
/// Tokens of one member that are live at a time.
pub const TOKENS_MAX: usize = 8;
/// Secrets of one webhook that are live at a time.
pub const SECRETS_MAX: usize = 2;
/// Publishes that wait for a transaction.
pub const WAITING_MAX: usize = 10_000;
/// Publishes of one transaction.
pub const TOGETHER_MAX: usize = 256;
/// Payload bytes of one transaction, after which no other publish is taken along.
pub const TOGETHER_BYTES: usize = 4 << 20;
/// Rows of a list for operators.
pub const LIST_MAX: usize = 1000;
/// Ids that one transaction of a sweep removes.
pub const SWEEP_BATCH: usize = 200;
/// How long a ticket may be used to open a stream.
pub const TICKET_LIFE: Duration = Duration::from_secs(60);
/// How long a reader may take nothing before its stream is closed.
pub const READER_STALL_MAX: Duration = Duration::from_secs(30);
/// Streams of one broker.
pub const STREAMS_MAX: usize = 50_000;

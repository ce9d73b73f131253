//! Every bound of the contract in one place, its unit last. Nothing here is configurable.

use std::time::Duration;

/// Longest key, in characters, whatever the format.
pub const KEY_CHARS_MAX: usize = 255;
/// Longest name of a principal or tenant, in characters: more than any store's index should be asked to hold.
pub const CALLER_CHARS_MAX: usize = 255;
/// Deepest JSON that is canonicalised; deeper bodies are fingerprinted raw.
pub const JSON_DEPTH_MAX: usize = 127;
/// Integer literals beyond this magnitude do not survive a double; such bodies are fingerprinted raw.
pub const JSON_INTEGER_MAX: u64 = 1 << 53;
/// Longest pause that a `Retry-After` can impose.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 3600);
/// Longest time that an in-flight duplicate may wait for the first to settle.
pub const IN_FLIGHT_WAIT_MAX: Duration = Duration::from_secs(600);
/// Longest duration that a setting accepts.
pub const SETTING_DURATION_MAX: Duration = Duration::from_secs(10 * 366 * 86_400);

//! The keys that answers are encrypted under, from a file: one key on each line, `ID BASE64`, the first of which writes
//! while all of them read. Empty lines and lines that begin with `#` are passed over. Never shows a key: not in `Debug`,
//! and not in an error, which names a line by its number only.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chacha20poly1305::aead::KeyInit;
use chacha20poly1305::{Key, XChaCha20Poly1305};

/// The longest key file.
pub const KEY_FILE_BYTES_MAX: u64 = 64 << 10;
/// The longest id of a key.
pub const KEY_ID_BYTES_MAX: usize = 64;
/// Bytes of a key.
const KEY_BYTES: usize = 32;

/// Keys by their ids, the writing one first. To rotate: put a new key on the first line, keep the old one below it for
/// as long as records live, then remove it.
#[derive(Clone)]
pub struct KeyRing(Arc<[Named]>);

struct Named {
    id: String,
    cipher: XChaCha20Poly1305,
}

impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|key| &key.id)).finish()
    }
}

/// What is wrong with a key file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyFileError {
    /// A line is not a key.
    Line {
        /// Which line, counted from one.
        number: usize,
        /// What is wrong with it.
        what: &'static str,
    },
    /// There is no key in it.
    Empty,
    /// It cannot be read.
    Unreadable(String),
    /// It is longer than [`KEY_FILE_BYTES_MAX`].
    TooLarge,
    /// Others than its owner can read or change it.
    OpenToOthers {
        /// Its permission bits.
        mode: u32,
    },
}

impl fmt::Display for KeyFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyFileError::Line { number, what } => write!(f, "line {number} of the key file {what}"),
            KeyFileError::Empty => {
                f.write_str("the key file holds no key: each line is an id, a space and 32 bytes in base64")
            }
            KeyFileError::Unreadable(why) => write!(f, "the key file cannot be read: {why}"),
            KeyFileError::TooLarge => write!(f, "the key file is larger than {KEY_FILE_BYTES_MAX} bytes"),
            KeyFileError::OpenToOthers { mode } => {
                write!(
                    f,
                    "the key file is open to others than its owner (mode {mode:04o}): set it to 0600 or 0400"
                )
            }
        }
    }
}

impl std::error::Error for KeyFileError {}

impl KeyRing {
    /// Reads the text of a key file.
    pub fn parse(text: &str) -> Result<Self, KeyFileError> {
        let mut keys: Vec<Named> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |what| KeyFileError::Line { number: index + 1, what };
            let key = parse_line(line).map_err(wrong)?;
            if keys.iter().any(|known| known.id == key.id) {
                return Err(wrong("has the id of an earlier line"));
            }
            keys.push(key);
        }
        if keys.is_empty() { Err(KeyFileError::Empty) } else { Ok(Self(keys.into())) }
    }

    /// Reads a key file. On Unix a file that others than its owner can reach is refused; elsewhere its permissions are
    /// not looked at.
    pub fn load(path: &Path) -> Result<Self, KeyFileError> {
        let unreadable =
            |error: std::io::Error| KeyFileError::Unreadable(format!("{}: {error}", path.display()));
        let file = File::open(path).map_err(unreadable)?;
        // The permissions of the file that was opened, not of whatever has its name by now.
        refuse_open_to_others(&file.metadata().map_err(unreadable)?)?;
        let mut text = String::new();
        file.take(KEY_FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(unreadable)?;
        if text.len() as u64 > KEY_FILE_BYTES_MAX {
            return Err(KeyFileError::TooLarge);
        }
        Self::parse(&text)
    }

    /// The id of the key that writes.
    pub fn writing_id(&self) -> &str {
        &self.first().id
    }

    pub(crate) fn writing(&self) -> &XChaCha20Poly1305 {
        &self.first().cipher
    }

    pub(crate) fn reading(&self, id: &str) -> Option<&XChaCha20Poly1305> {
        self.0.iter().find(|key| key.id == id).map(|key| &key.cipher)
    }

    fn first(&self) -> &Named {
        self.0.first().expect("a key ring has a key")
    }
}

fn parse_line(line: &str) -> Result<Named, &'static str> {
    let mut words = line.split_whitespace();
    let (Some(id), Some(key), None) = (words.next(), words.next(), words.next()) else {
        return Err("is not an id, a space and a key");
    };
    let may_stand = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if id.len() > KEY_ID_BYTES_MAX || !id.bytes().all(may_stand) {
        return Err("has an id that is not 1 to 64 letters, digits, dots, dashes and underscores");
    }
    let bytes = STANDARD.decode(key).map_err(|_| "has a key that is not base64")?;
    let bytes: [u8; KEY_BYTES] = bytes.try_into().map_err(|_| "has a key that is not 32 bytes long")?;
    if bytes == [0; KEY_BYTES] {
        return Err("has a key of zeros, which is no secret");
    }
    Ok(Named { id: id.to_owned(), cipher: XChaCha20Poly1305::new(&Key::from(bytes)) })
}

#[cfg(unix)]
fn refuse_open_to_others(metadata: &std::fs::Metadata) -> Result<(), KeyFileError> {
    use std::os::unix::fs::PermissionsExt;
    let mode = metadata.permissions().mode() & 0o7777;
    if mode & 0o077 == 0 { Ok(()) } else { Err(KeyFileError::OpenToOthers { mode }) }
}

#[cfg(not(unix))]
fn refuse_open_to_others(_: &std::fs::Metadata) -> Result<(), KeyFileError> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> String {
        STANDARD.encode([byte; KEY_BYTES])
    }

    fn line_error(text: &str) -> (usize, &'static str) {
        match KeyRing::parse(text) {
            Err(KeyFileError::Line { number, what }) => (number, what),
            other => panic!("expected a wrong line, found {other:?}"),
        }
    }

    #[test]
    fn the_first_key_writes_and_all_read() {
        let ring =
            KeyRing::parse(&format!("# keys\n\nnew {}\r\nold\t{}\n", key(1), key(2))).expect("a key file");
        assert_eq!(ring.writing_id(), "new");
        assert!(ring.reading("new").is_some() && ring.reading("old").is_some());
        assert!(ring.reading("older").is_none() && ring.reading("").is_none());
    }

    #[test]
    fn a_wrong_line_is_named_by_its_number_and_its_fault() {
        let good = format!("a {}", key(1));
        for (line, fault) in [
            ("b".to_owned(), "an id, a space and a key"),
            (format!("b {} c", key(2)), "an id, a space and a key"),
            (format!("b/c {}", key(2)), "has an id"),
            (format!("{} {}", "b".repeat(65), key(2)), "has an id"),
            ("b !!!".to_owned(), "not base64"),
            (format!("b {}", STANDARD.encode([2; 31])), "not 32 bytes"),
            (format!("b {}", STANDARD.encode([2; 33])), "not 32 bytes"),
            (format!("b {}", key(0)), "zeros"),
            (format!("a {}", key(2)), "an earlier line"),
        ] {
            let (number, what) = line_error(&format!("# first\n{good}\n{line}\n"));
            assert!(number == 3 && what.contains(fault), "{line}: line {number} {what}");
        }
        for text in ["", "\n", "# nothing\n"] {
            assert_eq!(KeyRing::parse(text).expect_err("it holds no key"), KeyFileError::Empty);
        }
    }

    #[test]
    fn neither_debug_nor_errors_show_a_key() {
        let secret = key(0x5a);
        let ring = KeyRing::parse(&format!("a {secret}")).expect("a key file");
        assert_eq!(format!("{ring:?}"), "[\"a\"]");
        for text in
            [format!("a {secret}="), format!("a {secret} {secret}"), format!("{secret} a"), secret.clone()]
        {
            let error = KeyRing::parse(&text).expect_err("it is no key file");
            assert!(!format!("{error} {error:?}").contains(&secret[..8]), "{error}");
        }
    }
}

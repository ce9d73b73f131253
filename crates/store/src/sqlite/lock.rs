//! Ownership of the file: an exclusive lock on a file beside it, held as long as the store lives. The lock is the
//! operating system's, so a killed process leaves none behind.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::error::OpenError;

/// The longest content of a lock file that is read.
const LOCK_FILE_BYTES_MAX: u64 = 4096;

/// The lock on a database file.
#[derive(Debug)]
pub struct FileLock {
    path: PathBuf,
    // Closing the file gives the lock back.
    file: File,
}

/// Who owns a database file, as far as its lock file tells.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Owner {
    /// The process.
    pub process: Option<u32>,
    /// Where it can be asked about the store.
    pub admin: Option<String>,
}

/// Reads the lock file beside `database`. It says who took the lock last; only the attempt to open the store tells
/// whether that process still has it.
pub fn owner(database: &Path) -> std::io::Result<Owner> {
    let mut text = String::new();
    let path = beside(&super::connect::canonical(database)?);
    File::open(path)?.take(LOCK_FILE_BYTES_MAX).read_to_string(&mut text)?;
    let mut lines = text.lines().map(str::trim);
    let process = lines.next().and_then(|line| line.parse().ok());
    Ok(Owner { process, admin: lines.next().filter(|line| !line.is_empty()).map(str::to_owned) })
}

impl FileLock {
    /// Takes the lock beside `database`, or says who has it.
    ///
    /// # Errors
    /// Somebody else has it, or the file beside it cannot be written.
    pub fn take(database: &Path) -> Result<Self, OpenError> {
        let path = beside(database);
        let mut file = OpenOptions::new().create(true).read(true).write(true).truncate(false).open(&path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(OpenError::Locked { holder: holder(&mut file), lock_file: path });
            }
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
        file.set_len(0)?;
        file.seek(SeekFrom::Start(0))?;
        writeln!(file, "{}", std::process::id())?;
        Ok(Self { path, file })
    }

    /// Writes down where the owner can be asked. Whoever reads at the same time sees the old content or the new one.
    pub(super) fn publish(&self, address: &str) -> std::io::Result<()> {
        let content = format!("{}\n{}\n", std::process::id(), address.trim());
        let mut file = &self.file;
        file.seek(SeekFrom::Start(0))?;
        file.write_all(content.as_bytes())?;
        file.set_len(content.len() as u64)
    }

    /// Where the lock file is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn beside(database: &Path) -> PathBuf {
    let mut name = OsString::from(database);
    name.push(".lock");
    PathBuf::from(name)
}

fn holder(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.take(LOCK_FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
    text.lines().next()?.trim().parse().ok()
}

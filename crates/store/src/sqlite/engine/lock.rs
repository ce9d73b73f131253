//! Ownership of the file. Two locks say it, both the operating system's, so that a killed process leaves none behind: one on
//! a file beside the database, which also tells who the owner is, and one on the database file itself. The first can be
//! removed, replaced, or be another one behind a second name of the database; the second goes with the file, by whatever
//! name it is opened.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::error::OpenError;
use super::file::{canonical, create};

/// The longest content of a lock file that is read.
const LOCK_FILE_BYTES_MAX: u64 = 4096;

/// The locks of a database file.
#[derive(Debug)]
pub struct FileLock {
    path: PathBuf,
    // Given back in this order, the reverse of that in which they were taken: who gets the first finds the second free.
    database: OwnedDatabase,
    file: LockFile,
}

/// The locked file beside the database.
#[derive(Debug)]
struct LockFile(File);

/// Who owns a database file, as far as its lock file tells.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Owner {
    /// The process.
    pub process: Option<u32>,
    /// Where it can be asked about the store.
    pub admin: Option<String>,
    /// The file of the token that it wants to see, where it says one.
    pub token_file: Option<PathBuf>,
}

/// Reads the lock file beside `database`. It says who took the lock last; only the attempt to open the store tells
/// whether that process still has it.
pub fn owner(database: &Path) -> io::Result<Owner> {
    let mut text = String::new();
    let path = beside(&canonical(database)?);
    File::open(path)?.take(LOCK_FILE_BYTES_MAX).read_to_string(&mut text)?;
    let mut lines = text.lines().map(str::trim);
    let process = lines.next().and_then(|line| line.parse().ok());
    let mut said = || lines.next().filter(|line| !line.is_empty());
    let admin = said().map(str::to_owned);
    Ok(Owner { process, admin, token_file: said().map(PathBuf::from) })
}

impl Drop for LockFile {
    /// Gives the lock back in so many words: a child that was forked a moment ago still has the file open too, and closing
    /// it here alone would leave the lock with the child.
    fn drop(&mut self) {
        // Where this fails, the end of the process gives it back.
        let _ = self.0.unlock();
    }
}

impl FileLock {
    /// Creates `database` where there is none and takes its locks, or says who has them.
    ///
    /// # Errors
    /// Another store has them, by this name of the file or by another one; or the file beside it cannot be written.
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
        let mut file = LockFile(file);
        create(database)?;
        let owned = OwnedDatabase::take(database)?;
        let database =
            owned.ok_or_else(|| OpenError::Locked { lock_file: database.to_owned(), holder: None })?;
        file.0.set_len(0)?;
        file.0.seek(SeekFrom::Start(0))?;
        writeln!(file.0, "{}", std::process::id())?;
        Ok(Self { path, database, file })
    }

    /// Writes down where the owner can be asked. A reader at the same time sees the old content or the new one.
    ///
    /// # Errors
    /// The lock file cannot be written.
    pub fn publish(&self, address: &str) -> io::Result<()> {
        let content = format!("{}\n{}\n", std::process::id(), address.trim());
        let mut file = &self.file.0;
        file.seek(SeekFrom::Start(0))?;
        file.write_all(content.as_bytes())?;
        file.set_len(content.len() as u64)
    }

    /// Where the lock file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What syncs the whole database file.
    pub(super) fn database(&self) -> Arc<File> {
        Arc::clone(&self.database.file)
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

/// The file behind a path: its device and its number there.
type FileId = (u64, u64);

/// A descriptor of a database file. Closing any descriptor of a file drops every lock that SQLite has on it in this
/// process, the application's own connections included. So descriptors are kept and used again, until the file is deleted.
#[derive(Debug)]
struct Descriptor {
    file: Arc<File>,
    is_owned: bool,
}

static DESCRIPTORS: Mutex<BTreeMap<FileId, Descriptor>> = Mutex::new(BTreeMap::new());

fn descriptors() -> MutexGuard<'static, BTreeMap<FileId, Descriptor>> {
    DESCRIPTORS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The lock on the database file itself.
#[derive(Debug)]
struct OwnedDatabase {
    id: FileId,
    file: Arc<File>,
}

impl OwnedDatabase {
    /// `None`: another store has it, in this process or another.
    fn take(path: &Path) -> io::Result<Option<Self>> {
        if !system::HAS_LOCKS {
            let file = OpenOptions::new().read(true).write(true).open(path)?;
            return Ok(Some(Self { id: (0, 0), file: Arc::new(file) }));
        }
        let mut known = descriptors();
        known.retain(|_, kept| kept.is_owned || !is_deleted(&kept.file));
        let id = system::id(&path.metadata()?);
        if let std::collections::btree_map::Entry::Vacant(vacant) = known.entry(id) {
            let file = OpenOptions::new().read(true).write(true).open(path)?;
            if system::id(&file.metadata()?) != id {
                // Never closed: which file it is of, and who uses that one, is not known.
                std::mem::forget(file);
                return Err(io::Error::other("the file was replaced while it was opened"));
            }
            vacant.insert(Descriptor { file: Arc::new(file), is_owned: false });
        }
        let kept = known.get_mut(&id).ok_or(io::ErrorKind::NotFound)?;
        if kept.is_owned || !system::lock(&kept.file)? {
            return Ok(None);
        }
        kept.is_owned = true;
        Ok(Some(Self { id, file: Arc::clone(&kept.file) }))
    }
}

impl Drop for OwnedDatabase {
    fn drop(&mut self) {
        // Both under one lock: another store of this process finds it owned or free, and nothing between.
        let mut known = descriptors();
        system::unlock(&self.file);
        if let Some(kept) = known.get_mut(&self.id) {
            kept.is_owned = false;
        }
    }
}

fn is_deleted(file: &File) -> bool {
    file.metadata().is_ok_and(|metadata| system::names(&metadata) == 0)
}

/// Locks that belong to one open file, on one byte far behind the last page, where SQLite locks nothing.
#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
mod system {
    use std::fs::{File, Metadata};
    use std::io;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;

    pub(super) const HAS_LOCKS: bool = true;
    const BYTE: libc::off_t = libc::off_t::MAX - 1;

    pub(super) fn id(metadata: &Metadata) -> super::FileId {
        (metadata.dev(), metadata.ino())
    }

    pub(super) fn names(metadata: &Metadata) -> u64 {
        metadata.nlink()
    }

    /// Whether it could be locked; otherwise somebody else has it.
    pub(super) fn lock(file: &File) -> io::Result<bool> {
        match set(file, libc::F_WRLCK as _) {
            Ok(()) => Ok(true),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(super) fn unlock(file: &File) {
        // Where this fails, the end of the process gives it back.
        let _ = set(file, libc::F_UNLCK as _);
    }

    fn set(file: &File, kind: libc::c_short) -> io::Result<()> {
        // SAFETY: a lock is plain numbers, for which zero is a value.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = kind;
        lock.l_whence = libc::SEEK_SET as _;
        (lock.l_start, lock.l_len) = (BYTE, 1);
        // SAFETY: the descriptor is that of an open file, and the pointer is to a live lock.
        let set = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
        if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// Systems without such locks: the lock file alone says who owns the database.
#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
mod system {
    use std::fs::{File, Metadata};
    use std::io;

    pub(super) const HAS_LOCKS: bool = false;

    pub(super) fn id(_: &Metadata) -> super::FileId {
        (0, 0)
    }

    pub(super) fn names(_: &Metadata) -> u64 {
        1
    }

    pub(super) fn lock(_: &File) -> io::Result<bool> {
        Ok(true)
    }

    pub(super) fn unlock(_: &File) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever is given the first lock must find the second one free: otherwise a start right after a stop is refused, and
    /// names a file that nobody has.
    #[test]
    fn the_lock_file_is_given_back_after_the_database() {
        let directory = tempfile::tempdir().unwrap();
        let database = directory.path().join("semel.db");
        let lock = FileLock::take(&database).unwrap();
        let other = OpenOptions::new().read(true).write(true).open(lock.path()).unwrap();
        let held = descriptors();
        let dropping = std::thread::spawn(move || drop(lock));
        for _ in 0..30 {
            std::thread::sleep(std::time::Duration::from_millis(10));
            assert!(other.try_lock().is_err(), "the database is not given back yet");
        }
        drop(held);
        dropping.join().unwrap();
        other.try_lock().expect("both are given back");
        other.unlock().unwrap();
        FileLock::take(&database).expect("and can be taken again");
    }
}

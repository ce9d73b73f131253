//! Puts a [`Disk`] between SQLite and the operating system. Files are SQLite's own; writes, cuts, syncs and deletions are
//! told to the disk first, and those that the disk refuses do not happen.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use semel_store::sqlite::rusqlite::ffi;

use super::{Answer, Disk};

/// An open file that belongs to a disk.
#[derive(Clone)]
struct Open {
    disk: Disk,
    path: PathBuf,
    /// What SQLite itself does with such a file.
    methods: &'static ffi::sqlite3_io_methods,
}

static DEFAULT: AtomicPtr<ffi::sqlite3_vfs> = AtomicPtr::new(std::ptr::null_mut());
static DISKS: Mutex<BTreeMap<PathBuf, Disk>> = Mutex::new(BTreeMap::new());
/// By the address of the file.
static FILES: Mutex<BTreeMap<usize, Open>> = Mutex::new(BTreeMap::new());

fn locked<T>(mutex: &'static Mutex<T>) -> MutexGuard<'static, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Files of this folder are on this disk from now on.
pub(super) fn mount(folder: &Path, disk: &Disk) {
    static REGISTER: Once = Once::new();
    REGISTER.call_once(register);
    let folder = folder.canonicalize().expect("the folder is there");
    locked(&DISKS).insert(folder, disk.clone());
}

fn register() {
    // SAFETY: the default file system is registered for as long as the process lives; the copy is leaked and differs in
    // its name and in how it opens and deletes files.
    unsafe {
        let default = ffi::sqlite3_vfs_find(std::ptr::null());
        DEFAULT.store(default, Ordering::SeqCst);
        let mut ours = Box::new(std::ptr::read(default));
        ours.zName = c"semel-disk".as_ptr();
        ours.xOpen = Some(open);
        ours.xDelete = Some(delete);
        assert_eq!(ffi::sqlite3_vfs_register(Box::into_raw(ours), 1), ffi::SQLITE_OK);
    }
}

fn disk_of(path: &Path) -> Option<Disk> {
    locked(&DISKS).get(path.parent()?).cloned()
}

unsafe fn path_of(name: *const c_char) -> Option<PathBuf> {
    if name.is_null() {
        return None;
    }
    // SAFETY: SQLite gives a name that ends in NUL.
    Some(PathBuf::from(OsStr::from_bytes(unsafe { CStr::from_ptr(name) }.to_bytes())))
}

unsafe extern "C" fn open(
    files: *mut ffi::sqlite3_vfs,
    name: ffi::sqlite3_filename,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    flags_out: *mut c_int,
) -> c_int {
    // SAFETY: the arguments are passed on as they came, and a file that was opened has methods, which are static.
    unsafe {
        let open = (*DEFAULT.load(Ordering::SeqCst)).xOpen.expect("files can be opened");
        let path = path_of(name);
        let disk = path.as_deref().and_then(disk_of);
        if disk.as_ref().is_some_and(Disk::is_dead) {
            (*file).pMethods = std::ptr::null();
            return ffi::SQLITE_CANTOPEN;
        }
        let opened = open(files, name, file, flags, flags_out);
        if let (ffi::SQLITE_OK, Some(path), Some(disk)) = (opened, path, disk) {
            let methods: &'static ffi::sqlite3_io_methods = &*(*file).pMethods;
            disk.opened(&path);
            let mut ours = Box::new(std::ptr::read(methods));
            ours.xClose = Some(close);
            ours.xWrite = Some(write);
            ours.xTruncate = Some(truncate);
            ours.xSync = Some(sync);
            locked(&FILES).insert(file as usize, Open { disk, path, methods });
            (*file).pMethods = Box::leak(ours);
        }
        opened
    }
}

unsafe extern "C" fn delete(files: *mut ffi::sqlite3_vfs, name: *const c_char, sync: c_int) -> c_int {
    // SAFETY: the arguments are passed on as they came.
    unsafe {
        let path = path_of(name);
        if let Some((path, disk)) = path.and_then(|path| disk_of(&path).map(|disk| (path, disk))) {
            if disk.is_dead() {
                return ffi::SQLITE_IOERR_DELETE;
            }
            disk.deleted(&path, sync != 0);
        }
        (*DEFAULT.load(Ordering::SeqCst)).xDelete.expect("files can be deleted")(files, name, sync)
    }
}

fn found(file: *mut ffi::sqlite3_file) -> Open {
    locked(&FILES).get(&(file as usize)).cloned().expect("the file was opened here")
}

unsafe extern "C" fn close(file: *mut ffi::sqlite3_file) -> c_int {
    let open = locked(&FILES).remove(&(file as usize)).expect("the file was opened here");
    // SAFETY: the file is the one that SQLite asks to close.
    unsafe { open.methods.xClose.expect("files can be closed")(file) }
}

unsafe extern "C" fn write(
    file: *mut ffi::sqlite3_file,
    from: *const c_void,
    bytes: c_int,
    at: ffi::sqlite3_int64,
) -> c_int {
    let open = found(file);
    let length = usize::try_from(bytes).expect("a length is not negative");
    // SAFETY: SQLite gives so many bytes.
    let written = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), length) };
    match open.disk.write(&open.path, usize::try_from(at).expect("a place is not negative"), written) {
        // SAFETY: the arguments are passed on as they came.
        Answer::Done => unsafe { open.methods.xWrite.expect("files can be written")(file, from, bytes, at) },
        Answer::Full => ffi::SQLITE_FULL,
        Answer::Failed | Answer::Lost => ffi::SQLITE_IOERR_WRITE,
    }
}

unsafe extern "C" fn truncate(file: *mut ffi::sqlite3_file, bytes: ffi::sqlite3_int64) -> c_int {
    let open = found(file);
    match open.disk.cut(&open.path, usize::try_from(bytes).expect("a length is not negative")) {
        // SAFETY: the arguments are passed on as they came.
        Answer::Done => unsafe { open.methods.xTruncate.expect("files can be cut")(file, bytes) },
        Answer::Full | Answer::Failed | Answer::Lost => ffi::SQLITE_IOERR_TRUNCATE,
    }
}

unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, _: c_int) -> c_int {
    let open = found(file);
    match open.disk.sync(&open.path) {
        // What is durable is the disk's own business: the machine's disk is not asked.
        Answer::Done => ffi::SQLITE_OK,
        Answer::Lost => {
            let kept = open.disk.durable_bytes(&open.path) as ffi::sqlite3_int64;
            // SAFETY: the file is the one that SQLite asks to sync.
            unsafe { open.methods.xTruncate.expect("files can be cut")(file, kept) };
            ffi::SQLITE_IOERR_FSYNC
        }
        Answer::Full | Answer::Failed => ffi::SQLITE_IOERR_FSYNC,
    }
}

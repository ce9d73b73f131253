//! Whether the disk below a store's file is nearly full, in words for an operator. Reads the file system and writes nothing.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::config::Store;

/// Below this many bytes, or this part of the whole, somebody should hear of it.
const FREE_BYTES_MIN: u64 = 1 << 30;
const FREE_SHARE_MIN: f64 = 0.05;

/// What is said of the disk of this store; nothing where it has room, or is another machine's.
pub(crate) fn warnings(store: &Store) -> Vec<String> {
    match store {
        Store::Sqlite(path) => warnings_of(Path::new(path)),
        Store::Postgres(_) => Vec::new(),
    }
}

/// The same of a file.
pub(crate) fn warnings_of(file: &Path) -> Vec<String> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let said = room(folder).and_then(|(free, whole)| judge(free, whole));
    said.map(|said| format!("{}: {said}", file.display())).into_iter().collect()
}

fn judge(free: u64, whole: u64) -> Option<String> {
    let share = free as f64 / whole.max(1) as f64;
    (free < FREE_BYTES_MIN || share < FREE_SHARE_MIN).then(|| {
        format!(
            "the disk has {} MB free ({:.0} %); a full one takes no new keys and messages",
            free >> 20,
            share * 100.0
        )
    })
}

/// Free and all bytes of a folder's file system.
#[allow(clippy::useless_conversion, reason = "the numbers have other widths on other systems")]
fn room(folder: &Path) -> Option<(u64, u64)> {
    let path = CString::new(folder.as_os_str().as_bytes()).ok()?;
    // SAFETY: the type is plain numbers, for which zeroes are valid.
    let mut about: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends in a zero and the pointer is to a live value.
    let is_read = unsafe { libc::statvfs(path.as_ptr(), &raw mut about) } == 0;
    let block = u64::from(about.f_frsize);
    is_read.then(|| (u64::from(about.f_bavail) * block, u64::from(about.f_blocks) * block))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_is_nearly_full_is_told_and_one_with_room_is_not() {
        assert_eq!(judge(100 << 30, 200 << 30), None);
        assert!(judge(500 << 20, 2 << 30).is_some_and(|said| said.contains("500 MB free (24 %)")));
        assert!(judge(40 << 30, 1000 << 30).is_some(), "four of a hundred parts");
        assert!(room(Path::new("/")).is_some_and(|(free, whole)| whole > 0 && free <= whole));
        assert_eq!(warnings_of(Path::new("/no/such/folder/semel.db")), [] as [String; 0]);
    }
}

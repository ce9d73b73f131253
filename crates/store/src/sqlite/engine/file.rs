//! How connections are made: with which settings, and the proof that the settings took. A setting that is refused is
//! refused silently by SQLite, so each one is read back.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::error::OpenError;
use super::schema::{Schema, Version};

/// Earlier versions have the WAL-reset bug, which can corrupt a database when checkpoints and writes meet.
const SQLITE_VERSION_LEAST: i32 = 3_051_003;
/// How long a lock of a foreign process or a reader is waited for.
const BUSY: Duration = Duration::from_millis(250);
/// Prepared statements that a connection keeps.
const STATEMENTS_KEPT_MAX: usize = 128;
/// What the log is cut to when it begins again. Below that it keeps its length: writing over it needs no new blocks.
const LOG_KEPT_BYTES: i64 = 64 << 20;

/// Settings of every connection that writes, with the value that is read back.
const SETTINGS: &[(&str, &str, &str)] = &[
    ("synchronous", "FULL", "2"),
    ("fullfsync", "ON", "1"),
    ("checkpoint_fullfsync", "ON", "1"),
    ("foreign_keys", "ON", "1"),
    ("trusted_schema", "OFF", "0"),
    // Checkpoints have a thread of their own.
    ("wal_autocheckpoint", "0", "0"),
];

/// Refuses an SQLite library that is too old.
pub(super) fn check_version() -> Result<(), OpenError> {
    if rusqlite::version_number() < SQLITE_VERSION_LEAST {
        return Err(OpenError::SqliteTooOld { found: rusqlite::version() });
    }
    Ok(())
}

/// The one name of a file, so that two spellings of a path meet at one lock.
pub fn canonical(path: &Path) -> io::Result<PathBuf> {
    match path.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
            Ok(directory_of(path).canonicalize()?.join(name))
        }
        found => found,
    }
}

/// Creates the file where there is none, readable by its owner only, and makes its name durable.
pub(super) fn create(path: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match options.open(path) {
        Ok(file) => file.sync_all()?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        Err(error) => return Err(error),
    }
    sync_directory_of(path)
}

/// Syncs the whole database file, by a descriptor that stays open.
pub(super) fn sync(file: &File, path: &Path) -> io::Result<()> {
    file.sync_all()?;
    sync_directory_of(path)
}

fn sync_directory_of(path: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(directory_of(path))?.sync_all() } else { Ok(()) }
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Which schema a file has. Changes nothing, and does not ask who owns the file.
///
/// # Errors
/// It cannot be read, or a later release wrote it in a way that this one does not understand.
pub fn version(path: &Path, schema: &Schema) -> Result<Version, OpenError> {
    let found = match path.try_exists()? {
        true => schema.check(&for_reading(path)?)?,
        false => 0,
    };
    Ok(schema.after(found))
}

/// The first connection to a file that may be empty: then its pages are made as large as this. One that has pages keeps their
/// size.
pub(super) fn for_creating(path: &Path, schema: &Schema, page_bytes: u32) -> Result<Connection, OpenError> {
    let connection = open(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    schema.check(&connection)?;
    connection.pragma_update(None, "page_size", page_bytes)?;
    prepare(connection)
}

/// A connection that may write.
pub(super) fn for_writing(path: &Path, schema: &Schema) -> Result<Connection, OpenError> {
    let connection = open(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    // Before the first setting: a file of a later release is left as it is.
    schema.check(&connection)?;
    prepare(connection)
}

fn prepare(connection: Connection) -> Result<Connection, OpenError> {
    set(&connection, "journal_mode", "WAL", "wal")?;
    for (pragma, value, wanted) in SETTINGS {
        set(&connection, pragma, value, wanted)?;
    }
    connection.pragma_update(None, "journal_size_limit", LOG_KEPT_BYTES)?;
    Ok(connection)
}

/// A connection that only reads. The file is already in WAL mode.
pub(crate) fn for_reading(path: &Path) -> Result<Connection, OpenError> {
    let connection = open(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    set(&connection, "query_only", "ON", "1")?;
    Ok(connection)
}

fn open(path: &Path, access: OpenFlags) -> Result<Connection, OpenError> {
    let connection = Connection::open_with_flags(path, access | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    connection.busy_timeout(BUSY)?;
    keep_statements(&connection)?;
    // After a failed sync the log may not be what its index says: nothing may copy it on the way out.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    Ok(connection)
}

/// Statements are prepared once: values that are bound do not change how they are run.
pub(super) fn keep_statements(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_prepared_statement_cache_capacity(STATEMENTS_KEPT_MAX);
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map(drop)
}

fn set(
    connection: &Connection,
    pragma: &'static str,
    value: &str,
    wanted: &'static str,
) -> Result<(), OpenError> {
    // Some of these answer with a row and some do not.
    connection.pragma(None, pragma, value, |_| Ok(()))?;
    let found: rusqlite::types::Value = connection.pragma_query_value(None, pragma, |row| row.get(0))?;
    let found = match found {
        rusqlite::types::Value::Text(text) => text,
        rusqlite::types::Value::Integer(number) => number.to_string(),
        other => format!("{other:?}"),
    };
    if found == wanted { Ok(()) } else { Err(OpenError::Setting { pragma, wanted, found }) }
}

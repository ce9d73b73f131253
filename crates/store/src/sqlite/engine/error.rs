//! What can go wrong with the file: when it is opened, when a job runs, and when its batch is committed.

use std::fmt;
use std::io;
use std::path::PathBuf;

use rusqlite::ErrorCode;

/// Why a file could not be opened as a store.
#[derive(Debug)]
pub enum OpenError {
    /// Another store, of this process or another, owns the file.
    Locked {
        /// The file whose lock says so.
        lock_file: PathBuf,
        /// The process that holds it, as far as the lock file tells.
        holder: Option<u32>,
    },
    /// A later release wrote the schema.
    TooNew {
        /// The version in the file.
        found: i64,
        /// The newest version that this release knows.
        known: i64,
    },
    /// It is not a database, or a damaged one.
    Corrupt(String),
    /// A setting that durability rests on did not take.
    Setting {
        /// The setting.
        pragma: &'static str,
        /// What it should be.
        wanted: &'static str,
        /// What it is.
        found: String,
    },
    /// What a process before has written cannot be copied from the log into the file, where it would be safe: somebody else
    /// reads the file.
    LogInUse {
        /// How long it was tried.
        waited: std::time::Duration,
    },
    /// The SQLite library lacks fixes that this store relies on.
    SqliteTooOld {
        /// Its version.
        found: &'static str,
    },
    /// The file system refused.
    Io(io::Error),
    /// SQLite refused.
    Sqlite(String),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Locked { lock_file, holder } => {
                write!(f, "one process owns a store's file, and {} is locked", lock_file.display())?;
                holder.map_or(Ok(()), |pid| write!(f, " by process {pid}"))
            }
            OpenError::TooNew { found, known } => {
                write!(
                    f,
                    "the file has schema version {found}, of a later release; this one knows versions up to {known}"
                )
            }
            OpenError::Corrupt(why) => write!(f, "the file is damaged or not a database: {why}"),
            OpenError::Setting { pragma, wanted, found } => {
                write!(f, "the setting {pragma} must be {wanted} and is {found}")
            }
            OpenError::LogInUse { waited } => write!(
                f,
                "another program reads the file, so that what was written last could not be copied into it within {waited:?}: \
                 close what reads it (a backup, an SQLite shell) and start again"
            ),
            OpenError::SqliteTooOld { found } => {
                write!(f, "SQLite {found} is too old; 3.51.3 or later is needed")
            }
            OpenError::Io(error) => write!(f, "the file system refused: {error}"),
            OpenError::Sqlite(why) => write!(f, "SQLite refused: {why}"),
        }
    }
}

impl std::error::Error for OpenError {}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> Self {
        OpenError::Io(error)
    }
}

impl From<rusqlite::Error> for OpenError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => {
                OpenError::Corrupt(error.to_string())
            }
            Some(_) | None => OpenError::Sqlite(error.to_string()),
        }
    }
}

/// Why a job, or a read, did not succeed. Nothing of it was written.
#[derive(Clone, Debug)]
pub enum Fault {
    /// There is no room.
    Full(String),
    /// Anything else.
    Failed(String),
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        if is_full(&error) { Fault::Full(error.to_string()) } else { Fault::Failed(error.to_string()) }
    }
}

/// Why the engine did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineError {
    /// There is no room. Nothing was written.
    Full(String),
    /// Nothing was written.
    Unavailable(String),
    /// Whether it was written is not known.
    Unknown(String),
}

impl From<Fault> for EngineError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Full(why) => EngineError::Full(why),
            Fault::Failed(why) => EngineError::Unavailable(why),
        }
    }
}

impl From<rusqlite::Error> for EngineError {
    fn from(error: rusqlite::Error) -> Self {
        Fault::from(error).into()
    }
}

/// How a commit failed.
#[derive(Clone, Debug)]
pub(super) enum CommitError {
    /// Nothing of it is there.
    NotCommitted(Fault),
    /// It may or may not be there.
    Unknown(String),
}

impl From<rusqlite::Error> for CommitError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            // A veto, a broken reference and a lock are found before anything is written. A full disk cuts the log
            // before the frame that commits, so no restart takes it for a commit.
            Some(ErrorCode::ConstraintViolation | ErrorCode::DatabaseBusy | ErrorCode::DiskFull) => {
                CommitError::NotCommitted(error.into())
            }
            Some(_) | None => CommitError::Unknown(error.to_string()),
        }
    }
}

/// Whether an error says that there is no room.
pub(crate) fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DiskFull)
}

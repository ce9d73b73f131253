//! The credential of everybody who sends: it is changed now and then, while requests that began with the one before are under
//! way.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The present credential.
#[derive(Clone)]
pub(crate) struct Tokens {
    version: Arc<AtomicU64>,
    file: PathBuf,
}

/// One credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token(u64);

impl Token {
    /// The value of `Authorization`.
    pub(crate) fn value(self) -> String {
        format!("Bearer chaos-{}", self.0)
    }
}

impl Tokens {
    /// The first one, which the outboxes find in a file.
    pub(crate) fn start(folder: &Path) -> Result<Self, String> {
        let tokens = Self { version: Arc::default(), file: folder.join("credential") };
        tokens.write()?;
        Ok(tokens)
    }

    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    pub(crate) fn current(&self) -> Token {
        Token(self.version.load(Ordering::SeqCst))
    }

    /// From now on there is another.
    pub(crate) fn rotate(&self) -> Result<(), String> {
        self.version.fetch_add(1, Ordering::SeqCst);
        self.write()
    }

    /// Nobody finds half a file: it is renamed to its place.
    fn write(&self) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("failed to write {}: {error}", self.file.display());
        let whole = self.file.with_extension("new");
        fs::write(&whole, self.current().value()).map_err(failed)?;
        fs::rename(&whole, &self.file).map_err(failed)
    }
}

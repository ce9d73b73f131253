//! The certificate that clients see, read from files. Read again, it serves the next connections; those that are there
//! keep theirs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::HttpError;

/// Where the certificate and its key are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificates {
    /// The certificate and those that vouch for it, as PEM.
    pub cert: PathBuf,
    /// The private key, as PEM.
    pub key: PathBuf,
}

impl Certificates {
    /// Reads the files.
    ///
    /// # Errors
    /// One cannot be read, or the two do not belong together.
    pub fn load(&self) -> Result<Arc<ServerConfig>, HttpError> {
        let failed = |path: &Path, why: String| format!("failed to read {}: {why}", path.display());
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(&self.cert)
            .and_then(Iterator::collect)
            .map_err(|error| failed(&self.cert, error.to_string()))?;
        if chain.is_empty() {
            return Err(failed(&self.cert, "it holds no certificate".to_owned()).into());
        }
        let key =
            PrivateKeyDer::from_pem_file(&self.key).map_err(|error| failed(&self.key, error.to_string()))?;
        let mut config =
            ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .map_err(|error| error.to_string())?
                .with_no_client_auth()
                .with_single_cert(chain, key)
                .map_err(|error| failed(&self.key, format!("it does not fit the certificate: {error}")))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

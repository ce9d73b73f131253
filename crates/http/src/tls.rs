//! Whose certificates are believed by what connects from here: those that browsers believe and those of `SSL_CERT_FILE`,
//! or the authorities of a file that was named. A server may also show the very certificate that the named file holds: it
//! was put there on purpose, even where it was made as an authority, as simple tools do.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use crate::HttpError;

/// What connects from here over TLS, believing the authorities of a PEM file, or those that browsers believe and those in
/// the file that the environment variable `SSL_CERT_FILE` names.
///
/// # Errors
/// The file cannot be read, or holds no certificate.
pub fn client_tls(ca: Option<&Path>) -> Result<ClientConfig, HttpError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let Some(path) = ca else {
        let mut roots = RootCertStore::from_iter(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        if let Some(path) = std::env::var_os("SSL_CERT_FILE") {
            for certificate in read_certificates(Path::new(&path))
                .map_err(|why| format!("SSL_CERT_FILE: failed to read {}: {why}", path.display()))?
            {
                roots.add(certificate).map_err(|error| format!("SSL_CERT_FILE: {error}"))?;
            }
        }
        return Ok(builder.with_root_certificates(roots).with_no_client_auth());
    };
    let verifier =
        Named::of(path, &provider).map_err(|why| format!("failed to read {}: {why}", path.display()))?;
    Ok(builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth())
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    CertificateDer::pem_file_iter(path).and_then(Iterator::collect).map_err(|error| error.to_string())
}

/// Verifies by the certificates of a file.
#[derive(Debug)]
struct Named {
    by_authority: Arc<WebPkiServerVerifier>,
    certificates: Vec<CertificateDer<'static>>,
}

impl Named {
    fn of(path: &Path, provider: &Arc<CryptoProvider>) -> Result<Self, String> {
        let certificates = read_certificates(path)?;
        let mut roots = RootCertStore::empty();
        for certificate in &certificates {
            roots.add(certificate.clone()).map_err(|error| error.to_string())?;
        }
        if roots.is_empty() {
            return Err("it holds no certificate".to_owned());
        }
        let by_authority =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider)).build();
        Ok(Self { by_authority: by_authority.map_err(|error| error.to_string())?, certificates })
    }
}

impl ServerCertVerifier for Named {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified =
            self.by_authority.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            // What is wrong with it is only how it was made: it is the named one, and it is for this server.
            Err(Error::InvalidCertificate(CertificateError::Other(_)))
                if self.certificates.iter().any(|named| named == end_entity) =>
            {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.by_authority.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.by_authority.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.by_authority.supported_verify_schemes()
    }
}

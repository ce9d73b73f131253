//! Small secrets of other stores, sealed under the same keys as answers: one line of text each, which names its key and
//! opens only in the place that it was sealed for.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chacha20poly1305::XNonce;
use chacha20poly1305::aead::{Aead, Payload};

use super::keys::KeyRing;

/// The form that is written.
const FORM: &str = "1";
/// Bytes of a nonce, which is long enough that chance never repeats one.
const NONCE_BYTES: usize = 24;

semel_contract::error_in_words! {
    /// Why a secret cannot be sealed or opened. Of one that cannot be opened, the end of a sentence about it.
    SealError
}

impl KeyRing {
    /// Seals a secret under the first key, for the place that these words name.
    ///
    /// # Errors
    /// There is no randomness, or it is too large.
    pub fn seal(&self, bound_to: &[&str], secret: &[u8]) -> Result<String, SealError> {
        let mut nonce = [0; NONCE_BYTES];
        getrandom::fill(&mut nonce)
            .map_err(|error| format!("there is no randomness to encrypt with: {error}"))?;
        let aad = bytes_of(self.writing_id(), bound_to);
        let sealed = self.writing().encrypt(&XNonce::from(nonce), Payload { msg: secret, aad: &aad });
        let sealed = sealed.map_err(|_| "it is too large to encrypt".to_owned())?;
        Ok(format!("{FORM} {} {}", self.writing_id(), STANDARD.encode([nonce.as_slice(), &sealed].concat())))
    }

    /// Opens what was sealed for the same place, under any of the keys.
    ///
    /// # Errors
    /// Its key is not here, it was altered, or it belongs elsewhere. The error is the end of a sentence about the secret.
    pub fn unseal(&self, bound_to: &[&str], sealed: &str) -> Result<Vec<u8>, SealError> {
        let altered = || "was tampered with, or belongs to another place".to_owned();
        let mut words = sealed.split(' ');
        let (Some(FORM), Some(id), Some(text), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err("has a form that this version does not read".into());
        };
        let cipher = self.reading(id).ok_or_else(|| {
            format!("is encrypted under the key {id:?}, which the key file does not have: put that key back")
        })?;
        let blob = STANDARD.decode(text).map_err(|_| altered())?;
        let (nonce, sealed) = blob.split_first_chunk::<NONCE_BYTES>().ok_or_else(altered)?;
        let aad = bytes_of(id, bound_to);
        cipher
            .decrypt(&XNonce::from(*nonce), Payload { msg: sealed, aad: &aad })
            .map_err(|_| altered().into())
    }
}

/// Every part has its length, so that no two lists of parts run together.
fn bytes_of(id: &str, bound_to: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in [FORM, id].iter().chain(bound_to) {
        bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
        bytes.extend_from_slice(part.as_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(lines: &[(&str, u8)]) -> KeyRing {
        let line = |(id, byte): &(&str, u8)| format!("{id} {}\n", STANDARD.encode([*byte; 32]));
        KeyRing::parse(&lines.iter().map(line).collect::<String>()).expect("a key file")
    }

    #[test]
    fn a_secret_opens_in_its_own_place_under_a_key_that_is_there() {
        let old = ring(&[("old", 1)]);
        let sealed = old.seal(&["relay", "ann"], b"s3cret").expect("there is randomness");
        assert!(!sealed.contains("s3cret"));
        let rotated = ring(&[("new", 2), ("old", 1)]);
        assert_eq!(rotated.unseal(&["relay", "ann"], &sealed).as_deref(), Ok(b"s3cret".as_slice()));
        for place in [["relay", "bob"], ["relaya", "nn"]] {
            assert!(
                rotated.unseal(&place, &sealed).is_err_and(|why| why.to_string().contains("tampered")),
                "{place:?}"
            );
        }
        let why = ring(&[("new", 2)]).unseal(&["relay", "ann"], &sealed).expect_err("its key is gone");
        assert!(why.to_string().contains("put that key back"), "{why}");
        for altered in ["", "2 old AAAA", "1 old AAAA", "1 old !", &sealed.replace("1 old ", "1 old A")] {
            assert!(rotated.unseal(&["relay", "ann"], altered).is_err(), "{altered}");
        }
    }
}

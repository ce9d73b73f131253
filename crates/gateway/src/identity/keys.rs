//! Keys that tokens are verified with, from PEM files, JSON Web Keys and secrets. A key is for one algorithm; it never
//! serves another, whatever a token says. Never shows a secret.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::hmac;
use ring::signature::{
    self, ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents,
    UnparsedPublicKey,
};
use serde_json::Value;

use super::der;

/// The shortest secret: as long as what it authenticates with.
const SECRET_BYTES_MIN: usize = 32;
/// Keys of one set.
const KEYS_MAX: usize = 256;

/// How a token is signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Hs256,
    Rs256,
    Es256,
    EdDsa,
}

impl Algorithm {
    /// The algorithm of a token's header; `none` is none.
    pub(crate) fn of_name(name: &str) -> Option<Self> {
        match name {
            "HS256" => Some(Algorithm::Hs256),
            "RS256" => Some(Algorithm::Rs256),
            "ES256" => Some(Algorithm::Es256),
            "EdDSA" => Some(Algorithm::EdDsa),
            _ => None,
        }
    }
}

/// A key.
pub(crate) struct Key {
    id: Option<String>,
    material: Material,
}

enum Material {
    Secret(hmac::Key),
    /// Modulus and exponent.
    Rsa(RsaPublicKeyComponents<Vec<u8>>),
    /// A point of P-256, uncompressed.
    P256(Vec<u8>),
    Ed25519(Vec<u8>),
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("id", &self.id).field("algorithm", &self.algorithm()).finish()
    }
}

impl Key {
    /// What it verifies.
    pub(crate) fn algorithm(&self) -> Algorithm {
        match self.material {
            Material::Secret(_) => Algorithm::Hs256,
            Material::Rsa(_) => Algorithm::Rs256,
            Material::P256(_) => Algorithm::Es256,
            Material::Ed25519(_) => Algorithm::EdDsa,
        }
    }

    /// Whether a token that names this key, or none, may mean it. A key without a name may be any.
    pub(crate) fn may_be(&self, kid: Option<&str>) -> bool {
        match (&self.id, kid) {
            (Some(id), Some(kid)) => id == kid,
            (None, _) | (_, None) => true,
        }
    }

    /// Whether it proves the signature.
    pub(crate) fn verifies(&self, signed: &[u8], signature: &[u8]) -> bool {
        let by = |algorithm: &'static dyn signature::VerificationAlgorithm, key: &[u8]| {
            UnparsedPublicKey::new(algorithm, key).verify(signed, signature).is_ok()
        };
        match &self.material {
            Material::Secret(secret) => hmac::verify(secret, signed, signature).is_ok(),
            Material::Rsa(key) => key.verify(&RSA_PKCS1_2048_8192_SHA256, signed, signature).is_ok(),
            Material::P256(point) => by(&ECDSA_P256_SHA256_FIXED, point),
            Material::Ed25519(key) => by(&ED25519, key),
        }
    }
}

/// The keys of a file: a set of JSON Web Keys, a public key as PEM, or else a secret.
pub(crate) fn of_file(content: &[u8]) -> Result<Vec<Key>, String> {
    let text = std::str::from_utf8(content).unwrap_or_default().trim();
    if text.starts_with('{') {
        return of_set(text.as_bytes());
    }
    if text.starts_with("-----BEGIN ") {
        return of_pem(text).map(|key| vec![key]);
    }
    let secret = content.strip_suffix(b"\n").unwrap_or(content);
    let secret = secret.strip_suffix(b"\r").unwrap_or(secret);
    of_secret(secret).map(|material| vec![Key { id: None, material }])
}

/// The keys of a set (`{"keys": […]}`), or one key. Keys of other kinds are passed over.
pub(crate) fn of_set(content: &[u8]) -> Result<Vec<Key>, String> {
    let set: Value = serde_json::from_slice(content).map_err(|error| format!("not JSON: {error}"))?;
    let listed = match &set["keys"] {
        Value::Array(keys) => keys.as_slice(),
        _ => std::slice::from_ref(&set),
    };
    let keys: Vec<Key> = listed.iter().take(KEYS_MAX).filter_map(of_web_key).collect();
    match keys.is_empty() {
        true => Err("it holds no key for HS256, RS256, ES256 or EdDSA".to_owned()),
        false => Ok(keys),
    }
}

fn of_web_key(key: &Value) -> Option<Key> {
    let text = |name: &str| key[name].as_str();
    let bytes = |name: &str| URL_SAFE_NO_PAD.decode(text(name)?.trim_end_matches('=')).ok();
    if text("use").is_some_and(|purpose| purpose != "sig") {
        return None;
    }
    let material = match (text("kty")?, text("crv")) {
        ("oct", _) => of_secret(&bytes("k")?).ok()?,
        ("RSA", _) => Material::Rsa(RsaPublicKeyComponents { n: bytes("n")?, e: bytes("e")? }),
        ("EC", Some("P-256")) => {
            let (x, y) = (bytes("x")?, bytes("y")?);
            (x.len() == 32 && y.len() == 32).then(|| Material::P256([&[4][..], &x, &y].concat()))?
        }
        ("OKP", Some("Ed25519")) => Material::Ed25519(bytes("x").filter(|x| x.len() == 32)?),
        _ => return None,
    };
    let key = Key { id: text("kid").map(str::to_owned), material };
    let fits = text("alg").is_none_or(|alg| Algorithm::of_name(alg) == Some(key.algorithm()));
    fits.then_some(key)
}

fn of_secret(secret: &[u8]) -> Result<Material, String> {
    if secret.len() < SECRET_BYTES_MIN {
        return Err(format!(
            "a secret for HS256 has at least {SECRET_BYTES_MIN} bytes, this one {}",
            secret.len()
        ));
    }
    Ok(Material::Secret(hmac::Key::new(hmac::HMAC_SHA256, secret)))
}

fn of_pem(text: &str) -> Result<Key, String> {
    let (label, der) = unwrapped(text).ok_or("it is not a PEM file")?;
    let material = match label {
        "PUBLIC KEY" => match der::public_key(&der) {
            Some(der::PublicKey::Rsa(n, e)) => Some(Material::Rsa(RsaPublicKeyComponents { n, e })),
            Some(der::PublicKey::P256(point)) => Some(Material::P256(point)),
            Some(der::PublicKey::Ed25519(key)) => Some(Material::Ed25519(key)),
            None => None,
        },
        "RSA PUBLIC KEY" => der::rsa_key(&der).map(|(n, e)| Material::Rsa(RsaPublicKeyComponents { n, e })),
        other => {
            return Err(format!("it holds a {other}: expected a PUBLIC KEY"));
        }
    };
    let material = material.ok_or("its key is not for RS256, ES256 or EdDSA")?;
    Ok(Key { id: None, material })
}

/// The label and the content of the first block of a PEM file.
fn unwrapped(text: &str) -> Option<(&str, Vec<u8>)> {
    let (label, rest) = text.strip_prefix("-----BEGIN ")?.split_once("-----")?;
    let (content, _) = rest.split_once("-----END ")?;
    let content: String = content.split_whitespace().collect();
    Some((label, STANDARD.decode(content).ok()?))
}

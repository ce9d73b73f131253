//! Just enough DER to read a public key. Refuses everything else. Pure.

/// A public key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PublicKey {
    /// Modulus and exponent.
    Rsa(Vec<u8>, Vec<u8>),
    /// An uncompressed point.
    P256(Vec<u8>),
    Ed25519(Vec<u8>),
}

const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OBJECT: u8 = 0x06;
const SEQUENCE: u8 = 0x30;

/// rsaEncryption, 1.2.840.113549.1.1.1
const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
/// id-ecPublicKey, 1.2.840.10045.2.1
const EC: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
/// prime256v1, 1.2.840.10045.3.1.7
const P256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
/// id-Ed25519, 1.3.101.112
const ED25519: &[u8] = &[0x2b, 0x65, 0x70];

/// The key of a SubjectPublicKeyInfo.
pub(crate) fn public_key(der: &[u8]) -> Option<PublicKey> {
    let (whole, rest) = element(der, SEQUENCE)?;
    let (kind, bits) = element(whole, SEQUENCE)?;
    let (bits, after) = element(bits, BIT_STRING)?;
    if !rest.is_empty() || !after.is_empty() {
        return None;
    }
    let (unused, key) = bits.split_first()?;
    let (object, parameters) = element(kind, OBJECT)?;
    match object {
        _ if *unused != 0 => None,
        RSA => rsa_key(key).map(|(n, e)| PublicKey::Rsa(n, e)),
        EC if element(parameters, OBJECT)?.0 == P256 && key.len() == 65 && key[0] == 4 => {
            Some(PublicKey::P256(key.to_vec()))
        }
        ED25519 if key.len() == 32 => Some(PublicKey::Ed25519(key.to_vec())),
        _ => None,
    }
}

/// Modulus and exponent of an RSAPublicKey.
pub(crate) fn rsa_key(der: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let (whole, rest) = element(der, SEQUENCE)?;
    let (modulus, whole) = element(whole, INTEGER)?;
    let (exponent, after) = element(whole, INTEGER)?;
    let plain = |integer: &[u8]| integer.strip_prefix(&[0]).unwrap_or(integer).to_vec();
    (rest.is_empty() && after.is_empty()).then(|| (plain(modulus), plain(exponent)))
}

/// The content of the first element, if it is of this kind, and what follows it.
fn element(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found, rest) = der.split_first()?;
    let (first, rest) = rest.split_first()?;
    if *found != tag {
        return None;
    }
    let (length, rest) = match *first {
        short @ 0..=0x7f => (usize::from(short), rest),
        0x81 => (usize::from(*rest.first()?), &rest[1..]),
        0x82 => (usize::from(u16::from_be_bytes(*rest.first_chunk()?)), &rest[2..]),
        _ => return None,
    };
    rest.split_at_checked(length)
}

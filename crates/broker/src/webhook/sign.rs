//! Signatures as Standard Webhooks has them: HMAC-SHA-256 over `id.timestamp.body`, one for each live secret.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The value of `webhook-signature`.
pub(super) fn signatures(secrets: &[String], id: &str, seconds: i64, body: &[u8]) -> String {
    let each = secrets.iter().filter_map(|secret| {
        let key = STANDARD.decode(secret.strip_prefix("whsec_")?).ok()?;
        let mut mac = Hmac::<Sha256>::new_from_slice(&key).ok()?;
        mac.update(format!("{id}.{seconds}.").as_bytes());
        mac.update(body);
        Some(format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes())))
    });
    each.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_specification_is_signed_as_there() {
        let secrets = ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".to_owned()];
        let signed =
            signatures(&secrets, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn two_secrets_are_two_signatures() {
        let secrets = ["whsec_AAAA".to_owned(), "whsec_BBBB".to_owned()];
        let signed = signatures(&secrets, "m", 1, b"x");
        assert_eq!(signed.split(' ').filter(|one| one.starts_with("v1,")).count(), 2);
    }
}

//! Makes keys for requests and messages that bring none. Time and randomness arrive as arguments.

use crate::key::{Format, Key};
use crate::profile::Generator;
use crate::time::Timestamp;

impl Generator {
    /// A fresh key from 128 random bits and the time of minting.
    pub fn mint(self, random: u128, now: Timestamp) -> Key {
        let text = match self {
            Generator::Uuid4 => uuid4(random),
            Generator::Uuid4Millis => format!("{}-{}", uuid4(random), now.millis()),
            Generator::Ulid => ulid(random, now),
        };
        Key::parse(&Format::Token255, &text).expect("minted keys are letters, digits and dashes")
    }
}

fn uuid4(random: u128) -> String {
    let marked = random & !(0xf << 76) & !(0x3 << 62) | 0x4 << 76 | 0x2 << 62;
    let digits = format!("{marked:032x}");
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

fn ulid(random: u128, now: Timestamp) -> String {
    const DIGITS: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
    let millis = u128::from(u64::try_from(now.millis()).unwrap_or(0)) & ((1 << 48) - 1);
    let value = millis << 80 | random & ((1 << 80) - 1);
    (0..26).rev().map(|place| char::from(DIGITS[(value >> (5 * place) & 31) as usize])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_469_918_176_385);

    #[test]
    fn minted_keys_have_their_formats() {
        for random in [0, u128::MAX, 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef] {
            let uuid = Generator::Uuid4.mint(random, NOW);
            assert!(
                Key::parse(&Format::Uuid4Lower, uuid.as_str()).is_ok() && uuid.is_random_uuid(),
                "{uuid}"
            );
            let ulid = Generator::Ulid.mint(random, NOW);
            assert!(Key::parse(&Format::Ulid, ulid.as_str()).is_ok(), "{ulid}");
            let with_time = Generator::Uuid4Millis.mint(random, NOW);
            assert_eq!(with_time.as_str().len(), 50, "{with_time}");
            assert!(with_time.as_str().ends_with("-1469918176385"));
        }
    }

    #[test]
    fn a_ulid_begins_with_its_time() {
        // The example of the ULID specification.
        assert!(Generator::Ulid.mint(7, NOW).as_str().starts_with("01ARYZ6S41"));
    }

    #[test]
    fn other_randomness_gives_other_keys() {
        for generator in [Generator::Uuid4, Generator::Uuid4Millis, Generator::Ulid] {
            assert_ne!(generator.mint(1, NOW), generator.mint(2, NOW));
        }
    }
}

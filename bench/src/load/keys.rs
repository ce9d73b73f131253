//! Keys as text, from a seed and a number. The same two give the same key, so a replay needs no list.

use super::Ids;

/// The length of a key.
pub(crate) const KEY_BYTES: usize = 36;
const HEX: &[u8; 16] = b"0123456789abcdef";

/// The key of this number. Keys of different numbers or seeds differ, up to the luck of 122 random bits.
pub(crate) fn key(ids: Ids, seed: u64, number: u64) -> [u8; KEY_BYTES] {
    let low = mix(seed ^ 0x5bd1_e995, number);
    match ids {
        Ids::Random => uuid(mix(seed, number), low, 4),
        // 48 bits of time in milliseconds; here the seed's epoch and the number, in order.
        Ids::Ordered => {
            let count = (seed << 40).wrapping_add(number);
            uuid((count >> 12 << 16) | (count & 0xfff), low, 7)
        }
    }
}

/// Two rounds of splitmix64.
pub(super) fn mix(seed: u64, number: u64) -> u64 {
    let mut z =
        number.wrapping_add(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for _ in 0..2 {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
    }
    z
}

fn uuid(high: u64, low: u64, version: u64) -> [u8; KEY_BYTES] {
    let high = (high & !0xf000) | (version << 12);
    let low = (low & !(3 << 62)) | (2 << 62);
    let mut text = [b'-'; KEY_BYTES];
    let mut place = 0;
    for byte in high.to_be_bytes().into_iter().chain(low.to_be_bytes()) {
        if matches!(place, 8 | 13 | 18 | 23) {
            place += 1;
        }
        text[place] = HEX[usize::from(byte >> 4)];
        text[place + 1] = HEX[usize::from(byte & 15)];
        place += 2;
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn keys_are_uuids_and_distinct() {
        let mut seen = HashSet::new();
        for seed in 0..4 {
            for number in 0..10_000 {
                let key = key(Ids::Random, seed, number);
                let text = String::from_utf8(key.to_vec()).unwrap();
                assert!(text.as_bytes()[14] == b'4' && text.matches('-').count() == 4, "{text}");
                assert!(seen.insert(key), "{text} twice");
            }
        }
    }

    #[test]
    fn ordered_keys_grow() {
        let keys: Vec<_> = (0..20_000).map(|n| key(Ids::Ordered, 3, n)).collect();
        assert!(keys.is_sorted() && keys[0][14] == b'7');
        assert!(key(Ids::Ordered, 4, 0) > key(Ids::Ordered, 3, 1 << 30));
    }
}

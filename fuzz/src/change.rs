//! How an input becomes another one. Owns the changes; knows nothing of what they mean.

use crate::random::Random;

/// The most changes at a time.
const CHANGES_MAX: usize = 6;
/// Bytes at which readers decide something.
const TELLING: &[u8] = b"\0\t\n\r \"\\/{}[]:,;=-+.0123456789aAeEfFzZ%\x7f\x80\xc3\xed\xff";

/// Another input: one of the pool, changed a few times.
pub(crate) fn change(random: &mut Random, pool: &[Vec<u8>], words: &[Vec<u8>], bytes_max: usize) -> Vec<u8> {
    let mut input = random.one_of(pool).cloned().unwrap_or_default();
    for _ in 0..=random.below(CHANGES_MAX) {
        change_once(random, &mut input, pool, words);
    }
    input.truncate(bytes_max);
    input
}

fn change_once(random: &mut Random, input: &mut Vec<u8>, pool: &[Vec<u8>], words: &[Vec<u8>]) {
    let at = random.below(input.len() + 1);
    match random.below(12) {
        0 => flip(random, input),
        1 | 2 => input.insert(at, telling(random)),
        3 => replace(random, input, at),
        4 => {
            let range = range(random, input.len());
            input.drain(range);
        }
        5 => {
            let piece = input[range(random, input.len())].to_vec();
            input.splice(at..at, piece);
        }
        6 | 7 => {
            let word = random.one_of(words).cloned().unwrap_or_default();
            input.splice(at..at, word);
        }
        8 => {
            let (word, range) =
                (random.one_of(words).cloned().unwrap_or_default(), range(random, input.len()));
            input.splice(range, word);
        }
        9 => {
            let other = random.one_of(pool).cloned().unwrap_or_default();
            let piece = other[range(random, other.len())].to_vec();
            input.splice(at..at, piece);
        }
        10 => number(random, input),
        _ => {
            let (times, piece) = (random.below(200), input[range(random, input.len().min(8))].to_vec());
            input.splice(at..at, piece.repeat(times));
        }
    }
}

fn telling(random: &mut Random) -> u8 {
    if random.below(3) == 0 {
        random.below(256) as u8
    } else {
        random.one_of(TELLING).copied().unwrap_or(b'0')
    }
}

fn flip(random: &mut Random, input: &mut [u8]) {
    let at = random.below(input.len());
    if let Some(byte) = input.get_mut(at) {
        *byte ^= 1 << random.below(8);
    }
}

fn replace(random: &mut Random, input: &mut [u8], at: usize) {
    if let Some(byte) = input.get_mut(at) {
        *byte = telling(random);
    }
}

/// A run of digits becomes a number at which counters and lengths turn.
fn number(random: &mut Random, input: &mut Vec<u8>) {
    const TURNS: &[&str] = &[
        "0",
        "1",
        "-1",
        "00",
        "127",
        "255",
        "256",
        "65535",
        "65536",
        "4294967295",
        "4294967296",
        "9007199254740992",
        "9007199254740993",
        "9223372036854775807",
        "9223372036854775808",
        "18446744073709551615",
        "18446744073709551616",
        "1e308",
        "1e309",
        "5e-324",
        "0.1",
    ];
    let from = random.below(input.len() + 1);
    let Some(start) = input[from..].iter().position(u8::is_ascii_digit).map(|at| from + at) else { return };
    let end =
        input[start..].iter().position(|byte| !byte.is_ascii_digit()).map_or(input.len(), |at| start + at);
    let turn = random.one_of(TURNS).copied().unwrap_or("0");
    input.splice(start..end, turn.bytes());
}

/// Part of an input, mostly short.
fn range(random: &mut Random, length: usize) -> std::ops::Range<usize> {
    let from = random.below(length + 1);
    let longest = if random.below(4) == 0 { length } else { 8 };
    from..(from + random.below(longest + 1)).min(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_one_sequence_and_inputs_stay_in_bounds() {
        let pool = vec![b"{\"a\":1}".to_vec(), Vec::new()];
        let words = vec![b"true".to_vec()];
        let sequence = |seed| {
            let mut random = Random::new(seed);
            (0..2000).map(|_| change(&mut random, &pool, &words, 64)).collect::<Vec<_>>()
        };
        assert_eq!(sequence(7), sequence(7));
        assert_ne!(sequence(7), sequence(8));
        assert!(sequence(9).iter().all(|input| input.len() <= 64));
        let distinct: std::collections::BTreeSet<_> = sequence(9).into_iter().collect();
        assert!(distinct.len() > 1000, "{} of 2000 differ", distinct.len());
    }
}

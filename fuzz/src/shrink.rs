//! Makes an input that fails smaller, as long as it fails.

use std::time::{Duration, Instant};

/// How long that may take: a person waits for it.
const TIME_MAX: Duration = Duration::from_secs(5);

/// The smallest input that was found to fail still, by leaving out ever smaller pieces.
pub(crate) fn shrink(input: &[u8], mut fails: impl FnMut(&[u8]) -> bool) -> Vec<u8> {
    let until = Instant::now() + TIME_MAX;
    let mut small = input.to_vec();
    let mut piece = small.len().div_ceil(2).max(1);
    loop {
        let before = small.len();
        let mut at = 0;
        while at < small.len() {
            let mut without = small.clone();
            without.drain(at..(at + piece).min(small.len()));
            if fails(&without) {
                small = without
            } else {
                at += piece
            }
            if Instant::now() > until {
                return small;
            }
        }
        match (piece, small.len() < before) {
            (1, false) => return small,
            (_, true) => {}
            (_, false) => piece = piece.div_ceil(2).max(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_needed_to_fail_is_left() {
        let fails = |input: &[u8]| input.contains(&b'x') && input.contains(&b'y');
        assert_eq!(shrink(b"aaaaaaxbbbbbbbbbbyccc", fails), b"xy");
    }
}

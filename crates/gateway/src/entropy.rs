//! Random numbers for the ids of requests, fetched many at a time: a call of the system for each costs more than most of what
//! is done with it. Not for anything that must differ between copies of a process, such as the nonces of claims.

use std::cell::RefCell;

/// Numbers that are fetched at once.
const FETCHED: usize = 64;

struct Fetched {
    bytes: [u8; FETCHED * 8],
    used: usize,
}

thread_local! {
    static FETCHED_HERE: RefCell<Fetched> = const { RefCell::new(Fetched { bytes: [0; FETCHED * 8], used: FETCHED }) };
}

/// A number for an id.
pub(crate) fn number() -> u64 {
    FETCHED_HERE.with_borrow_mut(|fetched| {
        if fetched.used == FETCHED {
            // Without random numbers the ids are all the same, which is better than no answers.
            let _ = getrandom::fill(&mut fetched.bytes);
            fetched.used = 0;
        }
        let at = fetched.used * 8;
        fetched.used += 1;
        let bytes: [u8; 8] = fetched.bytes[at..at + 8].try_into().expect("eight bytes are eight");
        u64::from_ne_bytes(bytes)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_number_is_given_twice() {
        let threads: Vec<_> = (0..4)
            .map(|_| std::thread::spawn(|| (0..FETCHED * 3).map(|_| number()).collect::<Vec<_>>()))
            .collect();
        let all: Vec<u64> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), FETCHED * 12);
        assert!(!all.contains(&0));
    }
}

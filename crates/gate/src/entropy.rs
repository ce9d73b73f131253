//! Random numbers of the system, fetched many at a time: a call of the system for each number costs more than most of what
//! is done with it.

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

/// A number that nobody can guess.
///
/// # Panics
/// The system has no random numbers. Without them no two claims could be told apart.
pub fn number() -> u64 {
    FETCHED_HERE.with_borrow_mut(|fetched| {
        if fetched.used == FETCHED {
            getrandom::fill(&mut fetched.bytes).expect("the system gives random numbers");
            fetched.used = 0;
        }
        let at = fetched.used * 8;
        fetched.used += 1;
        let bytes: [u8; 8] = fetched.bytes[at..at + 8].try_into().expect("eight bytes are eight");
        // Used once: what was given out is not left in memory.
        fetched.bytes[at..at + 8].fill(0);
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

//! Ids of requests, made many at a time: a call of the system for each, and a piece of memory for each, cost more than most
//! of what is done with them. Not for anything that must differ between copies of a process, such as the nonces of claims.

use std::cell::RefCell;

use bytes::Bytes;
use semel_contract::hex::hex;

/// Random bytes of an id.
const ID_BYTES: usize = 16;
/// Ids that are made at once.
const MADE: usize = 32;

thread_local! {
    /// The digits of the ids that are made and not given yet.
    static MADE_HERE: RefCell<Bytes> = const { RefCell::new(Bytes::new()) };
}

/// The digits of an id.
pub(crate) fn id() -> Bytes {
    MADE_HERE.with_borrow_mut(|made| {
        if made.is_empty() {
            let mut bytes = [0; ID_BYTES * MADE];
            // Without random numbers the ids are all the same, which is better than no answers.
            let _ = getrandom::fill(&mut bytes);
            *made = Bytes::from(hex(&bytes));
        }
        made.split_to(ID_BYTES * 2)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_id_is_given_twice() {
        let threads: Vec<_> =
            (0..4).map(|_| std::thread::spawn(|| (0..MADE * 3).map(|_| id()).collect::<Vec<_>>())).collect();
        let all: Vec<Bytes> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), MADE * 12);
        let is_id = |id: &Bytes| id.len() == 32 && id.iter().all(u8::is_ascii_hexdigit);
        assert!(all.iter().all(is_id));
    }
}

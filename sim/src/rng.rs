//! Random numbers that repeat themselves: xoshiro256**, seeded by splitmix64. Never asks the machine for anything.

use std::time::Duration;

/// A source of numbers that is its seed and nothing else.
#[derive(Clone, Debug)]
pub struct Rng([u64; 4]);

fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

impl Rng {
    /// The numbers of this seed.
    pub fn new(seed: u64) -> Self {
        let mut state = seed;
        Self(std::array::from_fn(|_| splitmix(&mut state)))
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        let state = &mut self.0;
        let drawn = state[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = state[1] << 17;
        state[2] ^= state[0];
        state[3] ^= state[1];
        state[1] ^= state[2];
        state[0] ^= state[3];
        state[2] ^= shifted;
        state[3] = state[3].rotate_left(45);
        drawn
    }

    /// A number below `bound`, which is not zero. The bias of the remainder is far below what a simulation notices.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True so many times in a thousand.
    pub fn chance(&mut self, per_mille: u32) -> bool {
        self.below(1000) < u64::from(per_mille)
    }

    /// One of these.
    pub fn pick<'a, T>(&mut self, among: &'a [T]) -> &'a T {
        let at = usize::try_from(self.below(among.len() as u64)).unwrap_or(0);
        &among[at]
    }

    /// A duration of so many milliseconds.
    pub fn millis(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_millis(self.between(low, high))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers_and_another_gives_others() {
        let numbers = |seed| {
            let mut rng = Rng::new(seed);
            [rng.draw(), rng.draw(), rng.below(10), rng.between(5, 6)]
        };
        assert_eq!(numbers(7), numbers(7));
        assert_ne!(numbers(7), numbers(8));
    }

    #[test]
    fn chances_are_about_what_they_say() {
        let mut rng = Rng::new(1);
        let hits = (0..10_000).filter(|_| rng.chance(250)).count();
        assert!((2300..2700).contains(&hits), "{hits}");
        assert!(!rng.chance(0) && rng.chance(1000));
    }
}

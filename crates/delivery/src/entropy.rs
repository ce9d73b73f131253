//! Randomness, as an argument: the machine's own, or a test's.

use std::fmt;
use std::sync::Arc;

/// Where random bits come from.
#[derive(Clone)]
pub struct Entropy(Arc<dyn Fn() -> u128 + Send + Sync>);

impl Entropy {
    /// The machine's own.
    pub fn system() -> Self {
        Self(Arc::new(|| {
            let mut bytes = [0; 16];
            getrandom::fill(&mut bytes).expect("the machine gives random bytes");
            u128::from_ne_bytes(bytes)
        }))
    }

    /// A test's or a simulator's.
    pub fn from_fn(random: impl Fn() -> u128 + Send + Sync + 'static) -> Self {
        Self(Arc::new(random))
    }

    /// 128 random bits.
    pub fn bits(&self) -> u128 {
        (self.0)()
    }

    /// A number in [0, 1).
    pub fn unit(&self) -> f64 {
        // 53 bits are what a double holds.
        (self.bits() & ((1 << 53) - 1)) as f64 / (1_u64 << 53) as f64
    }
}

impl fmt::Debug for Entropy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Entropy")
    }
}

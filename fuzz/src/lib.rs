//! A fuzzer in a few hundred lines: takes inputs from a kept corpus, changes them by one seed, and hands them to an oracle
//! until its budget is spent. Knows no reader of semel; targets are tests of the crates that own one.
//!
//! ```
//! let target = semel_fuzz::Target::new("doctest").words(&["true", "false"]).seed("true");
//! target.run(|input| match input {
//!     b"true" | b"false" => Ok("a word".into()),
//!     _ => Ok("not a word".into()),
//! });
//! ```

#![warn(missing_docs)]

mod budget;
#[cfg(feature = "sqlite")]
pub mod cells;
mod change;
mod corpus;
mod random;
mod shrink;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use budget::{Budget, Plan};
pub use random::Random;

/// What became of an input: the name of its outcome, or what is wrong.
pub type Verdict = Result<Cow<'static, str>, String>;

/// The longest input that changes lead to, unless a target says otherwise.
const INPUT_BYTES_MAX: usize = 2048;
/// Inputs that changes start from; the oldest of a crowd make room.
const POOL_MAX: usize = 4096;

/// Something that reads bytes, and what it is fed with.
#[derive(Debug)]
pub struct Target {
    name: &'static str,
    words: Vec<Vec<u8>>,
    seeds: Vec<Vec<u8>>,
    bytes_max: usize,
}

impl Target {
    /// A target by its name, which is that of its corpus.
    pub fn new(name: &'static str) -> Self {
        Self { name, words: Vec::new(), seeds: Vec::new(), bytes_max: INPUT_BYTES_MAX }
    }

    /// Words that mean something to the reader, to be put into inputs.
    #[must_use]
    pub fn words<W: AsRef<[u8]>>(mut self, words: &[W]) -> Self {
        self.words.extend(words.iter().map(|word| word.as_ref().to_vec()));
        self
    }

    /// An input to begin with, beside the corpus.
    #[must_use]
    pub fn seed(mut self, input: impl Into<Vec<u8>>) -> Self {
        self.seeds.push(input.into());
        self
    }

    /// How long inputs may become.
    #[must_use]
    pub fn bytes_max(mut self, bytes: usize) -> Self {
        self.bytes_max = bytes;
        self
    }

    /// Replays the corpus, then changes it until the budget is spent. The budget is chosen by the variables that
    /// `cargo xtask fuzz` sets; without them it is small, as befits a test.
    ///
    /// # Panics
    /// On the first input whose verdict is an error or that makes the oracle panic, after it was made smaller and written
    /// to a file.
    pub fn run(self, mut oracle: impl FnMut(&[u8]) -> Verdict) {
        let plan = Plan::read();
        if let Some(path) = &plan.replay {
            let input = std::fs::read(path).unwrap_or_else(|error| panic!("cannot read {path:?}: {error}"));
            match judged(&mut oracle, &input) {
                Ok(outcome) => println!("fuzz {}: {path:?}: {outcome}", self.name),
                Err(why) => panic!("{}: {path:?}: {why}", self.name),
            }
            return;
        }
        let mut hunt = Hunt {
            kept: corpus::read(self.name),
            target: self,
            random: Random::new(plan.seed),
            outcomes: BTreeSet::new(),
            pool: Vec::new(),
            executions: 0,
            keeps: plan.keep,
        };
        hunt.begin(&mut oracle);
        hunt.go_on(&plan.budget, &mut oracle);
        println!(
            "fuzz {}: {} executions, {} outcomes, {} inputs kept, seed {}",
            hunt.target.name,
            hunt.executions,
            hunt.outcomes.len(),
            hunt.kept.len(),
            plan.seed
        );
    }
}

/// One run over one target.
struct Hunt {
    target: Target,
    random: Random,
    kept: Vec<Vec<u8>>,
    outcomes: BTreeSet<String>,
    pool: Vec<Vec<u8>>,
    executions: u64,
    keeps: bool,
}

impl Hunt {
    fn begin(&mut self, oracle: &mut impl FnMut(&[u8]) -> Verdict) {
        for input in self.kept.clone() {
            self.feed(oracle, &input);
            self.pool.push(input);
        }
        for input in self.target.seeds.clone() {
            self.feed(oracle, &input);
            self.pool.push(input);
        }
        if self.pool.is_empty() {
            self.pool.push(Vec::new());
        }
    }

    fn go_on(&mut self, budget: &Budget, oracle: &mut impl FnMut(&[u8]) -> Verdict) {
        let started = Instant::now();
        while budget.allows(self.executions, started) {
            let input =
                change::change(&mut self.random, &self.pool, &self.target.words, self.target.bytes_max);
            self.feed(oracle, &input);
        }
    }

    fn feed(&mut self, oracle: &mut impl FnMut(&[u8]) -> Verdict, input: &[u8]) {
        self.executions += 1;
        match judged(oracle, input) {
            Ok(outcome) => {
                if !self.outcomes.contains(&*outcome) {
                    self.outcomes.insert(outcome.into_owned());
                    self.welcome(input);
                }
            }
            Err(why) => {
                let small = shrink::shrink(input, |input| judged(oracle, input).is_err());
                let why = judged(oracle, &small).err().unwrap_or(why);
                let path = corpus::write_found(self.target.name, &small);
                panic!(
                    "{}: {why}\nafter {} executions, by the input {:?}\nkept as {path}; again: cargo xtask fuzz {} --replay {path}",
                    self.target.name,
                    self.executions,
                    String::from_utf8_lossy(&small),
                    self.target.name
                );
            }
        }
    }

    /// An input that reached something new is worth changing further.
    fn welcome(&mut self, input: &[u8]) {
        if self.pool.len() == POOL_MAX {
            self.pool.remove(0);
        }
        self.pool.push(input.to_vec());
        if self.keeps && !self.kept.iter().any(|kept| kept == input) {
            corpus::keep(self.target.name, input);
            self.kept.push(input.to_vec());
        }
    }
}

fn judged(oracle: &mut impl FnMut(&[u8]) -> Verdict, input: &[u8]) -> Verdict {
    catch_unwind(AssertUnwindSafe(|| oracle(input))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("it panicked: {}", text.unwrap_or("without words")))
    })
}

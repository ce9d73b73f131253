//! What a storm will do, from a seed. Pure: the same seed plans the same storm.

use std::time::Duration;

/// A small generator of numbers that look random (splitmix64).
#[derive(Debug)]
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From `low` up to, but not including, `high`.
    fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.roll() % (high - low)
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.between(0, 100) < percent
    }
}

/// How a client behaves after it has sent a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Client {
    /// It waits for the answer.
    Patient,
    /// It waits for so long, gives up and will send again.
    Impatient(Duration),
    /// It sends and hangs up.
    HangsUp(Duration),
}

/// One sending of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sending {
    /// How long after the others.
    pub(crate) after: Duration,
    pub(crate) client: Client,
}

/// One request that should take effect once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) number: u32,
    /// Sent together.
    pub(crate) copies: Vec<Sending>,
    /// Sent once more when an answer is there: a client that did not see it.
    pub(crate) late: Option<Duration>,
}

/// Plans a storm: so many requests, each sent so many times at once.
pub(crate) fn plan(seed: u64, requests: u32, copies: u32) -> Vec<Request> {
    let mut dice = Dice(seed);
    let millis = Duration::from_millis;
    let mut request = |number| {
        let copies = (0..copies).map(|_| {
            let client = match dice.between(0, 100) {
                0..70 => Client::Patient,
                70..85 => Client::Impatient(millis(dice.between(5, 30))),
                _ => Client::HangsUp(millis(dice.between(1, 5))),
            };
            Sending { after: millis(dice.between(0, 6)), client }
        });
        let copies = copies.collect();
        let late = dice.chance(30).then(|| millis(dice.between(0, 20)));
        Request { number, copies, late }
    };
    (1..=requests).map(&mut request).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_plans_the_same_storm_and_another_seed_another() {
        assert_eq!(plan(7, 50, 4), plan(7, 50, 4));
        assert_ne!(plan(7, 50, 4), plan(8, 50, 4));
    }

    #[test]
    fn a_storm_has_every_kind_of_client_and_as_many_copies_as_asked() {
        let storm = plan(1, 100, 5);
        assert_eq!(storm.len(), 100);
        let all: Vec<Client> =
            storm.iter().flat_map(|request| request.copies.iter().map(|sending| sending.client)).collect();
        assert_eq!(all.len(), 500);
        assert!(all.contains(&Client::Patient));
        assert!(all.iter().any(|client| matches!(client, Client::Impatient(_))));
        assert!(all.iter().any(|client| matches!(client, Client::HangsUp(_))));
        assert!(storm.iter().any(|request| request.late.is_some()));
    }
}

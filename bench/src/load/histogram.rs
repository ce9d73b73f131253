//! Latencies, counted in buckets that are a hundredth wide: small, quick to add to, exact enough for a p99.

/// Buckets of one octave.
const STEPS: u64 = 128;
const OCTAVES: usize = 40;

/// How often each latency was seen. Latencies are in nanoseconds and kept to within a hundredth.
#[derive(Debug, Clone)]
pub(super) struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: vec![0; STEPS as usize * OCTAVES], count: 0, max: 0 }
    }
}

impl Histogram {
    pub(super) fn add(&mut self, nanoseconds: u64) {
        self.buckets[bucket(nanoseconds)] += 1;
        self.count += 1;
        self.max = self.max.max(nanoseconds);
    }

    pub(super) fn merge(&mut self, other: &Histogram) {
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
        self.count += other.count;
        self.max = self.max.max(other.max);
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn max(&self) -> u64 {
        self.max
    }

    /// The latency that this part of all requests did not exceed, in nanoseconds; zero without requests.
    pub(super) fn quantile(&self, part: f64) -> u64 {
        let rank = (self.count as f64 * part).ceil() as u64;
        let mut seen = 0;
        for (number, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank.max(1) && *count > 0 {
                return upper(number).min(self.max);
            }
        }
        0
    }
}

fn bucket(nanoseconds: u64) -> usize {
    if nanoseconds < STEPS {
        return nanoseconds as usize;
    }
    let octave = u64::from(nanoseconds.ilog2() - STEPS.ilog2());
    let step = (nanoseconds >> octave) - STEPS;
    let number = ((octave + 1) * STEPS + step) as usize;
    number.min(STEPS as usize * OCTAVES - 1)
}

/// The highest latency of a bucket.
fn upper(number: usize) -> u64 {
    let number = number as u64;
    match number / STEPS {
        0 => number,
        octave => ((number % STEPS + STEPS + 1) << (octave - 1)) - 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_latency_is_kept_to_within_a_hundredth() {
        for nanoseconds in (0..5_000_000_000_u64).step_by(7_654_321).chain(0..1000) {
            let kept = upper(bucket(nanoseconds));
            assert!(
                kept >= nanoseconds && kept - nanoseconds <= nanoseconds / 100,
                "{nanoseconds} as {kept}"
            );
        }
    }

    #[test]
    fn quantiles_are_those_of_the_sorted_list() {
        let mut histogram = Histogram::default();
        (1..=1000).for_each(|n| histogram.add(n * 1_000_000));
        let near = |got: u64, want: u64| got >= want && got <= want + want / 100;
        assert!(near(histogram.quantile(0.5), 500_000_000), "{}", histogram.quantile(0.5));
        assert!(near(histogram.quantile(0.99), 990_000_000), "{}", histogram.quantile(0.99));
        assert_eq!(
            (histogram.quantile(1.0), histogram.max(), histogram.count()),
            (1_000_000_000, 1_000_000_000, 1000)
        );
        assert_eq!(Histogram::default().quantile(0.5), 0);
    }

    #[test]
    fn merged_histograms_count_both() {
        let (mut one, mut two) = (Histogram::default(), Histogram::default());
        one.add(5);
        two.add(50);
        one.merge(&two);
        assert_eq!((one.count(), one.max(), one.quantile(0.5), one.quantile(1.0)), (2, 50, 5, 50));
    }
}

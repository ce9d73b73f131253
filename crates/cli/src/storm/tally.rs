//! What a storm saw, request by request and in all. Pure: counts, and asks nobody.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use crate::client::{Answer, Failure};

/// How one sending ended.
#[derive(Debug)]
pub(crate) enum Ended {
    Answered(Answer),
    /// The client did not want to wait any longer.
    GaveUp,
    /// The client hung up on purpose.
    HungUp,
    Failed(Failure),
}

/// One sending, and whether another of the same request was under way.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) ended: Ended,
    pub(crate) overlapped: bool,
}

/// What an answer means for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// It is done.
    Done,
    /// It will never be.
    Refused,
    /// Ask again.
    NotYet,
}

/// Reads a status as a careful client does.
pub(crate) fn meaning(status: u16) -> Meaning {
    match status {
        200..400 => Meaning::Done,
        408 | 409 | 425 | 429 | 500.. => Meaning::NotYet,
        _ => Meaning::Refused,
    }
}

/// Everything that a storm counted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    /// Requests that should take effect once.
    pub(crate) requests: u64,
    pub(crate) sent: u64,
    /// Sendings that began while another of the same request was under way.
    pub(crate) overlapping: u64,
    /// Answers that say they were given again.
    pub(crate) replays: u64,
    /// Answers 409.
    pub(crate) conflicts: u64,
    /// Clients that gave up waiting, by plan or by `--timeout`.
    pub(crate) timeouts: u64,
    /// Clients that hung up.
    pub(crate) disconnects: u64,
    /// Connections that broke or could not be made.
    pub(crate) broken: u64,
    /// Answers with a 5xx status.
    pub(crate) errors: u64,
    /// Requests that never got a final answer.
    pub(crate) unanswered: u64,
    /// Requests that were refused.
    pub(crate) refused: u64,
    /// Requests that got two different answers.
    pub(crate) contradicted: u64,
    /// Requests that were answered more than once without a word of repetition.
    pub(crate) unmarked_repeats: u64,
    /// Different answers, counted for each request by itself.
    pub(crate) distinct_answers: u64,
    /// Different answers among all requests together.
    all_answers: HashSet<u64>,
    /// What the first refusal said.
    pub(crate) first_refusal: Option<String>,
    latencies: Vec<Duration>,
}

impl Tally {
    /// Counts one request, with everything that was sent for it.
    pub(crate) fn add(&mut self, sendings: &[Sent]) {
        let mut answers = HashSet::new();
        let (mut unmarked, mut is_done, mut is_refused) = (0, false, false);
        self.requests += 1;
        for Sent { ended, overlapped } in sendings {
            self.sent += 1;
            self.overlapping += u64::from(*overlapped);
            match ended {
                Ended::GaveUp | Ended::Failed(Failure::TimedOut) => self.timeouts += 1,
                Ended::HungUp => self.disconnects += 1,
                Ended::Failed(Failure::NotConnected(_) | Failure::Broken(_)) => self.broken += 1,
                Ended::Answered(answer) => {
                    self.count(answer);
                    match meaning(answer.status) {
                        Meaning::Done => {
                            is_done = true;
                            answers.insert(digest(answer));
                            unmarked += u32::from(!answer.is_replay());
                        }
                        Meaning::Refused => {
                            is_refused = true;
                            let words = || format!("{} {}", answer.status, answer.glimpse());
                            self.first_refusal.get_or_insert_with(words);
                        }
                        Meaning::NotYet => {}
                    }
                }
            }
        }
        self.refused += u64::from(is_refused && !is_done);
        self.unanswered += u64::from(!is_refused && !is_done);
        self.contradicted += u64::from(answers.len() > 1);
        self.unmarked_repeats += u64::from(unmarked > 1);
        self.distinct_answers += answers.len() as u64;
        self.all_answers.extend(answers);
    }

    fn count(&mut self, answer: &Answer) {
        self.latencies.push(answer.took);
        self.replays += u64::from(answer.is_replay());
        self.conflicts += u64::from(answer.status == 409);
        self.errors += u64::from(answer.status >= 500);
    }

    /// Whether answers to different requests can be told apart at all.
    pub(crate) fn answers_differ(&self) -> bool {
        self.requests < 2 || self.all_answers.len() > 1
    }

    /// How long an answer took, for so many per cent of them.
    pub(crate) fn percentile(&self, percent: usize) -> Option<Duration> {
        let mut sorted = self.latencies.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() * percent).div_ceil(100);
        sorted.get(rank.saturating_sub(1)).copied()
    }
}

fn digest(answer: &Answer) -> u64 {
    let mut hasher = DefaultHasher::new();
    answer.status.hash(&mut hasher);
    answer.body.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
pub(crate) mod tests {
    use bytes::Bytes;
    use http::{HeaderMap, HeaderValue};

    use super::*;

    pub(crate) fn answer(status: u16, body: &'static str, replayed: bool) -> Sent {
        let mut headers = HeaderMap::new();
        if replayed {
            headers.insert("idempotency-replayed", HeaderValue::from_static("true"));
        }
        let took = Duration::from_millis(10);
        let answer = Answer { status, headers, body: Bytes::from_static(body.as_bytes()), took };
        Sent { ended: Ended::Answered(answer), overlapped: replayed }
    }

    #[test]
    fn a_request_that_is_answered_twice_alike_is_one_answer() {
        let mut tally = Tally::default();
        tally.add(&[answer(201, "1", false), answer(409, "", false), answer(201, "1", true)]);
        assert_eq!((tally.sent, tally.replays, tally.conflicts, tally.overlapping), (3, 1, 1, 1));
        assert_eq!((tally.distinct_answers, tally.contradicted, tally.unmarked_repeats), (1, 0, 0));
        assert_eq!((tally.unanswered, tally.refused), (0, 0));
    }

    #[test]
    fn a_request_that_is_answered_in_two_ways_is_a_contradiction() {
        let mut tally = Tally::default();
        tally.add(&[answer(201, "1", false), answer(201, "2", false)]);
        assert_eq!((tally.distinct_answers, tally.contradicted, tally.unmarked_repeats), (2, 1, 1));
    }

    #[test]
    fn a_request_without_a_final_answer_is_not_taken_for_done() {
        let mut tally = Tally::default();
        let gone = |ended| Sent { ended, overlapped: false };
        tally.add(&[gone(Ended::GaveUp), gone(Ended::HungUp), answer(503, "", false)]);
        tally.add(&[answer(401, "who?", false)]);
        assert_eq!((tally.unanswered, tally.refused, tally.errors), (1, 1, 1));
        assert_eq!((tally.timeouts, tally.disconnects), (1, 1));
        assert_eq!(tally.first_refusal.as_deref(), Some("401 who?"));
    }

    #[test]
    fn percentiles_are_of_the_answers_that_came() {
        let mut tally = Tally::default();
        assert_eq!(tally.percentile(50), None);
        tally.latencies = (1..=100).map(Duration::from_millis).collect();
        assert_eq!(tally.percentile(50), Some(Duration::from_millis(50)));
        assert_eq!(tally.percentile(99), Some(Duration::from_millis(99)));
    }
}

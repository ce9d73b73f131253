//! Where a reader begins. A cursor that cannot be trusted, or whose next messages are gone, leads to a gap, never to silence.
//! Decides purely; what it needs to know is read before.

use std::fmt;

use crate::event::Gap;
use crate::event_id::{EventId, check_of};
use crate::store::people::Interval;

/// What a reader says about where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// At the first message that is kept.
    Beginning,
    /// After the newest.
    Newest,
    /// After this one.
    Event(EventId),
    /// After this number, which the broker itself has kept.
    Kept(i64),
}

/// What is known of a line when a reader comes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known<'a> {
    pub(crate) line: &'a str,
    pub(crate) epoch: i64,
    pub(crate) next_number: i64,
    pub(crate) oldest: i64,
    /// The message that has the cursor's number, where it is still kept.
    pub(crate) at_cursor: Option<&'a str>,
    pub(crate) intervals: &'a [Interval],
}

/// Where a reader begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Start {
    pub(crate) after: i64,
    pub(crate) gap: Option<Gap>,
}

/// Decides where a reader begins.
pub(crate) fn start(after: After, known: Known<'_>) -> Start {
    let oldest = EventId { epoch: known.epoch, number: known.oldest, check: 0 };
    let gap = |from: &dyn fmt::Display, reason| Gap {
        line: known.line.to_owned(),
        from: from.to_string(),
        oldest: oldest.to_string(),
        reason,
    };
    let from_oldest = known.oldest - 1;
    let (after, gap) = match after {
        After::Beginning => (0, None),
        After::Newest => (known.next_number - 1, None),
        After::Kept(number) => match is_swept(number, &known) {
            true => (from_oldest, Some(gap(&number, "swept"))),
            false => (number, None),
        },
        After::Event(id) if id.number == 0 && id.epoch == known.epoch => (0, None),
        After::Event(id) => {
            let is_same = known.at_cursor.map(|message| check_of(message) == id.check);
            match (id.epoch == known.epoch, is_same) {
                // The same message, so that nothing needs to be repeated; what came after it may have been lost.
                (false, Some(true)) => (id.number, Some(gap(&id, "epoch"))),
                (false, _) => (from_oldest, Some(gap(&id, "epoch"))),
                (true, _) if id.number >= known.next_number => (from_oldest, Some(gap(&id, "ahead"))),
                (true, Some(false)) => (from_oldest, Some(gap(&id, "check"))),
                (true, Some(true)) => (id.number, None),
                (true, None) if is_swept(id.number, &known) => (from_oldest, Some(gap(&id, "swept"))),
                (true, None) => (id.number, None),
            }
        }
    };
    Start { after, gap }
}

/// Whether something after this number, and of this reader's, is no longer kept.
fn is_swept(number: i64, known: &Known<'_>) -> bool {
    let is_lost = |interval: &Interval| {
        let first = (number + 1).max(interval.since);
        let end = interval.until.unwrap_or(i64::MAX).min(known.oldest);
        first < end
    };
    known.intervals.iter().any(is_lost)
}

/// The first number at or after this one that is this reader's.
pub(crate) fn next_own(number: i64, intervals: &[Interval]) -> Option<i64> {
    let firsts = intervals.iter().filter(|interval| interval.until.is_none_or(|until| number < until));
    firsts.map(|interval| interval.since.max(number)).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: &str = "01ARYZ6S410000000000000000";
    const ALL: [Interval; 1] = [Interval { since: 1, until: None }];

    fn known(at_cursor: Option<&'static str>) -> Known<'static> {
        Known { line: "topic:t", epoch: 2, next_number: 21, oldest: 11, at_cursor, intervals: &ALL }
    }

    fn reason(after: After, known: Known<'_>) -> (i64, Option<&'static str>) {
        let start = start(after, known);
        (start.after, start.gap.map(|gap| gap.reason))
    }

    #[test]
    fn a_cursor_that_cannot_be_trusted_leads_to_a_gap() {
        let id = |epoch, number| EventId::of(epoch, number, MESSAGE);
        assert_eq!(reason(After::Event(id(2, 15)), known(Some(MESSAGE))), (15, None));
        assert_eq!(reason(After::Event(id(2, 15)), known(Some("another"))), (10, Some("check")));
        assert_eq!(reason(After::Event(id(1, 15)), known(Some(MESSAGE))), (15, Some("epoch")));
        assert_eq!(reason(After::Event(id(1, 15)), known(Some("another"))), (10, Some("epoch")));
        assert_eq!(reason(After::Event(id(2, 21)), known(None)), (10, Some("ahead")));
        assert_eq!(reason(After::Event(id(2, 20)), known(Some(MESSAGE))), (20, None));
        assert_eq!(reason(After::Event(id(2, 9)), known(None)), (10, Some("swept")));
        assert_eq!(reason(After::Event(id(2, 10)), known(None)), (10, None), "the next one is still there");
        assert_eq!(reason(After::Beginning, known(None)), (0, None));
        assert_eq!(reason(After::Newest, known(None)), (20, None));
        assert_eq!(reason(After::Kept(3), known(None)), (10, Some("swept")));
        assert_eq!(reason(After::Kept(10), known(None)), (10, None));
    }

    #[test]
    fn what_was_never_a_readers_own_is_no_gap() {
        let late = [Interval { since: 12, until: None }];
        let known = Known { intervals: &late, ..known(None) };
        assert_eq!(reason(After::Kept(0), known), (0, None));
        let early = [Interval { since: 2, until: Some(5) }, Interval { since: 12, until: None }];
        let known = Known { intervals: &early, ..known };
        assert_eq!(reason(After::Kept(4), known), (4, None));
        assert_eq!(reason(After::Kept(3), known), (10, Some("swept")));
    }

    #[test]
    fn the_next_own_number_skips_what_is_not() {
        let two = [Interval { since: 2, until: Some(5) }, Interval { since: 12, until: None }];
        assert_eq!(
            [1, 3, 5, 20].map(|number| next_own(number, &two)),
            [Some(2), Some(3), Some(12), Some(20)]
        );
        assert_eq!(next_own(5, &two[..1]), None);
    }
}

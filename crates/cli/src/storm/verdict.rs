//! Whether a storm went well. Pure. What cannot be known is never called good.

use super::tally::Tally;

/// One service, stormed.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// What it is called in the table.
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) tally: Tally,
    /// Effects that the storm had, where they could be counted.
    pub(crate) effects: Option<u64>,
}

impl Row {
    /// Effects beyond one for each request.
    pub(crate) fn duplicates(&self) -> Option<u64> {
        self.effects.map(|effects| effects.saturating_sub(self.tally.requests))
    }
}

/// What is wrong with a service that should have let every request take effect once; nothing when all is well.
pub(crate) fn faults(row: &Row) -> Vec<String> {
    let Row { tally, effects, .. } = row;
    let requests = tally.requests;
    let mut found = Vec::new();
    if tally.refused > 0 {
        let first = tally.first_refusal.as_deref().unwrap_or_default();
        found.push(format!("{} of {requests} requests were refused, the first with: {first}", tally.refused));
    }
    if tally.unanswered > 0 {
        found.push(format!("{} of {requests} requests never got a final answer", tally.unanswered));
    }
    if tally.contradicted > 0 {
        let total = tally.distinct_answers;
        found.push(format!(
            "{} requests got answers that contradict each other ({total} different answers to {requests} requests)",
            tally.contradicted
        ));
    }
    match effects {
        Some(effects) if *effects != requests => {
            found.push(format!("{effects} effects of {requests} requests"));
        }
        Some(_) => {}
        None if tally.contradicted == 0 && !tally.answers_differ() && tally.unmarked_repeats > 0 => {
            found.push(
                "effects were not counted, and the answers do not tell one request from another: \
                 give --effects-url"
                    .to_owned(),
            );
        }
        None => {}
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::tally::Sent;
    use super::super::tally::tests::answer;
    use super::*;

    fn row(effects: Option<u64>, requests: &[&[(&'static str, bool)]]) -> Row {
        let mut tally = Tally::default();
        for request in requests {
            let sent: Vec<Sent> = request.iter().map(|(body, again)| answer(201, body, *again)).collect();
            tally.add(&sent);
        }
        Row { name: "x".to_owned(), url: "http://x".to_owned(), tally, effects }
    }

    #[test]
    fn one_effect_for_each_request_is_well() {
        let row = row(Some(2), &[&[("1", false), ("1", true)], &[("2", false)]]);
        assert_eq!(faults(&row), Vec::<String>::new());
        assert_eq!(row.duplicates(), Some(0));
    }

    #[test]
    fn one_effect_more_or_less_is_a_fault() {
        for effects in [1, 3] {
            let row = row(Some(effects), &[&[("1", false)], &[("2", false)]]);
            assert_eq!(faults(&row), [format!("{effects} effects of 2 requests")]);
        }
    }

    #[test]
    fn without_a_count_answers_that_contradict_each_other_are_a_fault() {
        assert_eq!(faults(&row(None, &[&[("1", false), ("2", false)]])).len(), 1);
        assert!(faults(&row(None, &[&[("1", false), ("1", false)], &[("2", false)]])).is_empty());
    }

    #[test]
    fn without_a_count_answers_that_say_nothing_are_not_called_good() {
        let silent = row(None, &[&[("ok", false), ("ok", false)], &[("ok", false)]]);
        assert!(faults(&silent)[0].contains("--effects-url"));
        let marked = row(None, &[&[("ok", false), ("ok", true)], &[("ok", false)]]);
        assert!(faults(&marked).is_empty(), "each was answered once and then again, and says so");
    }
}

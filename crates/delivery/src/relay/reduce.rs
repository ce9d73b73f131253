//! How waiting entries become one value, and what each of them did to it. Pure.

pub use semel_contract::profile::Reducer;

/// The largest value that JSON readers agree on.
pub const VALUE_MAX: i64 = (1 << 53) - 1;

/// A result that no receiver would read back as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow;

/// One entry in the chain: the value before it and after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Before this entry; `None` where the upstream's value is not known.
    pub before: Option<i64>,
    /// After it.
    pub after: Option<i64>,
}

/// Whether entries may be taken out and come back later without changing the result.
pub fn commutes(reducer: Reducer) -> bool {
    match reducer {
        Reducer::Sum | Reducer::Max => true,
        Reducer::Last => false,
    }
}

/// All values as one: the change for `sum`, the wanted value for `last` and `max`. `None` without values.
pub fn reduced(reducer: Reducer, values: &[i64]) -> Result<Option<i64>, Overflow> {
    match reducer {
        Reducer::Sum if values.is_empty() => Ok(None),
        Reducer::Sum => fitting(values.iter().map(|value| i128::from(*value)).sum()).map(Some),
        Reducer::Last => Ok(values.last().copied()),
        Reducer::Max => Ok(values.iter().max().copied()),
    }
}

/// The value after one more entry.
pub fn step(reducer: Reducer, before: i64, value: i64) -> Result<i64, Overflow> {
    match reducer {
        Reducer::Sum => fitting(i128::from(before) + i128::from(value)),
        Reducer::Last => Ok(value),
        Reducer::Max => Ok(before.max(value)),
    }
}

/// What each entry did, chained: the first begins at `before`, each next where the one before it ended.
pub fn chain(reducer: Reducer, before: Option<i64>, values: &[i64]) -> Result<Vec<Link>, Overflow> {
    let mut at = before;
    let mut links = Vec::with_capacity(values.len());
    for value in values {
        let after = match (reducer, at) {
            (Reducer::Last, _) => Some(*value),
            (Reducer::Sum | Reducer::Max, Some(now)) => Some(step(reducer, now, *value)?),
            (Reducer::Sum | Reducer::Max, None) => None,
        };
        links.push(Link { before: at, after });
        at = after;
    }
    Ok(links)
}

/// How many of these values, from the first on, fit into one batch that starts at `before`. Only the end counts: what lies
/// between is never written.
pub fn fitting_prefix(reducer: Reducer, before: i64, values: &[i64]) -> usize {
    let fits = |count: &usize| {
        let whole = reduced(reducer, &values[..*count]);
        matches!(whole, Ok(Some(value)) if step(reducer, before, value).is_ok())
    };
    (1..=values.len()).rev().find(fits).unwrap_or(0)
}

fn fitting(value: i128) -> Result<i64, Overflow> {
    i64::try_from(value).ok().filter(|value| value.abs() <= VALUE_MAX).ok_or(Overflow)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reducer_reduces() {
        let cases: [(Reducer, &[i64], Option<i64>); 7] = [
            (Reducer::Sum, &[5, 3], Some(8)),
            (Reducer::Sum, &[5, -5], Some(0)),
            (Reducer::Sum, &[], None),
            (Reducer::Last, &[5, 3], Some(3)),
            (Reducer::Last, &[], None),
            (Reducer::Max, &[5, 3], Some(5)),
            (Reducer::Max, &[-5, -3], Some(-3)),
        ];
        for (reducer, values, wanted) in cases {
            assert_eq!(reduced(reducer, values), Ok(wanted), "{reducer:?} {values:?}");
        }
    }

    #[test]
    fn the_chain_ends_where_the_whole_ends() {
        for reducer in [Reducer::Sum, Reducer::Last, Reducer::Max] {
            let values = [4, -2, 9, 1];
            let links = chain(reducer, Some(100), &values).unwrap();
            let whole = reduced(reducer, &values).unwrap().unwrap();
            assert_eq!(links[0].before, Some(100));
            assert_eq!(links.last().unwrap().after, Some(step(reducer, 100, whole).unwrap()), "{reducer:?}");
            assert!(links.windows(2).all(|two| two[0].after == two[1].before), "{reducer:?}");
        }
        let unknown = chain(Reducer::Sum, None, &[1, 2]).unwrap();
        assert_eq!(unknown, vec![Link { before: None, after: None }; 2]);
    }

    #[test]
    fn what_no_receiver_would_read_back_is_refused() {
        assert_eq!(reduced(Reducer::Sum, &[VALUE_MAX, 1]), Err(Overflow));
        assert_eq!(reduced(Reducer::Sum, &[VALUE_MAX, 1, -1]), Ok(Some(VALUE_MAX)));
        assert_eq!(step(Reducer::Sum, -VALUE_MAX, -1), Err(Overflow));
        assert_eq!(reduced(Reducer::Sum, &[i64::MAX, i64::MAX]), Err(Overflow));
        assert_eq!(fitting_prefix(Reducer::Sum, 1, &[VALUE_MAX - 1, 1, 5]), 1);
        assert_eq!(fitting_prefix(Reducer::Sum, 1, &[VALUE_MAX, 5]), 0);
        assert_eq!(fitting_prefix(Reducer::Sum, 1, &[VALUE_MAX, -5]), 2);
    }

    #[test]
    fn what_commutes_may_be_taken_out() {
        for reducer in [Reducer::Sum, Reducer::Max] {
            assert!(commutes(reducer));
            assert_eq!(reduced(reducer, &[7, 2, 5]), reduced(reducer, &[5, 7, 2]));
        }
        assert!(!commutes(Reducer::Last));
    }
}

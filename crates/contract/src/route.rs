//! Which route a request belongs to: `POST /orders/{id}/refund`. Matches paths as received; decodes nothing, so that the
//! path that is matched is the path that is fingerprinted and sent on.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

/// Methods that never carry a key: they have no effect to protect.
pub const SAFE_METHODS: [&str; 4] = ["GET", "HEAD", "OPTIONS", "TRACE"];

/// A route's pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// The methods; empty means every method but the safe ones.
    methods: Vec<String>,
    segments: Vec<Segment>,
}

/// Why a text is not a pattern, with what was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatternError(String);

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for PatternError {}

/// One part of a path pattern. The order is that of precedence: the more particular first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Segment {
    /// This text.
    Literal(String),
    /// Any one segment that is not empty.
    Param(String),
    /// All that is left, at least one segment.
    Rest(String),
}

/// Path parameters in the order of the pattern.
pub type Params<'p, 'r> = Vec<(&'p str, &'r str)>;

impl Pattern {
    /// The parameters, when the pattern matches.
    pub fn matches<'p, 'r>(&'p self, method: &str, path: &'r str) -> Option<Params<'p, 'r>> {
        let covers = match self.methods.as_slice() {
            [] => !SAFE_METHODS.contains(&method),
            methods => methods.iter().any(|known| known == method),
        };
        if !covers {
            return None;
        }
        let mut rest = Some(path.strip_prefix('/')?);
        let mut params = Vec::new();
        for segment in &self.segments {
            let remaining = rest?;
            let (head, tail) =
                remaining.split_once('/').map_or((remaining, None), |(head, tail)| (head, Some(tail)));
            rest = tail;
            match segment {
                Segment::Literal(text) if text == head => {}
                Segment::Literal(_) => return None,
                Segment::Param(name) if !head.is_empty() => params.push((name.as_str(), head)),
                Segment::Param(_) => return None,
                Segment::Rest(name) => {
                    params.push((name.as_str(), remaining));
                    rest = None;
                }
            }
        }
        rest.is_none().then_some(params)
    }

    /// The names of its path parameters.
    pub fn params(&self) -> Vec<&str> {
        self.segments
            .iter()
            .filter_map(|segment| match segment {
                Segment::Literal(_) => None,
                Segment::Param(name) | Segment::Rest(name) => Some(name.as_str()),
            })
            .collect()
    }

    /// Which of two patterns is asked first. Equal patterns would match the same requests.
    pub fn precedence(&self, other: &Self) -> Ordering {
        let rank = |segment: &Segment| match segment {
            Segment::Literal(text) => (0, text.clone()),
            Segment::Param(_) => (1, String::new()),
            Segment::Rest(_) => (2, String::new()),
        };
        let of_path = self.segments.iter().map(rank).cmp(other.segments.iter().map(rank));
        let of_methods = || self.methods.is_empty().cmp(&other.methods.is_empty());
        of_path.then_with(of_methods)
    }

    /// Whether some request could match both.
    pub fn overlaps(&self, other: &Self) -> bool {
        let shares_method = self.methods.is_empty()
            || other.methods.is_empty()
            || self.methods.iter().any(|method| other.methods.contains(method));
        shares_method && can_meet(&self.segments, &other.segments)
    }

    /// Whether some request could match both at the same precedence.
    pub fn clashes_with(&self, other: &Self) -> bool {
        let shares_method =
            self.methods.is_empty() || self.methods.iter().any(|method| other.methods.contains(method));
        self.precedence(other) == Ordering::Equal && shares_method
    }
}

/// Whether some path could match both.
fn can_meet(one: &[Segment], other: &[Segment]) -> bool {
    match (one, other) {
        ([], []) => true,
        ([], [_, ..]) | ([_, ..], []) => false,
        ([Segment::Rest(_), ..], _) | (_, [Segment::Rest(_), ..]) => true,
        ([Segment::Literal(a), ..], [Segment::Literal(b), ..]) if a != b => false,
        (
            [Segment::Literal(_) | Segment::Param(_), one @ ..],
            [Segment::Literal(_) | Segment::Param(_), other @ ..],
        ) => can_meet(one, other),
    }
}

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        let bad = |why: &str| {
            PatternError(format!(
                "bad route {text:?}: {why}; expected something like \"POST /orders/{{id}}\""
            ))
        };
        let (methods, path) = text.split_once(' ').ok_or_else(|| bad("a method and a path are needed"))?;
        let methods = match methods {
            "*" => Vec::new(),
            list => list.split('|').map(str::to_owned).collect(),
        };
        if methods.iter().any(|method| method.is_empty() || !method.bytes().all(|b| b.is_ascii_uppercase())) {
            return Err(bad("methods are in capitals, joined by |, or *"));
        }
        if let Some(safe) = methods.iter().find(|method| SAFE_METHODS.contains(&method.as_str())) {
            return Err(bad(&format!("{safe} has no effect that a key could protect")));
        }
        let path = path.strip_prefix('/').ok_or_else(|| bad("the path begins with /"))?;
        let segments: Vec<Segment> = path
            .split('/')
            .map(segment)
            .collect::<Option<_>>()
            .ok_or_else(|| bad("braces enclose a whole segment: {name} or {name*}"))?;
        let rest_before_end =
            segments.iter().rev().skip(1).any(|segment| matches!(segment, Segment::Rest(_)));
        if rest_before_end {
            return Err(bad("{name*} takes all that is left, so it comes last"));
        }
        Ok(Self { methods, segments })
    }
}

fn segment(text: &str) -> Option<Segment> {
    let Some(name) = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')) else {
        return (!text.contains(['{', '}', '?', '#', ' '])).then(|| Segment::Literal(text.to_owned()));
    };
    let (name, is_rest) = name.strip_suffix('*').map_or((name, false), |name| (name, true));
    let is_name = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    is_name.then(|| if is_rest { Segment::Rest(name.to_owned()) } else { Segment::Param(name.to_owned()) })
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let methods = self.methods.join("|");
        f.write_str(if methods.is_empty() { "*" } else { &methods })?;
        f.write_str(" ")?;
        self.segments.iter().try_for_each(|segment| match segment {
            Segment::Literal(text) => write!(f, "/{text}"),
            Segment::Param(name) => write!(f, "/{{{name}}}"),
            Segment::Rest(name) => write!(f, "/{{{name}*}}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> Pattern {
        text.parse().unwrap()
    }

    #[test]
    fn patterns_match_whole_paths() {
        let refund = pattern("POST /orders/{id}/refund");
        assert_eq!(refund.matches("POST", "/orders/7/refund"), Some(vec![("id", "7")]));
        assert_eq!(refund.matches("POST", "/orders/a%2Fb/refund"), Some(vec![("id", "a%2Fb")]));
        for (method, path) in [
            ("GET", "/orders/7/refund"),
            ("POST", "/orders//refund"),
            ("POST", "/orders/7/refund/"),
            ("POST", "/orders/7"),
            ("POST", "/orders/7/refund/8"),
            ("POST", "orders/7/refund"),
        ] {
            assert_eq!(refund.matches(method, path), None, "{method} {path}");
        }
        assert_eq!(pattern("POST /").matches("POST", "/"), Some(vec![]));
    }

    #[test]
    fn a_star_covers_every_method_that_has_an_effect() {
        let all = pattern("* /api/{rest*}");
        assert_eq!(all.matches("DELETE", "/api/a/b"), Some(vec![("rest", "a/b")]));
        assert_eq!(all.matches("GET", "/api/a/b"), None);
        assert_eq!(all.matches("POST", "/api"), None);
    }

    #[test]
    fn the_more_particular_pattern_is_asked_first() {
        let mut patterns = ["* /api/{rest*}", "POST /api/{id}", "* /api/new", "POST /api/new"].map(pattern);
        patterns.sort_by(Pattern::precedence);
        assert_eq!(
            patterns.map(|pattern| pattern.to_string()),
            ["POST /api/new", "* /api/new", "POST /api/{id}", "* /api/{rest*}"]
        );
    }

    #[test]
    fn patterns_that_match_the_same_requests_clash() {
        assert!(pattern("POST /a/{x}").clashes_with(&pattern("PUT|POST /a/{y}")));
        assert!(!pattern("POST /a/{x}").clashes_with(&pattern("PUT /a/{y}")));
        assert!(
            !pattern("POST /a/{x}").clashes_with(&pattern("* /a/{y}")),
            "the one with a method is asked first"
        );
    }

    #[test]
    fn patterns_overlap_where_a_request_could_match_both() {
        for (one, other, overlap) in [
            ("POST /orders", "* /{path*}", true),
            ("POST /orders", "PUT /orders", false),
            ("POST|PUT /orders", "PUT /orders", true),
            ("POST /orders/{id}", "POST /orders/mine", true),
            ("POST /orders/{id}", "POST /orders", false),
            ("POST /orders/{id}/refund", "POST /orders/{rest*}", true),
            ("POST /orders", "POST /carts", false),
            ("POST /{a}/x", "POST /b/{c}", true),
            ("POST /{a}/x", "POST /b/y", false),
        ] {
            assert_eq!(pattern(one).overlaps(&pattern(other)), overlap, "{one} and {other}");
            assert_eq!(pattern(other).overlaps(&pattern(one)), overlap, "{other} and {one}");
        }
    }

    #[test]
    fn bad_patterns_are_refused() {
        for text in [
            "/orders",
            "post /orders",
            "GET /orders",
            "POST orders",
            "POST /a{b}",
            "POST /{}",
            "POST /{a*}/b",
            "POST| /a",
        ] {
            assert!(text.parse::<Pattern>().is_err(), "{text}");
        }
    }
}

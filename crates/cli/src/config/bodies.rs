//! `limits` of relay, broker and outbox: how much room there is for bodies, and how long one may take. The gate has the same
//! names among others.

use std::time::Duration;

use semel_contract::time::format_duration;
use semel_http::BodyBounds;

use super::{Bytes, Text};

/// What these settings mean. `largest` is the largest body that is read: there is room for one at least.
pub(crate) fn body_bounds(
    table: &str,
    bodies: Option<&Text<Bytes>>,
    body_deadline: Option<&Text<Duration>>,
    largest: usize,
) -> Result<BodyBounds, String> {
    let usual = BodyBounds::default();
    let bytes_max = match bodies {
        Some(Text(Bytes(bytes))) => usize::try_from(*bytes).unwrap_or(usize::MAX),
        None => usual.bytes_max.max(largest),
    };
    if bytes_max < largest {
        let largest = Bytes(largest as u64);
        return Err(format!("{table}.bodies must be at least {largest}: one body may be so large"));
    }
    match body_deadline {
        Some(Text(deadline)) if deadline.is_zero() => {
            Err(format!("{table}.body_deadline must be longer than 0s"))
        }
        given => Ok(BodyBounds { bytes_max, time_max: given.map_or(usual.time_max, |given| given.0) }),
    }
}

/// The bounds in words.
pub(crate) fn describe_bounds(bounds: BodyBounds) -> String {
    let BodyBounds { bytes_max, time_max } = bounds;
    format!("bodies {}, body_deadline {}", Bytes(bytes_max as u64), format_duration(time_max))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_one_body_at_least() {
        let bounds = |bodies: Option<u64>, deadline: Option<u64>| {
            let deadline = deadline.map(|seconds| Text(Duration::from_secs(seconds)));
            let bodies = bodies.map(|bytes| Text(Bytes(bytes)));
            body_bounds("relay.limits", bodies.as_ref(), deadline.as_ref(), 1 << 20)
        };
        assert_eq!(describe_bounds(bounds(None, None).unwrap()), "bodies 256MiB, body_deadline 5m");
        assert_eq!(describe_bounds(bounds(Some(1 << 20), Some(9)).unwrap()), "bodies 1MiB, body_deadline 9s");
        let error = bounds(Some(1000), None).unwrap_err();
        assert!(error.starts_with("relay.limits.bodies must be at least 1MiB"), "{error}");
        assert!(bounds(None, Some(0)).unwrap_err().contains("relay.limits.body_deadline"));
    }
}

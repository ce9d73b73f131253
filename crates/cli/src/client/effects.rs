//! How many effects a service has had, as it says itself at a URL. Reads a number out of whatever JSON that URL gives.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method};
use serde_json::Value;

use super::{Connection, Target};

/// Members that hold the count, where an answer has several numbers.
const NAMES: [&str; 5] = ["effects", "orders", "count", "total", "n"];
const TIME_MAX: Duration = Duration::from_secs(10);

/// Where effects are counted.
#[derive(Clone, Debug)]
pub(crate) struct Counter {
    pub(crate) target: Target,
    /// The member that holds the count, where it has to be said.
    pub(crate) field: Option<String>,
    pub(crate) headers: HeaderMap,
}

impl Counter {
    /// The count now.
    pub(crate) async fn read(&self) -> Result<u64, String> {
        let failed = |why: String| format!("failed to count effects at {}: {why}", self.target);
        let mut connection =
            Connection::open(&self.target, TIME_MAX).await.map_err(|error| failed(error.to_string()))?;
        let sent = connection.send(&self.target, &Method::GET, &self.headers, Bytes::new(), TIME_MAX).await;
        let answer = sent.map_err(|error| failed(error.to_string()))?;
        if !answer.is_success() {
            return Err(failed(format!("it answered {}", answer.status)));
        }
        count(&answer.body, self.field.as_deref()).map_err(failed)
    }

    /// The count once it stands still: work that its client has left may still be under way.
    pub(crate) async fn settled(&self, quiet: Duration, within: Duration) -> Result<u64, String> {
        let until = tokio::time::Instant::now() + within;
        let mut last = self.read().await?;
        loop {
            tokio::time::sleep(quiet).await;
            let now = self.read().await?;
            if now == last || tokio::time::Instant::now() >= until {
                return Ok(now);
            }
            last = now;
        }
    }
}

/// The number in an answer: a number, the length of a list, a member by its name, or the only number there is.
fn count(body: &[u8], field: Option<&str>) -> Result<u64, String> {
    let value: Value = serde_json::from_slice(body).map_err(|_| "the answer is not JSON".to_owned())?;
    if let Some(name) = field {
        let found = value.get(name).and_then(number);
        return found.ok_or_else(|| format!("the answer has no count in a member {name:?}"));
    }
    if let Some(count) = number(&value) {
        return Ok(count);
    }
    let Value::Object(members) = &value else {
        return Err("the answer holds no count: expected a number, a list or an object".to_owned());
    };
    if let Some(count) = NAMES.iter().find_map(|name| members.get(*name).and_then(number)) {
        return Ok(count);
    }
    let counts: Vec<u64> = members.values().filter_map(number).collect();
    match counts.as_slice() {
        [count] => Ok(*count),
        [] => Err("the answer holds no count".to_owned()),
        _ => Err("the answer holds several numbers: say which with --effects-field NAME".to_owned()),
    }
}

fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64(),
        Value::Array(items) => Some(items.len() as u64),
        Value::Null | Value::Bool(_) | Value::String(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_found_in_the_usual_forms() {
        for (body, expected) in [
            ("7", 7),
            ("[1,2,3]", 3),
            (r#"{"balance": 5, "orders": 2}"#, 2),
            (r#"{"orders": [1, 2, 3], "balance": 9}"#, 3),
            (r#"{"charges": 4, "currency": "EUR"}"#, 4),
        ] {
            assert_eq!(count(body.as_bytes(), None), Ok(expected), "{body}");
        }
        assert_eq!(count(br#"{"a": 1, "b": 2}"#, Some("b")), Ok(2));
    }

    #[tokio::test]
    async fn a_count_is_believed_once_it_stands_still() {
        use std::sync::atomic::{AtomicU64, Ordering};
        let reads = std::sync::Arc::new(AtomicU64::new(0));
        // The last effect comes when the count has been read five times.
        let read = move || {
            let count = reads.fetch_add(1, Ordering::SeqCst).min(5);
            async move { axum::Json(count) }
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let router = axum::Router::new().route("/", axum::routing::get(read));
        tokio::spawn(async move { axum::serve(listener, router).await });
        let counter =
            Counter { target: Target::parse(&url).unwrap(), field: None, headers: HeaderMap::new() };
        assert_eq!(counter.settled(Duration::from_millis(1), Duration::from_secs(60)).await, Ok(5));
    }

    #[test]
    fn what_cannot_be_told_is_not_guessed() {
        for body in ["x", r#""7""#, r#"{"a": 1, "b": 2}"#, "{}", "-1", r#"{"a": "7"}"#] {
            assert!(count(body.as_bytes(), None).is_err(), "{body}");
        }
        assert!(count(br#"{"a": 1}"#, Some("b")).is_err());
    }
}

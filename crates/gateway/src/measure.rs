//! What every request is counted by. The handles are made once: asking the recorder by name takes longer than counting.

use std::sync::OnceLock;
use std::time::Duration;

use http::StatusCode;
use metrics::{Counter, Histogram, counter, histogram};

const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// The meters of a gateway.
#[derive(Default)]
pub(crate) struct Meters {
    requests: [OnceLock<Counter>; CLASSES.len()],
    seconds: OnceLock<Histogram>,
}

impl Meters {
    /// Counts a request, and how long its answer took to begin.
    pub(crate) fn answered(&self, status: StatusCode, took: Duration) {
        let class = usize::from(status.as_u16() / 100).clamp(1, CLASSES.len()) - 1;
        let new = || counter!("semel_gateway_requests_total", "status" => CLASSES[class]);
        self.requests[class].get_or_init(new).increment(1);
        self.seconds.get_or_init(|| histogram!("semel_gateway_request_seconds")).record(took.as_secs_f64());
    }
}

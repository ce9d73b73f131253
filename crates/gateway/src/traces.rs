//! One span for each request, told to an OpenTelemetry collector by OTLP over HTTP, in JSON. Goes on with the trace that a
//! client began, and hands it on to the service. Never waits for the collector: what it does not take is dropped and counted.
//! Knows neither keys nor queries.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Response, Uri, header};
use semel_gate::KeyHash;
use semel_http::Fetcher;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::GatewayError;
use crate::access::shown_path;
use crate::entropy;

/// Spans that wait to be told.
const WAITING_MAX: usize = 8192;
/// Spans that are told at once.
const TOLD_AT_ONCE: usize = 512;
/// How long spans are gathered.
const GATHERED: Duration = Duration::from_secs(1);
/// How long the collector may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Where collectors take spans.
const PATH: &str = "/v1/traces";
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Tells spans to a collector. Clones tell the same one; it ends with the last of them.
#[derive(Clone, Debug)]
pub struct Traces(Arc<mpsc::Sender<Value>>);

/// A request that is being answered.
#[derive(Debug)]
pub(crate) struct Span {
    context: TraceContext,
    parent: Option<String>,
    method: String,
    path: String,
    began: SystemTime,
}

/// What a `traceparent` says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TraceContext {
    trace: String,
    span: String,
    is_sampled: bool,
}

impl Traces {
    /// A collector as the environment names it: `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`, or `OTEL_EXPORTER_OTLP_ENDPOINT` with the
    /// usual path behind it, and `OTEL_SERVICE_NAME`. `None` where it names none. Needs a runtime.
    ///
    /// # Errors
    /// The text is not an address.
    pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, GatewayError> {
        let base = |name: &str| variable(name).filter(|value| !value.is_empty());
        let endpoint = base("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT").or_else(|| {
            base("OTEL_EXPORTER_OTLP_ENDPOINT").map(|url| format!("{}{PATH}", url.trim_end_matches('/')))
        });
        let Some(endpoint) = endpoint else { return Ok(None) };
        let service = base("OTEL_SERVICE_NAME").unwrap_or_else(|| "semel".to_owned());
        Self::to(&endpoint, &service).map(Some)
    }

    /// Tells spans of a service of this name to the collector at this URL.
    ///
    /// # Errors
    /// The URL is not one.
    pub fn to(endpoint: &str, service: &str) -> Result<Self, GatewayError> {
        let url: Uri = endpoint.parse().map_err(|error| format!("{endpoint:?} is no URL: {error}"))?;
        let collector = Fetcher::of(&url, None, PATIENCE)?;
        let (spans, waiting) = mpsc::channel(WAITING_MAX);
        let resource = json!({"attributes": [text("service.name", service)]});
        tokio::spawn(tell(collector, url.path().to_owned(), resource, waiting));
        Ok(Self(Arc::new(spans)))
    }

    /// Begins a span, and names it to the service as the parent of whatever it does.
    pub(crate) fn begin(&self, parts: &mut Parts) -> Span {
        let parent = read_context(&parts.headers);
        let id = entropy::id();
        let digits = std::str::from_utf8(&id).unwrap_or_default();
        let context = match &parent {
            Some(parent) => TraceContext { span: digits[..16].to_owned(), ..parent.clone() },
            None => {
                let trace = entropy::id();
                let trace = String::from_utf8_lossy(&trace).into_owned();
                TraceContext { trace, span: digits[..16].to_owned(), is_sampled: true }
            }
        };
        if let Ok(value) = HeaderValue::try_from(context.header()) {
            parts.headers.insert(TRACEPARENT, value);
        }
        Span {
            context,
            parent: parent.map(|parent| parent.span),
            method: parts.method.to_string(),
            path: shown_path(parts.uri.path()).into_owned(),
            began: SystemTime::now(),
        }
    }

    /// Tells how it ended, unless whoever began the trace wants none of it.
    pub(crate) fn end<B>(&self, span: Span, response: &Response<B>) {
        if !span.context.is_sampled {
            return;
        }
        // Full, or the collector's task is gone: requests are not held up for their traces.
        if self.0.try_send(span.ended(response)).is_err() {
            metrics::counter!("semel_gateway_spans_dropped_total").increment(1);
        }
    }
}

impl TraceContext {
    fn header(&self) -> String {
        format!("00-{}-{}-{:02x}", self.trace, self.span, u8::from(self.is_sampled))
    }
}

/// The trace that a client goes on with; `None` where it names none, or names it wrongly.
fn read_context(headers: &HeaderMap) -> Option<TraceContext> {
    let mut lines = headers.get_all(TRACEPARENT).iter();
    let line = lines.next().filter(|_| lines.next().is_none())?.to_str().ok()?;
    let mut parts = line.split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_hex = |text: &str, length: usize| {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        text.len() == length && text.bytes().all(is_digit)
    };
    let is_whole = version != "00" || parts.next().is_none();
    let is_valid = is_hex(version, 2) && version != "ff" && is_hex(trace, 32) && is_hex(span, 16);
    let is_set = |text: &str| text.bytes().any(|byte| byte != b'0');
    let flags = u8::from_str_radix(flags, 16).ok().filter(|_| is_hex(flags, 2))?;
    (is_whole && is_valid && is_set(trace) && is_set(span)).then(|| TraceContext {
        trace: trace.to_owned(),
        span: span.to_owned(),
        is_sampled: flags & 1 == 1,
    })
}

impl Span {
    /// As OTLP writes it.
    fn ended<B>(self, response: &Response<B>) -> Value {
        let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
        let status = response.status();
        let mut attributes = vec![
            text("http.request.method", &self.method),
            text("url.path", &self.path),
            json!({"key": "http.response.status_code", "value": {"intValue": status.as_u16().to_string()}}),
            text("semel.guarantee", header("semel-guarantee").unwrap_or("none")),
            json!({"key": "semel.replayed", "value": {"boolValue": header("idempotency-replayed") == Some("true")}}),
        ];
        attributes.extend(header("semel-outcome").map(|outcome| text("semel.outcome", outcome)));
        attributes.extend(header("x-request-id").map(|id| text("semel.request_id", id)));
        attributes.extend(response.extensions().get::<KeyHash>().map(|hash| text("semel.key_hash", &hash.0)));
        json!({
            "traceId": self.context.trace,
            "spanId": self.context.span,
            "parentSpanId": self.parent.unwrap_or_default(),
            "name": format!("{} {}", self.method, self.path),
            "kind": 2,
            "startTimeUnixNano": nanos(self.began),
            "endTimeUnixNano": nanos(SystemTime::now()),
            "attributes": attributes,
            "status": {"code": if status.is_server_error() { 2 } else { 0 }},
        })
    }
}

fn nanos(time: SystemTime) -> String {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos().to_string()
}

fn text(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}

/// Gathers spans and tells them, until nobody can begin another.
async fn tell(collector: Fetcher, path: String, resource: Value, mut waiting: mpsc::Receiver<Value>) {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let mut was_away = false;
    while let Some(first) = waiting.recv().await {
        let mut spans = vec![first];
        let until = tokio::time::Instant::now() + GATHERED;
        while spans.len() < TOLD_AT_ONCE {
            match tokio::time::timeout_at(until, waiting.recv()).await {
                Ok(Some(span)) => spans.push(span),
                Ok(None) | Err(_) => break,
            }
        }
        let count = spans.len() as u64;
        let scope = json!({"scope": {"name": "semel"}, "spans": spans});
        let body = json!({"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]});
        let told = collector.tell(&path, headers.clone(), body.to_string().into()).await;
        let failed = match told {
            Ok(answer) if answer.status.is_success() => None,
            Ok(answer) => Some(format!("it answered {}", answer.status)),
            Err(why) => Some(why.into()),
        };
        if let Some(why) = &failed {
            metrics::counter!("semel_gateway_spans_dropped_total").increment(count);
            if !was_away {
                tracing::warn!(why, "the trace collector takes no spans; they are dropped");
            }
        }
        was_away = failed.is_some();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Option<TraceContext> {
        let mut headers = HeaderMap::new();
        headers.insert(TRACEPARENT, HeaderValue::from_str(line).unwrap());
        read_context(&headers)
    }

    #[test]
    fn a_trace_is_gone_on_with_or_begun() {
        let line = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let known = read(line).unwrap();
        assert_eq!(known.header(), line);
        assert!(!read("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00").unwrap().is_sampled);
        assert!(
            read("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more").is_some(),
            "a later version"
        );
        for bad in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-+1",
        ] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}

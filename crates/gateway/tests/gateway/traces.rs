//! Spans of requests, as a collector is told of them.

use std::time::Duration;

use semel_gateway::Traces;
use serde_json::Value;

use crate::upstream::{Reply, Upstream};
use crate::world::{Wish, keyed, post};

/// The spans that a collector was told of, once there are so many.
async fn told(collector: &Upstream, count: usize) -> Vec<Value> {
    for _ in 0..600 {
        let mut spans = Vec::new();
        for seen in collector.seen() {
            assert_eq!(
                (seen.line(), seen.header("content-type")),
                ("POST /v1/traces HTTP/1.1", Some("application/json"))
            );
            let body: Value = serde_json::from_slice(&seen.body).unwrap();
            let of = &body["resourceSpans"][0];
            assert_eq!(of["resource"]["attributes"][0]["value"]["stringValue"], "shop");
            spans.extend(of["scopeSpans"][0]["spans"].as_array().unwrap().iter().cloned());
        }
        if spans.len() >= count {
            return spans;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("the collector was not told of {count} spans");
}

fn attribute<'a>(span: &'a Value, name: &str) -> &'a Value {
    let attributes = span["attributes"].as_array().unwrap();
    attributes.iter().find(|attribute| attribute["key"] == name).map_or(&Value::Null, |found| &found["value"])
}

#[tokio::test]
async fn a_trace_goes_through_the_gateway_and_keys_do_not() {
    let collector = Upstream::start(|_, _| Reply::status(200, "", "{}")).await;
    let upstream = Upstream::start(|_, _| Reply::status(201, "", "ok")).await;
    let mut wish = Wish::behind(&upstream.url());
    let environment = |name: &str| match name {
        "OTEL_EXPORTER_OTLP_ENDPOINT" => Some(collector.url()),
        "OTEL_SERVICE_NAME" => Some("shop".to_owned()),
        _ => None,
    };
    wish.traces = Traces::from_environment(environment).unwrap();
    let world = wish.start().await;
    let (trace, parent) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
    for _ in 0..2 {
        let lines = format!(
            "Authorization: a\r\nIdempotency-Key: secret-key\r\nTraceparent: 00-{trace}-{parent}-01\r\n"
        );
        assert_eq!(world.ask(post("/orders?q=secret-query", &lines, "{}")).await.status, 201);
    }
    let unwanted = format!("Traceparent: 00-{trace}-{parent}-00\r\n");
    assert_eq!(world.ask(post("/quiet", &unwanted, "{}")).await.status, 201);
    assert_eq!(world.ask(keyed("/new", "secret-key-2", "{}")).await.status, 201);
    let spans = told(&collector, 3).await;
    assert_eq!(spans.len(), 3, "who wants no trace gets none");
    for (span, is_replay) in spans.iter().zip([false, true]) {
        assert_eq!((&span["traceId"], &span["parentSpanId"]), (&trace.into(), &parent.into()));
        assert_eq!(attribute(span, "semel.replayed")["boolValue"], is_replay);
        assert_eq!(attribute(span, "http.response.status_code")["intValue"], "201");
        assert_eq!(attribute(span, "url.path")["stringValue"], "/orders");
        assert_eq!(attribute(span, "semel.guarantee")["stringValue"], "fenced");
    }
    assert_ne!(spans[2]["traceId"], trace, "a trace of its own");
    let text = serde_json::to_string(&spans).unwrap();
    assert!(!text.contains("secret"), "{text}");
    let seen = upstream.seen();
    let handed_on = format!("00-{trace}-{}-01", spans[0]["spanId"].as_str().unwrap());
    assert_eq!(seen[0].header("traceparent"), Some(handed_on.as_str()), "the service's parent is this span");
}

#[tokio::test]
async fn a_collector_that_is_away_holds_nobody_up() {
    let upstream = Upstream::start(|_, _| Reply::status(200, "", "ok")).await;
    let mut wish = Wish::behind(&upstream.url());
    wish.traces = Some(Traces::to("http://127.0.0.1:9/v1/traces", "shop").unwrap());
    let world = wish.start().await;
    for _ in 0..20 {
        assert_eq!(world.ask(post("/", "", "{}")).await.status, 200);
    }
    assert!(Traces::to("collector", "shop").is_err());
}

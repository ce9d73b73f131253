//! Plays `spec/clients.json`: the scenarios that every client passes, here by the library that Kotlin and Python call.

#![cfg(feature = "lab")]

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use semel_core::{
    Core, CoreError, Credential, Header, Host, HostError, Lab, Message, Notice, Options, Rebuild, Receipt,
    Status,
};
use serde_json::{Value, json};

/// The application: one person is signed in, and lanes are left as they are.
#[derive(Default)]
struct App {
    credential: Mutex<Option<Credential>>,
    notices: Mutex<Vec<Notice>>,
}

impl Host for App {
    fn credential(&self, _: String, _: String) -> Result<Option<Credential>, HostError> {
        Ok(self.credential.lock().unwrap().clone())
    }

    fn rebuild(&self, _: Receipt, _: Vec<Receipt>) -> Result<Rebuild, HostError> {
        Ok(Rebuild::Wait)
    }

    fn notice(&self, notice: Notice) {
        self.notices.lock().unwrap().push(notice);
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn wait<T>(work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        match work.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(done) => return done,
            Poll::Pending => std::thread::park(),
        }
    }
}

struct Run {
    scenario: Value,
    url: String,
    lab: Arc<Lab>,
    app: Arc<App>,
    core: Arc<Core>,
    /// What was read before: sends, credentials, events.
    read: (usize, usize, usize),
}

fn message(principal: &str) -> Message {
    Message {
        method: "POST".to_owned(),
        url: "https://api.example/orders".to_owned(),
        headers: Vec::new(),
        body: b"{}".to_vec(),
        id: None,
        lane: None,
        principal: Some(principal.to_owned()),
        logical_key: None,
        operation: None,
        generated_at_millis: None,
    }
}

fn options(scenario: &Value) -> Options {
    Options {
        path: String::new(),
        profile: scenario["profile"].as_str().unwrap_or("ietf").to_owned(),
        base_url: None,
        needs_credentials: scenario["settings"]["credentials"].as_bool().unwrap_or(false),
        blocks_on_dead: scenario["settings"]["on_dead"] == "block",
        max_age_millis: None,
        attempt_timeout_millis: None,
        trust_file: None,
    }
}

fn open(scenario: &Value, lab: &Lab, app: &Arc<App>) -> Arc<Core> {
    lab.open(options(scenario), Arc::clone(app) as Arc<dyn Host>).expect("the outbox opens")
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

impl Run {
    fn new(scenario: &Value, url: &str) -> Self {
        let (lab, app) = (Lab::new(), Arc::new(App::default()));
        let core = open(scenario, &lab, &app);
        Self { scenario: scenario.clone(), url: url.to_owned(), lab, app, core, read: (0, 0, 0) }
    }

    fn step(&mut self, step: &Value) {
        let core = Arc::clone(&self.core);
        let one = |name: &str| step[name]["lane"].as_str().unwrap_or_default().to_owned();
        let id = |name: &str| step[name].as_str().unwrap_or_default().to_owned();
        if step["send"].is_object() {
            self.send(&step["send"], &step["expect"]);
        } else if step["abort"].is_string() {
            let aborted = wait(core.abort(id("abort"), None, None, "by a test".to_owned()));
            assert_eq!(aborted.is_err(), step["expect"] == "refused", "{aborted:?}");
        } else if step["expect"].is_object() {
            self.check(&step["expect"]);
        } else if step["answers"].is_array() {
            self.lab.answers(step["answers"].to_string());
        } else if let Some(network) = step["network"].as_str() {
            self.lab.network(network == "down");
        } else if let Some(millis) = step["advance_ms"].as_u64() {
            self.lab.advance(millis);
        } else if step["kill"].is_boolean() {
            self.lab.kill();
        } else if step["kill_at"].is_string() {
            self.lab.kill_at_arrival();
        } else if step["open"].is_boolean() {
            self.core = open(&self.scenario, &self.lab, &self.app);
        } else if step["credential"].is_object() {
            let (principal, value) =
                (text(&step["credential"]["principal"]), text(&step["credential"]["value"]));
            let principal = principal.expect("a credential is somebody's");
            let headers =
                vec![Header { name: "authorization".to_owned(), value: value.expect("it has a value") }];
            *self.app.credential.lock().unwrap() = Some(Credential { principal: principal.clone(), headers });
            wait(core.sign_in(principal)).expect("it is told");
        } else if step["pause"].is_object() {
            wait(core.pause(one("pause"))).expect("it pauses");
        } else if step["resume"].is_object() {
            wait(core.resume(one("resume"))).expect("it resumes");
        } else if step["retry"].is_string() {
            wait(core.retry(id("retry"), None, None)).expect("it is tried");
        } else if step["requeue"].is_string() {
            wait(core.requeue(id("requeue"), None, None, text(&step["new_id"]), false))
                .expect("it is requeued");
        } else if let Some(millis) = step["server_clock_ahead_ms"].as_i64() {
            self.lab.server_clock_ahead(millis);
        } else if let Some(millis) = step["clock_jump_ms"].as_i64() {
            self.lab.clock_jump(millis);
        } else {
            panic!("no such step: {step}");
        }
    }

    fn send(&self, send: &Value, expect: &Value) {
        let body = send["body"].as_str().unwrap_or("{}");
        let message = Message {
            method: "POST".to_owned(),
            url: self.url.clone(),
            headers: vec![Header { name: "content-type".to_owned(), value: "application/json".to_owned() }],
            body: body.as_bytes().to_vec(),
            id: text(&send["id"]),
            lane: text(&send["lane"]),
            principal: text(&send["principal"]),
            logical_key: text(&send["logical_key"]),
            operation: None,
            generated_at_millis: None,
        };
        let said = match wait(self.core.send(message)) {
            Ok(accepted) => accepted.alias_of.map_or(json!("accepted"), |of| json!({ "alias_of": of })),
            Err(CoreError::Refused { code, .. }) => json!({ "refused": code }),
            Err(error) => panic!("{error}"),
        };
        assert_eq!(said, *expect, "send {send}");
    }

    fn check(&mut self, expect: &Value) {
        let seen: Value = serde_json::from_str(&self.lab.seen()).unwrap();
        let events = wait(self.core.events(0, 1000, 0)).expect("there are events");
        let kinds = ["queued", "held", "done", "dead", "dropped", "expired", "aborted"];
        let told: Vec<(String, String)> = events
            .into_iter()
            .filter(|event| kinds.contains(&event.kind.as_str()))
            .flat_map(|event| {
                let ids = if event.ids.is_empty() { Vec::from_iter(event.id) } else { event.ids };
                ids.into_iter().map(move |id| (event.kind.clone(), id))
            })
            .collect();
        let since = |name: &str, from: usize| json!(&seen[name].as_array().unwrap()[from..]);
        for (name, wanted) in expect.as_object().unwrap() {
            let found = match name.as_str() {
                "sends" => since(
                    "sends",
                    std::mem::replace(&mut self.read.0, seen["sends"].as_array().unwrap().len()),
                ),
                "credentials" => {
                    let all = seen["credentials"].as_array().unwrap().len();
                    since("credentials", std::mem::replace(&mut self.read.1, all))
                }
                "effects" => seen["effects"].clone(),
                "events" => json!(&told[std::mem::replace(&mut self.read.2, told.len())..]),
                "events_of" => {
                    let of = |id: &String| {
                        told.iter().filter(|one| one.1 == *id).map(|one| json!(one.0)).collect()
                    };
                    let found: serde_json::Map<String, Value> = wanted
                        .as_object()
                        .unwrap()
                        .keys()
                        .map(|id| (id.clone(), Value::Array(of(id))))
                        .collect();
                    Value::Object(found)
                }
                "ends" => {
                    let ends = ["done", "dead", "dropped", "expired", "aborted"];
                    json!(told.iter().filter(|one| ends.contains(&one.0.as_str())).collect::<Vec<_>>())
                }
                "messages" => {
                    self.check_messages(wanted);
                    continue;
                }
                other => panic!("nothing checks {other}"),
            };
            assert_eq!(found, *wanted, "{name}");
        }
    }

    fn check_messages(&self, wanted: &Value) {
        for (id, fields) in wanted.as_object().unwrap() {
            let receipt = wait(self.core.get(id.clone(), None, None)).unwrap().expect("it is known");
            let status = match receipt.status {
                Status::Pending => "pending",
                Status::Inflight => "inflight",
                Status::Held => "held",
                Status::Done => "done",
                Status::Dead => "dead",
                Status::Aborted => "aborted",
            };
            let shown = json!({
                "status": status, "attempts": receipt.attempts, "possibly_delivered": receipt.possibly_delivered,
            });
            for (name, value) in fields.as_object().unwrap() {
                assert_eq!(shown[name], *value, "{id}: {name} ({:?})", receipt.reason);
            }
        }
    }
}

/// An application whose process dies at its third request.
struct DiesAtTheThird(Arc<Lab>, Mutex<u32>);

impl Host for DiesAtTheThird {
    fn credential(&self, principal: String, _: String) -> Result<Option<Credential>, HostError> {
        let mut asked = self.1.lock().unwrap();
        *asked += 1;
        if *asked == 3 {
            self.0.kill_at_arrival();
        }
        Ok(Some(Credential { principal, headers: Vec::new() }))
    }

    fn rebuild(&self, _: Receipt, _: Vec<Receipt>) -> Result<Rebuild, HostError> {
        Ok(Rebuild::Wait)
    }

    fn notice(&self, notice: Notice) {
        panic!("nothing is told before the drain is over: {notice:?}");
    }
}

#[test]
fn what_expired_before_the_process_died_is_told_once_by_the_next_one() {
    let (lab, app) = (Lab::new(), Arc::new(App::default()));
    let options = options(&json!({ "profile": "walker", "settings": { "credentials": true } }));
    let mut core =
        lab.open(options, Arc::new(DiesAtTheThird(Arc::clone(&lab), Mutex::default()))).expect("it opens");
    let stale = json!({ "status": 422, "body": r#"{"error":"STALE_ACTION"}"# });
    lab.answers(json!([stale, stale]).to_string());
    wait(core.pause("default".to_owned())).unwrap();
    let ids: Vec<String> = (0..3).map(|_| wait(core.send(message("default"))).unwrap().receipt.id).collect();
    wait(core.resume("default".to_owned())).unwrap();
    lab.advance(0);
    for _ in 0..2 {
        core = open(&json!({ "profile": "walker" }), &lab, &app);
        lab.advance(60_000);
        let events = wait(core.events(0, 1000, 0)).unwrap();
        let expired: Vec<_> = events.iter().filter(|event| event.kind == "expired").collect();
        assert_eq!(expired.len(), 1, "{events:?}");
        assert_eq!((&expired[0].ids, expired[0].id.as_ref()), (&ids[..2].to_vec(), Some(&ids[0])));
        let told: Vec<_> = app.notices.lock().unwrap().iter().map(|notice| notice.receipts.len()).collect();
        assert_eq!(told, [2]);
        assert_eq!(wait(core.get(ids[2].clone(), None, None)).unwrap().unwrap().status, Status::Done);
        lab.kill();
    }
}

#[test]
fn events_are_waited_for_past_those_that_are_not_shown() {
    let (lab, app) = (Lab::new(), Arc::new(App::default()));
    let core = open(&json!({ "profile": "walker" }), &lab, &app);
    lab.answers(json!([{ "status": 422, "body": r#"{"error":"STALE_ACTION"}"# }]).to_string());
    wait(core.send(message("default"))).unwrap();
    lab.advance(0);
    // One at a time: queued, one of the message alone, which is not shown, and one of the drain.
    let first = wait(core.events(0, 1, 0)).unwrap();
    let second = wait(core.events(first[0].number, 1, 0)).unwrap();
    let kinds: Vec<_> = first.iter().chain(&second).map(|event| event.kind.as_str()).collect();
    assert_eq!((kinds, second[0].number), (vec!["queued", "expired"], first[0].number + 2));
}

#[test]
fn who_has_signed_out_is_parked_over_restarts_until_signing_in_again() {
    let (lab, app) = (Lab::new(), Arc::new(App::default()));
    let sends = || {
        let seen: Value = serde_json::from_str(&lab.seen()).unwrap();
        seen["sends"].as_array().unwrap().len()
    };
    let mut core = open(&json!({}), &lab, &app);
    wait(core.sign_out("anna".to_owned())).unwrap();
    let parked = wait(core.send(message("anna"))).unwrap().receipt;
    lab.advance(0);
    for life in 1..=3 {
        assert_eq!(sends(), 0, "life {life}");
        assert_eq!(wait(core.get(parked.id.clone(), None, None)).unwrap().unwrap().status, Status::Held);
        lab.kill();
        core = open(&json!({}), &lab, &app);
        wait(core.kick()).unwrap();
        lab.advance(60_000);
    }
    wait(core.send(message("ben"))).unwrap();
    lab.advance(0);
    assert_eq!(sends(), 1, "nobody else is parked");
    wait(core.sign_in("anna".to_owned())).unwrap();
    lab.advance(0);
    assert_eq!(sends(), 2);
    assert_eq!(wait(core.get(parked.id, None, None)).unwrap().unwrap().status, Status::Done);
    lab.kill();
    core = open(&json!({}), &lab, &app);
    wait(core.send(message("anna"))).unwrap();
    lab.advance(0);
    assert_eq!(sends(), 3, "signing in outlives a restart as well");
}

#[test]
fn every_scenario_of_every_client() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../spec/clients.json");
    let spec: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let scenarios = spec["scenarios"].as_array().unwrap();
    assert!(scenarios.len() >= 37);
    let mut failed = Vec::new();
    for scenario in scenarios {
        let name = scenario["name"].as_str().unwrap();
        let played = std::panic::catch_unwind(|| {
            let mut run = Run::new(scenario, spec["url"].as_str().unwrap());
            scenario["steps"].as_array().unwrap().iter().for_each(|step| run.step(step));
        });
        if played.is_err() {
            failed.push(name);
        }
    }
    assert!(failed.is_empty(), "{} of {}: {failed:#?}", failed.len(), scenarios.len());
}

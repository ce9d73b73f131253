//! Runs the scenarios of `spec/once.json` against a service, as `spec/once.md` says. Knows nothing of what the service is made of.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant, SystemTime};

use semel_contract::identity::Caller;
use semel_contract::key::Key;
use semel_contract::profile::presets;
use semel_contract::time::Timestamp;
use semel_store::Id;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, NoTls};

use crate::proxy::{Cut, Proxy};
use crate::service::{content, route_name};
use crate::upstream::message;

pub(crate) static SUITE: LazyLock<Value> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../../../../spec/once.json")).expect("the scenarios are JSON")
});
const PATIENCE: Duration = Duration::from_secs(40);

pub(crate) async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("the server answers");
    tokio::spawn(connection);
    client
}

/// A service under test: the process that clients ask, and its way to its database.
pub(crate) struct Service {
    pub(crate) database: String,
    pub(crate) address: SocketAddr,
    pub(crate) proxy: Proxy,
    pub(crate) offers: &'static [&'static str],
    process: Arc<Mutex<Started>>,
}

/// A process that can be started again as it was, and ends with this.
pub(crate) struct Started {
    command: Command,
    child: Child,
}

impl Started {
    pub(crate) fn of(mut command: Command) -> Self {
        let child = command.spawn().expect("it starts");
        Self { command, child }
    }

    /// SIGKILL, at once.
    fn kill(&mut self) {
        let _ = self.child.kill();
        self.child.wait().expect("it ends");
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Service {
    pub(crate) async fn start(
        command: Command,
        port: u16,
        database: &str,
        proxy: Proxy,
        offers: &'static [&'static str],
    ) -> Self {
        let address = (Ipv4Addr::LOCALHOST, port).into();
        let process = Arc::new(Mutex::new(Started::of(command)));
        let service = Self { database: database.to_owned(), address, proxy, offers, process };
        until_ready(service.address).await;
        service
    }

    async fn start_again(&self) {
        {
            let mut process = self.process.lock().expect("no panic");
            process.child = process.command.spawn().expect("it starts");
        }
        until_ready(self.address).await;
    }
}

/// Waits until a service serves.
pub(crate) async fn until_ready(address: SocketAddr) {
    let until = Instant::now() + PATIENCE;
    let asked = b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n";
    while exchange(address, asked).await.is_none_or(|answer| answer.status != 200) {
        assert!(Instant::now() < until, "it is never ready");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// An answer: its header lines in order, names in lower case.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    lines: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.lines.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// Sends a request; no answer where the connection breaks.
pub(crate) async fn exchange(to: SocketAddr, request: &[u8]) -> Option<Answer> {
    let mut socket = TcpStream::connect(to).await.ok()?;
    // A service that refuses a large body may answer before it has read all of it.
    let _ = socket.write_all(request).await;
    let (head, body) =
        tokio::time::timeout(PATIENCE, message(&mut socket, &mut Vec::new())).await.expect("in time")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let lines = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    let lines = lines.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned())).collect();
    Some(Answer { status, lines, body })
}

/// One scenario.
pub(crate) struct Run<'a> {
    scenario: &'a Value,
    service: &'a Service,
    database: Client,
    run: String,
    names: HashMap<String, String>,
    /// Locks of other runs on the same server are other locks.
    locks: i64,
    attempts: Value,
    answers: HashMap<String, Answer>,
    started: HashMap<String, JoinHandle<Option<Answer>>>,
    armed: Option<String>,
}

fn random() -> u64 {
    getrandom::u64().expect("random numbers")
}

impl<'a> Run<'a> {
    pub(crate) async fn play(scenario: &'a Value, service: &'a Service) {
        let key = format!("{:08x}-0000-4000-8000-{:012x}", random() as u32, random() >> 16);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock").as_secs();
        let now = Timestamp::from_millis(i64::try_from(now * 1000).expect("a time")).to_string();
        let mut run = Self {
            scenario,
            service,
            database: connect(&service.database).await,
            run: format!("once_run_{:016x}", random()),
            names: [("key".to_owned(), key), ("now".to_owned(), now)].into(),
            locks: i64::try_from(random() >> 24).expect("40 bits") << 8,
            attempts: Value::Null,
            answers: HashMap::new(),
            started: HashMap::new(),
            armed: None,
        };
        run.database.batch_execute(&format!("CREATE SEQUENCE {}", run.run)).await.expect("a sequence");
        for step in scenario["steps"].as_array().expect("a list") {
            run.step(step).await;
        }
        run.check_end().await;
    }

    async fn step(&mut self, step: &Value) {
        let name = step["as"].as_str();
        let members = step.as_object().expect("an object");
        let (what, told) =
            members.iter().find(|(name, _)| *name != "as" && *name != "expect").expect("a step");
        match what.as_str() {
            "sql" | "profile" | "host" => {
                let (profile, host) = (step["profile"].as_str().unwrap_or("ietf"), step["host"].as_str());
                let result = self.operate(step["sql"].as_str().expect("a name"), profile, host).await;
                if let (Some(name), Some(result)) = (name, result) {
                    self.names.insert(name.to_owned(), result);
                }
            }
            "send" => {
                let answer = self.send(told).await;
                if let (Some(name), Some(answer)) = (name, &answer) {
                    self.answers.insert(name.to_owned(), answer.clone());
                }
                self.compare(answer, &step["expect"]);
            }
            "start" => {
                let (to, request) = (self.service.address, self.message(told));
                let sending = tokio::spawn(async move { exchange(to, &request).await });
                self.started.insert(name.expect("a name").to_owned(), sending);
            }
            "finish" => {
                let name = told.as_str().expect("a name");
                let answer = self.started.remove(name).expect("it was started").await.expect("no panic");
                if let Some(answer) = &answer {
                    self.answers.insert(name.to_owned(), answer.clone());
                }
                self.compare(answer, &step["expect"]);
            }
            "lock" => self.lock("SELECT pg_advisory_lock($1)::text", told).await,
            "unlock" => self.lock("SELECT pg_advisory_unlock($1)::text", told).await,
            "held" => self.until_held(told).await,
            "commit" => self.arm(told.as_str().expect("a word")),
            other => panic!("no such step: {other}"),
        }
    }

    async fn lock(&self, sql: &str, told: &Value) {
        let lock = self.locks + told.as_i64().expect("a number");
        self.database.query(sql, &[&lock]).await.expect("it locks");
    }

    async fn until_held(&self, told: &Value) {
        let lock = self.locks + told.as_i64().expect("a number");
        let (high, low) = (lock >> 32, lock & 0xffff_ffff);
        let sql = "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
            AND classid::bigint = $1 AND objid::bigint = $2)";
        let until = Instant::now() + PATIENCE;
        while !self.database.query_one(sql, &[&high, &low]).await.expect("rows").get::<_, bool>(0) {
            assert!(Instant::now() < until, "no handler waits for the lock");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn arm(&mut self, what: &str) {
        let (cut, kills) = match what {
            "lose-answer" => (Cut::After, false),
            "cut-before" => (Cut::Before, false),
            "kill-after" => (Cut::After, true),
            "kill-before" => (Cut::Before, true),
            other => panic!("no such moment: {other}"),
        };
        let process = Arc::clone(&self.service.process);
        self.service.proxy.arm(cut, move || {
            if kills {
                process.lock().expect("no panic").kill();
            }
        });
        self.armed = Some(what.to_owned());
    }

    async fn operate(&self, name: &str, profile: &str, host: Option<&str>) -> Option<String> {
        let caller = Caller::verified(None, "alice".to_owned()).expect("a caller");
        let endpoint = route_name(profile);
        let profile = presets::preset(profile).expect("a preset");
        let scope = profile.scope.scope_at(&caller, &endpoint, host);
        let key = Key::parse(&profile.key.format, &self.names["key"]).expect("a key");
        let id = Id { scope, key };
        let (hash, bytes) = (id.hash().to_vec(), scope.as_bytes().to_vec());
        let known: [(&str, &str, &(dyn ToSql + Sync)); 5] = [
            ("{id}", "bytea", &hash),
            ("{scope}", "bytea", &bytes),
            ("{key}", "text", &self.names["key"]),
            ("{endpoint}", "text", &endpoint),
            ("{principal}", "text", &"alice"),
        ];
        let mut sql = SUITE["operations"][name].as_str().expect("an operation").to_owned();
        let mut values = Vec::new();
        for (word, kind, value) in known {
            if sql.contains(word) {
                values.push(value);
                sql = sql.replace(word, &format!("${}::{kind}", values.len()));
            }
        }
        let rows = self.database.query(&sql, &values).await.expect("it runs");
        rows.first().map(|row| row.get(0))
    }

    fn fill(&self, text: &str) -> String {
        self.names
            .iter()
            .fold(text.to_owned(), |text, (name, value)| text.replace(&format!("{{{name}}}"), value))
    }

    /// A request as it goes over the wire.
    fn message(&mut self, told: &Value) -> Vec<u8> {
        if !told["attempts"].is_null() {
            self.attempts = told["attempts"].clone();
        }
        let mut attempts = self.attempts.clone();
        for attempt in attempts.as_array_mut().into_iter().flatten() {
            if let Some(hold) = attempt["hold"].as_i64() {
                attempt["hold"] = json!(self.locks + hold);
            }
        }
        let text = |name: &str, otherwise: &str| told[name].as_str().unwrap_or(otherwise).to_owned();
        // Null says that there is none, and nothing that there is the usual one.
        let is_there = |name: &str| told.get(name).is_none_or(|value| !value.is_null());
        let script = ascii(&json!({"run": self.run, "attempts": attempts}).to_string());
        let mut headers = vec![
            ("Host".to_owned(), "localhost".to_owned()),
            ("X-Once".to_owned(), script),
            ("Content-Type".to_owned(), text("content_type", "application/json")),
        ];
        if is_there("user") {
            headers.push(("X-User".to_owned(), text("user", "alice")));
        }
        if let Some(tenant) = told["tenant"].as_str() {
            headers.push(("X-Tenant".to_owned(), tenant.to_owned()));
        }
        if is_there("key") {
            let written = text("key_as", &text("key", "{key}"));
            headers.push((text("key_header", "Idempotency-Key"), self.fill(&written)));
        }
        for pair in told["headers"].as_array().into_iter().flatten() {
            let value = self.fill(pair[1].as_str().expect("a value"));
            headers.push((pair[0].as_str().expect("a name").to_owned(), value));
        }
        let has_body = ["body", "body_base64", "body_repeat"].iter().any(|name| told.get(name).is_some());
        let body = match (told["body"].as_str(), has_body) {
            (Some(body), _) => self.fill(body).into_bytes(),
            (None, true) => content(told),
            (None, false) => br#"{"amount":5}"#.to_vec(),
        };
        let query = told["query"].as_str().map(|query| format!("?{query}")).unwrap_or_default();
        let path = format!("/{}{}{query}", text("profile", "ietf"), text("path", "/orders/1"));
        headers.push(("Content-Length".to_owned(), body.len().to_string()));
        let lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        [format!("POST {path} HTTP/1.1\r\n{lines}\r\n").into_bytes(), body].concat()
    }

    async fn send(&mut self, told: &Value) -> Option<Answer> {
        let request = self.message(told);
        let answer = exchange(self.service.address, &request).await;
        if let Some(armed) = self.armed.take() {
            self.service.proxy.fired().await;
            if armed.starts_with("kill") {
                self.service.start_again().await;
            }
        }
        answer
    }

    fn compare(&self, answer: Option<Answer>, expect: &Value) {
        if expect["no_answer"] == true {
            assert!(answer.is_none(), "an answer came: {answer:?}");
            return;
        }
        let answer = answer.expect("an answer comes");
        let body = String::from_utf8_lossy(&answer.body).chars().take(300).collect::<String>();
        let shown = format!("{} {:?} {body:?}", answer.status, answer.lines);
        let said = |name: &str| answer.header(name).map(str::to_owned);
        for (what, wanted) in expect.as_object().into_iter().flatten() {
            match what.as_str() {
                "status" => assert_eq!(answer.status, wanted.as_u64().expect("a status") as u16, "{shown}"),
                "replayed" => {
                    let is_replayed = answer.header("idempotency-replayed") == Some("true");
                    assert_eq!(Some(is_replayed), wanted.as_bool(), "{shown}");
                }
                "guarantee" => assert_eq!(answer.header("semel-guarantee"), wanted.as_str(), "{shown}"),
                "problem" => {
                    let slug = wanted.as_str().expect("a word");
                    let link = format!("</.well-known/semel/problems/{slug}>; rel=\"describedby\"");
                    assert_eq!(said("link"), Some(link), "{shown}");
                }
                "should_retry" => assert_eq!(answer.header("x-should-retry"), wanted.as_str(), "{shown}"),
                "headers" => {
                    for (name, value) in wanted.as_object().expect("an object") {
                        assert_eq!(answer.header(name), value.as_str(), "{name}: {shown}");
                    }
                }
                "lines" => {
                    let wanted: Vec<(String, String)> =
                        serde_json::from_value(wanted.clone()).expect("pairs");
                    let is_meant = |line: &&(String, String)| wanted.iter().any(|(name, _)| *name == line.0);
                    let found: Vec<_> = answer.lines.iter().filter(is_meant).cloned().collect();
                    assert_eq!(found, wanted, "{shown}");
                }
                "absent" => {
                    for name in wanted.as_array().expect("a list") {
                        assert_eq!(said(name.as_str().expect("a name")), None, "{shown}");
                    }
                }
                "body" | "body_base64" | "body_repeat" => assert!(answer.body == content(expect), "{shown}"),
                "json" | "details" => {
                    let body: Value = serde_json::from_slice(&answer.body).expect("JSON");
                    let body = if what == "json" { &body } else { &body["details"] };
                    for (name, value) in wanted.as_object().expect("an object") {
                        assert_eq!(&body[name], value, "{shown}");
                    }
                }
                "same_as" => {
                    let first = &self.answers[wanted.as_str().expect("a name")];
                    assert_eq!((answer.status, &answer.body), (first.status, &first.body), "{shown}");
                }
                other => panic!("nothing is known of {other}"),
            }
        }
    }

    async fn check_end(&self) {
        for (name, count) in self.scenario["effects"].as_object().into_iter().flatten() {
            let sql = "SELECT count(*) FROM once_effect WHERE run = $1 AND name = $2";
            let row = self.database.query_one(sql, &[&self.run, name]).await.expect("a count");
            assert_eq!(Some(row.get::<_, i64>(0)), count.as_i64(), "effects {name}");
        }
        if let Some(runs) = self.scenario["runs"].as_i64() {
            let sql = format!("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {}", self.run);
            let row = self.database.query_one(&sql, &[]).await.expect("a number");
            assert_eq!(row.get::<_, i64>(0), runs, "how often the handler ran");
        }
    }
}

/// JSON in ASCII, as a header's value has to be.
fn ascii(json: &str) -> String {
    let mut text = String::new();
    for unit in json.encode_utf16() {
        match u8::try_from(unit) {
            Ok(byte) if byte.is_ascii() => text.push(char::from(byte)),
            _ => text.push_str(&format!("\\u{unit:04x}")),
        }
    }
    text
}

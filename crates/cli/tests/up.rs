//! `semel up`: one command that shows what semel does, keeps what happened, and ends in good order.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// A running `semel up`, and what it printed at its start.
struct Up {
    process: Child,
    said: String,
    output: BufReader<std::process::ChildStdout>,
}

impl Up {
    fn start(data: &Path, flags: &[&str]) -> Self {
        Self::start_under(data, flags, &[])
    }

    /// The same with these variables.
    fn start_under(data: &Path, flags: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
        command
            .args(["up", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data"])
            .arg(data)
            .args(flags)
            .envs(variables.iter().copied());
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("semel runs");
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let mut said = String::new();
        while !said.contains("Ctrl-C") {
            let read = output.read_line(&mut said).unwrap();
            assert!(read > 0, "it ended after saying {said:?}");
        }
        Self { process, said, output }
    }

    /// The address that it printed under a name.
    fn address(&self, name: &str) -> String {
        let line = self.said.lines().find(|line| line.trim_start().starts_with(name));
        let line = line.unwrap_or_else(|| panic!("no {name} in {}", self.said));
        let url = line.split_whitespace().nth(1).unwrap();
        url.trim_start_matches("http://").trim_end_matches('/').to_owned()
    }

    fn order(&self, key: Option<&str>, amount: u32) -> (u16, String, Value) {
        let body = json!({"item": "tea", "amount": amount}).to_string();
        let key = key.map(|key| format!("Idempotency-Key: \"{key}\"\r\n")).unwrap_or_default();
        let headers = format!("{key}Authorization: Bearer demo\r\nContent-Type: application/json\r\n");
        let (status, head, body) = send(&self.address("gate"), "POST", "/orders", &headers, &body);
        (status, head, serde_json::from_str(&body).unwrap_or_default())
    }

    fn read(&self, address: &str, path: &str) -> (u16, String, String) {
        send(&self.address(address), "GET", path, "", "")
    }

    /// A page of the console.
    fn page(&self, path: &str) -> String {
        let (status, head, page) = send(&self.address("console"), "GET", path, "Accept: text/html\r\n", "");
        assert!(status == 200 && head.contains("content-type: text/html"), "{path}: {status} {head}");
        page
    }

    fn json(&self, address: &str, path: &str) -> Value {
        serde_json::from_str(&self.read(address, path).2).unwrap()
    }

    fn end(mut self, signal: &str) -> (ExitStatus, String) {
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        (self.process.wait().unwrap(), rest)
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        // Gone already, in most cases.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn send(address: &str, method: &str, path: &str, headers: &str, body: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}");
    stream.write_all(format!("{head}Content-Length: {length}\r\n\r\n{body}").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_ascii_lowercase(), body.to_owned())
}

/// Waits until something holds.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn one_command_shows_what_a_retry_does() {
    let folder = tempfile::tempdir().unwrap();
    let up = Up::start(folder.path(), &[]);
    let commands = up.said.lines().filter(|line| line.trim_start().starts_with("curl ")).count();
    assert_eq!(commands, 3, "{}", up.said);
    assert!(up.said.contains(&folder.path().display().to_string()), "{}", up.said);

    let (status, head, _) = up.read("page", "/");
    let console = format!("location: http://{}/", up.address("console"));
    assert!(status == 303 && head.contains(&console), "where the page was leads to the console: {head}");
    let first = up.page("/");
    assert!(
        first.contains("No request with a key has come yet") && first.contains("orders that the shop took")
    );
    for outside in ["src=\"http", "href=\"http", "url(http", "@import", "<style", "style="] {
        assert!(
            !first.contains(outside),
            "the page needs nothing from elsewhere, and nothing within: {outside}"
        );
    }

    let (status, head, first) = up.order(Some("tea-1"), 5);
    assert_eq!(status, 201);
    assert!(!head.contains("idempotency-replayed"));
    let (status, head, again) = up.order(Some("tea-1"), 5);
    assert_eq!((status, &again), (201, &first));
    assert!(head.contains("idempotency-replayed: true"), "{head}");
    assert_eq!(up.order(Some("tea-1"), 6).0, 422);
    assert_eq!(up.json("gate", "/effects"), json!({"orders": 1, "balance": 99_995, "spent": 5}));

    // The console lists it: its key, what became of it, how long it took, and each number leads to its list.
    let page = up.page("/");
    let row = page.split("<tbody>").last().unwrap();
    for shown in ["tea-1", "settled", "201", "Took (ms)", "/requests/"] {
        assert!(row.contains(shown), "{shown}: {row}");
    }
    let number = |words: &str| {
        let card = page.split("<li class=\"card\">").find(|card| card.contains(words)).unwrap();
        let path = card.split("href=\"").nth(1).unwrap().split('"').next().unwrap().replace("&amp;", "&");
        let number = card.split("<b class=\"n\">").nth(1).unwrap().split('<').next().unwrap();
        (number.to_owned(), up.page(&path))
    };
    let (orders, list) = number("orders that the shop took");
    assert!(orders == "1" && list.contains("tea") && list.contains("99995"), "{orders}: {list}");
    let (replays, list) = number("answered from the record");
    assert!(replays == "1" && list.contains("tea-1"), "{replays}: {list}");

    let store = format!("sqlite:{}", folder.path().join("semel.db").display());
    assert!(up.said.contains(&format!("semel gate list --store '{store}'")), "{}", up.said);
    let mut list = Command::new(env!("CARGO_BIN_EXE_semel"));
    let records = list.args(["gate", "list", "--store", &store, "--json"]).output().unwrap();
    assert!(String::from_utf8_lossy(&records.stdout).contains("tea-1"), "{records:?}");

    assert_eq!(up.order(None, 5).0, 201, "without a key it passes");
    assert_eq!(up.json("gate", "/effects")["orders"], 2);
    assert_eq!(up.read("admin", "/healthz").0, 200);
    assert_eq!(up.read("admin", "/readyz").0, 200);
    assert!(up.read("admin", "/metrics").2.contains("semel_gate_answers_total"));
}

#[test]
fn orders_and_records_are_there_again_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let up = Up::start(folder.path(), &[]);
    let (_, _, first) = up.order(Some("tea-1"), 5);
    let (status, said) = up.end("-TERM");
    assert_eq!(status.code(), Some(0), "{said}");
    let up = Up::start(folder.path(), &[]);
    let (status, head, again) = up.order(Some("tea-1"), 5);
    assert_eq!((status, again), (201, first));
    assert!(head.contains("idempotency-replayed: true"), "{head}");
    assert_eq!(up.json("gate", "/effects")["orders"], 1);
    assert_eq!(up.end("-INT").0.code(), Some(0));
}

#[test]
fn an_order_that_is_under_way_is_finished_before_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let up = Up::start(folder.path(), &["--delay", "1500ms"]);
    std::thread::scope(|scope| {
        let order = scope.spawn(|| up.order(Some("tea-1"), 5));
        let is_claimed = || up.read("admin", "/metrics").2.contains("semel_gate_new_keys_total{");
        until("the order is under way", is_claimed);
        let pid = up.process.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        assert_eq!(order.join().unwrap().0, 201);
    });
    let mut up = up;
    assert_eq!(up.process.wait().unwrap().code(), Some(0));
}

#[test]
fn changes_that_are_handed_to_the_relay_become_one_order() {
    let folder = tempfile::tempdir().unwrap();
    // Long enough that the three find each other also where a commit takes its time.
    let variables = [("SEMEL_RELAY_DEBOUNCE", "5s")];
    let up = Up::start_under(folder.path(), &["--relay", "127.0.0.1:0"], &variables);
    let relay = up.address("relay");
    for at in 1..=3 {
        let headers =
            format!("Authorization: Bearer demo\r\nX-Sync-Mode: background\r\nX-Idempotency-Key: {at}\r\n");
        let body = r#"{"items":[{"lane":"tea","value":2}]}"#;
        assert_eq!(send(&relay, "POST", "/v1/relay/orders", &headers, body).0, 202);
    }
    until("an order comes", || up.json("gate", "/effects")["orders"] != 0);
    assert_eq!(up.json("gate", "/effects"), json!({"orders": 1, "balance": 99_994, "spent": 6}));
    let store = format!("sqlite:{}", folder.path().join("relay.db").display());
    let audit = || {
        let mut list = Command::new(env!("CARGO_BIN_EXE_semel"));
        let output = list.args(["relay", "audit", "--store", &store]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    // The shop knows of an order before the relay has settled it.
    until("one row for each", || audit().lines().count() >= 3);
    assert_eq!(audit().lines().count(), 3, "one row for each: {}", audit());
    // What is handed in just before the end is there at the next start.
    let headers = "Authorization: Bearer demo\r\nX-Sync-Mode: background\r\nX-Idempotency-Key: 4\r\n";
    assert_eq!(
        send(&relay, "POST", "/v1/relay/orders", headers, r#"{"items":[{"lane":"tea","value":1}]}"#).0,
        202
    );
    assert_eq!(up.end("-TERM").0.code(), Some(0));
    let up = Up::start(folder.path(), &["--relay", "127.0.0.1:0"]);
    until("it becomes an order", || up.json("gate", "/effects")["spent"] == 7);
}

#[test]
fn the_demo_mesh_takes_a_message_once_and_its_members_have_it() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let up = Up::start(folder.path(), &[]);
    let token = |member: &str| {
        let path = folder.path().join(format!("{member}.token"));
        assert_eq!(
            path.metadata().unwrap().permissions().mode() & 0o777,
            0o600,
            "{member}'s token is nobody else's"
        );
        std::fs::read_to_string(path).unwrap().trim().to_owned()
    };
    let ask = |up: &Up, method: &str, path: &str, headers: &str, body: &str| {
        let headers = format!("Authorization: Bearer {}\r\n{headers}", token("bob"));
        let (status, _, body) =
            send(&up.address("broker"), method, &format!("/v1/meshes/demo/{path}"), &headers, body);
        (status, serde_json::from_str::<Value>(&body).unwrap_or_default())
    };
    let publish = |up: &Up| {
        let headers = "Idempotency-Key: b-1\r\nContent-Type: application/json\r\n";
        ask(up, "POST", "messages", headers, r#"{"to":{"topic":"news"},"body":"from bob"}"#)
    };
    let (status, first) = publish(&up);
    assert_eq!(status, 201, "{first}");
    let (status, again) = publish(&up);
    assert_eq!((status, &again["broker_message_id"]), (200, &first["broker_message_id"]));
    // The commands that are printed, as they are printed.
    let printed = |begins: &str| {
        let line = up.said.lines().map(str::trim).find(|line| line.starts_with(begins));
        let line = line.unwrap_or_else(|| panic!("no {begins} in {}", up.said));
        let program = Path::new(env!("CARGO_BIN_EXE_semel")).parent().unwrap();
        let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
        let output = Command::new("sh").args(["-c", line]).env("PATH", path).output().unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    printed("semel outbox send --topic news");
    let inbox = || printed("semel inbox list");
    until("the outbox receives as alice", || inbox().contains("b-1") && inbox().contains("mesh"));
    let history = |up: &Up| {
        let (status, page) = ask(up, "GET", "topics/news/history?after=0", "", "");
        assert_eq!(status, 200, "{page}");
        let messages = page["messages"].as_array().unwrap().iter();
        messages.map(|message| (message["sender"].clone(), message["body"].clone())).collect::<Vec<_>>()
    };
    let sent = [(json!("bob"), json!("from bob")), (json!("alice"), json!({"hello": "mesh"}))];
    assert_eq!(history(&up), sent);
    assert!(printed("semel broker history").contains("from bob"));
    assert_eq!(up.end("-TERM").0.code(), Some(0));
    let up = Up::start(folder.path(), &[]);
    assert_eq!(publish(&up).0, 200, "the tokens and the messages are those of before");
    assert_eq!(history(&up), sent);
}

#[test]
fn a_service_of_ones_own_keeps_all_its_paths() {
    let shop = tempfile::tempdir().unwrap();
    let shop = Up::start(shop.path(), &[]);
    let upstream = format!("http://{}", shop.address("service"));
    let folder = tempfile::tempdir().unwrap();
    let up = Up::start(folder.path(), &["--upstream", &upstream, "--page", "127.0.0.1:0"]);
    assert_ne!(up.address("page"), up.address("gate"));
    let leads_to =
        |name: &str, console: &str| up.read(name, "/").1.contains(&format!("location: http://{console}/"));
    assert!(leads_to("page", &up.address("console")), "the way to its own console");
    assert!(leads_to("gate", &shop.address("console")), "this is the service's own path");
    let (_, _, first) = up.order(Some("tea-1"), 5);
    assert_eq!(up.order(Some("tea-1"), 5).2, first);
    assert!(!up.page("/").contains("orders that the shop took"), "the service is nobody's demo");
}

#[test]
fn what_cannot_start_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let run = |flags: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_semel"))
            .args(["up", "--data"])
            .arg(folder.path())
            .args(flags)
            .output()
            .expect("semel runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, message) = run(&["--listen", &address, "--admin", "127.0.0.1:0"]);
    assert_eq!(code, Some(4), "{message}");
    assert!(message.contains(&address) && message.contains("port 0"), "{message}");
    let (code, message) = run(&["--admin", "0.0.0.0:0"]);
    assert_eq!(code, Some(2), "{message}");
    assert!(message.contains("this machine only"), "{message}");
    let (code, message) =
        run(&["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--upstream", "ftp://x"]);
    assert_eq!(code, Some(2), "{message}");
}

//! `semel serve broker` and `semel broker` as users run them: the real program, asked by HTTP and by its own commands.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

/// A broker that runs in a folder of its own.
struct Broker {
    child: Child,
    listen: String,
    folder: tempfile::TempDir,
}

impl Broker {
    fn start() -> Self {
        Self::configured("")
    }

    /// A broker with this `semel.toml`.
    fn configured(settings: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("semel.toml"), settings).unwrap();
        let (child, listen) = serve(folder.path());
        Self { child, listen, folder }
    }

    /// Kills it as a power cut would, and starts it again on the same file.
    fn kill_and_restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        (self.child, self.listen) = serve(self.folder.path());
    }

    /// Changes the settings and says so.
    fn reload(&self, settings: &str) {
        std::fs::write(self.folder.path().join("semel.toml"), settings).unwrap();
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-HUP", &pid]).status().unwrap().success());
    }

    /// Runs `semel broker …`.
    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
        command.arg("broker").args(args).args(["--store", "sqlite:broker.db"]);
        command.current_dir(self.folder.path()).env_remove("SEMEL_CONFIG").output().unwrap()
    }

    fn done(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Sends a request where members connect, and reads the status and the JSON of the answer.
    fn ask(
        &self,
        method: &str,
        path: &str,
        token: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> (u16, Value) {
        let mut socket = TcpStream::connect(&self.listen).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
        head += &format!("authorization: Bearer {token}\r\ncontent-type: application/json\r\n");
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += &format!("content-length: {}\r\n\r\n{body}", body.len());
        socket.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        // Whoever is refused before its body is read may find the connection closed under the rest.
        let _ = socket.read_to_string(&mut answer);
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let start = body.find('{').unwrap_or(0);
        let end = body.rfind('}').map_or(0, |end| end + 1);
        (status, serde_json::from_str(&body[start..end.max(start)]).unwrap_or(Value::Null))
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn serve(folder: &Path) -> (Child, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_semel"))
        .args([
            "serve",
            "broker",
            "--listen",
            "127.0.0.1:0",
            "--admin",
            "127.0.0.1:0",
            "--store",
            "sqlite:broker.db",
        ])
        .current_dir(folder)
        .env_remove("SEMEL_CONFIG")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let listen = loop {
        let line = lines.next().expect("it says where it listens").unwrap();
        if let Some(url) = line.trim().strip_prefix("listening") {
            break url.trim().trim_start_matches("http://").trim_start_matches("https://").to_owned();
        }
    };
    // The rest is read, so that it never waits for its reader.
    std::thread::spawn(move || lines.for_each(drop));
    (child, listen)
}

/// A mesh with two members who are subscribed to one topic, and their tokens.
fn mesh(broker: &Broker) -> (String, String) {
    broker.done(&["meshes", "add", "team"]);
    let alice =
        broker.done(&["members", "add", "alice", "--mesh", "team", "--role", "owner"]).trim().to_owned();
    let bob: Value =
        serde_json::from_str(&broker.done(&["members", "add", "bob", "--mesh", "team", "--json"])).unwrap();
    broker.done(&["topics", "add", "news", "--mesh", "team"]);
    for member in ["alice", "bob"] {
        broker.done(&["subscriptions", "add", member, "--mesh", "team", "--topic", "news"]);
    }
    (alice, bob["token"].as_str().unwrap().to_owned())
}

const MESSAGES: &str = "/v1/meshes/team/messages";

#[test]
fn a_message_is_published_once_however_often_it_is_sent_and_a_kill_forgets_nothing() {
    let mut broker = Broker::start();
    let (alice, bob) = mesh(&broker);
    let message = json!({"to": {"topic": "news"}, "body": {"hello": 1}});
    let key = [("idempotency-key", "m1")];
    let (status, first) = broker.ask("POST", MESSAGES, &alice, &key, &message);
    assert_eq!((status, first["client_message_id"].as_str()), (201, Some("m1")), "{first}");
    broker.kill_and_restart();
    let (status, again) = broker.ask("POST", MESSAGES, &alice, &key, &message);
    assert_eq!((status, &again["duplicate"]), (200, &json!(true)), "{again}");
    assert_eq!(again["broker_message_id"], first["broker_message_id"]);
    let other = json!({"to": {"topic": "news"}, "body": {"hello": 2}});
    assert_eq!(broker.ask("POST", MESSAGES, &alice, &key, &other).0, 409);
    let (status, page) =
        broker.ask("GET", "/v1/meshes/team/topics/news/history?after=0", &bob, &[], &Value::Null);
    assert_eq!((status, page["messages"].as_array().map(Vec::len)), (200, Some(1)), "{page}");
    assert_eq!(page["messages"][0]["body"], json!({"hello": 1}));
}

#[test]
fn outsiders_learn_nothing_and_a_removed_member_is_one() {
    let broker = Broker::start();
    let (alice, bob) = mesh(&broker);
    let message = json!({"to": {"topic": "news"}, "body": 1, "client_message_id": "m1"});
    assert_eq!(broker.ask("POST", MESSAGES, "smb_wrong", &[], &message).0, 401);
    assert_eq!(broker.ask("POST", MESSAGES, &alice, &[], &message).0, 201);
    let elsewhere = broker.ask("POST", "/v1/meshes/other/messages", &alice, &[], &message);
    assert_eq!(elsewhere.0, 403, "{}", elsewhere.1);
    broker.done(&["members", "remove", "bob", "--mesh", "team"]);
    let refused = broker.ask("POST", MESSAGES, &bob, &[], &message).0;
    assert!(refused == 401 || refused == 403, "{refused}");
}

#[test]
fn commands_publish_list_and_look_after_what_is_kept() {
    let broker = Broker::start();
    let (alice, _) = mesh(&broker);
    let token = broker.folder.path().join("token");
    std::fs::write(&token, alice).unwrap();
    let (token, url) = (token.to_str().unwrap(), format!("http://{}", broker.listen));
    let publish = ["publish", "--mesh", "team", "--topic", "news", "{\"n\":1}", "--id", "m1", "--url", &url];
    let publish = [&publish[..], &["--token-file", token, "--json"]].concat();
    let first: Value = serde_json::from_str(&broker.done(&publish)).unwrap();
    let again: Value = serde_json::from_str(&broker.done(&publish)).unwrap();
    assert_eq!((&again["duplicate"], &again["history_id"]), (&json!(true), &first["history_id"]));
    let lines = broker.done(&["history", "--mesh", "team", "--topic", "news"]);
    assert_eq!(lines.lines().count(), 1, "{lines}");
    let members: Value =
        serde_json::from_str(&broker.done(&["members", "list", "--mesh", "team", "--json"])).unwrap();
    assert_eq!(members["members"].as_array().map(Vec::len), Some(2), "{members}");
    let orphans: Value = serde_json::from_str(&broker.done(&["orphans", "--json"])).unwrap();
    assert_eq!(orphans["orphans"], 0, "{orphans}");
    broker.done(&["rebuild"]);
    let restored: Value = serde_json::from_str(&broker.done(&["restored", "--json"])).unwrap();
    assert!(restored["epoch"].is_number(), "{restored}");
    let refused = broker.run(&["topics", "add", "x", "--mesh", "no-such-mesh"]);
    assert_eq!(refused.status.code(), Some(5), "{}", String::from_utf8_lossy(&refused.stderr));
}

#[test]
fn what_is_unsafe_is_refused_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("semel.toml"), "[broker]\ndedupe_retention_days = 6\n").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_semel"))
        .args(["serve", "broker"])
        .current_dir(folder.path())
        .env_remove("SEMEL_CONFIG")
        .output()
        .unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(3) && complaint.contains("7 days"), "{complaint}");
}

/// Waits until something is so.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_token_that_is_added_takes_no_other_and_no_right_away() {
    let broker = Broker::start();
    let (alice, _) = mesh(&broker);
    let second = broker.done(&["members", "add", "alice", "--mesh", "team"]).trim().to_owned();
    for token in [&alice, &second] {
        let (status, shown) = broker.ask("GET", "/v1/meshes/team", token, &[], &Value::Null);
        assert_eq!(status, 200, "an owner still: {shown}");
    }
    // Those that are named stay beside the new one, and no others.
    let hash = {
        use sha2::Digest;
        sha2::Sha256::digest(second.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    broker.done(&["members", "add", "alice", "--mesh", "team", "--token-sha256", &hash]);
    assert_eq!(broker.ask("GET", "/v1/meshes/team", &alice, &[], &Value::Null).0, 401);
    assert_eq!(broker.ask("GET", "/v1/meshes/team", &second, &[], &Value::Null).0, 200);
    broker.done(&["members", "add", "alice", "--mesh", "team", "--no-token"]);
    until("all tokens are revoked", || {
        broker.ask("GET", "/v1/meshes/team", &second, &[], &Value::Null).0 == 401
    });
}

#[test]
fn the_clock_is_shown_and_there_is_nothing_to_confirm() {
    let broker = Broker::start();
    let shown: Value = serde_json::from_str(&broker.done(&["clock", "--json"])).unwrap();
    assert!(shown["now"].is_string() && shown["jump_ms"].is_null(), "{shown}");
    let refused = broker.run(&["clock", "--confirm", "--reason", "for fun"]);
    assert!(!refused.status.success());
    let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(complaint.contains("nothing to confirm"), "{complaint}");
}

#[test]
fn settings_are_read_again_on_a_signal_and_unsafe_ones_change_nothing() {
    let broker = Broker::configured("[broker]\nmax_payload = { inline_bytes = 1000 }\n");
    let (alice, _) = mesh(&broker);
    let body = "x".repeat(500);
    let send = |id: &str| {
        let message = json!({"to": {"topic": "news"}, "body": body, "client_message_id": id});
        broker.ask("POST", MESSAGES, &alice, &[], &message).0
    };
    assert_eq!(send("a"), 201);
    broker.reload("[broker]\nmax_payload = { inline_bytes = 100 }\n");
    let mut number = 0;
    until("the limit is in force", || {
        number += 1;
        send(&format!("b{number}")) == 413
    });
    assert_eq!(send("a"), 200, "what is known is told, however large");
    broker.reload("[broker]\nmax_payload = { inline_bytes = 1000 }\ndedupe_retention_days = 6\n");
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(send("c"), 413, "what is unsafe is refused as a whole");
}

#[test]
fn members_connect_over_tls() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let settings =
        format!("[broker]\ntls = {{ cert = \"{}\", key = \"{}\" }}\n", cert.display(), key.display());
    let broker = Broker::configured(&settings);
    let (alice, _) = mesh(&broker);
    let port = broker.listen.rsplit_once(':').unwrap().1;
    let url = format!("https://localhost:{port}{MESSAGES}");
    let curl = |args: &[&str]| {
        let mut command = Command::new("curl");
        command.args(["-s", "--max-time", "20", "-o", "/dev/null", "-w", "%{http_code}"]).args(args);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let token = format!("Authorization: Bearer {alice}");
    let body = r#"{"to":{"topic":"news"},"body":1,"client_message_id":"a"}"#;
    let trusting = ["--cacert", cert.to_str().unwrap(), "-H", &token, "-d", body, &url];
    assert_eq!(curl(&trusting), "201");
    assert_eq!(curl(&["-H", &token, "-d", body, &url]), "000", "nobody vouches for it");
    assert_eq!(curl(&["-H", &token, "-d", body, &format!("http://localhost:{port}{MESSAGES}")]), "000");
}

/// Signs a JSON Web Token with HMAC and SHA-256.
fn token(secret: &[u8; 32], claims: &Value) -> String {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use sha2::{Digest, Sha256};
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!("{}.{}", part(&json!({"alg": "HS256", "typ": "JWT"})), part(claims));
    let padded =
        |with: u8| -> Vec<u8> { (0..64).map(|at| secret.get(at).copied().unwrap_or(0) ^ with).collect() };
    let inner = Sha256::digest([padded(0x36), signed.as_bytes().to_vec()].concat());
    let mac = Sha256::digest([padded(0x5c), inner.to_vec()].concat());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(mac))
}

#[test]
fn members_are_known_by_their_verified_tokens_and_their_streams_end_with_them() {
    use base64::Engine as _;
    let secret = [7; 32];
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys.json");
    let k = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(secret);
    std::fs::write(&keys, json!({"keys": [{"kty": "oct", "alg": "HS256", "k": k}]}).to_string()).unwrap();
    let settings = format!("[broker]\nidentity = \"jwt:{},tenant=mesh\"\n", keys.display());
    let broker = Broker::configured(&settings);
    mesh(&broker);
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let of = |member: &str, mesh: &str, seconds: u64| {
        token(&secret, &json!({"sub": member, "mesh": mesh, "exp": now() + seconds}))
    };
    let message = json!({"to": {"topic": "news"}, "body": 1, "client_message_id": "m1"});
    assert_eq!(broker.ask("POST", MESSAGES, &of("alice", "team", 60), &[], &message).0, 201);
    assert_eq!(broker.ask("POST", MESSAGES, &of("alice", "other", 60), &[], &message).0, 403);
    assert_eq!(broker.ask("POST", MESSAGES, &of("mallory", "team", 60), &[], &message).0, 403);
    let forged = token(&[8; 32], &json!({"sub": "alice", "mesh": "team", "exp": now() + 60}));
    assert_eq!(broker.ask("POST", MESSAGES, &forged, &[], &message).0, 401);
    // A stream is read to its end, and that comes with the token's.
    let begun = std::time::Instant::now();
    let events = "/v1/meshes/team/topics/news/events";
    assert_eq!(broker.ask("GET", events, &of("bob", "team", 3), &[], &Value::Null).0, 200);
    assert!((1..15).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
}

/// A service that is asked who sends a request: `MEMBER@MESH` by their own word. Returns its address, and what it is asked.
fn asked_who() -> (String, std::sync::mpsc::Receiver<String>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (told, asked) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, told) = (stream.unwrap(), told.clone());
            std::thread::spawn(move || {
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let head: Vec<String> =
                    lines.by_ref().map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
                let bearer = head
                    .iter()
                    .find_map(|line| line.split_once("Bearer "))
                    .map_or("", |(_, token)| token.trim());
                let answer = match bearer.split_once('@') {
                    Some((member, mesh)) => {
                        format!("200 OK\r\nSemel-Principal: {member}\r\nSemel-Tenant: {mesh}")
                    }
                    None if bearer == "confused" => "500 No".to_owned(),
                    None => "401 No".to_owned(),
                };
                let _ = write!(stream, "HTTP/1.1 {answer}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
                let _ = told.send(head.join("\n"));
            });
        }
    });
    (address, asked)
}

#[test]
fn members_are_known_by_what_a_service_says_of_them() {
    let (service, asked) = asked_who();
    let broker = Broker::configured(&format!("[broker]\nidentity = \"check:http://{service}/who\"\n"));
    mesh(&broker);
    let message = json!({"to": {"topic": "news"}, "body": 1, "client_message_id": "m1"});
    let publish = |who: &str| broker.ask("POST", MESSAGES, who, &[], &message);
    let (status, first) = publish("alice@team");
    assert_eq!(status, 201, "{first}");
    let question = asked.recv_timeout(Duration::from_secs(10)).unwrap().to_ascii_lowercase();
    assert!(question.starts_with("get /who http/1.1"), "{question}");
    for header in [
        "authorization: bearer alice@team",
        "x-original-method: post",
        &format!("x-original-uri: {MESSAGES}"),
    ] {
        assert!(question.contains(header), "{header}: {question}");
    }
    let (status, again) = publish("alice@team");
    assert_eq!((status, &again["broker_message_id"]), (200, &first["broker_message_id"]));
    // Another member's id, another mesh, somebody who is no member, nobody, and a service that does not say.
    for (who, status) in
        [("bob@team", 409), ("alice@other", 403), ("mallory@team", 403), ("nobody", 401), ("confused", 503)]
    {
        assert_eq!(publish(who).0, status, "{who}");
    }
    let history = "/v1/meshes/team/topics/news/history?after=0";
    let (status, page) = broker.ask("GET", history, "bob@team", &[], &Value::Null);
    assert_eq!((status, &page["messages"][0]["sender"]), (200, &json!("alice")));
    // A stream is open for as long as its member is one.
    std::thread::scope(|scope| {
        let events = "/v1/meshes/team/topics/news/events?after=0";
        let reading = scope.spawn(|| broker.ask("GET", events, "bob@team", &[], &Value::Null));
        std::thread::sleep(Duration::from_secs(1));
        assert!(!reading.is_finished());
        let begun = std::time::Instant::now();
        broker.done(&["members", "remove", "bob", "--mesh", "team"]);
        let (status, event) = reading.join().unwrap();
        assert_eq!((status, &event["client_message_id"]), (200, &json!("m1")));
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    });
    assert_eq!(broker.ask("GET", history, "bob@team", &[], &Value::Null).0, 403);
}

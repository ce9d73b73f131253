//! Who may speak to the outbox.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;

use super::daemon::{Daemon, call};

#[tokio::test(flavor = "multi_thread")]
async fn the_socket_is_its_users_own_and_pages_are_refused() {
    let daemon = Daemon::start(&[]);
    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&daemon.socket()), mode(daemon.socket().parent().unwrap())), (0o600, 0o700));
    let socket = daemon.socket();
    let refused =
        call(&socket, "GET", "/v1/messages", None, &[("origin", "https://evil.example")]).await.unwrap();
    assert_eq!((refused.0, refused.1["error"].as_str()), (403, Some("origin-refused")));
    let form =
        call(&socket, "POST", "/v1/send", None, &[("content-type", "text/plain"), ("content-length", "0")])
            .await;
    assert_eq!(form.unwrap().0, 400, "an empty envelope is malformed");
    assert_eq!(daemon.call("GET", "/healthz", None).await.0, 200);
    for (method, path, status) in
        [("GET", "/nowhere", 404), ("PUT", "/v1/send", 405), ("GET", "/v1/events?after=x", 400)]
    {
        let (found, problem) = daemon.call(method, path, None).await;
        assert_eq!((found, problem["status"].as_u64()), (status, Some(status.into())), "{method} {path}");
        for name in ["type", "title", "detail", "error", "message"] {
            assert!(problem[name].is_string(), "{name}: {problem}");
        }
    }
    let (status, document) = daemon.call("GET", "/v1/openapi.json", None).await;
    assert_eq!((status, document["openapi"].as_str()), (200, Some("3.1.0")));
}

/// A connection to the socket on which a body is read that never comes.
fn begun(daemon: &Daemon) -> UnixStream {
    let mut stream = UnixStream::connect(daemon.socket()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let head = "POST /v1/send HTTP/1.1\r\nhost: outbox\r\ncontent-type: application/json\r\n\
                expect: 100-continue\r\ncontent-length: 180000\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let mut read = [0; "HTTP/1.1 100 Continue\r\n\r\n".len()];
    stream.read_exact(&mut read).unwrap();
    assert!(read.starts_with(b"HTTP/1.1 100"));
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_of_callers_share_one_room_and_slow_ones_end() {
    let mut daemon = Daemon::start(&["--max-body", "64KiB"]);
    daemon.kill();
    let limits = "[outbox.limits]\nbodies = \"192KiB\"\nbody_deadline = \"2s\"\n";
    std::fs::write(daemon.folder.path().join("semel.toml"), limits).unwrap();
    daemon.start_again();
    let mut slow = begun(&daemon);
    let large = "x".repeat(60_000);
    let envelope = json!({"request": {"method": "POST", "url": "http://127.0.0.1:9/", "body_text": large}});
    let told = daemon.send(&envelope).await;
    assert_eq!((told.0, told.1["error"].as_str()), (503, Some("overloaded")), "{told:?}");
    let mut head = [0; 12];
    slow.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 408");
    assert_eq!(daemon.send(&envelope).await.0, 202, "there is room again");
}

fn curl(arguments: &[&str]) -> (String, String) {
    let output = Command::new("curl")
        .args(["-s", "-m", "5", "-w", "\n%{http_code}"])
        .args(arguments)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (body, status) = text.rsplit_once('\n').unwrap();
    (status.to_owned(), body.to_owned())
}

#[test]
fn on_tcp_a_token_a_known_host_and_json_are_needed() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "a-long-secret\n").unwrap();
    let start = |flags: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
        command.args(["serve", "outbox", "--store"]).arg(format!("sqlite:{}/o.db", folder.path().display()));
        command.args(["--listen", "127.0.0.1:0"]).args(flags).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let refused = start(&[]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "no token, no TCP");
    let mut child = start(&["--token-file", token.to_str().unwrap()]).spawn().unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    let address =
        lines.map(Result::unwrap).find_map(|line| Some(line.split_once("http://")?.1.to_owned())).unwrap();
    let url = format!("http://{address}/v1/messages");
    let right = "Authorization: Bearer a-long-secret";
    assert_eq!(curl(&[&url]).0, "401");
    assert_eq!(curl(&[&url, "-H", "Authorization: Bearer a-long-secreT"]).0, "401");
    assert_eq!(curl(&[&url, "-H", right]).0, "200");
    assert_eq!(curl(&[&url, "-H", right, "-H", "Host: evil.example"]).0, "403");
    assert_eq!(curl(&[&url, "-H", right, "-H", "Origin: null"]).0, "403");
    assert_eq!(curl(&[&format!("http://{address}/healthz")]).0, "200");
    let send = format!("http://{address}/v1/send");
    let body = json!({"request": {"method": "POST", "url": "http://127.0.0.1:9/"}}).to_string();
    assert_eq!(curl(&[&send, "-H", right, "-d", &body]).0, "415", "a form is not JSON");
    assert_eq!(curl(&[&send, "-H", right, "-H", "Content-Type: application/json", "-d", &body]).0, "202");
    // The command line finds address and token by itself.
    let list = Command::new(env!("CARGO_BIN_EXE_semel"))
        .args(["outbox", "list", "--json", "--store", &format!("sqlite:{}/o.db", folder.path().display())])
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&list.stdout).contains("127.0.0.1:9"), "{list:?}");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_folder_that_others_write_in_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_semel"))
        .args(["serve", "outbox", "--store", &format!("sqlite:{}/o.db", folder.path().display())])
        .args(["--listen", &format!("unix:{}/o.sock", folder.path().display())])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stderr).contains("chmod 700"));
}

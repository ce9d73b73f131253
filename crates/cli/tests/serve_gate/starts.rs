//! How it starts, what it says, and why it does not start.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::client::{keyed, post};
use crate::process::{Folder, Process, clean};
use crate::upstream::{Reply, Upstream};

async fn shop() -> Upstream {
    Upstream::start(|_, before| Reply::status(201, "", &format!("order {before}"))).await
}

#[tokio::test]
async fn without_a_configuration_it_says_what_it_does_and_does_it() {
    let (folder, upstream) = (Folder::new(), shop().await);
    let gate = folder.start(&["--upstream", &upstream.url()]);
    for said in [
        "every method but GET, HEAD, OPTIONS and TRACE",
        "authorization",
        "sqlite:semel.db",
        "fenced",
        "curl -i -X POST http://127.0.0.1:",
        &upstream.url(),
    ] {
        assert!(gate.said.contains(said), "{said:?} in {}", gate.said);
    }
    assert!(folder.path().join("semel.db").exists());
    let first = gate.ask(keyed("/orders", "k1", "{}")).await;
    let again = gate.ask(keyed("/orders", "\"k1\"", "{}")).await;
    assert_eq!((first.status, first.body.as_str()), (201, "order 0"));
    assert_eq!((again.body.as_str(), again.header("idempotency-replayed")), ("order 0", Some("true")));
    // Every path is an endpoint of its own, and every method with an effect is keyed.
    assert_eq!(gate.ask(keyed("/refunds", "k1", "{}")).await.body, "order 1");
    for method in ["PUT", "PATCH", "DELETE", "PURGE"] {
        let ask = || gate.ask(keyed("/orders/1", method, "{}").replacen("POST", method, 1));
        assert_eq!(ask().await.header("idempotency-replayed"), None, "{method}");
        assert_eq!(ask().await.header("idempotency-replayed"), Some("true"), "{method}");
    }
    let unnamed = gate.ask(post("/orders", "Idempotency-Key: k1\r\n", "{}")).await;
    assert_eq!(unnamed.status, 401);
    assert!(unnamed.body.contains("Authorization") && !unnamed.body.contains("--identity"), "{unnamed:?}");
    gate.until_said("--identity").await;
    // Without a key nothing is promised, and that is said.
    let count = upstream.count();
    assert_eq!(gate.ask(post("/orders", "", "{}")).await.header("semel-guarantee"), Some("none"));
    assert_eq!(upstream.count(), count + 1);
    assert_eq!(gate.ask(keyed("/orders", "k1", "{\"other\":1}")).await.status, 422);
    assert_eq!(gate.admin("/healthz").await.status, 200);
    assert_eq!(gate.admin("/readyz").await.status, 200);
    let lock = std::fs::read_to_string(folder.path().join("semel.db.lock")).unwrap();
    assert_eq!(lock, format!("{}\n{}\n", gate.child.id(), gate.admin));
}

#[tokio::test]
async fn keys_can_be_required() {
    let (folder, upstream) = (Folder::new(), shop().await);
    let gate = folder.start(&["--upstream", &upstream.url(), "--require-key"]);
    for method in ["POST", "PATCH"] {
        let request = post("/orders", "Authorization: a\r\n", "{}").replacen("POST", method, 1);
        assert_eq!(gate.ask(request).await.status, 400, "{method}");
    }
    assert_eq!(upstream.count(), 0);
    for method in ["PUT", "DELETE", "GET"] {
        let request = post("/orders", "Authorization: a\r\n", "{}").replacen("POST", method, 1);
        assert_eq!(gate.ask(request).await.status, 201, "{method}");
    }
    assert_eq!(gate.ask(keyed("/orders", "k1", "{}")).await.status, 201);
    assert_eq!(gate.ask(keyed("/refunds", "k1", "{}")).await.header("idempotency-replayed"), None);
}

#[tokio::test]
async fn identities_are_taken_from_the_command_line() {
    let (folder, upstream) = (Folder::new(), shop().await);
    let by = |identity: &str| {
        folder.start(&["--upstream", &upstream.url(), "--identity", identity, "--store", "sqlite:other.db"])
    };
    let cookie = by("cookie:sid");
    let request =
        |line: &str, key: &str| post("/orders", &format!("{line}\r\nIdempotency-Key: {key}\r\n"), "{}");
    assert_eq!(cookie.ask(request("Cookie: a=b; sid=1", "k1")).await.status, 201);
    assert_eq!(cookie.ask(request("Cookie: a=b", "k1")).await.status, 401);
    drop(cookie);
    let shared = by("shared:kiosk");
    assert_eq!(shared.ask(request("X: y", "weak")).await.status, 400);
    assert_eq!(shared.ask(request("X: y", "8e03978e-40d5-43e8-bc93-6894a57f9324")).await.status, 201);
    drop(shared);
    let trusted = by("trusted:X-User");
    assert_eq!(trusted.ask(request("X-User: alice", "k1")).await.status, 201);
}

#[tokio::test]
async fn what_keeps_it_from_starting_is_said() {
    let (folder, upstream) = (Folder::new(), shop().await);
    let url = upstream.url();
    let (code, words) = folder.fails(&[]);
    assert_eq!(code, Some(2));
    assert!(words.contains("--upstream"), "{words}");
    for bad in ["ftp://x", "http://", "http://x:99999", "shop"] {
        let (code, words) = folder.fails(&["--upstream", bad]);
        assert!(code == Some(2) && words.contains("bad upstream"), "{bad}: {words}");
    }
    let (code, words) = folder.fails(&["--upstream", &url, "--identity", "jwt:/nowhere/keys.json"]);
    assert!(code == Some(3) && words.contains("/nowhere/keys.json"), "{words}");
    let (code, words) = folder.fails(&["--upstream", &url, "--store", "mysql://x"]);
    assert!(code == Some(2) && words.contains("sqlite:PATH"), "{words}");

    let gate = folder.start(&["--upstream", &url]);
    let (code, words) = folder.fails(&["--upstream", &url]);
    let pid = gate.child.id().to_string();
    assert!(code == Some(4) && words.contains("semel.db") && words.contains(&pid), "{words}");
    let listen = gate.listen.to_string();
    let (code, words) = folder.fails(&["--upstream", &url, "--store", "sqlite:x.db", "--listen", &listen]);
    assert!(code == Some(2) || code == Some(4), "{words}");
}

#[tokio::test]
async fn an_address_that_is_taken_is_named() {
    let (folder, upstream) = (Folder::new(), shop().await);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    clean(&mut command);
    let output = command
        .args([
            "serve",
            "gate",
            "--upstream",
            &upstream.url(),
            "--listen",
            &address,
            "--admin",
            "127.0.0.1:0",
        ])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{words}");
    assert!(words.contains(&address) && words.contains("--listen"), "{words}");
}

#[tokio::test]
async fn a_service_manager_hands_over_sockets_and_is_told() {
    let (folder, upstream) = (Folder::new(), shop().await);
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let told = || {
        let mut text = [0; 256];
        let count = manager.recv(&mut text).unwrap();
        String::from_utf8_lossy(&text[..count]).into_owned()
    };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, descriptor) = (listener.local_addr().unwrap(), listener.as_raw_fd());
    // The variable must hold the process's own number, which the shell knows and keeps.
    let mut command = Command::new("sh");
    command.args(["-c", "LISTEN_PID=$$ exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_semel")]);
    command.args(["serve", "gate", "--admin", "127.0.0.1:0", "--listen", "127.0.0.1:1"]);
    command.args(["--upstream", &upstream.url()]);
    clean(&mut command);
    command.env("NOTIFY_SOCKET", &path).env("LISTEN_FDS", "1").env("LISTEN_FDNAMES", "gate");
    command.current_dir(folder.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // SAFETY: between fork and exec only dup2 is called, which is safe there.
    unsafe {
        command.pre_exec(move || {
            if libc::dup2(descriptor, 3) == 3 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        })
    };
    let mut gate = Process::of(command);
    assert_eq!(gate.listen, address);
    assert_eq!(gate.ask(keyed("/orders", "k1", "{}")).await.status, 201);
    assert_eq!(told(), "READY=1");
    gate.signal("HUP");
    let reloading = told();
    assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
    assert_eq!(told(), "READY=1");
    gate.signal("TERM");
    assert_eq!(told(), "STOPPING=1");
    assert_eq!(gate.ended().await.code(), Some(0));
}

#[tokio::test]
async fn operators_are_not_waited_for_for_ever_either() {
    let (folder, upstream) = (Folder::new(), shop().await);
    let gate = folder.start(&["--upstream", &upstream.url()]);
    let mut silent = crate::client::Client::connect(gate.admin).await;
    silent.send("GET /healthz HT").await;
    let started = std::time::Instant::now();
    assert!(silent.answer().await.is_none());
    assert!((9..15).contains(&started.elapsed().as_secs()), "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_service_that_is_not_there_is_named_at_the_start() {
    let folder = Folder::new();
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let process = folder.start(&["--upstream", &format!("http://{address}")]);
    process.until_said(&format!("http://{address} could not be reached")).await;
}

#[tokio::test]
async fn addresses_have_short_forms_and_a_bad_one_is_shown_how() {
    let (folder, upstream) = (Folder::new(), shop().await);
    let gate = Process::of(folder.bare(&[
        "--listen",
        ":0",
        "--admin",
        "localhost:0",
        "--upstream",
        &upstream.address.to_string(),
    ]));
    assert!(gate.listen.ip().is_loopback() && gate.admin.ip().is_loopback());
    assert_eq!(gate.ask(keyed("/orders", "k1", "{}")).await.status, 201);
    let output = folder.bare(&["--listen", "here", "--upstream", &upstream.url()]).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && words.contains("127.0.0.1:7400"), "{words}");
    let same = ["--listen", ":7999", "--admin", "127.0.0.1:7999", "--upstream", "127.0.0.1:3000"];
    let output = folder.bare(&same).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && words.contains("an address of their own"), "{words}");
}

#[tokio::test]
async fn flags_are_enough_to_observe_to_wait_longer_and_to_run_errors_again() {
    let upstream = Upstream::start(|_, before| Reply::status(500, "", &before.to_string())).await;
    let folder = Folder::new();
    let gate = folder.start(&["--upstream", &upstream.url(), "--on-error", "release", "--timeout", "2m"]);
    assert_eq!(gate.ask(keyed("/orders", "k1", "{}")).await.body, "0");
    assert_eq!(gate.ask(keyed("/orders", "k1", "{}")).await.body, "1", "released");
    drop(gate);
    let gate = folder.start(&["--upstream", &upstream.url(), "--observe", "--store", "sqlite:o.db"]);
    assert!(gate.said.contains("protects   nothing"), "{}", gate.said);
}

#[tokio::test]
async fn the_log_is_text_or_json_and_not_both() {
    let (folder, upstream) = (Folder::new(), shop().await);
    for format in ["json", "text"] {
        let mut gate = folder.start(&["--upstream", &upstream.url(), "--log-format", format]);
        assert_eq!(gate.ask(keyed("/orders", format, "{}")).await.status, 201);
        gate.until_said("/orders").await;
        gate.signal("TERM");
        gate.ended().await;
        gate.until_said("shutting down").await;
        for line in gate.errors().lines() {
            let is_json =
                serde_json::from_str::<serde_json::Value>(line).is_ok_and(|line| line["time"].is_string());
            assert_eq!(is_json, format == "json", "{line}");
        }
    }
}

#[tokio::test]
async fn a_gate_serves_on_as_many_cores_as_it_is_told_to() {
    let (folder, upstream) = (Folder::new(), shop().await);
    for cores in ["1", "3"] {
        let gate = folder.start(&["--upstream", &upstream.url(), "--cores", cores]);
        for _ in 0..6 {
            assert_eq!(gate.ask(keyed("/orders", cores, "{}")).await.status, 201);
        }
        let threads = std::fs::read_dir(format!("/proc/{}/task", gate.child.id())).unwrap();
        let names = threads
            .map(|thread| std::fs::read_to_string(thread.unwrap().path().join("comm")).unwrap_or_default());
        let found = names.filter(|name| name.starts_with("semel-core-")).count();
        assert_eq!(found.to_string(), cores);
    }
    let (code, error) = folder.fails(&["--upstream", &upstream.url(), "--cores", "0"]);
    assert_eq!(code, Some(2));
    assert!(error.contains("--cores: must be 1 to 1024"), "{error}");
}

#[tokio::test]
async fn the_form_of_the_log_is_a_setting_too() {
    let (folder, upstream) = (Folder::new(), shop().await);
    folder.write("semel.toml", "[gate]\nlog_format = \"json\"\n");
    for (flags, is_json) in [(&[][..], true), (&["--log-format", "text"][..], false)] {
        let mut gate = folder.start(&[&["--upstream", &upstream.url()], flags].concat());
        assert_eq!(gate.ask(keyed("/orders", &flags.len().to_string(), "{}")).await.status, 201);
        gate.until_said("/orders").await;
        gate.signal("TERM");
        gate.ended().await;
        gate.until_said("shutting down").await;
        for line in gate.errors().lines() {
            assert_eq!(serde_json::from_str::<serde_json::Value>(line).is_ok(), is_json, "{line}");
        }
    }
}

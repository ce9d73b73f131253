//! A daemon of the test's own, and calls to it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::UnixStream;

/// A daemon, and the folder in which it lives.
pub(crate) struct Daemon {
    pub(crate) folder: TempDir,
    flags: Vec<String>,
    child: Option<Child>,
}

impl Daemon {
    /// Starts one with these flags.
    pub(crate) fn start(flags: &[&str]) -> Self {
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let mut daemon = Self { folder: tempfile::tempdir().unwrap(), flags, child: None };
        daemon.start_again();
        daemon
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.folder.path().join("outbox.db")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("door").join("outbox.sock")
    }

    /// Starts it and waits until it is ready.
    pub(crate) fn start_again(&mut self) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_semel"))
            .args(["serve", "outbox", "--store", &format!("sqlite:{}", self.store().display())])
            .args(["--listen", &format!("unix:{}", self.socket().display())])
            .args(&self.flags)
            .current_dir(self.folder.path())
            .env("SEMEL_LOG", "off")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        if !lines.any(|line| line.unwrap().contains("try ")) {
            let mut why = String::new();
            std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut why).unwrap();
            panic!("the daemon did not start: {why}");
        }
        self.child = Some(child);
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Ends it in good order.
    pub(crate) fn end(&mut self) -> i32 {
        let mut child = self.child.take().unwrap();
        let pid = child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        child.wait().unwrap().code().unwrap()
    }

    /// One call over the socket. `None`: nobody answered.
    pub(crate) async fn try_call(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Option<(u16, Value)> {
        call(&self.socket(), method, path, body, &[]).await
    }

    pub(crate) async fn call(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        self.try_call(method, path, body).await.expect("the daemon answers")
    }

    pub(crate) async fn send(&self, envelope: &Value) -> (u16, Value) {
        self.call("POST", "/v1/send", Some(envelope)).await
    }

    pub(crate) async fn receipt(&self, id: &str) -> Value {
        let (status, receipt) = self.call("GET", &format!("/v1/messages/{id}"), None).await;
        assert_eq!(status, 200, "{receipt}");
        receipt
    }

    /// Waits until a message has this status.
    pub(crate) async fn until(&self, id: &str, status: &str) -> Value {
        self.until_it(id, |receipt| receipt["status"] == status).await
    }

    /// Waits until a message's receipt is as it should be.
    pub(crate) async fn until_it(&self, id: &str, is: impl Fn(&Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            let receipt = self.receipt(id).await;
            if is(&receipt) {
                return receipt;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "{id} stays: {receipt}");
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    }

    /// Runs `semel outbox` on this daemon's file.
    pub(crate) fn command(&self, arguments: &[&str]) -> Output {
        let (name, rest) = arguments.split_first().unwrap();
        Command::new(env!("CARGO_BIN_EXE_semel"))
            .args(["outbox", name, "--store", &format!("sqlite:{}", self.store().display())])
            .args(rest)
            .current_dir(self.folder.path())
            .output()
            .unwrap()
    }

    /// Runs it, and reads its JSON.
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let output = self.command(&[arguments, &["--json"]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

/// One call over a socket. `None`: nobody answered.
pub(crate) async fn call(
    socket: &Path,
    method: &str,
    path: &str,
    body: Option<&Value>,
    headers: &[(&str, &str)],
) -> Option<(u16, Value)> {
    let stream = UnixStream::connect(socket).await.ok()?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.ok()?;
    tokio::spawn(connection);
    let mut request = Request::builder().method(method).uri(path).header("host", "outbox");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = match body {
        Some(body) => request.header("content-type", "application/json").body(Body::from(body.to_string())),
        None => request.body(Body::empty()),
    };
    let response = sender.send_request(request.unwrap()).await.ok()?;
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.ok()?.to_bytes();
    Some((
        status,
        serde_json::from_slice(&body).unwrap_or(Value::String(String::from_utf8_lossy(&body).into())),
    ))
}

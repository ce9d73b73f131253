//! A Redis that a test may kill.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A Redis of this test's own, on loopback and without a file.
pub(crate) struct Redis {
    port: u16,
    child: Child,
}

impl Redis {
    pub(crate) fn start() -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Self { port, child: spawn(port) }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it anew, with nothing in it, where it was.
    pub(crate) fn start_again(&mut self) {
        self.child = spawn(self.port);
    }

    /// What Redis says to a command.
    pub(crate) fn ask(&self, command: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.write_all(format!("{command}\r\n").as_bytes()).unwrap();
        let mut said = vec![0; 4096];
        let length = stream.read(&mut said).unwrap();
        String::from_utf8_lossy(&said[..length]).into_owned()
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // It may have been killed already, as a part of its test.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(port: u16) -> Child {
    let names = ["redis-server", "valkey-server", "/usr/bin/redis-server"];
    let start = |name: &&str| {
        Command::new(name)
            .args(["--save", "", "--appendonly", "no", "--bind", "127.0.0.1", "--port", &port.to_string()])
            .current_dir(std::env::temp_dir())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .ok()
    };
    let child = names.iter().find_map(start).expect("there is a Redis: run `cargo xtask test`");
    let start = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(start.elapsed() < Duration::from_secs(10), "Redis does not listen");
        std::thread::sleep(Duration::from_millis(100));
    }
    child
}

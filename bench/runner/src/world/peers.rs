//! How the peers are started for a bench: as lean as they go, as their own documents say.

use std::path::Path;
use std::process::Command;

use semel_testbed::failure::Failure;
use semel_testbed::programs;
use semel_testbed::services::Server;

use super::{Running, World, exchange, must};
use crate::install;

/// The server itself, among the packages of Node.
const RESTATE: &str = "node_modules/@restatedev/restate-server-linux-x64/bin/restate-server";

impl World {
    pub(super) fn nginx(&mut self, upstream: u16) -> Result<Server, Failure> {
        let binary = install::nginx()?;
        let (program, folder) = (binary.clone(), self.folder().to_path_buf());
        let command = move |port: u16| {
            let file = folder.join(format!("nginx-{port}.conf"));
            // Where it cannot be written, nginx says so at once.
            let _ = std::fs::write(&file, nginx_settings(&folder, port, upstream));
            let mut command = Command::new(&program);
            command.arg("-p").arg(&folder).arg("-c").arg(&file);
            command
        };
        self.server("nginx", binary, Box::new(command), "", libc::SIGTERM)
    }

    /// It keeps answers in a session, so the load generator sends the cookie of one.
    pub(super) fn axum_idempotent(&mut self, running: &mut Running) -> Result<(), Failure> {
        running.counted = None;
        let (binary, url) = (install::rust_peers()?, self.new_database()?);
        let program = binary.clone();
        let command = move |port: u16| {
            let mut command = Command::new(&program);
            command.args([&format!("127.0.0.1:{port}"), &url]);
            command
        };
        running.take(self.server("axum-idempotent", binary, Box::new(command), "ready", libc::SIGKILL)?);
        running.leaders.extend(self.postgres.as_ref().map(Server::pid));
        let answer = must(running.ports[0], "POST /login HTTP/1.1\r\nhost: x", "")?;
        let cookie = answer.lines().find_map(|line| line.strip_prefix("set-cookie: ")?.split(';').next());
        let cookie = cookie.ok_or_else(|| format!("axum-idempotent gave no session: {answer}"))?;
        running.request = vec!["--header".to_owned(), format!("cookie: {cookie}")];
        Ok(())
    }

    pub(super) fn idempotent_proxy(&mut self, running: &mut Running, upstream: u16) -> Result<(), Failure> {
        // What it forwards is counted, but it may forward twice; that is not what is measured here.
        running.counted = None;
        let (binary, redis) = (install::idempotent_proxy()?, self.redis()?);
        let (program, folder) = (binary.clone(), self.folder().to_path_buf());
        // It wants a file of settings, also where the environment says all.
        std::fs::write(folder.join(".env"), "").map_err(|error| error.to_string())?;
        let command = move |port: u16| {
            let mut command = Command::new(&program);
            command
                .current_dir(&folder)
                .env("SERVER_ADDR", format!("127.0.0.1:{port}"))
                .env("LOG_LEVEL", "error");
            command.env("REDIS_URL", format!("127.0.0.1:{redis}")).env("POLL_INTERVAL", "100");
            command.env("REQUEST_TIMEOUT", "10000").env("ALLOW_AGENTS", "");
            command.env("URL_ORDERS", format!("http://127.0.0.1:{upstream}/orders"));
            command
        };
        running.take(self.server("idempotent-proxy-server", binary, Box::new(command), "", libc::SIGKILL)?);
        running.leaders.extend(self.redis.as_ref().map(Server::pid));
        running.request = ["--path", "/URL_ORDERS"].map(str::to_owned).to_vec();
        Ok(())
    }

    pub(super) fn restate(&mut self, running: &mut Running) -> Result<(), Failure> {
        running.counted = None;
        let peers = install::node_peers()?;
        let node = programs::program("node", "nodejs")?;
        let script = peers.join("restate.mjs");
        let program = node.clone();
        let command = move |port: u16| {
            let mut command = Command::new(&program);
            command
                .arg(&script)
                .arg(port.to_string())
                .env("NODE_ENV", "production")
                .env("RESTATE_LOGGING", "ERROR");
            command
        };
        let handler = self.server("restate handler", node, Box::new(command), "ready", libc::SIGKILL)?;
        // Not the script that npm links: it would leave the server behind when it is ended.
        let binary = peers.join(RESTATE);
        let (program, folder) = (binary.clone(), self.folder().join("restate"));
        let command = move |port: u16| {
            let mut command = Command::new(&program);
            command.arg("--base-dir").arg(&folder).args([
                "--bind-ip",
                "127.0.0.1",
                "--bind-port",
                &(port + 1).to_string(),
            ]);
            command.env("RESTATE_INGRESS__BIND_ADDRESS", format!("127.0.0.1:{port}"));
            command.env("RESTATE_ADMIN__BIND_ADDRESS", format!("127.0.0.1:{}", port + 2));
            command.env("RESTATE_LOG_FILTER", "warn");
            command
        };
        let server = self.server("restate", binary, Box::new(command), "", libc::SIGTERM)?;
        let admin = server.port() + 2;
        let body = format!("{{\"uri\":\"http://127.0.0.1:{}\"}}", handler.port());
        let head = "POST /deployments HTTP/1.1\r\nhost: x\r\ncontent-type: application/json";
        // It answers on its ports before it is able to do anything.
        let mut registered = Err(Failure::Failed("Restate was not ready".to_owned()));
        for _ in 0..100 {
            if exchange(admin, "GET /health HTTP/1.1\r\nhost: x", "")
                .is_ok_and(|answer| answer.contains(" 200 "))
            {
                registered = must(admin, head, &body);
                if registered.is_ok() {
                    break;
                }
            }
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
        registered?;
        running.take(server);
        running.support(handler);
        running.request = ["--path", "/orders/create"].map(str::to_owned).to_vec();
        Ok(())
    }
}

/// As nginx comes, with a log of requests in a file, and connections kept both ways.
fn nginx_settings(folder: &Path, port: u16, upstream: u16) -> String {
    let folder = folder.display();
    format!(
        "worker_processes auto;\ndaemon off;\npid {folder}/nginx-{port}.pid;\nerror_log stderr error;\n\
         events {{ worker_connections 4096; }}\n\
         http {{\n  access_log {folder}/nginx-{port}.log;\n  keepalive_requests 100000000;\n\
         \x20 client_body_temp_path {folder}/nginx-body;\n  proxy_temp_path {folder}/nginx-proxy;\n\
         \x20 fastcgi_temp_path {folder}/nginx-f;\n  uwsgi_temp_path {folder}/nginx-u;\n  scgi_temp_path {folder}/nginx-s;\n\
         \x20 upstream service {{ server 127.0.0.1:{upstream}; keepalive 512; keepalive_requests 100000000; }}\n\
         \x20 server {{\n    listen 127.0.0.1:{port};\n    location / {{\n      proxy_pass http://service;\n\
         \x20     proxy_http_version 1.1;\n      proxy_set_header Connection \"\";\n    }}\n  }}\n}}\n"
    )
}

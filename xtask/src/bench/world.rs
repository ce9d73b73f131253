//! What runs during a bench: the upstream, databases that are started when first needed, and the contestants. All of it
//! on loopback, all of it gone when dropped.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::contestant::{Contestant, Serves, Store};
use super::install;
use crate::failure::Failure;
use crate::services::{self, Permission, Recipe, Scratch, Server};

/// A contestant that is up.
pub(crate) struct Running {
    pub(crate) name: String,
    /// Where it is reached; connections go round these.
    pub(crate) ports: Vec<u16>,
    /// The processes whose cost is its cost, with their descendants.
    pub(crate) leaders: Vec<u32>,
    /// What the load generator is told about its requests.
    pub(crate) request: Vec<String>,
    /// The upstream whose effects are counted, where every fresh key must have one.
    counted: Option<u16>,
    servers: Vec<Server>,
}

/// The servers of a bench. Contestants are dropped before it.
pub(crate) struct World {
    upstream: Option<Server>,
    postgres: Option<Server>,
    databases: u32,
    names: u32,
    scratch: Scratch,
}

impl World {
    pub(crate) fn new() -> Result<World, Failure> {
        Ok(World { upstream: None, postgres: None, databases: 0, names: 0, scratch: Scratch::create()? })
    }

    pub(crate) fn folder(&self) -> &Path {
        self.scratch.path()
    }

    /// Starts a contestant and waits until it is ready. An error says why it cannot take part.
    pub(crate) fn start(&mut self, contestant: &Contestant) -> Result<Running, Failure> {
        let upstream = self.upstream()?;
        let mut running = Running {
            name: contestant.name.to_owned(),
            ports: vec![],
            leaders: vec![],
            request: vec![],
            counted: Some(upstream),
            servers: vec![],
        };
        match contestant.serves {
            Serves::Upstream => running.ports.push(upstream),
            Serves::Nginx => running.take(self.nginx(upstream)?),
            Serves::PlainProxy => {
                let upstream = format!("127.0.0.1:{upstream}");
                running.take(self.ours("plain proxy", &["proxy", "--upstream", &upstream], "ready")?);
            }
            Serves::Gate(store) => {
                let url = self.store(store)?;
                running.take(self.gate(upstream, &url)?);
                running.leaders.extend(self.database(store));
            }
            Serves::TwoGates => {
                let url = self.store(Store::Postgres)?;
                for _ in 0..2 {
                    running.take(self.gate(upstream, &url)?);
                }
                running.leaders.extend(self.database(Store::Postgres));
            }
        }
        Ok(running)
    }

    /// The port of the service behind all proxies.
    pub(crate) fn upstream(&mut self) -> Result<u16, Failure> {
        if self.upstream.is_none() {
            self.upstream = Some(self.ours("upstream", &["upstream"], "ready")?);
        }
        self.upstream.as_ref().map(Server::port).ok_or_else(|| Failure::Failed("no upstream".to_owned()))
    }

    /// The URL of a store that nobody used before.
    pub(crate) fn store(&mut self, store: Store) -> Result<String, Failure> {
        self.names += 1;
        match store {
            Store::Sqlite => {
                Ok(format!("sqlite:{}", self.folder().join(format!("{}.db", self.names)).display()))
            }
            Store::Postgres => self.new_database(),
        }
    }

    fn database(&self, store: Store) -> Option<u32> {
        match store {
            Store::Sqlite => None,
            Store::Postgres => self.postgres.as_ref().map(Server::pid),
        }
    }

    fn new_database(&mut self) -> Result<String, Failure> {
        if self.postgres.is_none() {
            self.postgres = Some(services::postgres_alone(Permission::InstallIfMissing, &self.scratch)?);
        }
        let server = self.postgres.as_ref().ok_or_else(|| "no PostgreSQL".to_owned())?;
        self.databases += 1;
        let name = format!("bench{}", self.databases);
        let tool = server.binary().with_file_name("psql");
        let mut create = Command::new(tool);
        create.args([
            "-h",
            "127.0.0.1",
            "-p",
            &server.port().to_string(),
            "-U",
            "semel",
            "-d",
            "postgres",
            "-q",
        ]);
        create.args(["-c", &format!("CREATE DATABASE {name}")]);
        crate::process::read(&mut create)?;
        Ok(format!("postgres://semel@127.0.0.1:{}/{name}", server.port()))
    }

    fn gate(&mut self, upstream: u16, store: &str) -> Result<Server, Failure> {
        let (binary, upstream, store) =
            (install::semel_binary(), format!("http://127.0.0.1:{upstream}"), store.to_owned());
        let program = binary.clone();
        let command = move |port: u16| {
            let mut command = Command::new(&program);
            command.args([
                "serve",
                "gate",
                "--upstream",
                &upstream,
                "--store",
                &store,
                "--access-log",
                "off",
            ]);
            command.args(["--admin", "127.0.0.1:0", "--listen", &format!("127.0.0.1:{port}")]);
            command
        };
        self.server("gate", binary, Box::new(command), "semel gate is ready", libc::SIGTERM)
    }

    fn nginx(&mut self, upstream: u16) -> Result<Server, Failure> {
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

    /// Starts one of our own parts.
    pub(crate) fn ours(
        &mut self,
        name: &'static str,
        args: &[&str],
        ready: &'static str,
    ) -> Result<Server, Failure> {
        let binary = install::bench_binary();
        let (program, args) = (binary.clone(), args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>());
        let command = move |port: u16| {
            let mut command = Command::new(&program);
            command.args(&args).args(["--listen", &format!("127.0.0.1:{port}")]);
            command
        };
        self.server(name, binary, Box::new(command), ready, libc::SIGKILL)
    }

    fn server(
        &mut self,
        name: &'static str,
        binary: PathBuf,
        command: Box<dyn Fn(u16) -> Command>,
        ready_line: &'static str,
        stop_signal: i32,
    ) -> Result<Server, Failure> {
        self.names += 1;
        let log = self.scratch.log(&format!("{}-{}", self.names, name.replace(' ', "-")));
        let mut server = Server::spawn(Recipe { name, binary, command, log, ready_line, stop_signal })?;
        server.settle()?;
        Ok(server)
    }
}

impl Running {
    fn take(&mut self, server: Server) {
        self.ports.push(server.port());
        self.leaders.push(server.pid());
        self.servers.push(server);
    }

    /// What makes a request a keyed one.
    pub(crate) fn key_arguments(&self) -> [&'static str; 4] {
        ["--header", "idempotency-key: {key}", "--header", "authorization: Bearer bench"]
    }

    /// How many requests took effect at the upstream so far.
    pub(crate) fn effects(&self) -> Option<u64> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.counted?)).ok()?;
        stream.write_all(b"GET /count HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        text.rsplit("\r\n").next()?.parse().ok()
    }
}

/// As lean as nginx goes: no logs, connections kept both ways.
fn nginx_settings(folder: &Path, port: u16, upstream: u16) -> String {
    let folder = folder.display();
    format!(
        "worker_processes auto;\ndaemon off;\npid {folder}/nginx-{port}.pid;\nerror_log stderr error;\n\
         events {{ worker_connections 4096; }}\n\
         http {{\n  access_log off;\n  keepalive_requests 100000000;\n\
         \x20 client_body_temp_path {folder}/nginx-body;\n  proxy_temp_path {folder}/nginx-proxy;\n\
         \x20 fastcgi_temp_path {folder}/nginx-f;\n  uwsgi_temp_path {folder}/nginx-u;\n  scgi_temp_path {folder}/nginx-s;\n\
         \x20 upstream service {{ server 127.0.0.1:{upstream}; keepalive 512; keepalive_requests 100000000; }}\n\
         \x20 server {{\n    listen 127.0.0.1:{port};\n    location / {{\n      proxy_pass http://service;\n\
         \x20     proxy_http_version 1.1;\n      proxy_set_header Connection \"\";\n    }}\n  }}\n}}\n"
    )
}

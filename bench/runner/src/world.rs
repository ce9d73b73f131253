//! What runs during a bench: the upstream, databases that are started when first needed, and the contestants. All of it
//! on loopback, all of it gone when dropped.

mod brokers;
mod ours;
mod peers;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use semel_testbed::failure::Failure;
use semel_testbed::process;
use semel_testbed::services::{self, Permission, Recipe, Scratch, Server};

pub(crate) use brokers::Publishing;
pub(crate) use ours::{TOKEN, relay_request};

use super::contestant::{Contestant, Serves, Store};
use super::install;

/// A contestant that is up.
pub(crate) struct Running {
    pub(crate) name: String,
    /// Where it is reached; connections go round these.
    pub(crate) ports: Vec<u16>,
    /// The processes whose cost is its cost, with their descendants.
    pub(crate) leaders: Vec<u32>,
    /// What the load generator is told about its requests.
    pub(crate) request: Vec<String>,
    /// What makes a request a keyed one.
    pub(crate) key: Vec<String>,
    /// How long it took until it answered.
    pub(crate) ready_after: Duration,
    /// The upstream whose effects are counted, where every fresh key must have one.
    counted: Option<u16>,
    servers: Vec<Server>,
}

/// The servers of a bench. Contestants are dropped before it.
pub(crate) struct World {
    upstream: Option<Server>,
    postgres: Option<Server>,
    redis: Option<Server>,
    /// The programs that were started, by the names of what they are.
    started: BTreeMap<&'static str, PathBuf>,
    names: u32,
    scratch: Scratch,
}

impl World {
    pub(crate) fn new() -> Result<World, Failure> {
        Ok(World {
            upstream: None,
            postgres: None,
            redis: None,
            started: BTreeMap::new(),
            names: 0,
            scratch: Scratch::create()?,
        })
    }

    pub(crate) fn folder(&self) -> &Path {
        self.scratch.path()
    }

    /// Starts a contestant and waits until it is ready. An error says why it cannot take part.
    pub(crate) fn start(&mut self, contestant: &Contestant) -> Result<Running, Failure> {
        let upstream = self.upstream()?;
        let mut running = Running::named(contestant.name, Some(upstream));
        match contestant.serves {
            Serves::Nginx => running.take(self.nginx(upstream)?),
            Serves::PlainProxy => {
                let upstream = format!("127.0.0.1:{upstream}");
                running.take(self.part("plain proxy", &["proxy", "--upstream", &upstream])?);
            }
            Serves::Gate(store, records) => {
                let url = self.filled_store(store, records)?;
                let since = Instant::now();
                running.take(self.gate(upstream, &url)?);
                running.ready_after = since.elapsed();
                running.leaders.extend(self.database(store));
            }
            Serves::TwoGates => {
                let url = self.store(Store::Postgres)?;
                for _ in 0..2 {
                    running.take(self.gate(upstream, &url)?);
                }
                running.leaders.extend(self.database(Store::Postgres));
            }
            Serves::Service(store) => {
                running.counted = None;
                let url = store.map(|store| self.store(store)).transpose()?;
                let args: Vec<&str> = url.iter().flat_map(|url| ["--store", url]).collect();
                running.take(self.part("service", &[&["service"], args.as_slice()].concat())?);
                running.leaders.extend(store.and_then(|store| self.database(store)));
            }
            Serves::ServiceAlone => {
                running.counted = None;
                let url = self.store(Store::Postgres)?;
                running.take(self.part("service", &["service", "--store", &url, "--bare"])?);
                running.leaders.extend(self.database(Store::Postgres));
            }
            Serves::Outbox => self.outbox(&mut running, upstream)?,
            Serves::AcceptInMemory => {
                running.counted = None;
                running.takes_messages("none");
                running.take(self.part("accept", &["accept"])?);
            }
            Serves::Relay(store) => {
                let url = self.store(store)?;
                self.relay(&mut running, upstream, &url)?;
                running.leaders.extend(self.database(store));
            }
            Serves::AxumIdempotent => self.axum_idempotent(&mut running)?,
            Serves::IdempotentProxy => self.idempotent_proxy(&mut running, upstream)?,
            Serves::Restate => self.restate(&mut running)?,
        }
        Ok(running)
    }

    /// The port of the service behind all proxies.
    pub(crate) fn upstream(&mut self) -> Result<u16, Failure> {
        if self.upstream.is_none() {
            self.upstream = Some(self.part("upstream", &["upstream"])?);
        }
        self.upstream.as_ref().map(Server::port).ok_or_else(|| Failure::Failed("no upstream".to_owned()))
    }

    /// The URL of a store that nobody used before.
    pub(crate) fn store(&mut self, store: Store) -> Result<String, Failure> {
        match store {
            Store::Sqlite => {
                self.names += 1;
                Ok(format!("sqlite:{}", self.folder().join(format!("{}.db", self.names)).display()))
            }
            Store::Postgres => self.new_database(),
        }
    }

    /// The process of the database, where records are kept in one.
    fn database(&self, store: Store) -> Option<u32> {
        match store {
            Store::Sqlite => None,
            Store::Postgres => self.postgres.as_ref().map(Server::pid),
        }
    }

    pub(crate) fn new_database(&mut self) -> Result<String, Failure> {
        if self.postgres.is_none() {
            let server = services::postgres_alone(Permission::InstallIfMissing, &self.scratch)?;
            self.started.insert("PostgreSQL", server.binary().to_path_buf());
            self.postgres = Some(server);
        }
        self.names += 1;
        let name = format!("bench{}", self.names);
        process::read(self.psql("postgres")?.args(["-c", &format!("CREATE DATABASE {name}")]))?;
        let port = self.postgres.as_ref().map_or(0, Server::port);
        Ok(format!("postgres://semel@127.0.0.1:{port}/{name}"))
    }

    /// `psql` on one of our databases.
    pub(crate) fn psql(&self, database: &str) -> Result<Command, Failure> {
        let server = self.postgres.as_ref().ok_or_else(|| "no PostgreSQL was started".to_owned())?;
        let mut command = Command::new(server.binary().with_file_name("psql"));
        command.args([
            "-h",
            "127.0.0.1",
            "-p",
            &server.port().to_string(),
            "-U",
            "semel",
            "-q",
            "-d",
            database,
        ]);
        Ok(command)
    }

    /// The port of a Redis that keeps nothing on disk.
    pub(crate) fn redis(&mut self) -> Result<u16, Failure> {
        if self.redis.is_none() {
            let server = services::redis_alone(Permission::InstallIfMissing, &self.scratch)?;
            self.started.insert("Redis", server.binary().to_path_buf());
            self.redis = Some(server);
        }
        Ok(self.redis.as_ref().map_or(0, Server::port))
    }

    /// The versions of the programs of others that took part.
    pub(crate) fn versions(&self) -> Option<String> {
        let known = self.started.iter().filter_map(|(name, binary)| install::version(name, binary));
        let known: Vec<String> = known.collect();
        (!known.is_empty()).then(|| format!("Versions: {}.", known.join(", ")))
    }

    /// Starts one of the parts in `bench/`.
    fn part(&mut self, name: &'static str, args: &[&str]) -> Result<Server, Failure> {
        let binary = install::bench_binary();
        let (program, args) = (binary.clone(), args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>());
        let command = move |port: u16| {
            let mut command = Command::new(&program);
            command.args(&args).args(["--listen", &format!("127.0.0.1:{port}")]);
            command
        };
        self.server(name, binary, Box::new(command), "ready", libc::SIGKILL)
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
        self.started.insert(name, binary.clone());
        let log = self.scratch.log(&format!("{}-{}", self.names, name.replace(' ', "-")));
        let mut server = Server::spawn(Recipe { name, binary, command, log, ready_line, stop_signal })?;
        server.settle()?;
        Ok(server)
    }
}

impl Running {
    /// One server that the rounds know nothing of, with its requests.
    pub(crate) fn of(name: &str, server: Server, request: Vec<String>) -> Running {
        let mut running = Running { request, key: vec![], ..Running::named(name, None) };
        running.take(server);
        running
    }

    fn named(name: &str, counted: Option<u16>) -> Running {
        let key = ["--header", "idempotency-key: {key}", "--header", "authorization: Bearer bench"];
        Running {
            name: name.to_owned(),
            ports: vec![],
            leaders: vec![],
            request: vec![],
            key: key.map(str::to_owned).to_vec(),
            ready_after: Duration::ZERO,
            counted,
            servers: vec![],
        }
    }

    fn take(&mut self, server: Server) {
        self.ports.push(server.port());
        self.support(server);
    }

    /// Keeps a server that requests do not go to.
    fn support(&mut self, server: Server) {
        self.leaders.push(server.pid());
        self.servers.push(server);
    }

    /// Requests are messages for an outbox, with a token.
    fn takes_messages(&mut self, token: &str) {
        let note = "n".repeat(100);
        let body = format!(
            "{{\"client_message_id\":\"{{key}}\",\"lane\":\"{{lane}}\",\"request\":{{\"method\":\"POST\",\"url\":\"/orders\",\
             \"body\":{{\"customer\":4711,\"currency\":\"EUR\",\"amount\":1999,\"lines\":[{{\"article\":\"tea\",\"count\":2}}],\
             \"note\":\"{note}\"}}}}}}"
        );
        let header = format!("authorization: Bearer {token}");
        self.request =
            ["--path", "/v1/send", "--header", &header, "--body", &body].map(str::to_owned).to_vec();
        self.key = vec![];
    }

    /// Whether it is one of ours, whose effects are counted and whose replays say that they are.
    pub(crate) fn counts_effects(&self) -> bool {
        self.counted.is_some()
    }

    /// How many requests took effect at the upstream so far.
    pub(crate) fn effects(&self) -> Option<u64> {
        effects(self.counted?)
    }
}

/// How many requests an upstream has answered.
pub(crate) fn effects(upstream: u16) -> Option<u64> {
    exchange(upstream, "GET /count HTTP/1.1\r\nhost: x", "").ok()?.rsplit("\r\n").next()?.parse().ok()
}

/// Sends one request on a connection of its own and returns the whole answer.
pub(crate) fn exchange(port: u16, head: &str, body: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let length = body.len();
    stream.write_all(
        format!("{head}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}").as_bytes(),
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// The same, where anything but 2xx is a failure.
pub(crate) fn must(port: u16, head: &str, body: &str) -> Result<String, Failure> {
    let answer = exchange(port, head, body).map_err(|error| format!("{head}: {error}"))?;
    match answer.split(' ').nth(1).is_some_and(|status| status.starts_with('2')) {
        true => Ok(answer),
        false => Err(Failure::Failed(format!("{head}: {answer}"))),
    }
}

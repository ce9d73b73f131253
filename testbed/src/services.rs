//! The servers that the tests talk to: a PostgreSQL and a Redis that live as long as one test run. Owns which
//! of them are started, which are given from outside, and what the tests are told about them.

mod address;
mod find;
mod install;
mod postgres;
mod python;
mod redis;
mod scratch;
mod server;

use std::path::PathBuf;
use std::time::Duration;

use crate::failure::Failure;
pub use install::Permission;
pub use install::install_package;
pub use scratch::Scratch;
pub use server::{Recipe, Server};

/// Where the tests find PostgreSQL: a URL.
pub const POSTGRES_VARIABLE: &str = "SEMEL_TEST_POSTGRES";
/// Where the tests find Redis: a URL.
pub const REDIS_VARIABLE: &str = "SEMEL_TEST_REDIS";
/// A Python interpreter with the packages of the examples.
pub const PYTHON_VARIABLE: &str = "SEMEL_TEST_PYTHON";
/// The folder of `initdb` and `postgres`, for tests that start, kill and restart a server of their own.
pub const POSTGRES_BIN_VARIABLE: &str = "SEMEL_TEST_POSTGRES_BIN";

/// Both servers, ready. Dropping this stops what was started and removes its data.
pub struct Services {
    // The order matters: fields are dropped from first to last, and the folder must go last.
    postgres: Service,
    redis: Service,
    postgres_bin: Option<PathBuf>,
    python: PathBuf,
    scratch: Scratch,
}

/// One server, by where it comes from.
enum Service {
    /// It was running before us and stays.
    Given(String),
    /// We started it and stop it.
    Started(Box<Server>),
}

impl Services {
    /// Starts the servers that the environment does not name, both at the same time, and waits for them.
    ///
    /// All children are spawned from this one thread, because they die with the thread that spawned them.
    pub fn start(permission: Permission) -> Result<Services, Failure> {
        let given_postgres = given(POSTGRES_VARIABLE, 5432)?;
        let given_redis = given(REDIS_VARIABLE, 6379)?;
        let scratch = Scratch::create()?;
        let wanted = find::Wanted {
            postgres: given_postgres.is_none(),
            redis: given_redis.is_none(),
            python: true,
            promtool: true,
        };
        let found = find_or_install(wanted, permission, &scratch)?;

        let mut redis = match (given_redis, &found.redis) {
            (Some(url), _) => Service::Given(url),
            (None, Some(binary)) => Service::Started(Box::new(redis::spawn(binary, &scratch)?)),
            (None, None) => unreachable!("find_or_install returns only when what is wanted is there"),
        };
        let mut postgres = match (given_postgres, &found.postgres_bin) {
            (Some(url), _) => Service::Given(url),
            (None, Some(bin)) => Service::Started(Box::new(postgres::spawn(bin, &scratch)?)),
            (None, None) => unreachable!("find_or_install returns only when what is wanted is there"),
        };
        let python =
            found.python.as_deref().expect("find_or_install returns only when what is wanted is there");
        let python = python::prepare(python, &scratch)?;
        postgres.settle()?;
        redis.settle()?;
        Ok(Services { postgres, redis, postgres_bin: found.postgres_bin, python, scratch })
    }

    /// What the test run needs in its environment.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let mut variables = vec![
            (POSTGRES_VARIABLE, self.postgres.url(postgres::url)),
            (REDIS_VARIABLE, self.redis.url(redis::url)),
            (PYTHON_VARIABLE, self.python.display().to_string()),
        ];
        if let Some(bin) = &self.postgres_bin {
            variables.push((POSTGRES_BIN_VARIABLE, bin.display().to_string()));
        }
        variables
    }

    /// Where throw-away files may lie.
    pub fn folder(&self) -> &std::path::Path {
        self.scratch.path()
    }

    /// The port of the PostgreSQL that was started here.
    pub fn postgres_port(&self) -> Result<u16, Failure> {
        self.postgres.port(POSTGRES_VARIABLE)
    }

    /// The port of the Redis that was started here.
    pub fn redis_port(&self) -> Result<u16, Failure> {
        self.redis.port(REDIS_VARIABLE)
    }

    /// Shuts PostgreSQL down at once and starts it again.
    pub fn restart_postgres(&mut self) -> Result<(), Failure> {
        self.postgres.restart()
    }

    /// Makes a synchronous standby, lets the primary die and promotes the standby. Returns where it listens.
    pub fn promote_standby(&mut self) -> Result<u16, Failure> {
        let (Some(bin), Service::Started(primary)) = (&self.postgres_bin, &mut self.postgres) else {
            return self.postgres_port();
        };
        let standby = postgres::stand_by(bin, &self.scratch, primary.port())?;
        primary.stop();
        postgres::promote(bin, &self.scratch, standby.port())?;
        let port = standby.port();
        self.postgres = Service::Started(Box::new(standby));
        Ok(port)
    }

    /// Kills Redis and starts it again.
    pub fn restart_redis(&mut self) -> Result<(), Failure> {
        self.redis.restart()
    }

    /// Stops what was started, removes its data, and returns one line about each server.
    pub fn stop(self) -> Vec<String> {
        let Services { postgres, redis, scratch, .. } = self;
        let lines = vec![postgres.stop("postgres"), redis.stop("redis")];
        drop(scratch);
        lines
    }
}

/// A PostgreSQL from these programs, beside the one of the run. Dropping it stops it.
pub struct OtherPostgres(Server);

impl OtherPostgres {
    /// Where it is found.
    pub fn url(&self) -> String {
        postgres::url(self.0.port())
    }
}

/// Starts it, and waits until it is ready.
pub fn start_postgres(bin: &std::path::Path, scratch: &Scratch) -> Result<OtherPostgres, Failure> {
    let mut server = postgres::spawn(bin, scratch)?;
    server.settle()?;
    Ok(OtherPostgres(server))
}

impl Service {
    fn settle(&mut self) -> Result<(), Failure> {
        match self {
            Service::Given(_) => Ok(()),
            Service::Started(server) => server.settle(),
        }
    }

    fn port(&self, variable: &str) -> Result<u16, Failure> {
        match self {
            Service::Given(_) => {
                Err(Failure::Usage(format!("this needs a server of its own: unset {variable}")))
            }
            Service::Started(server) => Ok(server.port()),
        }
    }

    fn restart(&mut self) -> Result<(), Failure> {
        match self {
            Service::Given(_) => Ok(()),
            Service::Started(server) => server.restart(),
        }
    }

    fn url(&self, of_port: fn(u16) -> String) -> String {
        match self {
            Service::Given(url) => url.clone(),
            Service::Started(server) => of_port(server.port()),
        }
    }

    fn stop(self, name: &str) -> String {
        match self {
            Service::Given(_) => format!("{name:8}  given by the environment, left as it is"),
            Service::Started(mut server) => {
                server.stop();
                format!("{name:8}  127.0.0.1:{}, stopped ({})", server.port(), server.binary().display())
            }
        }
    }
}

/// A PostgreSQL of its own, ready, without the rest.
pub fn postgres_alone(permission: Permission, scratch: &Scratch) -> Result<Server, Failure> {
    let wanted = find::Wanted { postgres: true, redis: false, python: false, promtool: false };
    let found = find_or_install(wanted, permission, scratch)?;
    let bin = found.postgres_bin.expect("find_or_install returns only when what is wanted is there");
    let mut server = postgres::spawn(&bin, scratch)?;
    server.settle()?;
    Ok(server)
}

/// A Redis of its own, ready, without the rest.
pub fn redis_alone(permission: Permission, scratch: &Scratch) -> Result<Server, Failure> {
    let wanted = find::Wanted { postgres: false, redis: true, python: false, promtool: false };
    let found = find_or_install(wanted, permission, scratch)?;
    let binary = found.redis.expect("find_or_install returns only when what is wanted is there");
    let mut server = redis::spawn(&binary, scratch)?;
    server.settle()?;
    Ok(server)
}

/// Installs what the tests need and this machine lacks.
pub fn install_all(permission: Permission) -> Result<(), Failure> {
    let scratch = Scratch::named("install")?;
    find_or_install(
        find::Wanted { postgres: true, redis: true, python: true, promtool: true },
        permission,
        &scratch,
    )
    .map(drop)
}

/// A duration as these commands print it.
pub fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

/// The server that a variable names, once it is known to answer.
fn given(variable: &str, default_port: u16) -> Result<Option<String>, Failure> {
    match std::env::var(variable) {
        Ok(url) if !url.is_empty() => {
            address::check_answers(variable, &url, default_port)?;
            Ok(Some(url))
        }
        Ok(_) | Err(_) => Ok(None),
    }
}

fn find_or_install(
    wanted: find::Wanted,
    permission: Permission,
    scratch: &Scratch,
) -> Result<find::Found, Failure> {
    let found = find::on_this_machine();
    let missing = found.missing(wanted);
    if missing.is_empty() {
        return Ok(found);
    }
    install::install(&missing, permission, &scratch.log("apt-get"))?;
    let found = find::on_this_machine();
    let missing = found.missing(wanted);
    if missing.is_empty() {
        return Ok(found);
    }
    Err(Failure::Failed(format!("the packages are installed, yet not found.\n{}", install::advice(&missing))))
}

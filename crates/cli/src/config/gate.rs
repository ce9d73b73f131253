//! What `[gate]` means: everything about the gateway beside its routes.

mod shown;

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use semel_contract::identity::Identity;
use semel_contract::profile::SweepWhen;
use semel_gateway::{Certificates, Cors, HostSent, Limits, Peers, Protocol, Target, Upstream};

use super::file::{self, HostWord, Mode};
use super::values::{LogFormat, LogTo, OneIn, OneOf, RedisUrl, Text, with_scheme};

/// More cores than this are a slip of the pen.
const CORES_MAX: usize = 1024;

/// The settings of `[gate]` in force.
#[derive(Debug)]
pub(crate) struct Gate {
    /// Where the gate listens.
    pub(crate) listen: SocketAddr,
    /// Where operators look.
    pub(crate) admin: SocketAddr,
    /// The file of the token by which operators may read and change.
    pub(crate) admin_token_file: Option<PathBuf>,
    /// The file of the token by which they may only read.
    pub(crate) admin_read_token_file: Option<PathBuf>,
    /// The header by which a proxy says which operator asks.
    pub(crate) admin_trusted: Option<String>,
    /// Those of them who may change something.
    pub(crate) admin_operators: Vec<String>,
    /// Names by which the proxy calls the admin address.
    pub(crate) admin_hosts: Vec<String>,
    /// What stands behind the gate.
    pub(crate) upstream: Option<Upstream>,
    /// Whether anything is enforced.
    pub(crate) mode: Mode,
    /// The certificate that clients see.
    pub(crate) tls: Option<Certificates>,
    /// What clients may take.
    pub(crate) limits: Limits,
    /// What the gate itself may hold.
    pub(crate) bounds: Bounds,
    /// Who is believed when naming users.
    pub(crate) trusted_peers: Peers,
    /// Which pages on other origins may use the gate.
    pub(crate) cors: Option<Cors>,
    /// Where requests are written down.
    pub(crate) access_log: LogTo,
    /// The form of what is written on standard error.
    pub(crate) log_format: Option<LogFormat>,
    /// Cores that serve connections, if not all of the machine's.
    pub(crate) cores: Option<NonZeroUsize>,
    /// How long work is waited for at the end.
    pub(crate) drain: Duration,
    /// Where limits are counted, if not in this process alone.
    pub(crate) redis: Option<String>,
    /// How answers are protected where they are kept.
    pub(crate) at_rest: Option<AtRest>,
    /// The file of secrets that fingerprints are keyed with.
    pub(crate) fingerprint_keys: Option<PathBuf>,
    /// The name under which the store remembers how keys are recorded.
    pub(crate) name: Option<String>,
    /// Identities that were in force before.
    pub(crate) was_identity: Vec<Identity>,
    /// Whether keys that were recorded in another form may run again.
    pub(crate) forget_former: bool,
    /// When expired records are removed, if not as the profile says.
    pub(crate) sweep: Option<SweepWhen>,
    /// Connections to PostgreSQL, and whether its schema is brought up to date at the start.
    pub(crate) postgres: Postgres,
}

/// What the gate itself may hold; its own defaults where nothing is said.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bounds {
    /// Keyed requests that run at a time.
    pub(crate) running: Option<usize>,
    /// Requests that wait for another with their key, in all.
    pub(crate) waiting: Option<usize>,
    /// The same, for one key.
    pub(crate) waiting_per_key: Option<usize>,
    /// Bytes of bodies in memory, in all.
    pub(crate) bodies: Option<usize>,
    /// How long one body may take.
    pub(crate) body_deadline: Option<Duration>,
}

/// How answers are protected where they are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AtRest {
    /// The file of keys; without one nothing is encrypted.
    pub(crate) keys: Option<PathBuf>,
    /// Whether they are compressed.
    pub(crate) compress: bool,
}

/// The store in PostgreSQL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Postgres {
    pub(crate) connections: usize,
    pub(crate) migrate: bool,
    /// Whose certificates are believed, where the URL demands TLS.
    pub(crate) ca: Option<PathBuf>,
}

impl Gate {
    pub(super) fn of(gate: file::Gate) -> Result<Self, String> {
        let address = |given: Option<Text<SocketAddr>>, port| {
            given.map_or_else(|| SocketAddr::from(([127, 0, 0, 1], port)), |given| given.0)
        };
        let (listen, admin) = (address(gate.listen, 7400), address(gate.admin, 7401));
        if listen == admin && listen.port() != 0 {
            return Err(format!(
                "gate.listen and gate.admin are both {listen}: operators need an address of their own"
            ));
        }
        let limits = gate.limits.unwrap_or_default();
        let mut body_deadline = Duration::ZERO;
        set("gate.limits.body_deadline", limits.body_deadline.as_ref(), &mut body_deadline)?;
        let bodies = limits.bodies.as_ref().map(|max| usize::try_from(max.0.0).unwrap_or(usize::MAX));
        let bounds = Bounds {
            bodies: at_least_one("gate.limits.bodies", bodies)?,
            body_deadline: (!body_deadline.is_zero()).then_some(body_deadline),
            running: at_least_one("gate.limits.running", limits.running)?,
            waiting: at_least_one("gate.limits.waiting", limits.waiting)?,
            waiting_per_key: at_least_one("gate.limits.waiting_per_key", limits.waiting_per_key)?,
        };
        let trusted_peers = match &gate.trusted_peers {
            Some(peers) => Peers::of(peers).map_err(|error| format!("gate.trusted_peers: {error}"))?,
            None => Peers::default(),
        };
        let cors = gate.cors.map(|origins| Cors::new(&origins, gate.cors_credentials.unwrap_or(false)));
        let cors = cors.transpose().map_err(|error| format!("gate.cors: {error}"))?;
        if gate.cors_credentials == Some(true) && cors.is_none() {
            return Err("gate.cors_credentials: say in `cors` which pages may".to_owned());
        }
        let at_rest = gate
            .at_rest
            .map(|at_rest| AtRest { keys: at_rest.keys, compress: at_rest.compress.unwrap_or(false) });
        if at_rest.as_ref().is_some_and(|at_rest| at_rest.keys.is_none() && !at_rest.compress) {
            return Err(
                "gate.at_rest protects nothing: name a file of `keys`, or say compress = true".to_owned()
            );
        }
        let postgres = gate.postgres.as_ref();
        let connections = postgres.and_then(|postgres| postgres.connections);
        Ok(Self {
            listen,
            admin,
            admin_token_file: gate.admin_token_file,
            admin_read_token_file: gate.admin_read_token_file,
            admin_trusted: gate.admin_trusted,
            admin_operators: gate.admin_operators.unwrap_or_default(),
            admin_hosts: gate.admin_hosts.unwrap_or_default(),
            upstream: gate.upstream.map(|upstream| of_upstream(&upstream)).transpose()?,
            mode: gate.mode.map(|mode| mode.0).unwrap_or_default(),
            tls: gate.tls.map(|tls| Certificates { cert: tls.cert, key: tls.key }),
            limits: of_limits(&limits)?,
            bounds,
            trusted_peers,
            cors,
            access_log: gate.access_log.map_or(LogTo::Stderr(OneIn::ALL), |log| log.0),
            cores: gate.cores.map(cores).transpose().map_err(|error| format!("gate.cores {error}"))?,
            log_format: gate.log_format.map(|format| format.0),
            drain: gate.drain.map_or(Duration::from_secs(30), |drain| drain.0),
            redis: gate.redis.map(|Text(RedisUrl(url))| url),
            at_rest,
            fingerprint_keys: gate.fingerprint_keys,
            name: gate.name,
            was_identity: gate.was_identity.unwrap_or_default().into_iter().map(|was| was.0).collect(),
            forget_former: gate.forget_former.unwrap_or(false),
            sweep: gate.sweep.map(|sweep| sweep.0),
            postgres: Postgres {
                connections: at_least_one("gate.postgres.connections", connections)?.unwrap_or(8),
                migrate: postgres.and_then(|postgres| postgres.migrate).unwrap_or(true),
                ca: postgres.and_then(|postgres| postgres.ca.clone()),
            },
        })
    }

    /// How many cores serve connections.
    pub(crate) fn cores(&self) -> NonZeroUsize {
        let all = || std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        self.cores.unwrap_or_else(all)
    }

    /// Another upstream, with the settings of this one.
    pub(crate) fn set_upstream(&mut self, target: Target) {
        match &mut self.upstream {
            Some(upstream) => upstream.target = target,
            None => self.upstream = Some(Upstream::at(target)),
        }
    }
}

/// A number of cores, as far as one can be meant.
pub(crate) fn cores(given: usize) -> Result<NonZeroUsize, String> {
    let is_meant = |cores: &NonZeroUsize| cores.get() <= CORES_MAX;
    NonZeroUsize::new(given).filter(is_meant).ok_or_else(|| format!("must be 1 to {CORES_MAX}"))
}

fn at_least_one(name: &str, given: Option<usize>) -> Result<Option<usize>, String> {
    match given {
        Some(0) => Err(format!("{name} must be at least 1")),
        other => Ok(other),
    }
}

fn of_upstream(setting: &OneOf<super::values::Url, file::Upstream>) -> Result<Upstream, String> {
    let named = |error: String| format!("gate.upstream: {error}");
    let table = match setting {
        OneOf::Word(url) => return Ok(Upstream::at(target(&url.0).map_err(named)?)),
        OneOf::Table(table) => table,
    };
    let mut upstream = Upstream::at(target(&table.url.0.0).map_err(named)?);
    let durations = [
        ("timeout", &table.timeout, &mut upstream.timeout),
        ("connect_timeout", &table.connect_timeout, &mut upstream.connect_timeout),
        ("stream_idle", &table.stream_idle, &mut upstream.stream_idle),
    ];
    for (name, given, place) in durations {
        set(&format!("gate.upstream.{name}"), given.as_ref(), place)?;
    }
    upstream.ca.clone_from(&table.ca);
    if upstream.ca.is_some() && !upstream.target.is_tls() {
        return Err("gate.upstream: `ca` is for https only".to_owned());
    }
    if table.http2 == Some(true) {
        upstream.protocol = Protocol::Http2;
    }
    upstream.host = match table.host.as_ref().map(|host| host.0) {
        Some(HostWord::Upstream) => HostSent::Own,
        Some(HostWord::Client) | None => HostSent::Clients,
    };
    if let Some(max) = at_least_one("gate.upstream.connections", table.connections)? {
        upstream.connections_max = max;
    }
    Ok(upstream)
}

/// The target of a URL; without a scheme it is `http`.
pub(crate) fn target(url: &str) -> Result<Target, String> {
    with_scheme(url).parse().map_err(|error: semel_gateway::BadTarget| error.to_string())
}

/// Takes over a duration, which must last.
fn set(name: &str, given: Option<&Text<Duration>>, place: &mut Duration) -> Result<(), String> {
    match given {
        Some(given) if given.0.is_zero() => Err(format!("{name} must be longer than 0s")),
        Some(given) => {
            *place = given.0;
            Ok(())
        }
        None => Ok(()),
    }
}

fn of_limits(given: &file::Limits) -> Result<Limits, String> {
    let mut limits = Limits::default();
    let durations = [
        ("header_timeout", &given.header_timeout, &mut limits.header_timeout),
        ("body_timeout", &given.body_timeout, &mut limits.body_timeout),
        ("idle_timeout", &given.idle_timeout, &mut limits.idle_timeout),
        ("write_timeout", &given.write_timeout, &mut limits.write_timeout),
    ];
    for (name, given, place) in durations {
        set(&format!("gate.limits.{name}"), given.as_ref(), place)?;
    }
    if let Some(max) = at_least_one("gate.limits.connections", given.connections)? {
        limits.connections_max = max;
    }
    if let Some(max) = at_least_one("gate.limits.headers", given.headers)? {
        limits.headers_max = max;
    }
    if let Some(max) = &given.header_bytes {
        limits.header_bytes_max = usize::try_from(max.0.0).unwrap_or(usize::MAX).clamp(1024, 16 << 20);
    }
    if let Some(max) = given.streams {
        limits.streams_max = max.max(1);
    }
    Ok(limits)
}

//! What the outbox is told: the table `[outbox]` of the configuration, under the flags.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use semel_contract::profile::{self, presets};
use semel_delivery::credentials::{Place, Rule, Wallet};
use semel_delivery::http1::Http1;
use semel_delivery::receive::{self, LineName, Receive};
use semel_delivery::url::Target;
use semel_delivery::{HeadPolicy, Settings};
use semel_http::BodyBounds;
use serde::Deserialize;

use super::Args;
pub(crate) use super::file::File;
pub(crate) use super::values::Listen;
use super::values::{Address, StoreFile, place_or};
use crate::config::{Profiles, Setting, Text, body_bounds};
use crate::exit::{Exit, Stop};
use crate::outbox::body::envelope_bytes_max;
use crate::outbox::mesh::Mesh;
use crate::serve::admin::Proxy;

pub(super) fn authorization() -> String {
    "Authorization".to_owned()
}

#[derive(Debug, Default, Deserialize)]
struct Whole {
    #[serde(default)]
    outbox: File,
    #[serde(default)]
    profile: BTreeMap<String, profile::settings::Settings>,
}

/// What is in force.
pub(crate) struct Config {
    pub(crate) store: PathBuf,
    pub(crate) listen: Listen,
    pub(crate) token_file: Option<PathBuf>,
    /// Where operators look with a browser, if anywhere.
    pub(crate) admin: Option<std::net::SocketAddr>,
    pub(crate) admin_token_file: Option<PathBuf>,
    pub(crate) admin_read_token_file: Option<PathBuf>,
    /// A proxy of one's own that says which operator asks.
    pub(crate) admin_proxy: Proxy,
    pub(crate) allow_hosts: Vec<String>,
    pub(crate) settings: Settings,
    /// Room for the bodies of callers.
    pub(crate) bodies: BodyBounds,
    pub(crate) wallet: Arc<Wallet>,
    pub(crate) mesh: Option<Mesh>,
    pub(crate) receives: Vec<Receive>,
}

impl Config {
    /// The file's settings under the flags'.
    pub(crate) fn load(args: &Args) -> Result<Self, Stop> {
        Self::of(args, read(args.config.as_deref())?)
    }

    /// These settings under the flags'.
    pub(crate) fn of(args: &Args, file: File) -> Result<Self, Stop> {
        let usage =
            |flag: &'static str| move |error: String| Stop::new(Exit::Usage, format!("{flag}: {error}"));
        let bad = |error: String| Stop::new(Exit::Config, error);
        let StoreFile(store) = chosen(args.store.as_deref(), file.store.as_ref())
            .map_err(usage("--store"))?
            .unwrap_or_else(|| StoreFile(PathBuf::from("outbox.db")));
        let listen = chosen(args.listen.as_deref(), file.listen.as_ref()).map_err(usage("--listen"))?;
        let listen = listen.unwrap_or_else(|| Listen::Unix(usual_socket(&store)));
        let settings = settings(args, &file).map_err(bad)?;
        let bodies = body_bounds(
            "outbox.limits",
            file.limits.bodies.as_ref(),
            file.limits.body_deadline.as_ref(),
            envelope_bytes_max(&settings),
        );
        let bodies = bodies.map_err(bad)?;
        let broker = file.broker.as_ref().map(|Text(Address(broker))| broker.clone());
        let mesh = Mesh::read(broker, file.mesh.as_deref()).map_err(bad)?;
        let receives = receives(args, &file, mesh.as_ref()).map_err(bad)?;
        receive::check(&receives).map_err(|error| bad(format!("outbox.receive: {error}")))?;
        let mut rules = rules(args, &file, settings.upstream.as_ref(), mesh.as_ref()).map_err(bad)?;
        rules.extend(members_rule(&rules, mesh.as_ref(), &receives));
        let wallet = Arc::new(Wallet::new(rules));
        let settings = Settings { credentials: Arc::clone(&wallet) as _, ..settings };
        settings.check().map_err(|error| bad(error.into()))?;
        Ok(Self {
            store,
            listen,
            token_file: args.token_file.clone().or(file.token_file),
            admin: args.admin.or(file.admin.map(|admin| admin.0)),
            admin_token_file: args.admin_token_file.clone().or(file.admin_token_file),
            admin_read_token_file: file.admin_read_token_file,
            admin_proxy: Proxy::of(file.admin_trusted, file.admin_operators, file.admin_hosts),
            allow_hosts: args.allow_host.iter().cloned().chain(file.allow_hosts).collect(),
            settings,
            bodies,
            wallet,
            mesh,
            receives,
        })
    }
}

impl Config {
    /// Whether other settings than what is received differ, as far as they show.
    pub(crate) fn is_otherwise(&self, other: &Self) -> bool {
        let shown = |config: &Self| {
            let Config { store, listen, token_file, allow_hosts, settings, bodies, mesh, .. } = config;
            format!(
                "{store:?} {listen:?} {token_file:?} {allow_hosts:?} {settings:?} {bodies:?} {mesh:?} {:?}",
                settings.profile
            )
        };
        shown(self) != shown(other)
    }
}

pub(crate) fn read(path: Option<&Path>) -> Result<File, Stop> {
    let beside = Path::new("semel.toml");
    let variable = std::env::var_os("SEMEL_CONFIG").map(PathBuf::from);
    let named = path.or(variable.as_deref());
    let Some(path) = named.or_else(|| beside.exists().then_some(beside)) else { return Ok(File::default()) };
    let text = std::fs::read_to_string(path)
        .map_err(|error| Stop::new(Exit::Config, format!("failed to read {}: {error}", path.display())))?;
    let whole: Whole = toml::from_str(&text).map_err(|error| {
        Stop::new(Exit::Config, format!("{}: {}", path.display(), error.to_string().trim_end()))
    })?;
    let profiles = Profiles::of(whole.profile)
        .map_err(|error| Stop::new(Exit::Config, format!("{}: {error}", path.display())))?;
    Ok(File { profiles, ..whole.outbox })
}

/// What a flag says, else the file.
fn chosen<T: Setting + Clone>(flag: Option<&str>, file: Option<&Text<T>>) -> Result<Option<T>, String> {
    flag.map_or_else(|| Ok(file.map(|file| file.0.clone())), |text| T::read(text).map(Some))
}

/// Beside the store, in a folder of its own.
fn usual_socket(store: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(store);
    name.push(".d");
    PathBuf::from(name).join("outbox.sock")
}

fn settings(args: &Args, file: &File) -> Result<Settings, String> {
    let mut settings = Settings::default();
    let duration = |name: &str, flag: &Option<String>, file: &Option<Text<Duration>>| {
        chosen(flag.as_deref(), file.as_ref()).map_err(|error| format!("{name}: {error}"))
    };
    if file.broker.is_some() && file.upstream.is_none() && args.upstream.is_none() {
        // Nothing is sent but to the broker, unless a message says so.
        settings.profile = presets::mesh();
    }
    if let Some(name) = args.profile.as_deref().or(file.profile.as_deref()).filter(|name| *name != "default")
    {
        settings.profile = file.profiles.get(name, |usual| usual)?;
    }
    if let Some(age) = duration("max_age", &args.max_age, &file.max_age)? {
        settings.profile.schedule.max_age = Some(age);
        settings.max_age_is_chosen = true;
    }
    settings.unsafe_max_age = args.unsafe_max_age || file.unsafe_max_age.unwrap_or(false);
    let upstream = chosen(args.upstream.as_deref(), file.upstream.as_ref());
    let upstream = upstream.map_err(|error| format!("upstream: {error}"))?;
    settings.upstream = upstream.map(|Address(upstream)| upstream).or(settings.upstream);
    let head: Option<HeadPolicy> =
        chosen(args.head.as_deref(), file.head.as_ref()).map_err(|error| format!("head: {error}"))?;
    settings.head = head.unwrap_or_default();
    settings.parallel = args.parallel.or(file.parallel).unwrap_or(settings.parallel).max(1);
    let timeout = duration("attempt_timeout", &args.attempt_timeout, &file.attempt_timeout)?;
    settings.attempt_timeout = timeout.unwrap_or(settings.attempt_timeout);
    settings.rows_max = args.max_rows.or(file.max_rows).unwrap_or(settings.rows_max);
    settings.bytes_max = args.max_bytes.or(file.max_bytes).unwrap_or(settings.bytes_max);
    settings.payload_bytes_max =
        args.max_body.or(file.max_body).unwrap_or(settings.payload_bytes_max).min(64 << 20);
    settings.keep = duration("keep", &args.keep, &file.keep)?.unwrap_or(settings.keep);
    if let Some(path) = args.ca.as_ref().or(file.ca.as_ref()) {
        settings.transport = Arc::new(Http1::trusting_file(path).map_err(|error| format!("ca: {error}"))?);
    }
    for (name, Text(pointer)) in &file.ids {
        settings.ids.retain(|(known, _)| known != name);
        settings.ids.push((name.clone(), pointer.clone()));
    }
    Ok(settings)
}

/// The lines that are followed.
fn receives(args: &Args, file: &File, usual: Option<&Mesh>) -> Result<Vec<Receive>, String> {
    let mut receives = Vec::new();
    for given in &file.receive {
        let bad = |error: &dyn std::fmt::Display| format!("outbox.receive: {error}");
        let broker = match (&given.broker, usual) {
            (Some(Text(Address(broker))), _) => broker.clone(),
            (None, Some(usual)) => usual.broker.clone(),
            (None, None) => return Err(bad(&"say which broker: broker = URL")),
        };
        let mesh = given.mesh.clone().or_else(|| usual.map(|usual| usual.name.clone()));
        let mesh = mesh.filter(|mesh| !mesh.is_empty()).ok_or_else(|| bad(&"say which mesh: mesh = NAME"))?;
        if given.topics.is_empty() && !given.direct {
            return Err(bad(&"it receives nothing: say topics = [NAME, …] or direct = true"));
        }
        if given.topics.iter().any(String::is_empty) || given.consumer.as_deref() == Some("") {
            return Err(bad(&"a topic and a consumer have a name"));
        }
        let credential = given.credential.as_ref().map(|credential| credential.0.0.clone());
        let topics = given.topics.iter().cloned().map(LineName::Topic);
        for line in topics.chain(given.direct.then_some(LineName::Direct)) {
            receives.push(Receive {
                broker: broker.clone(),
                mesh: mesh.clone(),
                line,
                credential: credential.clone(),
                consumer: given.consumer.clone(),
                ca: args.ca.clone().or_else(|| file.ca.clone()),
            });
        }
    }
    Ok(receives)
}

/// A member that receives under a credential publishes under it too, where no other is given for the broker.
fn members_rule(rules: &[Rule], mesh: Option<&Mesh>, receives: &[Receive]) -> Option<Rule> {
    let mesh = mesh?;
    let origin = &mesh.broker.origin;
    if rules.iter().any(|rule| rule.origin == *origin) {
        return None;
    }
    let is_it = |receive: &&Receive| receive.mesh == mesh.name && receive.broker.origin == *origin;
    let place = receives.iter().find(is_it)?.credential.clone()?;
    Some(Rule { principal: None, origin: origin.clone(), target: None, header: authorization(), place })
}

fn rules(
    args: &Args,
    file: &File,
    upstream: Option<&Target>,
    mesh: Option<&Mesh>,
) -> Result<Vec<Rule>, String> {
    let upstream = upstream.or(mesh.map(|mesh| &mesh.broker));
    let mut rules = Vec::new();
    for text in &args.credential {
        rules.push(rule(text, upstream).map_err(|error| format!("--credential {text:?}: {error}"))?);
    }
    for given in &file.credential {
        let place = match (&given.file, &given.command) {
            (Some(path), None) => Place::File(path.clone()),
            (None, Some(words)) => Place::Command(words.clone()),
            _ => return Err("outbox.credential: give one of file and command".to_owned()),
        };
        rules.push(Rule {
            principal: given.principal.clone(),
            origin: origin(given.origin.as_ref().map(|origin| &origin.0), upstream)
                .map_err(|error| format!("outbox.credential: {error}"))?,
            target: None,
            header: given.header.clone(),
            place,
        });
    }
    Ok(rules)
}

fn origin(given: Option<&Address>, upstream: Option<&Target>) -> Result<String, String> {
    match (given.map(|given| &given.0), upstream) {
        (Some(target), _) | (None, Some(target)) => Ok(target.origin.clone()),
        (None, None) => Err("say for which origin, or give an upstream".to_owned()),
    }
}

/// `[ORIGIN=]file:PATH` or `[ORIGIN=]command:COMMAND`
fn rule(text: &str, upstream: Option<&Target>) -> Result<Rule, String> {
    let is_place = |text: &str| text.starts_with("file:") || text.starts_with("command:");
    let (given, place) = match text.split_once('=').filter(|_| !is_place(text)) {
        Some((origin, place)) => (Some(origin), place),
        None => (None, text),
    };
    let place = place_or(place, "[ORIGIN=]file:PATH or [ORIGIN=]command:COMMAND")?;
    let given = given.map(Address::read).transpose()?;
    let origin = origin(given.as_ref(), upstream)?;
    Ok(Rule { principal: None, origin, target: None, header: authorization(), place })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read() {
        let upstream = Target::absolute("http://h:1/api").unwrap();
        let of_upstream = rule("file:/run/t", Some(&upstream)).unwrap();
        assert_eq!(
            (of_upstream.origin.as_str(), of_upstream.place),
            ("http://h:1", Place::File("/run/t".into()))
        );
        let other = rule("https://a.example/x=command:pass show a=b", None).unwrap();
        assert_eq!(other.origin, "https://a.example");
        assert_eq!(other.place, Place::Command(vec!["sh".into(), "-c".into(), "pass show a=b".into()]));
        assert!(rule("file:/run/t", None).is_err() && rule("https://a=token", None).is_err());
    }

    fn config(text: &str) -> Result<Config, String> {
        let whole: Whole = toml::from_str(text).map_err(|error| error.to_string())?;
        Config::of(&Args::default(), whole.outbox).map_err(|stop| stop.message)
    }

    #[test]
    fn what_is_received_is_read_and_what_cannot_be_is_refused() {
        let text = "[outbox]\nbroker = 'http://127.0.0.1:7430'\nmesh = 'team'\n[[outbox.receive]]\n\
            topics = ['news', 'ops']\ndirect = true\ncredential = 'file:/run/token'\n";
        let found = config(text).unwrap();
        let lines: Vec<String> = found.receives.iter().map(|receive| receive.line.to_string()).collect();
        assert_eq!(lines, ["topic:news", "topic:ops", "direct"]);
        assert_eq!(found.receives[0].credential, Some(Place::File("/run/token".into())));
        assert_eq!(found.settings.profile.name, "mesh", "nothing else is sent");
        for (text, complaint) in [
            ("[outbox]\nbroker = 'http://a'\n", "needs outbox.mesh"),
            ("[[outbox.receive]]\nmesh = 'team'\ndirect = true\n", "which broker"),
            ("[[outbox.receive]]\nbroker = 'http://a'\nmesh = 'team'\n", "receives nothing"),
            ("[[outbox.receive]]\nbroker = 'a'\nmesh = 'team'\ndirect = true\n", "broker"),
            (
                "[[outbox.receive]]\nbroker = 'http://a'\nmesh = 'team'\ndirect = true\ncredential = 'x'\n",
                "file:PATH",
            ),
            ("[[outbox.receive]]\nbroker = 'http://a'\nmesh = 'team'\ntopics = ['t', 't']\n", "twice"),
            ("[[outbox.receive]]\nbroker = 'http://a'\nmesh = 'team'\nline = 't'\n", "unknown field"),
        ] {
            let Err(error) = config(text) else { panic!("{text} is accepted") };
            assert!(error.contains(complaint), "{text}: {error}");
        }
    }
}

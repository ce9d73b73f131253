//! The brokers and the daemons of their members: two brokers on the gateways' PostgreSQL and Redis, and four outboxes with files of
//! their own, each of which sends to one broker and receives from it. Every member is subscribed to every topic.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use super::http::{self, Answer};
use super::outboxes::TOKEN;
use super::processes::{Processes, Start, semel};
use super::proxy::Proxy;
use semel_testbed::services::Services;

/// Members, each with a daemon; every second one is at the second broker.
pub(crate) const MEMBERS: [&str; 4] = ["ada", "ben", "cleo", "dora"];
pub(crate) const TOPICS: [&str; 2] = ["news", "ops"];
const BROKERS: usize = 2;
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the mesh may take to be made.
const MAKING: Duration = Duration::from_secs(30);

/// Brokers and daemons, at work.
pub(crate) struct Mesh {
    pub(crate) brokers: Processes,
    pub(crate) daemons: Processes,
    /// Where operators look at the brokers.
    admins: Vec<u16>,
}

impl Mesh {
    /// Starts all of it. Operators' doors are at these ports.
    pub(crate) fn start(
        services: &Services,
        [postgres, redis]: [&Proxy; 2],
        admins: Vec<u16>,
        planted: Option<&str>,
    ) -> Result<Self, String> {
        let folder = services.folder();
        let config = format!(
            "[broker]\nstore = \"postgres://semel@127.0.0.1:{}/postgres\"\nredis = \"redis://127.0.0.1:{}\"\n\
             budget = \"1000000/1s\"\n[broker.postgres]\nconnections = 4\n",
            postgres.port(),
            redis.port()
        );
        let file = folder.join("broker.toml");
        write(&file, &config)?;
        let broker = |number: usize| -> Start {
            let (file, log) = (file.clone(), folder.join(format!("broker-{number}.log")));
            let (admin, planted) = (format!("127.0.0.1:{}", admins[number]), planted.map(str::to_owned));
            Box::new(move |port| {
                let mut command = semel(&log, planted.as_deref());
                command.args(["serve", "broker", "--admin", &admin, "--config"]).arg(&file);
                command.args(["--listen", &format!("127.0.0.1:{port}")]);
                command
            })
        };
        let brokers = Processes::start((0..BROKERS).map(broker).collect())?;
        make(admins[0])?;
        let daemon = |number: usize| daemon(folder, number, brokers.ports()[number % BROKERS], planted);
        let starts = (0..MEMBERS.len()).map(daemon).collect::<Result<_, String>>()?;
        let daemons = Processes::start(starts)?;
        Ok(Self { brokers, daemons, admins })
    }

    /// Asks a member's daemon.
    pub(crate) fn ask(ports: &[u16], member: usize, method: &str, path: &str, body: &str) -> Option<Answer> {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json"
        );
        http::send(ports[member], &head, body, PATIENCE).ok()
    }

    /// Asks a broker as an operator; another one where the first does not answer.
    pub(crate) fn operate(&self, method: &str, path: &str) -> Option<Answer> {
        let head = format!("{method} {path} HTTP/1.1\r\nContent-Type: application/json");
        let mut answers = self.admins.iter().filter_map(|port| http::send(*port, &head, "", PATIENCE).ok());
        answers.find(|answer| answer.status == 200)
    }
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    fs::write(file, text).map_err(|error| format!("failed to write {}: {error}", file.display()))
}

fn token(member: usize) -> String {
    format!("chaos-member-{member}")
}

/// A daemon that sends as a member, and receives all that is the member's.
fn daemon(folder: &Path, number: usize, broker: u16, planted: Option<&str>) -> Result<Start, String> {
    let own: PathBuf = folder.join(format!("member-{number}"));
    fs::create_dir_all(&own).map_err(|error| format!("failed to make {}: {error}", own.display()))?;
    let (credential, known_by) = (own.join("credential"), own.join("token"));
    write(&credential, &token(number))?;
    write(&known_by, TOKEN)?;
    let topics: Vec<String> = TOPICS.iter().map(|topic| format!("\"{topic}\"")).collect();
    let text = format!(
        "[outbox]\nstore = \"sqlite:{}/outbox.db\"\nbroker = \"http://127.0.0.1:{broker}\"\nmesh = \"chaos\"\n\
         [[outbox.receive]]\ntopics = [{}]\ndirect = true\ncredential = \"file:{}\"\n",
        own.display(),
        topics.join(", "),
        credential.display()
    );
    let file = own.join("semel.toml");
    write(&file, &text)?;
    let (log, planted) = (folder.join(format!("member-{number}.log")), planted.map(str::to_owned));
    Ok(Box::new(move |port| {
        let mut command = semel(&log, planted.as_deref());
        command.args(["serve", "outbox", "--attempt-timeout", "5s", "--config"]).arg(&file);
        command.args(["--listen", &format!("127.0.0.1:{port}"), "--token-file"]).arg(&known_by);
        command
    }))
}

/// Makes the mesh, its members, topics and subscriptions. Each call says all of it, so that it can be repeated.
fn make(admin: u16) -> Result<(), String> {
    put(admin, "", "{}")?;
    for (number, member) in MEMBERS.iter().enumerate() {
        let hash: String = Sha256::digest(token(number)).iter().map(|byte| format!("{byte:02x}")).collect();
        let body = format!("{{\"role\":\"member\",\"token_sha256\":[\"{hash}\"]}}");
        put(admin, &format!("/members/{member}"), &body)?;
    }
    for topic in TOPICS {
        put(admin, &format!("/topics/{topic}"), "{}")?;
        for member in MEMBERS {
            put(admin, &format!("/topics/{topic}/subscriptions/{member}"), "{}")?;
        }
    }
    Ok(())
}

fn put(admin: u16, path: &str, body: &str) -> Result<(), String> {
    let head = format!("PUT /v1/meshes/chaos{path} HTTP/1.1\r\nContent-Type: application/json");
    let until = Instant::now() + MAKING;
    loop {
        let told = http::send(admin, &head, body, PATIENCE);
        match &told {
            Ok(answer) if answer.status < 300 => return Ok(()),
            Ok(_) | Err(_) if Instant::now() > until => return Err(format!("no mesh: {path}: {told:?}")),
            Ok(_) | Err(_) => std::thread::sleep(Duration::from_millis(200)),
        }
    }
}

//! Credentials: stamped at send, bound to an origin and, in a relay, to a target, never stored. A provider is asked for each attempt.

use std::collections::HashMap;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::message::Answer;

/// How long a command may take to print a credential.
const COMMAND_TIME_MAX: Duration = Duration::from_secs(20);
/// Longest credential that is read.
const CREDENTIAL_BYTES_MAX: usize = 16 << 10;

/// How long another credential waits after the second refusal in a row. Each further one doubles it.
const WAIT_FIRST: Duration = Duration::from_secs(2);
/// The longest such wait.
const WAIT_MAX: Duration = Duration::from_secs(300);

/// How long another credential waits after so many refusals in a row: a provider may have another one each time, and the
/// server refuse them all.
pub(crate) fn wait_after(refusals: u32) -> Duration {
    match refusals {
        0 | 1 => Duration::ZERO,
        many => WAIT_MAX.min(WAIT_FIRST * 2_u32.saturating_pow((many - 2).min(16))),
    }
}

/// What stands in the place of a credential.
const REDACTED: &str = "[redacted]";
/// Shorter than this, a word is more likely to stand in a text by chance than because it is the credential.
const SECRET_BYTES_MIN: usize = 4;

/// These bytes with something harmless in the place of every secret.
fn replace(bytes: &[u8], secret: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some(at) = rest.windows(secret.len()).position(|window| window == secret) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(REDACTED.as_bytes());
        rest = &rest[at + secret.len()..];
    }
    out.extend_from_slice(rest);
    out
}

/// Header lines for one origin.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credential {
    /// The lines, such as `Authorization: Bearer …`.
    pub headers: Vec<(String, String)>,
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credential(…)")
    }
}

impl Credential {
    /// One header line. A bare token is sent as `Bearer` in `Authorization`, wherever it comes from.
    pub fn line(header: &str, value: &str) -> Self {
        let is_bare = header.eq_ignore_ascii_case("authorization") && !value.contains(' ');
        let value = if is_bare { format!("Bearer {value}") } else { value.to_owned() };
        Self { headers: vec![(header.to_owned(), value)] }
    }

    /// An answer without this credential: a service that repeats it in an error must not have it stored or shown.
    pub fn redact(&self, mut answer: Answer) -> Answer {
        let values = self.headers.iter().map(|(_, value)| value.as_str());
        // `Bearer TOKEN`: the token alone is as secret as the line.
        let secrets =
            values.flat_map(|value| [Some(value), value.split_once(' ').map(|(_, token)| token.trim())]);
        for secret in secrets.flatten().filter(|secret| secret.len() >= SECRET_BYTES_MIN) {
            answer.body = replace(&answer.body, secret.as_bytes());
            for (_, value) in &mut answer.headers {
                *value = value.replace(secret, REDACTED);
            }
        }
        answer
    }

    /// Tells two credentials apart without keeping either.
    pub fn digest(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        for (name, value) in &self.headers {
            for part in [name, value] {
                hash.update((part.len() as u64).to_be_bytes());
                hash.update(part);
            }
        }
        hash.finalize().into()
    }
}

/// What a provider promises. `Ok(None)`: there is none for this principal and origin, and none is sent.
pub type Asked<'a> = Pin<Box<dyn Future<Output = Result<Option<Credential>, String>> + Send + 'a>>;

/// Gives credentials.
pub trait Credentials: Send + Sync + 'static {
    /// The credential of this principal for this origin, now.
    fn credential<'a>(&'a self, principal: &'a str, origin: &'a str) -> Asked<'a>;

    /// The credential of this principal for this target of a relay, which is at this origin. Several targets may be at one
    /// origin: a provider that tells them apart never gives one's credential to another.
    fn credential_for<'a>(&'a self, principal: &'a str, target: &'a str, origin: &'a str) -> Asked<'a> {
        let _ = target;
        self.credential(principal, origin)
    }
}

/// Gives none.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoCredentials;

impl Credentials for NoCredentials {
    fn credential<'a>(&'a self, _: &'a str, _: &'a str) -> Asked<'a> {
        Box::pin(async { Ok(None) })
    }
}

/// Where a credential is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The first line of a file, read for each attempt.
    File(PathBuf),
    /// The first line that a command prints.
    Command(Vec<String>),
}

/// One place, for one principal and origin.
#[derive(Clone, Debug)]
pub struct Rule {
    /// For whom; `None` means everybody.
    pub principal: Option<String>,
    /// For which origin.
    pub origin: String,
    /// For which target of a relay alone; `None` means all that is at the origin.
    pub target: Option<String>,
    /// The header that carries it.
    pub header: String,
    /// Where it is found. A bare token is sent as `Bearer` in `Authorization`.
    pub place: Place,
}

/// A principal and an origin.
type Whose = (String, String);

/// Credentials from files, from commands, and from calls, which count first and live in memory only.
#[derive(Debug, Default)]
pub struct Wallet {
    rules: Vec<Rule>,
    given: Mutex<HashMap<Whose, Credential>>,
}

impl Wallet {
    /// A wallet with these places.
    pub fn new(rules: Vec<Rule>) -> Self {
        Self { rules, given: Mutex::default() }
    }

    /// A caller gives a credential; without header lines, takes it back.
    pub fn give(&self, principal: &str, origin: &str, credential: Credential) {
        let at = (principal.to_owned(), origin.to_owned());
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        if credential.headers.is_empty() {
            given.remove(&at)
        } else {
            given.insert(at, credential)
        };
    }

    /// For whom callers gave credentials, and for which origins.
    pub fn given(&self) -> Vec<(String, String)> {
        let given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        let mut whose: Vec<_> = given.keys().cloned().collect();
        whose.sort();
        whose
    }

    fn given_for(&self, principal: &str, origin: &str) -> Option<Credential> {
        let given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        given.get(&(principal.to_owned(), origin.to_owned())).cloned()
    }

    async fn found(
        &self,
        principal: &str,
        target: Option<&str>,
        origin: &str,
    ) -> Result<Option<Credential>, String> {
        if let Some(credential) = self.given_for(principal, origin) {
            return Ok(Some(credential));
        }
        let speaks = |rule: &&Rule| {
            rule.origin == origin
                && (rule.target.is_none() || rule.target.as_deref() == target)
                && rule.principal.as_deref().is_none_or(|name| name == principal)
        };
        // One that names the principal counts before one for everybody.
        let named = self.rules.iter().filter(speaks).max_by_key(|rule| rule.principal.is_some());
        let Some(rule) = named else { return Ok(None) };
        let text = match &rule.place {
            Place::File(path) => std::fs::read_to_string(path)
                .map_err(|error| format!("failed to read the credential in {}: {error}", path.display()))?,
            Place::Command(words) => printed(words).await?,
        };
        let value = text.lines().next().unwrap_or_default().trim().to_owned();
        if value.is_empty() || value.len() > CREDENTIAL_BYTES_MAX {
            return Err("the credential is empty or too long".to_owned());
        }
        Ok(Some(Credential::line(&rule.header, &value)))
    }
}

async fn printed(words: &[String]) -> Result<String, String> {
    let (program, arguments) = words.split_first().ok_or("the credential's command is empty")?;
    let mut command = tokio::process::Command::new(program);
    command.args(arguments).stdin(std::process::Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(COMMAND_TIME_MAX, command.output())
        .await
        .map_err(|_| format!("the credential's command {program} took too long"))?
        .map_err(|error| format!("failed to run the credential's command {program}: {error}"))?;
    if !output.status.success() {
        return Err(format!("the credential's command {program} ended with {}", output.status));
    }
    String::from_utf8(output.stdout).map_err(|_| format!("the credential of {program} is not text"))
}

impl Credentials for Wallet {
    fn credential<'a>(&'a self, principal: &'a str, origin: &'a str) -> Asked<'a> {
        Box::pin(self.found(principal, None, origin))
    }

    fn credential_for<'a>(&'a self, principal: &'a str, target: &'a str, origin: &'a str) -> Asked<'a> {
        Box::pin(self.found(principal, Some(target), origin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_credential_waits_longer_after_each_refusal_in_a_row() {
        let waits: Vec<u64> = (1..=12).map(|many| wait_after(many).as_secs()).collect();
        assert_eq!(waits, [0, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
        assert_eq!(wait_after(u32::MAX), WAIT_MAX);
    }
    #[test]
    fn a_credential_that_a_service_repeats_is_neither_stored_nor_shown() {
        let credential = Credential::line("Authorization", "s3cret-token");
        let answer = Answer {
            status: 422,
            headers: vec![("x-echo".to_owned(), "Bearer s3cret-token".to_owned())],
            body: br#"{"error":"bad token s3cret-token, again s3cret-token","line":"Bearer s3cret-token"}"#
                .to_vec(),
        };
        let redacted = credential.redact(answer);
        let body = String::from_utf8(redacted.body).unwrap();
        assert!(!body.contains("s3cret") && body.matches("[redacted]").count() == 3, "{body}");
        assert!(!redacted.headers[0].1.contains("s3cret"), "{:?}", redacted.headers);
    }

    #[tokio::test]
    async fn a_credential_goes_to_its_own_origin_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, "secret\nrest").unwrap();
        let rule = |principal: Option<&str>, place| Rule {
            principal: principal.map(str::to_owned),
            origin: "https://a.example".to_owned(),
            target: None,
            header: "Authorization".to_owned(),
            place,
        };
        let words = ["sh", "-c", "echo Basic abc"].map(str::to_owned).to_vec();
        let wallet = Wallet::new(vec![
            rule(Some("bob"), Place::Command(words)),
            rule(None, Place::File(path.clone())),
        ]);
        let value = async |principal, origin| {
            let credential = wallet.credential(principal, origin).await.unwrap()?;
            Some(credential.headers[0].1.clone())
        };
        assert_eq!(value("alice", "https://a.example").await.as_deref(), Some("Bearer secret"));
        assert_eq!(value("bob", "https://a.example").await.as_deref(), Some("Basic abc"));
        assert_eq!(value("alice", "https://evil.example").await, None);
        let given = Credential { headers: vec![("X-Key".to_owned(), "given".to_owned())] };
        wallet.give("alice", "https://a.example", given);
        assert_eq!(value("alice", "https://a.example").await.as_deref(), Some("given"));
        wallet.give("alice", "https://a.example", Credential::default());
        std::fs::remove_file(&path).unwrap();
        assert!(wallet.credential("alice", "https://a.example").await.is_err(), "never sent without");
    }

    #[tokio::test]
    async fn two_targets_at_one_origin_do_not_share_credentials() {
        let rule = |principal: Option<&str>, target: &str, token: &str| Rule {
            principal: principal.map(str::to_owned),
            origin: "https://a.example".to_owned(),
            target: Some(target.to_owned()),
            header: "Authorization".to_owned(),
            place: Place::Command(["echo", token].map(str::to_owned).to_vec()),
        };
        let wallet =
            Wallet::new(vec![rule(Some("alice"), "scores", "hers"), rule(None, "scores", "everybodys")]);
        let value = async |principal, target| {
            let credential = wallet.credential_for(principal, target, "https://a.example").await.unwrap()?;
            Some(credential.headers[0].1.clone())
        };
        assert_eq!(value("alice", "scores").await.as_deref(), Some("Bearer hers"));
        assert_eq!(value("bob", "scores").await.as_deref(), Some("Bearer everybodys"));
        assert_eq!((value("alice", "other").await, value("bob", "other").await), (None, None));
    }
}

//! The texts that stand in `[outbox]` and mean something there alone. Each says what it expected.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use semel_delivery::credentials::Place;
use semel_delivery::url::Target;

use crate::config::Setting;
use crate::outbox::store_path;

/// The file in which messages are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoreFile(pub(super) PathBuf);

impl Setting for StoreFile {
    fn read(text: &str) -> Result<Self, String> {
        store_path(text).map(Self)
    }
}

/// Where the door is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Listen {
    /// A socket in the file system.
    Unix(PathBuf),
    /// An address.
    Tcp(SocketAddr),
}

impl Setting for Listen {
    fn read(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some("") => Err("unix: needs a path".to_owned()),
            Some(path) => Ok(Listen::Unix(PathBuf::from(path))),
            None => {
                let text = text.strip_prefix("tcp:").or_else(|| text.strip_prefix("http://")).unwrap_or(text);
                let found = text.to_socket_addrs().ok().and_then(|mut found| found.next());
                found
                    .map(Listen::Tcp)
                    .ok_or_else(|| format!("{text:?} is neither unix:PATH nor ADDRESS:PORT"))
            }
        }
    }
}

/// Where something is sent: an absolute URL without a user name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address(pub(super) Target);

impl Setting for Address {
    fn read(text: &str) -> Result<Self, String> {
        Target::absolute(text).map(Self).map_err(|error| error.to_string())
    }
}

/// Where a credential is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CredentialAt(pub(super) Place);

impl Setting for CredentialAt {
    fn read(text: &str) -> Result<Self, String> {
        place_or(text, "file:PATH or command:COMMAND").map(Self)
    }
}

pub(super) fn place_or(text: &str, expected: &str) -> Result<Place, String> {
    match text.split_once(':') {
        Some(("file", path)) if !path.is_empty() => Ok(Place::File(PathBuf::from(path))),
        Some(("command", command)) if !command.is_empty() => {
            Ok(Place::Command(["sh", "-c", command].map(str::to_owned).to_vec()))
        }
        _ => Err(format!("expected {expected}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doors_and_places_are_read() {
        assert_eq!(Listen::read("unix:/run/o.sock"), Ok(Listen::Unix("/run/o.sock".into())));
        assert!(Listen::read("127.0.0.1:0").is_ok());
        assert!(Listen::read("unix:").is_err() && Listen::read("localhost").is_err());
        assert!(CredentialAt::read("file:").is_err() && CredentialAt::read("secret").is_err());
        assert_eq!(CredentialAt::read("file:/run/t"), Ok(CredentialAt(Place::File("/run/t".into()))));
        assert!(Address::read("ftp://host").is_err() && Address::read("https://host/base").is_ok());
    }
}

//! Reads host and port out of a server's URL and sees whether anything answers there. Speaks no protocol,
//! and never prints the URL itself: it may hold a password.

use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

const CONNECT_SECONDS_MAX: u64 = 3;

/// Fails with what to do when nothing accepts connections at the URL that `variable` holds.
pub(crate) fn check_answers(variable: &str, url: &str, default_port: u16) -> Result<(), String> {
    let (host, port) = host_and_port(url, default_port).ok_or_else(|| {
        format!("{variable} is not a URL with a host, such as scheme://user@127.0.0.1:{default_port}/name")
    })?;
    let hint = format!("start that server, or unset {variable} to have one started");
    let addresses = (host.as_str(), port)
        .to_socket_addrs()
        .map_err(|error| format!("{variable} names {host}, which does not resolve ({error}): {hint}"))?;
    let mut last = "it has no address".to_owned();
    for address in addresses {
        match TcpStream::connect_timeout(&address, Duration::from_secs(CONNECT_SECONDS_MAX)) {
            Ok(_) => return Ok(()),
            Err(error) => last = error.to_string(),
        }
    }
    Err(format!("{variable} names {host}:{port}, which does not answer ({last}): {hint}"))
}

fn host_and_port(url: &str, default_port: u16) -> Option<(String, u16)> {
    let (_scheme, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let place = authority.rsplit('@').next()?;
    let (host, port) = match place.strip_prefix('[') {
        Some(v6) => {
            let (host, after) = v6.split_once(']')?;
            (host, after.strip_prefix(':'))
        }
        None => match place.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (place, None),
        },
    };
    let port = port.map_or(Some(default_port), |port| port.parse().ok())?;
    (!host.is_empty()).then(|| (host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn host_and_port_are_found_among_the_other_parts() {
        let read = |url| host_and_port(url, 5432);
        assert_eq!(read("postgres://semel@127.0.0.1:5999/db?x=y"), Some(("127.0.0.1".to_owned(), 5999)));
        assert_eq!(read("postgres://u:p%40:w@db.example/x"), Some(("db.example".to_owned(), 5432)));
        assert_eq!(read("redis://[::1]:7000/0"), Some(("::1".to_owned(), 7000)));
        assert_eq!(read("redis://[::1]"), Some(("::1".to_owned(), 5432)));
        assert_eq!(read("127.0.0.1:5432"), None);
        assert_eq!(read("postgres:///db"), None);
        assert_eq!(read("postgres://host:port/db"), None);
    }

    #[test]
    fn a_listening_server_answers_and_a_closed_port_is_explained_without_the_password() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let url = format!("postgres://semel:hush@127.0.0.1:{port}/postgres");
        assert_eq!(check_answers("VARIABLE", &url, 5432), Ok(()));
        drop(listener);
        let error = check_answers("VARIABLE", &url, 5432).unwrap_err();
        assert!(error.contains("does not answer") && error.contains("unset VARIABLE"), "{error}");
        assert!(!error.contains("hush"), "{error}");
    }
}

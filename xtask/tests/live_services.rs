//! Sees that the servers of `cargo xtask test` answer, each in its own protocol and without a client library.
//! Needs the servers: it fails, and never skips, when they are absent.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const HINT: &str = "run `cargo xtask test`, which starts PostgreSQL and Redis, or set SEMEL_TEST_POSTGRES / SEMEL_TEST_REDIS";
const ANSWER_SECONDS_MAX: u64 = 10;

#[test]
fn redis_answers_ping() {
    let url = url_of("SEMEL_TEST_REDIS");
    let mut stream = connect(&place_of(&url, "6379"));
    stream.write_all(b"PING\r\n").expect("Redis accepts a command");
    let mut answer = [0; 7];
    stream.read_exact(&mut answer).expect("Redis answers PING");
    assert_eq!(&answer, b"+PONG\r\n", "{}", String::from_utf8_lossy(&answer));
}

#[test]
fn postgres_answers_a_query_and_keeps_fsync_on() {
    let url = url_of("SEMEL_TEST_POSTGRES");
    let mut stream = connect(&place_of(&url, "5432"));
    stream
        .write_all(&startup_packet(&user_of(&url), "postgres"))
        .expect("PostgreSQL accepts a startup packet");
    messages_until_ready(&mut stream);
    stream.write_all(&query_message("SHOW fsync")).expect("PostgreSQL accepts a query");
    let messages = messages_until_ready(&mut stream);
    let rows: Vec<&Message> = messages.iter().filter(|message| message.tag == b'D').collect();
    assert_eq!(rows.len(), 1, "SHOW answers with one row");
    assert_eq!(first_column(rows[0]), b"on", "semel refuses a database with fsync off");
}

/// One message of PostgreSQL's protocol 3.0: a tag, and a body without its length.
struct Message {
    tag: u8,
    body: Vec<u8>,
}

fn startup_packet(user: &str, database: &str) -> Vec<u8> {
    let mut body = 196_608_u32.to_be_bytes().to_vec(); // 3 << 16: protocol 3.0.
    for word in ["user", user, "database", database] {
        body.extend(word.as_bytes());
        body.push(0);
    }
    body.push(0);
    with_length(&body)
}

fn query_message(sql: &str) -> Vec<u8> {
    let mut message = vec![b'Q'];
    message.extend(with_length(&[sql.as_bytes(), b"\0"].concat()));
    message
}

/// The length counts itself.
fn with_length(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).expect("a short message");
    [&length.to_be_bytes(), body].concat()
}

fn messages_until_ready(stream: &mut TcpStream) -> Vec<Message> {
    let mut messages = Vec::new();
    loop {
        let message = read_message(stream);
        let text = String::from_utf8_lossy(&message.body).into_owned();
        assert_ne!(message.tag, b'E', "PostgreSQL refused: {text}");
        assert!(
            message.tag != b'R' || message.body == [0, 0, 0, 0],
            "PostgreSQL asks for a password; this test speaks only to a server that trusts 127.0.0.1"
        );
        let ready = message.tag == b'Z';
        messages.push(message);
        if ready {
            return messages;
        }
    }
}

fn read_message(stream: &mut TcpStream) -> Message {
    let mut head = [0; 5];
    stream.read_exact(&mut head).expect("PostgreSQL answers");
    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
    assert!((4..1 << 20).contains(&length), "a message of {length} bytes is no PostgreSQL message");
    let mut body = vec![0; length - 4];
    stream.read_exact(&mut body).expect("PostgreSQL sends what it announced");
    Message { tag: head[0], body }
}

/// A row is a count of columns, then each column with its length before it.
fn first_column(row: &Message) -> &[u8] {
    let length = u32::from_be_bytes(row.body[2..6].try_into().expect("four bytes")) as usize;
    &row.body[6..6 + length]
}

fn url_of(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is not set: {HINT}"))
}

/// `host:port` of a URL.
fn place_of(url: &str, default_port: &str) -> String {
    let authority = url.split("://").nth(1).and_then(|rest| rest.split(['/', '?']).next()).expect(HINT);
    let place = authority.rsplit('@').next().expect(HINT);
    if place.contains(':') { place.to_owned() } else { format!("{place}:{default_port}") }
}

fn user_of(url: &str) -> String {
    let user = url.split("://").nth(1).and_then(|rest| rest.split_once('@'));
    user.and_then(|(user, _)| user.split(':').next()).unwrap_or("semel").to_owned()
}

fn connect(place: &str) -> TcpStream {
    let stream =
        TcpStream::connect(place).unwrap_or_else(|error| panic!("{place} does not answer ({error}): {HINT}"));
    stream.set_read_timeout(Some(Duration::from_secs(ANSWER_SECONDS_MAX))).expect("a timeout can be set");
    stream
}

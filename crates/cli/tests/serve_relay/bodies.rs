//! What senders send is bounded for the whole process, comes within a time, and is not read before it is known who sends it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::world::{Folder, Service, eventually};

const ONE: &str = r#"[{"lane":"a","value":5}]"#;

/// A connection on which a body is announced that never comes. Whoever reads it says `100 Continue` first.
fn announced(relay: SocketAddr, path: &str, who: &str, bytes: usize) -> TcpStream {
    let mut stream = TcpStream::connect(relay).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: {relay}\r\n{who}x-idempotency-key: slow\r\nexpect: 100-continue\r\n\
         content-length: {bytes}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream
}

/// The status of the next answer.
fn status(stream: &mut TcpStream) -> String {
    let mut head = [0; 12];
    stream.read_exact(&mut head).unwrap();
    String::from_utf8_lossy(&head).into_owned()
}

#[test]
fn bodies_of_senders_share_one_room_and_slow_ones_end() {
    let service = Service::start();
    let folder = Folder::for_service(&service, "");
    folder.rewrite(|text| {
        text.replacen("[relay]\n", "[relay]\nlimits = { bodies = \"1MiB\", body_deadline = \"2s\" }\n", 1)
    });
    let relay = folder.start();
    let (sent, operated) = ("/v1/relay/scores", "/v1/relay/lanes/1/requeue");
    let mut slow = announced(relay.listen, sent, "x-user: alice\r\n", 1 << 20);
    assert_eq!(status(&mut slow), "HTTP/1.1 100");
    slow.read_exact(&mut [0; " Continue\r\n\r\n".len()]).unwrap();
    let refused = relay.submit("bob", "k", "background", ONE);
    assert_eq!(refused.status, 503, "{refused:?}");
    assert!(refused.head.to_ascii_lowercase().contains("retry-after: 1"), "{refused:?}");
    let operator = relay.operator("POST", operated, "{}");
    assert_eq!(operator.status, 503, "operators' bodies have no room of their own: {operator:?}");
    let mut stranger = announced(relay.listen, sent, "", 1 << 20);
    assert_eq!(status(&mut stranger), "HTTP/1.1 401", "nothing is read for a stranger");
    assert_eq!(status(&mut slow), "HTTP/1.1 408");
    eventually("there is room again", || relay.submit("bob", "k", "background", ONE).status != 503);
    let mut large = announced(relay.admin, operated, "", 65 << 10);
    assert_eq!(status(&mut large), "HTTP/1.1 413", "what says that it is too large is not read");
    let mut slow = announced(relay.admin, operated, "", 1 << 10);
    assert_eq!(status(&mut slow), "HTTP/1.1 100");
    slow.read_exact(&mut [0; " Continue\r\n\r\n".len()]).unwrap();
    assert_eq!(status(&mut slow), "HTTP/1.1 408", "an operator's body has its time, too");
}

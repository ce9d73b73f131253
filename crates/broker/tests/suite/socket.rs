//! The WebSocket, over a real one: the same events as JSON text frames.

use semel_broker::{Identity, listen_router};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::kit::{World, accepted, caller, draft, token};

async fn frame(socket: &mut TcpStream) -> (u8, Vec<u8>) {
    let mut head = [0; 2];
    socket.read_exact(&mut head).await.unwrap();
    let mut size = usize::from(head[1] & 0x7f);
    if size == 126 {
        let mut more = [0; 2];
        socket.read_exact(&mut more).await.unwrap();
        size = usize::from(u16::from_be_bytes(more));
    }
    let mut body = vec![0; size];
    socket.read_exact(&mut body).await.unwrap();
    (head[0] & 0x0f, body)
}

async fn open(address: std::net::SocketAddr, query: &str) -> TcpStream {
    let mut socket = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "GET /v1/meshes/m/socket?{query} HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nAuthorization: Bearer {}\r\n\r\n",
        token("bob")
    );
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(socket.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    assert!(head.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{head}");
    socket
}

pub(crate) async fn a_socket_has_the_same_events(world: World) {
    let router = listen_router(world.broker.clone(), Identity::Tokens, None);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(semel_http::serve(listener, semel_http::Limits::default(), router));
    accepted(world.broker.publish(&caller("alice"), draft("alice", "a", "x")).await);
    let mut socket = open(address, "line=topic:t&after=0").await;
    let (kind, body) = frame(&mut socket).await;
    let first: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!((kind, first["client_message_id"].as_str()), (1, Some("a")));
    accepted(world.broker.publish(&caller("alice"), draft("alice", "b", "x")).await);
    let (_, body) = frame(&mut socket).await;
    let second: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(second["client_message_id"], "b");
    world.broker.moderate("m", "a", "alice", "spam").await.unwrap();
    let (_, body) = frame(&mut socket).await;
    let hidden: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!((&hidden["event"], &hidden["id"]), (&"moderated".into(), &first["id"]));
    assert_eq!((&hidden["resume"], &hidden["moderated"]), (&second["id"], &true.into()));
    drop(socket);
    let after = first["id"].as_str().unwrap();
    let mut resumed = open(address, &format!("line=topic:t&after={after}")).await;
    let (_, body) = frame(&mut resumed).await;
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&body).unwrap(), second);
    let mut lost = open(address, "line=topic:t&line=direct&after=1.99.0000").await;
    world.broker.drain();
    // Pings come before the end; nothing else does.
    loop {
        let (kind, _) = frame(&mut lost).await;
        if kind == 8 {
            break;
        }
    }
}

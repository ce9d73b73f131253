//! Many at once, impatient clients, and streams that are larger than memory.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::client::{Client, keyed};
use crate::process::Folder;
use crate::upstream::{Reply, Upstream};

async fn slow_shop(pause: Duration) -> Upstream {
    Upstream::start(move |_, before| Reply::after(pause, 201, "", &format!("order {before}"))).await
}

/// Lets this process open as many descriptors as it may.
fn raise_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointers are to a live rlimit.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_at_once_and_two_thousand_at_once_are_one_effect_each() {
    raise_limit();
    let upstream = slow_shop(Duration::from_millis(300)).await;
    let folder = Folder::new();
    let gate = folder.start(&["--upstream", &upstream.url(), "--access-log", "off"]);
    for (round, count) in [(0, 50), (1, 2000)] {
        let key = format!("k{round}");
        let asking = (0..count).map(|_| gate.ask(keyed("/orders", &key, "{}")));
        let answers = futures_util::future::join_all(asking).await;
        let body = format!("order {round}");
        let odd: Vec<_> =
            answers.iter().filter(|answer| answer.status != 201 || answer.body != body).collect();
        assert!(odd.is_empty(), "{} of {count}, such as {:?}", odd.len(), odd[0]);
        assert_eq!(upstream.count(), round + 1);
    }
    assert!(gate.peak_memory_kb() < 300 << 10, "{} kB", gate.peak_memory_kb());
}

#[tokio::test]
async fn a_client_that_times_out_and_retries_while_the_first_runs_succeeds() {
    let upstream = slow_shop(Duration::from_secs(4)).await;
    let folder = Folder::new();
    let gate = folder.start(&["--upstream", &upstream.url()]);
    for _ in 0..2 {
        let mut impatient = Client::connect(gate.listen).await;
        impatient.send(keyed("/orders", "unquoted-key-1", "{}")).await;
        assert!(tokio::time::timeout(Duration::from_millis(200), impatient.answer()).await.is_err());
    }
    let last = gate.ask(keyed("/orders", "unquoted-key-1", "{}")).await;
    assert_eq!((last.status, last.body.as_str()), (201, "order 0"));
    assert_eq!(upstream.count(), 1);
}

/// A service that swallows what it gets and gives as much as it is asked for.
async fn firehose() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut buffer = vec![0; 1 << 20];
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(socket.read_u8().await.unwrap());
                }
                let head = String::from_utf8(head).unwrap();
                let length: u64 = head
                    .lines()
                    .filter_map(|line| line.split_once(": "))
                    .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
                    .map_or(0, |(_, value)| value.parse().unwrap());
                let mut left = length;
                while left > 0 {
                    left -= socket.read(&mut buffer).await.unwrap() as u64;
                }
                let size: u64 = head.split(['/', ' ']).nth(2).unwrap().parse().unwrap();
                socket
                    .write_all(format!("HTTP/1.1 200 X\r\ncontent-length: {size}\r\n\r\n").as_bytes())
                    .await
                    .unwrap();
                let mut left = size;
                while left > 0 {
                    let piece = left.min(buffer.len() as u64);
                    socket.write_all(&buffer[..piece as usize]).await.unwrap();
                    left -= piece;
                }
            });
        }
    });
    format!("http://{address}")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gib_passes_both_ways_in_little_memory() {
    let size: u64 = 1 << 30;
    let folder = Folder::new();
    let gate = folder.start(&["--upstream", &firehose().await]);
    let mut socket = TcpStream::connect(gate.listen).await.unwrap();
    let head =
        format!("POST /{size} HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n");
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut buffer = vec![0; 1 << 20];
    let mut left = size;
    while left > 0 {
        let piece = left.min(buffer.len() as u64);
        socket.write_all(&buffer[..piece as usize]).await.unwrap();
        left -= piece;
    }
    let mut read = 0;
    loop {
        match socket.read(&mut buffer).await.unwrap() {
            0 => break,
            count => read += count as u64,
        }
    }
    assert!(read > size, "{read} of {size}");
    assert!(gate.peak_memory_kb() < 100 << 10, "{} kB", gate.peak_memory_kb());
}

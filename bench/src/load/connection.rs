//! One connection: its socket, the request it sends again and again, and the bytes of the answer that is coming.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};

use super::answer::{self, Seen};
use super::template::Template;

/// The longest answer that is read.
const ANSWER_BYTES_MAX: usize = 256 * 1024;

#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    target: SocketAddr,
    token: Token,
    pub(super) request: Vec<u8>,
    received: Vec<u8>,
    filled: usize,
    /// When the request in flight was sent, or was due; none in flight without.
    pub(super) since: Option<u64>,
}

/// What a readable connection brought.
#[derive(Debug)]
pub(super) enum Got {
    Nothing,
    Answer {
        status: u16,
        is_replay: Option<bool>,
    },
    /// It was closed, or spoke nonsense. A request in flight is lost.
    Lost,
}

impl Connection {
    pub(super) fn open(
        target: SocketAddr,
        token: Token,
        template: &Template,
        registry: &Registry,
    ) -> io::Result<Self> {
        let stream = connect(target, token, registry)?;
        let (request, received) = (template.bytes.clone(), vec![0; 4096]);
        Ok(Self { stream, target, token, request, received, filled: 0, since: None })
    }

    /// Replaces a lost connection by a new one.
    pub(super) fn reopen(&mut self, registry: &Registry) -> io::Result<()> {
        self.stream = connect(self.target, self.token, registry)?;
        self.filled = 0;
        Ok(())
    }

    /// Sends the request. Requests are far smaller than a socket's buffer, so this hardly ever waits.
    pub(super) fn send(&mut self, since: u64) -> io::Result<()> {
        self.since = Some(since);
        let mut rest = &self.request[..];
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads what is there. `look_closely` says whether to find out if an answer is a replay, which costs time.
    pub(super) fn receive(&mut self, look_closely: bool) -> Got {
        loop {
            if self.filled == self.received.len() {
                if self.filled >= ANSWER_BYTES_MAX {
                    return Got::Lost;
                }
                self.received.resize(self.filled * 2, 0);
            }
            let free = self.received.len() - self.filled;
            match self.stream.read(&mut self.received[self.filled..]) {
                Ok(0) => return Got::Lost,
                Ok(read) => {
                    self.filled += read;
                    // A read that fills less than was free has emptied the socket: the next bytes are a new event.
                    if read < free {
                        break;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Got::Lost,
            }
        }
        match answer::look(&self.received[..self.filled]) {
            Seen::Part => Got::Nothing,
            Seen::Nonsense => Got::Lost,
            Seen::Whole { status, bytes } => {
                let is_replay = look_closely.then(|| answer::is_replay(&self.received[..bytes]));
                // One request in flight at a time: what follows an answer belongs to no request.
                self.filled = 0;
                Got::Answer { status, is_replay }
            }
        }
    }
}

fn connect(target: SocketAddr, token: Token, registry: &Registry) -> io::Result<TcpStream> {
    let stream = std::net::TcpStream::connect(target)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let mut stream = TcpStream::from_std(stream);
    registry.register(&mut stream, token, Interest::READABLE)?;
    Ok(stream)
}

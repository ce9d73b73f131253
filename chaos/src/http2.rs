//! The little of HTTP/2 that a service needs: it allows few streams on a connection, reads bodies and answers them. It skips
//! the headers of requests: here a request is known by its body alone, and one without a body asks for events.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Streams that a client may have open on one connection.
const STREAMS_MAX: u32 = 3;
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_BYTES_MAX: usize = 16 << 10;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

const INTERNAL_ERROR: u32 = 2;
const REFUSED_STREAM: u32 = 7;

/// What the service does with a request.
pub(crate) trait Service: Clone + Send + 'static {
    /// Carries out what a body asks for. `None`: it breaks off after that.
    fn act(&self, body: String) -> Option<String>;

    /// Waits for the next event. `None`: there are no more.
    fn event(&self, number: u32) -> Option<String>;
}

/// One stream, as far as its request has come.
#[derive(Default)]
struct Opened {
    body: Vec<u8>,
}

/// A connection, as those who answer on it share it.
struct Shared {
    stream: TcpStream,
    /// Streams that are being answered.
    answering: BTreeSet<u32>,
}

type Connection = Arc<Mutex<Shared>>;

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

/// Serves a connection to its end.
pub(crate) fn serve(stream: TcpStream, service: &impl Service) {
    let Ok(mut reading) = stream.try_clone() else { return };
    let connection = Arc::new(Mutex::new(Shared { stream, answering: BTreeSet::new() }));
    // An error is the end of the connection, and nothing else.
    let _ = serve_frames(&mut reading, &connection, service);
    let _ = reading.shutdown(std::net::Shutdown::Both);
}

fn serve_frames(reading: &mut TcpStream, connection: &Connection, service: &impl Service) -> io::Result<()> {
    let mut preface = [0; PREFACE.len()];
    reading.read_exact(&mut preface)?;
    let mut settings = vec![0, 3];
    settings.extend(STREAMS_MAX.to_be_bytes());
    write(&mut lock(connection).stream, SETTINGS, 0, 0, &settings)?;
    let mut opened: BTreeMap<u32, Opened> = BTreeMap::new();
    loop {
        let Frame { kind, flags, stream, payload } = read(reading)?;
        match kind {
            HEADERS => {
                let answering = lock(connection).answering.len();
                if opened.len() + answering >= STREAMS_MAX as usize {
                    let refused = REFUSED_STREAM.to_be_bytes();
                    write(&mut lock(connection).stream, RST_STREAM, 0, stream, &refused)?;
                    continue;
                }
                opened.insert(stream, Opened::default());
            }
            DATA => {
                if let Some(opened) = opened.get_mut(&stream) {
                    opened.body.extend(data(flags, &payload));
                }
                if !payload.is_empty() {
                    let size = u32::try_from(payload.len()).unwrap_or(0).to_be_bytes();
                    write(&mut lock(connection).stream, WINDOW_UPDATE, 0, 0, &size)?;
                }
            }
            SETTINGS if flags & ACK == 0 => write(&mut lock(connection).stream, SETTINGS, ACK, 0, &[])?,
            PING if flags & ACK == 0 => write(&mut lock(connection).stream, PING, ACK, 0, &payload)?,
            RST_STREAM => {
                opened.remove(&stream);
                lock(connection).answering.remove(&stream);
            }
            GOAWAY => return Ok(()),
            // What follows a header block, what tells of windows and priorities, and what is acknowledged.
            _ => {}
        }
        if matches!(kind, HEADERS | DATA)
            && flags & END_STREAM != 0
            && let Some(Opened { body }) = opened.remove(&stream)
        {
            lock(connection).answering.insert(stream);
            let (connection, service) = (Arc::clone(connection), service.clone());
            thread::spawn(move || {
                // The client may be gone.
                let _ = answer(&connection, stream, body, &service);
                lock(&connection).answering.remove(&stream);
            });
        }
    }
}

fn answer(connection: &Connection, stream: u32, body: Vec<u8>, service: &impl Service) -> io::Result<()> {
    if body.is_empty() {
        return tell_events(connection, stream, service);
    }
    let said = service.act(String::from_utf8_lossy(&body).into_owned());
    let mut shared = lock(connection);
    match said {
        // ":status: 201", its name by the static table.
        Some(said) => {
            write(&mut shared.stream, HEADERS, END_HEADERS, stream, b"\x08\x03201")?;
            write(&mut shared.stream, DATA, END_STREAM, stream, said.as_bytes())
        }
        None => write(&mut shared.stream, RST_STREAM, 0, stream, &INTERNAL_ERROR.to_be_bytes()),
    }
}

/// A stream of events, which holds its place among the few.
fn tell_events(connection: &Connection, stream: u32, service: &impl Service) -> io::Result<()> {
    // ":status: 200", and the type of the content.
    let head = b"\x88\x0f\x10\x11text/event-stream";
    write(&mut lock(connection).stream, HEADERS, END_HEADERS, stream, head)?;
    for number in 0.. {
        let Some(event) = service.event(number) else { break };
        let mut shared = lock(connection);
        if !shared.answering.contains(&stream) {
            return Ok(());
        }
        write(&mut shared.stream, DATA, 0, stream, event.as_bytes())?;
    }
    write(&mut lock(connection).stream, DATA, END_STREAM, stream, &[])
}

fn lock(connection: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    connection.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a data frame carries beside its padding.
fn data(flags: u8, payload: &[u8]) -> &[u8] {
    match payload.split_first() {
        Some((padding, rest)) if flags & PADDED != 0 => {
            &rest[..rest.len().saturating_sub(usize::from(*padding))]
        }
        _ => payload,
    }
}

fn read(stream: &mut impl Read) -> io::Result<Frame> {
    let mut head = [0; 9];
    stream.read_exact(&mut head)?;
    let [a, b, c, kind, flags, d, e, f, g] = head;
    let size = u32::from_be_bytes([0, a, b, c]) as usize;
    if size > FRAME_BYTES_MAX {
        return Err(io::Error::other("a frame that is too large"));
    }
    let mut payload = vec![0; size];
    stream.read_exact(&mut payload)?;
    Ok(Frame { kind, flags, stream: u32::from_be_bytes([d & 0x7f, e, f, g]), payload })
}

fn write(to: &mut impl Write, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> io::Result<()> {
    let [_, a, b, c] = u32::try_from(payload.len()).unwrap_or(0).to_be_bytes();
    let mut frame = vec![a, b, c, kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    to.write_all(&frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_read_as_it_was_written() {
        let mut bytes = Vec::new();
        write(&mut bytes, DATA, END_STREAM | PADDED, 5, b"\x02abc\0\0").unwrap();
        let frame = read(&mut bytes.as_slice()).unwrap();
        assert_eq!((frame.kind, frame.flags, frame.stream), (DATA, END_STREAM | PADDED, 5));
        assert_eq!(data(frame.flags, &frame.payload), b"abc");
        assert_eq!(data(0, b"abc"), b"abc");
        assert!(read(&mut &bytes[..7]).is_err());
    }
}

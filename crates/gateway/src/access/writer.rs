//! The thread that writes access lines. Owns how lines are queued, in which form they are written, and that many of them
//! are one write. A request never waits for it: what does not fit into the queue is dropped and counted.

use std::io::Write;
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::{Duration, SystemTime};

use http::{HeaderValue, Method};
use semel_contract::route::SAFE_METHODS;
use semel_contract::time::Timestamp;
use serde::Serialize;
use tokio::sync::oneshot;

use super::shown_path;

/// Entries that wait to be written; more are dropped rather than hold requests up.
const WAITING_MAX: usize = 10_000;
/// How long the thread lets entries gather: under load it is then woken this often, and not once for each request.
const GATHER_TIME: Duration = Duration::from_millis(5);
/// How many bytes are written at once at most, but for a single line that is longer.
const WRITE_BYTES_MAX: usize = 256 * 1024;

/// The form of an access line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineForm {
    /// One JSON object.
    Json,
    /// A sentence for people.
    Text,
}

/// What the thread is told.
#[derive(Debug)]
pub(super) enum Entry {
    Request(Box<Ended>),
    /// Everything before this is written: say so.
    Flush(oneshot::Sender<()>),
}

/// A request whose answer has ended, as the request's own task knows it. Nothing is formatted yet.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) at: SystemTime,
    pub(super) took: Duration,
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) peer: IpAddr,
    pub(super) status: u16,
    pub(super) bytes: u64,
    pub(super) request_id: HeaderValue,
    pub(super) guarantee: Option<HeaderValue>,
    pub(super) outcome: Option<HeaderValue>,
    pub(super) is_replayed: bool,
    pub(super) key: Option<String>,
}

/// Starts the thread. It ends with the last sender. `None` where the system has no thread for it.
pub(super) fn start(writer: impl Write + Send + 'static, form: LineForm) -> Option<SyncSender<Entry>> {
    let (entries, waiting) = sync_channel(WAITING_MAX);
    let thread = std::thread::Builder::new().name("access-log".to_owned());
    thread.spawn(move || write_all(&waiting, writer, form)).ok().map(|_| entries)
}

fn write_all(waiting: &Receiver<Entry>, mut writer: impl Write, form: LineForm) {
    let (mut lines, mut texts) = (Vec::new(), Texts::default());
    while let Ok(first) = waiting.recv() {
        if matches!(first, Entry::Request(_)) {
            std::thread::sleep(GATHER_TIME);
        }
        let mut next = Ok(first);
        loop {
            match next {
                Ok(Entry::Request(ended)) => add_line(&mut lines, &mut texts, &ended, form),
                Ok(Entry::Flush(done)) => {
                    write_lines(&mut writer, &mut lines);
                    let _ = done.send(());
                }
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
            if lines.len() >= WRITE_BYTES_MAX {
                write_lines(&mut writer, &mut lines);
            }
            next = waiting.try_recv();
        }
        write_lines(&mut writer, &mut lines);
    }
}

/// Writes what has gathered. A log that cannot be written is no reason to refuse requests.
fn write_lines(writer: &mut impl Write, lines: &mut Vec<u8>) {
    if !lines.is_empty() {
        let _ = writer.write_all(lines);
        lines.clear();
    }
}

/// Texts that one line after the other needs: the second, and who asked. Making them anew each time would be half of the cost
/// of a line.
#[derive(Default)]
struct Texts {
    second: Option<u64>,
    /// `2026-01-08T12:00:01.500Z`: of the last line, or with its milliseconds replaced.
    time: String,
    of: Option<IpAddr>,
    peer: String,
}

impl Texts {
    /// Makes both texts those of this request.
    fn take(&mut self, ended: &Ended) {
        let since = ended.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        if self.second != Some(since.as_secs()) {
            let whole = i64::try_from(since.as_secs()).unwrap_or(i64::MAX).saturating_mul(1000);
            self.time = Timestamp::from_millis(whole.saturating_add(1)).to_string();
            self.time.truncate(self.time.len().saturating_sub("001Z".len()));
            self.time.push_str("000Z");
            self.second = Some(since.as_secs());
        }
        let millis = since.subsec_millis();
        let digits =
            [millis / 100, millis / 10 % 10, millis % 10].map(|digit| char::from(b'0' + digit as u8));
        self.time.truncate(self.time.len().saturating_sub("000Z".len()));
        self.time.extend(digits);
        self.time.push('Z');
        if self.of != Some(ended.peer) {
            self.peer = ended.peer.to_string();
            self.of = Some(ended.peer);
        }
    }
}

fn add_line(lines: &mut Vec<u8>, texts: &mut Texts, ended: &Ended, form: LineForm) {
    texts.take(ended);
    match form {
        LineForm::Json => add_json(lines, texts, ended),
        LineForm::Text => add_sentence(lines, texts, ended),
    }
}

/// What a line in JSON says.
#[derive(Serialize)]
struct Shown<'a> {
    time: &'a str,
    method: &'a str,
    path: &'a str,
    status: u16,
    bytes: u64,
    ms: f64,
    request_id: &'a str,
    guarantee: &'a str,
    replayed: bool,
    peer: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<&'a str>,
}

fn add_json(lines: &mut Vec<u8>, texts: &Texts, ended: &Ended) {
    let shown = Shown {
        time: &texts.time,
        method: ended.method.as_str(),
        path: &shown_path(&ended.path),
        status: ended.status,
        bytes: ended.bytes,
        ms: u64::try_from(ended.took.as_micros()).unwrap_or(u64::MAX) as f64 / 1000.0,
        request_id: text_of(Some(&ended.request_id)).unwrap_or_default(),
        guarantee: guarantee_of(ended),
        replayed: ended.is_replayed,
        peer: &texts.peer,
        key: ended.key.as_deref(),
        outcome: text_of(ended.outcome.as_ref()),
    };
    let before = lines.len();
    match serde_json::to_writer(&mut *lines, &shown) {
        Ok(()) => lines.push(b'\n'),
        Err(_) => lines.truncate(before),
    }
}

/// `12:00:00 POST /orders 201 in 12 ms, replayed, key 3f2a…`.
fn add_sentence(lines: &mut Vec<u8>, texts: &Texts, ended: &Ended) {
    let time = texts.time.split_once('T').map_or("", |(_, time)| time.get(..8).unwrap_or_default());
    let (method, path) = (ended.method.as_str(), shown_path(&ended.path));
    let millis = ended.took.as_secs_f64() * 1000.0;
    // Writing into memory does not fail.
    let _ = write!(lines, "{time} {method} {path} {} in {millis:.0} ms", ended.status);
    if ended.is_replayed {
        let _ = write!(lines, ", replayed");
    }
    if guarantee_of(ended) == "none" && !SAFE_METHODS.contains(&method) {
        let _ = write!(lines, ", unprotected");
    }
    if let Some(outcome) = text_of(ended.outcome.as_ref()) {
        let _ = write!(lines, ", outcome {outcome}");
    }
    if let Some(key) = &ended.key {
        let _ = write!(lines, ", key {key}");
    }
    lines.push(b'\n');
}

fn guarantee_of(ended: &Ended) -> &str {
    text_of(ended.guarantee.as_ref()).unwrap_or("none")
}

fn text_of(value: Option<&HeaderValue>) -> Option<&str> {
    value.and_then(|value| value.to_str().ok())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::sync::{Arc, Mutex};

    use serde_json::{Value, json};

    use super::*;

    /// Counts how often it is written to.
    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<(usize, Vec<u8>)>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let mut written = self.0.lock().unwrap();
            written.0 += 1;
            written.1.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn ended(path: &str) -> Ended {
        Ended {
            at: SystemTime::UNIX_EPOCH + Duration::from_millis(1_767_873_601_500),
            took: Duration::from_micros(12_200),
            method: Method::POST,
            path: path.to_owned(),
            peer: IpAddr::from([127, 0, 0, 1]),
            status: 201,
            bytes: 7,
            request_id: HeaderValue::from_static("r1"),
            guarantee: Some(HeaderValue::from_static("fenced")),
            outcome: None,
            is_replayed: true,
            key: Some("3f2a".to_owned()),
        }
    }

    #[test]
    fn a_line_reads_as_a_sentence() {
        let mut shown = Vec::new();
        add_line(&mut shown, &mut Texts::default(), &ended("/orders"), LineForm::Text);
        assert_eq!(
            String::from_utf8(shown).unwrap(),
            "12:00:01 POST /orders 201 in 12 ms, replayed, key 3f2a\n"
        );
    }

    #[test]
    fn a_line_is_one_json_object() {
        let mut shown = Vec::new();
        add_line(
            &mut shown,
            &mut Texts::default(),
            &ended("/.well-known/semel/keys/f92701a0/seal"),
            LineForm::Json,
        );
        assert!(shown.ends_with(b"\n"));
        assert_eq!(
            serde_json::from_slice::<Value>(&shown).unwrap(),
            json!({"time": "2026-01-08T12:00:01.500Z", "method": "POST",
                "path": "/.well-known/semel/keys/{key}/seal", "status": 201, "bytes": 7, "ms": 12.2, "request_id": "r1",
                "guarantee": "fenced", "replayed": true, "peer": "127.0.0.1", "key": "3f2a"})
        );
    }

    #[test]
    fn each_line_has_the_time_and_the_peer_of_its_own_request() {
        let mut texts = Texts::default();
        let shown = [(0, 1), (999, 1), (1_000, 2), (61_007, 1)].map(|(millis, last)| {
            let at = SystemTime::UNIX_EPOCH + Duration::from_millis(1_767_873_601_000 + millis);
            texts.take(&Ended { at, peer: IpAddr::from([127, 0, 0, last]), ..ended("/") });
            format!("{} {}", texts.time, texts.peer)
        });
        assert_eq!(
            shown,
            [
                "2026-01-08T12:00:01.000Z 127.0.0.1",
                "2026-01-08T12:00:01.999Z 127.0.0.1",
                "2026-01-08T12:00:02.000Z 127.0.0.2",
                "2026-01-08T12:01:02.007Z 127.0.0.1"
            ]
        );
    }

    #[test]
    fn lines_that_came_together_are_one_write_and_none_is_lost() {
        let (entries, waiting) = channel();
        let (done, flushed) = oneshot::channel();
        for number in 0..100 {
            entries.send(Entry::Request(Box::new(ended(&format!("/{number}"))))).unwrap();
        }
        entries.send(Entry::Flush(done)).unwrap();
        drop(entries);
        let written = Written::default();
        write_all(&waiting, written.clone(), LineForm::Json);
        flushed.blocking_recv().unwrap();
        let (writes, bytes) = std::mem::take(&mut *written.0.lock().unwrap());
        assert_eq!(writes, 1);
        let paths = bytes
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice::<Value>(line).unwrap()["path"].as_str().unwrap().to_owned());
        assert_eq!(
            paths.collect::<Vec<_>>(),
            (0..100).map(|number| format!("/{number}")).collect::<Vec<_>>()
        );
    }
}

//! The program's own log, on standard error: one line for each event. `SEMEL_LOG` chooses how much, `--log-format` or
//! `gate.log_format` in which form; says the form of access lines too. Nobody waits for whoever reads it: a thread writes, and
//! what does not fit is dropped and counted.

use std::cell::Cell;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use semel_contract::time::Timestamp;
use semel_gateway::LineForm;
use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

pub(crate) use crate::config::LogFormat;

/// What the command line asked for, or the configuration.
static CHOSEN: OnceLock<LogFormat> = OnceLock::new();

/// Lines that wait to be written at most.
const WAITING_MAX: usize = 10_000;
/// How long the last lines may take when the program ends.
const LAST_LINES_TIME_MAX: Duration = Duration::from_secs(1);

/// The way to the thread that writes; `None` where the system has no thread for it.
static WAITING: OnceLock<Option<SyncSender<Entry>>> = OnceLock::new();
/// Lines that did not fit since this was last said.
static DROPPED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Whether this is the thread that writes: what it says itself waits for nobody.
    static WRITES: Cell<bool> = const { Cell::new(false) };
}

/// What the thread is told.
enum Entry {
    Line(Vec<u8>),
    /// Everything before this is written: say so.
    Flush(SyncSender<()>),
}

/// A line in the making. It is handed over when it is dropped.
#[derive(Default)]
struct Line(Vec<u8>);

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let line = std::mem::take(&mut self.0);
        let Some(waiting) = waiting().filter(|_| !WRITES.get()) else {
            let _ = io::stderr().write_all(&line);
            return;
        };
        if waiting.try_send(Entry::Line(line)).is_err() {
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn waiting() -> Option<&'static SyncSender<Entry>> {
    let begin = || {
        let (entries, waiting) = sync_channel(WAITING_MAX);
        let thread = std::thread::Builder::new().name("log".to_owned());
        thread.spawn(move || write_all(&waiting)).ok().map(|_| entries)
    };
    WAITING.get_or_init(begin).as_ref()
}

/// Writes what comes. A log that cannot be written is no reason to do anything else.
fn write_all(waiting: &Receiver<Entry>) {
    WRITES.set(true);
    while let Ok(entry) = waiting.recv() {
        match entry {
            Entry::Line(line) => {
                let _ = io::stderr().write_all(&line);
                let dropped = DROPPED.swap(0, Ordering::Relaxed);
                if dropped > 0 {
                    tracing::warn!(dropped, "lines of this log were dropped: nobody read it in time");
                }
            }
            Entry::Flush(done) => drop(done.send(())),
        }
    }
}

/// Waits until what was logged is written, but not for long. For the end of the program.
pub(crate) fn flush() {
    let Some(Some(waiting)) = WAITING.get() else { return };
    let until = Instant::now() + LAST_LINES_TIME_MAX;
    let (done, written) = sync_channel(1);
    let mut asked = waiting.try_send(Entry::Flush(done));
    while let Err(TrySendError::Full(flush)) = asked {
        if Instant::now() >= until {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
        asked = waiting.try_send(flush);
    }
    let _ = written.recv_timeout(until.saturating_duration_since(Instant::now()));
}

/// Chooses a form; the first choice stays.
pub(crate) fn choose(format: Option<LogFormat>) {
    if let Some(format) = format {
        CHOSEN.get_or_init(|| format);
    }
}

/// Starts the log in a form, if none was chosen before; a second start changes nothing.
pub(crate) fn start_as(format: Option<LogFormat>) {
    choose(format);
    start();
}

/// Starts the log. A second start changes nothing.
pub(crate) fn start() {
    let level = std::env::var("SEMEL_LOG").ok().and_then(|level| level.parse().ok());
    let log = tracing_subscriber::fmt()
        .with_writer(Line::default)
        .with_ansi(false)
        .with_target(false)
        .with_max_level(level.unwrap_or(LevelFilter::INFO));
    // There may be one already.
    let _ = match CHOSEN.get() {
        Some(LogFormat::Json) => log.event_format(JsonLines).try_init(),
        Some(LogFormat::Text) | None => log.try_init(),
    };
}

/// The form of access lines on standard error: as asked for, for people on a terminal, and JSON elsewhere.
pub(crate) fn access_form() -> LineForm {
    match CHOSEN.get() {
        Some(LogFormat::Text) => LineForm::Text,
        Some(LogFormat::Json) => LineForm::Json,
        None if io::stderr().is_terminal() => LineForm::Text,
        None => LineForm::Json,
    }
}

/// Writes events as JSON objects.
struct JsonLines;

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        let mut line = Map::new();
        line.insert("time".to_owned(), json!(now().to_string()));
        line.insert("level".to_owned(), json!(event.metadata().level().as_str().to_ascii_lowercase()));
        event.record(&mut Fields(&mut line));
        for span in context.event_scope().into_iter().flat_map(|scope| scope.from_root()) {
            if let Some(fields) = span.extensions().get::<FormattedFields<N>>() {
                line.insert(span.name().to_owned(), json!(fields.fields));
            }
        }
        writeln!(writer, "{}", Value::Object(line))
    }
}

fn now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// Takes over the fields of an event.
struct Fields<'a>(&'a mut Map<String, Value>);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.insert(field.name().to_owned(), json!(format!("{value:?}")));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), json!(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().to_owned(), json!(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().to_owned(), json!(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name().to_owned(), json!(value));
    }
}

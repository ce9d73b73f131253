//! The program's own log, on standard error: one line for each event. `SEMEL_LOG` chooses how much, `--log-format` or
//! `gate.log_format` in which form; says the form of access lines too.

use std::io::IsTerminal;
use std::sync::OnceLock;

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
        .with_writer(std::io::stderr)
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
        None if std::io::stderr().is_terminal() => LineForm::Text,
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

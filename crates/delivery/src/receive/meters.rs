//! What receiving counts, in Prometheus' text form.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{LineView, State};

/// Counters.
#[derive(Debug)]
pub(super) struct Meters {
    /// At most so many messages wait in the inbox; counted again where that is not certain to be room.
    pub(super) waiting_most: AtomicU64,
    pub(super) new: AtomicU64,
    pub(super) known: AtomicU64,
    pub(super) gaps: AtomicU64,
    pub(super) streams: AtomicU64,
    pub(super) acknowledged: AtomicU64,
}

impl Default for Meters {
    fn default() -> Self {
        let zero = AtomicU64::default;
        Self {
            waiting_most: AtomicU64::new(u64::MAX),
            new: zero(),
            known: zero(),
            gaps: zero(),
            streams: zero(),
            acknowledged: zero(),
        }
    }
}

impl Meters {
    pub(super) fn text(&self, lines: &[LineView]) -> String {
        let mut text = String::new();
        let mut family = |name: &str, kind: &str, help: &str, samples: &[(String, u64)]| {
            // Writing to a string does not fail.
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (labels, value) in samples {
                let _ = writeln!(text, "{name}{labels} {value}");
            }
        };
        let received = [("new", &self.new), ("known", &self.known)]
            .map(|(name, counter)| (format!("{{outcome=\"{name}\"}}"), counter.load(Relaxed)));
        let help = "Messages that came on lines: kept, or known already.";
        family("semel_inbox_received_total", "counter", help, &received);
        let one = |counter: &AtomicU64| [(String::new(), counter.load(Relaxed))];
        let help = "Gaps: messages that brokers did not keep until they were read.";
        family("semel_inbox_gaps_total", "counter", help, &one(&self.gaps));
        family("semel_inbox_streams_total", "counter", "Streams that began.", &one(&self.streams));
        let help = "Acknowledgements that brokers took.";
        family("semel_inbox_acknowledgements_total", "counter", help, &one(&self.acknowledged));
        let count = |state: State| lines.iter().filter(|line| line.state == state).count() as u64;
        let states = State::ALL.map(|state| (format!("{{state=\"{}\"}}", state.name()), count(state)));
        family("semel_inbox_lines", "gauge", "Lines that are followed, by how they fare.", &states);
        text
    }
}

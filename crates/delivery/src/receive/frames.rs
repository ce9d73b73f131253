//! Server-sent events out of bytes as they come, in pieces of any size. Pure.

/// The longest event that is read: the largest payload as base64, and what stands around it.
pub(super) const FRAME_BYTES_MAX: usize = 4 << 20;

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Frame {
    /// Its kind; empty for a message.
    pub(super) event: String,
    /// Its id.
    pub(super) id: String,
    /// What it says.
    pub(super) data: String,
}

/// Reads events.
#[derive(Debug, Default)]
pub(super) struct Frames {
    /// A line that has not ended.
    line: Vec<u8>,
    /// The event that has not ended.
    open: Frame,
    has_data: bool,
    whole: Vec<Frame>,
    bytes: usize,
}

impl Frames {
    /// Takes more bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<(), String> {
        let mut pieces = bytes.split(|byte| *byte == b'\n');
        // The last piece has no end yet.
        let last = pieces.next_back().unwrap_or_default();
        for piece in pieces {
            self.line.extend_from_slice(piece);
            let line = std::mem::take(&mut self.line);
            self.end_line(line.strip_suffix(b"\r").unwrap_or(&line))?;
        }
        self.line.extend_from_slice(last);
        match self.line.len() + self.open.data.len() > FRAME_BYTES_MAX {
            true => Err(format!("an event is longer than {FRAME_BYTES_MAX} bytes")),
            false => Ok(()),
        }
    }

    fn end_line(&mut self, line: &[u8]) -> Result<(), String> {
        if line.is_empty() {
            let frame = std::mem::take(&mut self.open);
            self.has_data = false;
            if !frame.data.is_empty() {
                self.bytes += frame.data.len();
                self.whole.push(frame);
            }
            return Ok(());
        }
        let line = std::str::from_utf8(line).map_err(|_| "an event is not text".to_owned())?;
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "id" => value.clone_into(&mut self.open.id),
            "event" => value.clone_into(&mut self.open.event),
            "data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.open.data.push('\n');
                }
                self.open.data.push_str(value);
            }
            // A comment, or a word of a later release.
            _ => {}
        }
        Ok(())
    }

    /// Events that are whole and were not taken.
    pub(super) fn count(&self) -> usize {
        self.whole.len()
    }

    /// Their bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes what is whole.
    pub(super) fn take(&mut self) -> Vec<Frame> {
        self.bytes = 0;
        std::mem::take(&mut self.whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_the_same_however_their_bytes_are_cut() {
        let text = b"retry: 1000\n: open\n\nid: 1.2.00ff\ndata: {\"a\":1}\n\n:\n\nevent: gap\r\nid: 1.3.0000\r\ndata: {}\r\n\r\nid: 1.4";
        let read = |step: usize| {
            let mut frames = Frames::default();
            for piece in text.chunks(step) {
                frames.push(piece).unwrap();
            }
            frames.take()
        };
        let whole = read(text.len());
        let frame = |event: &str, id: &str, data: &str| Frame {
            event: event.to_owned(),
            id: id.to_owned(),
            data: data.to_owned(),
        };
        assert_eq!(whole, [frame("", "1.2.00ff", "{\"a\":1}"), frame("gap", "1.3.0000", "{}")]);
        for step in 1..20 {
            assert_eq!(read(step), whole, "{step}");
        }
    }

    #[test]
    fn an_event_without_an_end_is_given_up() {
        let mut frames = Frames::default();
        let piece = vec![b'x'; 1 << 20];
        assert!((0..8).any(|_| frames.push(&piece).is_err()));
    }
}

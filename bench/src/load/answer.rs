//! Finds the end of an answer in the bytes received so far. Reads as little of it as it can.

/// What is known of the bytes so far.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// More must come.
    Part,
    /// A whole answer, so many bytes long.
    Whole { status: u16, bytes: usize },
    /// This is not HTTP/1.1, or of a form that is not read here.
    Nonsense,
}

/// Looks at the bytes of a connection from the beginning of an answer on.
pub(super) fn look(bytes: &[u8]) -> Seen {
    let Some(head_end) = find(bytes, b"\r\n\r\n") else { return Seen::Part };
    let head = &bytes[..head_end + 2];
    let status = head.get(9..12).and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
    let Some(status) = status else { return Seen::Nonsense };
    let body = head_end + 4;
    let end = match value(head, b"content-length") {
        Some(length) => {
            match std::str::from_utf8(length).ok().and_then(|text| text.trim().parse::<usize>().ok()) {
                Some(length) => body + length,
                None => return Seen::Nonsense,
            }
        }
        None if value(head, b"transfer-encoding").is_some() => match chunks_end(&bytes[body..]) {
            Some(length) => body + length,
            None => return Seen::Part,
        },
        None if matches!(status, 204 | 304) => body,
        None => return Seen::Nonsense,
    };
    if bytes.len() < end { Seen::Part } else { Seen::Whole { status, bytes: end } }
}

/// Whether an answer says that it is a replay.
pub(super) fn is_replay(answer: &[u8]) -> bool {
    let head_end = find(answer, b"\r\n\r\n").unwrap_or(answer.len());
    value(&answer[..head_end], b"idempotency-replayed").is_some()
}

/// The value of a header. `head` ends each line with CR LF.
fn value<'a>(head: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    head.split(|byte| *byte == b'\n').skip(1).find_map(|line| {
        let (start, rest) = line.split_at_checked(name.len())?;
        (start.eq_ignore_ascii_case(name) && rest.first() == Some(&b':')).then(|| rest[1..].trim_ascii())
    })
}

/// How many bytes a chunked body has, trailers excluded, once it is all there.
fn chunks_end(bytes: &[u8]) -> Option<usize> {
    let mut place = 0;
    loop {
        let line = place + find(&bytes[place..], b"\r\n")?;
        let size = std::str::from_utf8(&bytes[place..line]).ok()?.split(';').next()?;
        let size = usize::from_str_radix(size.trim(), 16).ok()?;
        place = line + 2 + size + 2;
        if place > bytes.len() {
            return None;
        }
        if size == 0 {
            return Some(place);
        }
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    let first = *what.first()?;
    let mut from = 0;
    while let Some(at) = bytes[from..].iter().position(|byte| *byte == first) {
        if bytes[from + at..].starts_with(what) {
            return Some(from + at);
        }
        from += at + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_an_answer_is_found_however_it_is_said() {
        for text in [
            "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc",
            "HTTP/1.1 200 OK\r\nx: y\r\nContent-Length:3\r\n\r\nabc",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n",
        ] {
            for end in 0..text.len() {
                assert_eq!(look(&text.as_bytes()[..end]), Seen::Part, "{text:?} up to {end}");
            }
            let two = format!("{text}HTTP/1.1");
            assert_eq!(look(two.as_bytes()), Seen::Whole { status: 200, bytes: text.len() });
        }
    }

    #[test]
    fn a_replay_is_known_by_its_header() {
        assert!(is_replay(b"HTTP/1.1 200 OK\r\nIdempotency-Replayed: true\r\n\r\n"));
        assert!(!is_replay(b"HTTP/1.1 200 OK\r\nx: idempotency-replayed\r\n\r\nidempotency-replayed: true"));
    }

    #[test]
    fn nonsense_is_called_so() {
        assert_eq!(look(b"HTTP/1.1 2x0 OK\r\ncontent-length: 0\r\n\r\n"), Seen::Nonsense);
        assert_eq!(look(b"HTTP/1.1 200 OK\r\n\r\n"), Seen::Nonsense);
    }
}

//! A second reader of HTTP/1.1 requests, for fuzzing: says of bytes which requests they hold, which of those every server
//! must read alike, and where nobody may read on.

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) body: Vec<u8>,
}

/// What stands at the beginning of some bytes.
#[derive(Debug)]
pub(crate) enum Found {
    /// A request that must be understood, and how long it is.
    Plain(Request, usize),
    /// One that may be understood or refused; in the first case it is this one.
    Odd(Request, usize),
    /// One after which nobody may read on.
    Last(Request),
    /// A request that is not there in full.
    Cut,
    /// No request.
    Refused,
}

/// Headers that speak to the connection, to the gate or to a proxy: what they do is tested elsewhere.
const SPEAKING: [&str; 14] = [
    "connection",
    "expect",
    "http2-settings",
    "idempotency-key",
    "keep-alive",
    "max-forwards",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "upgrade",
    "x-idempotency-key",
    "content-type",
];
/// More lines than this may be refused.
const LINES_MAX: usize = 90;

/// Reads the first request.
pub(crate) fn request(bytes: &[u8]) -> Found {
    let mut reader = Reader { bytes, at: 0, is_odd: false, is_last: false };
    match reader.request() {
        Ok(request) if reader.is_last => Found::Last(request),
        Ok(request) if reader.is_odd => Found::Odd(request, reader.at),
        Ok(request) => Found::Plain(request, reader.at),
        Err(Stop::Cut) => Found::Cut,
        Err(Stop::Refused) => Found::Refused,
    }
}

enum Stop {
    Cut,
    Refused,
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    is_odd: bool,
    is_last: bool,
}

fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b))
}

impl<'a> Reader<'a> {
    fn request(&mut self) -> Result<Request, Stop> {
        // Empty lines before a request: some readers skip them.
        while matches!(self.bytes.get(self.at), Some(b'\r' | b'\n')) {
            self.is_odd = true;
            self.at += 1;
        }
        let line = self.line()?;
        let mut words = line.split(|byte| *byte == b' ');
        let (Some(method), Some(target), Some(version), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(Stop::Refused);
        };
        self.check_line(method, target, version)?;
        let mut headers = Vec::new();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                break;
            }
            headers.push(self.header(line)?);
        }
        self.is_odd |= headers.len() > LINES_MAX;
        self.check_host(&headers)?;
        let body = self.body(&headers, version)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Request { method: text(method), target: text(target), body })
    }

    /// A line without its end. One that ends in a bare LF is odd.
    fn line(&mut self) -> Result<&'a [u8], Stop> {
        let rest = &self.bytes[self.at..];
        let end = rest.iter().position(|byte| *byte == b'\n').ok_or(Stop::Cut)?;
        self.at += end + 1;
        match rest[..end].strip_suffix(b"\r") {
            Some(line) if !line.contains(&b'\r') => Ok(line),
            Some(_) => Err(Stop::Refused),
            None => {
                self.is_odd = true;
                if rest[..end].contains(&b'\r') { Err(Stop::Refused) } else { Ok(&rest[..end]) }
            }
        }
    }

    fn check_line(&mut self, method: &[u8], target: &[u8], version: &[u8]) -> Result<(), Stop> {
        if !is_token(method) || target.is_empty() {
            return Err(Stop::Refused);
        }
        match version {
            b"HTTP/1.1" => {}
            b"HTTP/1.0" => self.is_odd = true,
            _ => return Err(Stop::Refused),
        }
        let is_usual = [&b"GET"[..], b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"].contains(&method);
        let is_path = target.starts_with(b"/")
            && !target.starts_with(b"//")
            && !target.starts_with(b"/.well-known/")
            && target.iter().all(|b| b.is_ascii_alphanumeric() || b"/?&=._~-".contains(b));
        self.is_odd |= !is_usual || !is_path;
        self.is_last |= method == b"CONNECT";
        Ok(())
    }

    fn header(&mut self, line: &'a [u8]) -> Result<(String, &'a [u8]), Stop> {
        let colon = line.iter().position(|byte| *byte == b':').ok_or(Stop::Refused)?;
        let (name, value) = (&line[..colon], &line[colon + 1..]);
        let is_text = |byte: &u8| matches!(byte, b'\t' | b' '..=b'~' | 0x80..);
        if !is_token(name) || !value.iter().all(is_text) {
            return Err(Stop::Refused);
        }
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        self.is_odd |= SPEAKING.contains(&name.as_str()) || name.starts_with("semel");
        Ok((name, value.trim_ascii()))
    }

    fn check_host(&mut self, headers: &[(String, &[u8])]) -> Result<(), Stop> {
        let mut hosts = headers.iter().filter(|(name, _)| name == "host").map(|(_, value)| *value);
        let (Some(host), None) = (hosts.next(), hosts.next()) else {
            // Refused, but with a framing of its own: what follows may be read.
            self.is_odd = true;
            return Ok(());
        };
        self.is_odd |=
            host.is_empty() || !host.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.'));
        Ok(())
    }

    fn body(&mut self, headers: &[(String, &[u8])], version: &[u8]) -> Result<Vec<u8>, Stop> {
        let all = |wanted: &'static str| {
            headers
                .iter()
                .filter(move |(name, _)| name == wanted)
                .map(|(_, value)| *value)
                .collect::<Vec<_>>()
        };
        let (codings, lengths) = (all("transfer-encoding"), all("content-length"));
        match (codings.as_slice(), lengths.as_slice()) {
            ([], []) => Ok(Vec::new()),
            ([], [first, rest @ ..]) => {
                if rest.iter().any(|other| other != first) || !first.iter().all(u8::is_ascii_digit) {
                    return Err(Stop::Refused);
                }
                self.is_odd |= !rest.is_empty() || first.len() > 15;
                let length: usize = std::str::from_utf8(first)
                    .ok()
                    .and_then(|text| text.parse().ok())
                    .ok_or(Stop::Refused)?;
                self.take(length).map(<[u8]>::to_vec)
            }
            ([coding], _) if coding.eq_ignore_ascii_case(b"chunked") && version == b"HTTP/1.1" => {
                self.is_last |= !lengths.is_empty();
                self.chunks()
            }
            _ => Err(Stop::Refused),
        }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Stop> {
        let taken = self.bytes[self.at..].get(..length).ok_or(Stop::Cut)?;
        self.at += length;
        Ok(taken)
    }

    fn chunks(&mut self) -> Result<Vec<u8>, Stop> {
        let mut body = Vec::new();
        loop {
            let was_odd = self.is_odd;
            let line = self.line()?;
            let (size, extension) = line.split_at(line.iter().position(|b| *b == b';').unwrap_or(line.len()));
            // A bare LF within the framing is where readers differ most.
            if self.is_odd != was_odd || size.is_empty() || !size.iter().all(u8::is_ascii_hexdigit) {
                self.is_odd = true;
                let is_padded =
                    size.trim_ascii().iter().all(u8::is_ascii_hexdigit) && !size.trim_ascii().is_empty();
                if !is_padded {
                    return Err(Stop::Refused);
                }
            }
            self.is_odd |= !extension.is_empty() || size.len() > 8;
            let size = std::str::from_utf8(size.trim_ascii()).map_err(|_| Stop::Refused)?;
            let size = usize::from_str_radix(size, 16).map_err(|_| Stop::Refused)?;
            if size == 0 {
                return self.trailers().map(|()| body);
            }
            body.extend_from_slice(self.take(size)?);
            if self.take(2)? != b"\r\n" {
                return Err(Stop::Refused);
            }
        }
    }

    fn trailers(&mut self) -> Result<(), Stop> {
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return Ok(());
            }
            self.is_odd = true;
            self.header(line)?;
        }
    }
}

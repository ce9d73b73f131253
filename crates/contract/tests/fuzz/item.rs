//! A second reader of RFC 8941 Items, written from the RFC's own algorithms (section 4.2) and nothing else.

/// What a field value is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// A String, with or without parameters.
    Text(String),
    /// An Item of another type.
    Other,
    /// Not an Item.
    Refused,
}

/// Reads a field value. The second result says whether it holds a byte sequence, on whose padding the RFC lets readers
/// differ.
pub(crate) fn item(value: &[u8]) -> (Item, bool) {
    let mut reader = Reader { rest: value, has_bytes: false };
    let read = reader.whole().unwrap_or(Item::Refused);
    (read, reader.has_bytes)
}

struct Reader<'a> {
    rest: &'a [u8],
    has_bytes: bool,
}

impl Reader<'_> {
    fn whole(&mut self) -> Option<Item> {
        self.skip_spaces();
        let item = self.bare()?;
        while self.take(b';') {
            self.skip_spaces();
            self.key()?;
            if self.take(b'=') {
                self.bare()?;
            }
        }
        self.skip_spaces();
        self.rest.is_empty().then_some(item)
    }

    fn peek(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        if found {
            self.rest = &self.rest[1..];
        }
        found
    }

    fn skip_spaces(&mut self) {
        while self.take(b' ') {}
    }

    fn while_in(&mut self, allowed: impl Fn(u8) -> bool) -> Vec<u8> {
        let mut taken = Vec::new();
        while let Some(byte) = self.peek().filter(|byte| allowed(*byte)) {
            taken.push(byte);
            self.rest = &self.rest[1..];
        }
        taken
    }

    fn key(&mut self) -> Option<()> {
        let first = self.next()?;
        (first.is_ascii_lowercase() || first == b'*').then_some(())?;
        self.while_in(|byte| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-' | b'.' | b'*')
        });
        Some(())
    }

    fn bare(&mut self) -> Option<Item> {
        match self.peek()? {
            b'"' => self.string().map(Item::Text),
            b'-' | b'0'..=b'9' => self.number(),
            b'?' => {
                self.next();
                matches!(self.next()?, b'0' | b'1').then_some(Item::Other)
            }
            b':' => self.bytes(),
            b'*' | b'A'..=b'Z' | b'a'..=b'z' => {
                self.while_in(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte));
                Some(Item::Other)
            }
            _ => None,
        }
    }

    fn string(&mut self) -> Option<String> {
        self.next();
        let mut text = String::new();
        loop {
            match self.next()? {
                b'\\' => match self.next()? {
                    byte @ (b'"' | b'\\') => text.push(char::from(byte)),
                    _ => return None,
                },
                b'"' => return Some(text),
                byte @ 0x20..=0x7e => text.push(char::from(byte)),
                _ => return None,
            }
        }
    }

    fn number(&mut self) -> Option<Item> {
        self.take(b'-');
        let whole = self.while_in(|byte| byte.is_ascii_digit()).len();
        if whole == 0 || whole > 15 {
            return None;
        }
        if self.take(b'.') {
            let fraction = self.while_in(|byte| byte.is_ascii_digit()).len();
            return (whole <= 12 && (1..=3).contains(&fraction)).then_some(Item::Other);
        }
        Some(Item::Other)
    }

    fn bytes(&mut self) -> Option<Item> {
        self.next();
        self.has_bytes = true;
        self.while_in(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'='));
        self.take(b':').then_some(Item::Other)
    }
}
